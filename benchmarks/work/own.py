"""tidings, one guaranteed broker with a disk: `subscribe(group=...)` and `async for`, acknowledged automatically."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from live.own import Tidings

import tidings
from work.job import GROUP, TOPIC, Job
from work.system import Handle, Send


class Group:
    @contextmanager
    def serve(self, directory: Path) -> Iterator[str]:
        with Tidings("guaranteed").serve(directory, 1) as served:
            yield served.url_in

    async def prepare(self, url: str) -> None:
        async with tidings.connect(url) as bus, bus.subscribe(TOPIC, group=GROUP):
            pass

    @asynccontextmanager
    async def publisher(self, url: str) -> AsyncIterator[Send]:
        async with tidings.connect(url) as bus:

            async def send(bodies: Sequence[bytes]) -> None:
                await bus.publish_many((TOPIC, {}, body) for body in bodies)

            yield send

    async def work(self, job: Job, handle: Handle, ready: asyncio.Event) -> None:
        async with (
            tidings.connect(job.url) as bus,
            bus.subscribe(TOPIC, group=GROUP, max_unacked=job.ahead + 1) as stream,
        ):
            ready.set()
            async for event in stream:
                await handle(event.payload)
