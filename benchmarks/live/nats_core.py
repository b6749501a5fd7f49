"""NATS core with nats-py: subjects, at most once. The client buffers what it publishes; a flush ends each batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from live.job import Event, Job, packed, unpacked
from live.servers import free_port, server
from live.system import Arrived, Send, Served


def subject(topic: str) -> str:
    return topic.strip("/").replace("/", ".")


class NatsCore:
    @contextmanager
    def serve(self, directory: Path, brokers: int) -> Iterator[Served]:
        port = free_port()
        with server(directory, port, "nats-server", "--addr", "127.0.0.1", "--port", str(port)) as pid:
            url = f"nats://127.0.0.1:{port}"
            yield Served(url, url, {"nats-server": pid})

    @asynccontextmanager
    async def publisher(self, job: Job, number: int) -> AsyncIterator[Send]:
        where = subject(job.topic)
        async with connection(job.url) as client:

            async def send(events: list[Event]) -> None:
                for event in events:
                    await client.publish(where, packed(event))
                if len(events) > 1:  # the client itself flushes a single event at once
                    await client.flush()

            yield send

    async def read(self, job: Job, arrived: Arrived, ready: asyncio.Event) -> None:
        async def take(message: Msg) -> None:  # a callback costs half as much as `async for`
            arrived(unpacked(message.data)[1])

        async with connection(job.url) as client:
            await client.subscribe(subject(job.topic), cb=take, pending_msgs_limit=-1)
            await client.flush()
            ready.set()
            await asyncio.Event().wait()


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[Client]:
    client = await nats.connect(url, allow_reconnect=False)
    try:
        yield client
    finally:
        await client.close()
