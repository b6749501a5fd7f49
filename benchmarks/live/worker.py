"""One client process of a measurement: `python -m live.worker JOB`. It prints JSON lines, and waits for lines."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections import deque
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import uvloop

from live.board import Board
from live.job import Job, make_events
from live.meter import QUIET_S, Meter
from live.system import System
from live.systems import system_of

BATCHES_IN_FLIGHT = 4
WINDOW_EVENTS = 32_768
"""In flight from the publishers to the slowest reader. Without it systems without flow control would lose events."""
MAX_LATE_S = 2.0
LEAVE_TIMEOUT_S = 3.0
SINGLE_BELOW = 10_000
"""Up to this rate, events are published one by one."""


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(ROLES[job.role](job, system_of(job.system)))


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def told() -> bool:
    """Wait for a line from the parent; False: it closed our input or is gone."""
    return bool(await asyncio.to_thread(sys.stdin.readline))


async def end_with_parent() -> None:
    if not await told():
        os._exit(1)  # even in the middle of reading


class Cpu:
    """CPU seconds of this process since this was made."""

    def __init__(self) -> None:
        self._began = time.process_time()

    @property
    def seconds(self) -> float:
        return time.process_time() - self._began


async def read(job: Job, system: System) -> None:
    meter = Meter(job, Board(job.board, job.readers, job.publishers))
    orphaned = asyncio.create_task(end_with_parent())
    ready = asyncio.Event()
    reading = asyncio.create_task(system.read(job, meter.arrived, ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        reading.result()
    say(ready=True)
    cpu = Cpu()
    ended = asyncio.create_task(meter.ended())
    await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        reading.result()
    say(cpu_s=cpu.seconds, **meter.figures())
    for task in (reading, orphaned):
        task.cancel()
    _, pending = await asyncio.wait({reading}, timeout=LEAVE_TIMEOUT_S)
    if pending:  # redis-py may swallow it
        os._exit(0)


async def publish(job: Job, system: System) -> None:
    async with AsyncExitStack() as stack:
        open_ones = [
            await stack.enter_async_context(system.publisher(job, number))
            for number in range(job.connections)
        ]
        say(ready=True)
        if not await told():
            return
        cpu, began_at = Cpu(), time.monotonic_ns()
        flow = Flow(job, Board(job.board, job.readers, job.publishers), deque(open_ones))
        await (flow.paced() if job.rate else flow.unpaced())
        took_s = (time.monotonic_ns() - began_at) / 1e9
        say(cpu_s=cpu.seconds, began_at=began_at, sent=flow.sent, offered_per_s=flow.sent / took_s)
        await told()


class Flow:
    """Publishes the events of one publisher, in batches of which several are in flight."""

    def __init__(self, job: Job, board: Board, sends: deque[Any]) -> None:
        self.sent = 0
        self._job = job
        self._board = board
        self._sends = sends
        self._flying: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._lost = 0
        """Events considered lost."""

    def _send(self, first: int, count: int) -> None:
        send = self._sends[0]
        self._sends.rotate()
        task = asyncio.create_task(send(make_events(self._job, first, count)))
        self._flying.add(task)
        task.add_done_callback(self._land)
        self.sent += count
        self._board.put(self._job.slot, self.sent)

    def _land(self, task: asyncio.Task[None]) -> None:
        self._flying.discard(task)
        self._failure = self._failure or task.exception()

    async def _landed(self, at_most: int) -> None:
        while len(self._flying) > at_most and self._failure is None:
            await asyncio.wait(self._flying, return_when=asyncio.FIRST_COMPLETED)
        if self._failure is not None:
            raise self._failure

    async def unpaced(self) -> None:
        size = self._job.batch
        for first in range(0, self._job.events, size):
            await self._room()
            self._send(first, min(size, self._job.events - first))
            await self._landed(BATCHES_IN_FLIGHT - 1)
        await self._landed(0)

    async def _room(self) -> None:
        """Wait while too many events are in flight and still arriving."""
        seen, since = -1, time.monotonic()
        while self._job.readers and (flying := self._board.published - self._board.read) > (
            WINDOW_EVENTS + self._lost
        ):
            if self._board.read != seen:
                seen, since = self._board.read, time.monotonic()
            elif time.monotonic() - since > QUIET_S:
                self._lost = flying
            await asyncio.sleep(0.001)

    async def paced(self) -> None:
        """Publish at a rate, and end in time: a system that cannot keep up is offered less."""
        rate = self._job.rate
        size = 1 if rate <= SINGLE_BELOW else rate // 500
        began = time.monotonic()
        for first in range(0, self._job.events, size):
            late_s = time.monotonic() - began - first / rate
            if late_s > MAX_LATE_S:
                break
            await asyncio.sleep(max(0.0, -late_s))
            self._send(first, min(size, self._job.events - first))
            await self._landed(max(1, rate // size))
        self._board.put(self._job.slot, self._job.events)  # no more will follow
        await self._landed(0)


async def hold(job: Job, system: System) -> None:
    """Hold open connections and subscriptions of tidings that nobody reads."""
    from live.own import hold_open

    async with AsyncExitStack() as stack:
        await hold_open(job, stack)
        say(ready=True)
        await told()


ROLES = {"read": read, "publish": publish, "hold": hold}

if __name__ == "__main__":
    main()
