"""Redis streams with redis-py and hiredis: an append-only file synced every second, one consumer group.

A worker reads as many entries as it may have, and acknowledges each; without work, all of a read at once. It claims
what was idle for a second.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from live.redis_streams import FIELD, PIPELINE_EVENTS, RedisStreams
from redis.asyncio import Redis

from work.job import GROUP, TOPIC, Job
from work.system import SILENCE_S, Handle, Send

CLAIM_EVERY_S = 0.2


class ConsumerGroup:
    @contextmanager
    def serve(self, directory: Path) -> Iterator[str]:
        with RedisStreams().serve(directory, 1) as served:
            yield served.url_in

    async def prepare(self, url: str) -> None:
        async with Redis.from_url(url) as client:
            await client.xgroup_create(TOPIC, GROUP, id="$", mkstream=True)

    @asynccontextmanager
    async def publisher(self, url: str) -> AsyncIterator[Send]:
        async with Redis.from_url(url) as client:

            async def send(bodies: Sequence[bytes]) -> None:
                for first in range(0, len(bodies), PIPELINE_EVENTS):
                    pipeline = client.pipeline(transaction=False)
                    for body in bodies[first : first + PIPELINE_EVENTS]:
                        pipeline.xadd(TOPIC, {FIELD: body})
                    await pipeline.execute()

            yield send

    async def work(self, job: Job, handle: Handle, ready: asyncio.Event) -> None:
        name = f"worker{secrets.token_hex(4)}"
        async with Redis.from_url(job.url) as client:
            ready.set()
            claim_at = time.monotonic() + CLAIM_EVERY_S
            while True:
                found: Any = await client.xreadgroup(
                    GROUP, name, {TOPIC: ">"}, count=job.ahead + 1, block=int(1000 * CLAIM_EVERY_S)
                )
                for _, entries in found or ():
                    await do(client, entries, handle, together=not job.work_ms)
                if time.monotonic() > claim_at:
                    claimed: Any = await client.xautoclaim(
                        TOPIC, GROUP, name, int(1000 * SILENCE_S), count=job.ahead + 1
                    )
                    await do(client, claimed[1], handle, together=False)
                    claim_at = time.monotonic() + CLAIM_EVERY_S


async def do(client: Any, entries: Any, handle: Handle, *, together: bool) -> None:
    for entry, fields in entries:
        await handle(fields[FIELD])
        if not together:
            await client.xack(TOPIC, GROUP, entry)
    if together and entries:
        await client.xack(TOPIC, GROUP, *(entry for entry, _ in entries))
