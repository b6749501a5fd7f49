"""JetStream, file storage, with nats-py: a stream with work queue retention, and one durable pull consumer.

A worker fetches as many messages as it may have and acknowledges each. Where waiting is measured it fetches one: the
client library's `fetch` of several holds messages back until all are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import nats.errors
from live.nats_core import connection
from live.servers import free_port, server
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from work.job import GROUP, Job
from work.system import SILENCE_S, Handle, Send

STREAM, SUBJECT = "work", "work.jobs"
START_ATTEMPTS = 100
FETCH_TIMEOUT_S = 1.0


class WorkQueue:
    @contextmanager
    def serve(self, directory: Path) -> Iterator[str]:
        port = free_port()
        flags = ["--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", str(directory)]
        with server(directory, port, "nats-server", *flags):
            yield f"nats://127.0.0.1:{port}"

    async def prepare(self, url: str) -> None:
        stream = StreamConfig(
            name=STREAM, subjects=["work.>"], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
        )
        consumer = ConsumerConfig(
            durable_name=GROUP, ack_policy=AckPolicy.EXPLICIT, ack_wait=SILENCE_S, max_ack_pending=65_536
        )
        async with connection(url) as client:
            for attempt in range(
                START_ATTEMPTS
            ):  # JetStream answers later than the server accepts connections
                try:
                    await client.jetstream().add_stream(stream)
                    break
                except nats.errors.NoRespondersError:
                    if attempt == START_ATTEMPTS - 1:
                        raise
                    await asyncio.sleep(0.05)
            await client.jetstream().add_consumer(STREAM, consumer)

    @asynccontextmanager
    async def publisher(self, url: str) -> AsyncIterator[Send]:
        async with connection(url) as client:
            stream = client.jetstream()

            async def send(bodies: Sequence[bytes]) -> None:
                await asyncio.gather(*[await stream.publish_async(SUBJECT, body) for body in bodies])

            yield send

    async def work(self, job: Job, handle: Handle, ready: asyncio.Event) -> None:
        async with connection(job.url) as client:
            batch = 1 if job.rate else job.ahead + 1
            subscription = await client.jetstream().pull_subscribe_bind(GROUP, STREAM)
            ready.set()
            while True:
                with suppress(nats.errors.TimeoutError):
                    for message in await subscription.fetch(batch, timeout=FETCH_TIMEOUT_S):
                        await handle(message.data)
                        await message.ack()
