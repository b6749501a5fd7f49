"""One client process of a measurement: `python -m work.process JOB`. It prints JSON lines, and waits for lines."""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec
import uvloop
from live.worker import end_with_parent, say, told

from work.job import Job, Notes, payload
from work.system import System, system_of

BATCH = 1_000
TOGETHER = 2
"""Batches in flight."""


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    uvloop.run(ROLES[job.role](job, system_of(job.system)))


async def work(job: Job, system: System) -> None:
    """Work until the parent closes our input or kills us."""
    notes = Notes(job.notes)
    work_s = job.work_ms / 1000
    ready = asyncio.Event()

    async def handle(body: bytes) -> None:
        at = notes.begin(body)
        if work_s:
            await asyncio.sleep(work_s)
        notes.finish(at)

    say(ready=True)
    if not await told():
        return
    working = asyncio.create_task(system.work(job, handle, ready))
    joined = asyncio.create_task(ready.wait())
    await asyncio.wait({working, joined}, return_when=asyncio.FIRST_COMPLETED)
    if joined.done():
        say(joined=True)
    ended = asyncio.create_task(end_with_parent())
    await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
    working.result()


async def publish(job: Job, system: System) -> None:
    await system.prepare(job.url)
    async with system.publisher(job.url) as send:
        say(ready=True)
        while await told():  # each line asks for everything once more
            began = time.monotonic()
            numbers = range(job.events)
            if job.rate:
                sending = set()
                for number in numbers:
                    await asyncio.sleep(max(0.0, began + number / job.rate - time.monotonic()))
                    sending.add(asyncio.create_task(send([payload(number)])))
                await asyncio.gather(*sending)
            else:
                for first in range(0, job.events, BATCH * TOGETHER):
                    chunk = [payload(number) for number in numbers[first : first + BATCH * TOGETHER]]
                    await asyncio.gather(send(chunk[:BATCH]), send(chunk[BATCH:]))
            say(published=job.events, seconds=time.monotonic() - began)


ROLES = {"work": work, "publish": publish}

if __name__ == "__main__":
    main()
