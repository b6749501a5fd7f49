"""Redis Streams with redis-py and hiredis: an append-only file synced every second, pipelines, consumer groups."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from live.job import Event, Job, packed, unpacked
from live.servers import free_port, server
from live.system import Arrived, Send, Served

PIPELINE_EVENTS = 500
FIELD = b"e"


class RedisStreams:
    @contextmanager
    def serve(self, directory: Path, brokers: int) -> Iterator[Served]:
        port = free_port()
        flags = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", ""]
        with server(directory, port, "redis-server", *flags, "--appendonly", "yes") as pid:
            url = f"redis://127.0.0.1:{port}/0"
            yield Served(url, url, {"redis-server": pid})

    @asynccontextmanager
    async def publisher(self, job: Job, number: int) -> AsyncIterator[Send]:
        async with Redis.from_url(job.url) as client:

            async def send(events: list[Event]) -> None:
                for first in range(0, len(events), PIPELINE_EVENTS):
                    pipeline = client.pipeline(transaction=False)
                    for event in events[first : first + PIPELINE_EVENTS]:
                        pipeline.xadd(job.topic, {FIELD: packed(event)})
                    await pipeline.execute()

            yield send

    async def read(self, job: Job, arrived: Arrived, ready: asyncio.Event) -> None:
        group = f"reader{secrets.token_hex(4)}"
        async with Redis.from_url(job.url) as client:
            await client.xgroup_create(job.topic, group, id="$", mkstream=True)
            ready.set()
            while True:
                found: Any = await client.xreadgroup(
                    group, group, {job.topic: ">"}, count=PIPELINE_EVENTS, block=1000
                )
                for _, entries in found or ():
                    for _, fields in entries:
                        arrived(unpacked(fields[FIELD])[1])
                    await client.xack(job.topic, group, *(entry for entry, _ in entries))
