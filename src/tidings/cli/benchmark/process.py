"""Runs the subscribers of `tidings bench` in a process of their own: `python -m tidings.cli.benchmark.process`.

It reads its work from stdin and ends when stdin closes.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack, suppress

from tidings.bus.connect import connect
from tidings.bus.stream import Stream
from tidings.cli.benchmark import words
from tidings.cli.shared.exits import exit_code_of, message_of
from tidings.drivers.processes.control import wake_when_orphaned
from tidings.drivers.processes.stdin import each_line

QUIET_S = 5.0
"""Once all is published and nothing has arrived for this long, the rest is lost."""
REPORT_EVENTS = 256


def say(what: words.Told) -> None:
    os.write(1, words.line_of(what))


async def work_until_told() -> None:
    """Run until stdin closes or an error occurs, which is reported to the command."""
    orders = each_line()
    work = words.decode_work(await anext(orders))
    published = [asyncio.Event() for _ in work.events]
    reading = asyncio.create_task(measured(work, published))
    waiting = iter(published)
    async for _ in orders:
        next(waiting).set()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def measured(work: words.BenchWork, published: list[asyncio.Event]) -> None:
    try:
        async with AsyncExitStack() as stack:
            streams = [await opened(work, stack) for _ in range(work.subscribers)]
            await asyncio.gather(*(stream.get() for stream in streams))
            say(words.BenchReady())
            for number, events in enumerate(work.events):
                phase = PhaseResult(words.LATENCY + number, events, published[number], len(streams))
                await asyncio.gather(*(phase.read(index, stream) for index, stream in enumerate(streams)))
                say(phase.told())
    except Exception as error:
        say(words.BenchFailed(exit_code_of(error), message_of(error)))


async def opened(work: words.BenchWork, stack: AsyncExitStack) -> Stream:
    bus = await stack.enter_async_context(connect(work.url, token=work.token, tls_ca=work.tls_ca))
    stream = bus.subscribe(work.topic, order=work.order, buffer_events=max(work.events))
    return await stack.enter_async_context(stream)


class PhaseResult:
    """Holds what all subscribers received in one phase."""

    def __init__(self, number: int, expected: int, published: asyncio.Event, subscribers: int) -> None:
        self._number = number
        self._expected = expected
        self._published = published
        self._counts = [0] * subscribers
        self._last_at_ns = 0
        self._latencies_ns: list[int] | None = [] if number == words.LATENCY else None
        self._cpu_began_s = time.process_time()

    async def read(self, index: int, stream: Stream) -> None:
        counts = self._counts
        while counts[index] < self._expected:
            try:
                event = await stream.get(timeout_s=QUIET_S)
            except TimeoutError:
                if self._published.is_set():
                    return
                continue
            if event.attributes[words.PHASE] != self._number:
                continue
            counts[index] += 1
            self._last_at_ns = now_ns = time.monotonic_ns()
            if self._latencies_ns is not None:
                published_at_ns = event.attributes[words.PUBLISHED_AT]
                assert isinstance(published_at_ns, int)
                self._latencies_ns.append(now_ns - published_at_ns)
            if counts[index] % REPORT_EVENTS == 0:
                say(words.Arrived(min(counts)))

    def told(self) -> words.PhaseOver:
        used_s = time.process_time() - self._cpu_began_s
        latencies = quantiles_us(sorted(self._latencies_ns or ()))
        return words.PhaseOver(sum(self._counts), self._last_at_ns, used_s, latencies)


def quantiles_us(ordered_ns: list[int]) -> dict[str, float] | None:
    """Return p50, p99 and the maximum of ascending values; None if there are none."""
    if not ordered_ns:
        return None
    last = len(ordered_ns) - 1
    picked = {"p50": ordered_ns[last // 2], "p99": ordered_ns[last * 99 // 100], "max": ordered_ns[last]}
    return {name: value / 1000 for name, value in picked.items()}


def main() -> None:
    from tidings.drivers.sockets.loop import run

    wake_when_orphaned()
    with suppress(BrokenPipeError, StopAsyncIteration):
        run(work_until_told())


if __name__ == "__main__":
    main()
