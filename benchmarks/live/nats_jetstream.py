"""JetStream, file storage, with nats-py: publishes without waiting in between; a push consumer acknowledges.

An acknowledgement covers all earlier messages, and is sent when none is waiting, or after a number of messages.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from live.job import Event, Job, packed, unpacked
from live.nats_core import connection, subject
from live.servers import free_port, server
from live.system import Arrived, Send, Served

ACKNOWLEDGE_EVENTS = 256
UNACKNOWLEDGED_EVENTS = 65_536
START_ATTEMPTS = 100


class JetStream:
    @contextmanager
    def serve(self, directory: Path, brokers: int) -> Iterator[Served]:
        port = free_port()
        flags = ["--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", str(directory)]
        with server(directory, port, "nats-server", *flags) as pid:
            url = f"nats://127.0.0.1:{port}"
            asyncio.run(make_stream(url))
            yield Served(url, url, {"nats-server": pid})

    @asynccontextmanager
    async def publisher(self, job: Job, number: int) -> AsyncIterator[Send]:
        where = subject(job.topic)
        async with connection(job.url) as client:
            stream = client.jetstream()

            async def send(events: list[Event]) -> None:
                await asyncio.gather(*[await stream.publish_async(where, packed(event)) for event in events])

            yield send

    async def read(self, job: Job, arrived: Arrived, ready: asyncio.Event) -> None:
        since = 0

        async def take(message: Msg) -> None:
            nonlocal since
            arrived(unpacked(message.data)[1])
            since += 1
            if since >= ACKNOWLEDGE_EVENTS or not subscription.pending_msgs:
                since = 0
                await message.ack()

        async with connection(job.url) as client:
            config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=UNACKNOWLEDGED_EVENTS)
            subscription = await client.jetstream().subscribe(
                subject(job.topic),
                durable=f"reader{secrets.token_hex(4)}",
                cb=take,
                config=config,
                manual_ack=True,
                pending_msgs_limit=-1,
                pending_bytes_limit=-1,
            )
            ready.set()
            await asyncio.Event().wait()


async def make_stream(url: str) -> None:
    """Create the stream. JetStream answers a little later than the server accepts connections."""
    config = StreamConfig(name="bench", subjects=["bench.>"], storage=StorageType.FILE)
    async with connection(url) as client:
        for attempt in range(START_ATTEMPTS):
            try:
                await client.jetstream().add_stream(config)
                return
            except NoRespondersError:
                if attempt == START_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.05)
