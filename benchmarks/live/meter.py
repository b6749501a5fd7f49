"""Records what arrived at one reader, when, and with what latency."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from live.board import Board
from live.job import Job

REPORT_EVENTS = 256
QUIET_S = 5.0
"""If everything is published and nothing has arrived for this long, the rest is lost."""


class Meter:
    """Counts arrivals; `arrived` may be called in another thread than the loop's."""

    def __init__(self, job: Job, board: Board) -> None:
        self.count = 0
        self.last_at = 0
        self.done = False
        self._job = job
        self._board = board
        self._latencies_ns: list[int] | None = [] if job.rate else None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def arrived(self, payload: bytes) -> None:
        self.last_at = now = time.monotonic_ns()
        self.count += 1
        if self._latencies_ns is not None:
            self._latencies_ns.append(now - int.from_bytes(payload[:8], "big"))
        if self.count % REPORT_EVENTS == 0:
            self._board.put(self._job.slot, self.count)
        if self.count == self._job.events:
            self._board.put(self._job.slot, self.count)
            self.done = True
            self._loop.call_soon_threadsafe(self._ended.set)

    async def ended(self) -> None:
        """Wait until everything has arrived, or nothing arrives any more."""
        seen, since = -1, time.monotonic()
        while not self.done and time.monotonic() - since < QUIET_S:
            if self.count != seen or self._board.published < self._job.events:
                seen, since = self.count, time.monotonic()
            try:
                async with asyncio.timeout(0.5):
                    await self._ended.wait()
            except TimeoutError:
                continue
        self.done = True

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {"count": self.count, "last_at": self.last_at}
        if self._latencies_ns:
            ordered = sorted(self._latencies_ns)
            for name, share in (("p50_us", 0.5), ("p99_us", 0.99)):
                found[name] = ordered[int(share * (len(ordered) - 1))] / 1000
        return found
