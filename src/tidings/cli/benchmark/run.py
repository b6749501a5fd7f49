"""Publishes for `tidings bench`: first at a modest rate, for latencies, then as fast as events get through."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from typing import Any, NamedTuple

from tidings.bus.host import ApplicationHost
from tidings.cli.benchmark import words
from tidings.cli.benchmark.network import cpu_seconds
from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.output import Progress
from tidings.core.errors import ConnectionFailed, TidingsError
from tidings.core.events.subscription import OrderName
from tidings.drivers.processes.brokers import BrokerNetwork
from tidings.drivers.processes.child import ChildProcess

LATENCY_EVENTS = 4000
LATENCY_RATE_HZ = 2000.0
PROBE_S = 0.1
PROBE_TIMEOUT_S = 30.0
BATCH_EVENTS = 1024
BATCHES_IN_FLIGHT = 4
WINDOW_EVENTS = 32_768
"""The events under way to the slowest subscriber; without a limit, a lossy network would lose most of them."""
STALL_S = 5.0
ERRORS = {ExitCode.UNREACHABLE: ConnectionFailed, ExitCode.BAD_INPUT: TidingsError}


class Load(NamedTuple):
    events: int
    size_bytes: int
    subscribers: int
    order: OrderName


class Subscribers(ChildProcess):
    """Runs the subscribers' process and keeps its last report."""

    def __init__(self) -> None:
        super().__init__("the subscribers")
        self.arrived = 0
        self._told: asyncio.Queue[words.BenchReady | words.PhaseOver] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def start(self, work: words.BenchWork) -> None:
        stdout = await self.spawn([sys.executable, "-P", "-m", "tidings.cli.benchmark.process"])
        self._reading = asyncio.create_task(self._read(stdout))
        self.tell(words.line_of(work))

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        async for line in stdout:
            match words.decode_told(line):
                case words.Arrived(count=count):
                    self.arrived = count
                case words.BenchFailed(code=code, reason=reason):
                    raise ERRORS.get(ExitCode(code), RuntimeError)(reason)
                case told:
                    self.arrived = 0
                    self._told.put_nowait(told)
        raise ConnectionFailed(f"the subscribers' process ended: {self.last_error_line or 'no reason given'}")

    async def next(self) -> Any:
        """Return the next report; raise if the process ends instead."""
        assert self._reading is not None
        saying = asyncio.create_task(self._told.get())
        try:
            await asyncio.wait({saying, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not saying.done():
                self._reading.result()
            return saying.result()
        finally:
            saying.cancel()

    async def end(self) -> None:
        await self.stop()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


async def measure(
    publisher: ApplicationHost,
    work: words.BenchWork,
    load: Load,
    network: BrokerNetwork | None,
    progress: Progress,
) -> dict[str, Any]:
    """Measure with an open publisher on a running network."""
    subscribers = Subscribers()
    try:
        await subscribers.start(work)
        flow = Flow(publisher, subscribers, work.topic, load, progress)
        await flow.reach()
        quiet = await flow.slow()
        return {**await flow.fast(network), "latency_us": quiet.latencies_us}
    finally:
        await subscribers.end()


class Flow:
    def __init__(
        self, publisher: ApplicationHost, subscribers: Subscribers, topic: str, load: Load, progress: Progress
    ) -> None:
        self._publisher = publisher
        self._subscribers = subscribers
        self._topic = topic
        self._load = load
        self._progress = progress
        self._payload = bytes(load.size_bytes)
        self._lost = 0
        """Events that are no longer waited for."""

    def _events(self, phase: int, count: int) -> list[tuple[str, dict[str, int], bytes]]:
        attributes = {words.PHASE: phase, words.PUBLISHED_AT: time.monotonic_ns()}
        return [(self._topic, attributes, self._payload)] * count

    async def reach(self) -> None:
        """Publish until every subscriber receives something: a subscription takes time to spread through a network."""
        ready = asyncio.create_task(self._subscribers.next())
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                while not ready.done():
                    await self._publisher.publish_many(self._events(words.PROBE, 1))
                    await asyncio.wait({ready}, timeout=PROBE_S)
        except TimeoutError:
            raise TimeoutError(f"no event reached all subscribers within {PROBE_TIMEOUT_S:.0f} s") from None
        finally:
            ready.cancel()
        ready.result()

    async def slow(self) -> words.PhaseOver:
        """Publish at a modest rate, to measure the path and not a queue."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as publishing:
            for number in range(LATENCY_EVENTS):
                await asyncio.sleep(max(0.0, began + number / LATENCY_RATE_HZ - time.monotonic()))
                publishing.create_task(self._publisher.publish_many(self._events(words.LATENCY, 1)))
        return await self._over()

    async def fast(self, network: BrokerNetwork | None) -> dict[str, Any]:
        """Publish as fast as possible; the time runs from the first call to the last arrival."""
        events, subscribers = self._load.events, self._load.subscribers
        at_network, own_s = cpu_seconds(network), time.process_time()
        began_ns = time.monotonic_ns()
        await self._publish_all()
        confirmed_ns = time.monotonic_ns()
        own_s = time.process_time() - own_s
        read = await self._over()
        used_s = {"publisher": own_s, "subscribers": read.cpu_s}
        used_s |= {name: total - at_network[name] for name, total in cpu_seconds(network).items()}
        took_ns = read.last_at_ns - began_ns
        return {
            "published": events,
            "expected": events * subscribers,
            "arrived": read.arrived,
            "lost": events * subscribers - read.arrived,
            "published_per_s": round(events / (confirmed_ns - began_ns) * 1e9),
            "arrived_per_s": round(read.arrived / took_ns * 1e9) if read.arrived else 0,
            "cpu_us_per_event": {name: round(1e6 * used / events, 2) for name, used in used_s.items()},
        }

    async def _publish_all(self) -> None:
        flying: set[asyncio.Task[int]] = set()
        for first in range(0, self._load.events, BATCH_EVENTS):
            await self._room(first)
            batch = self._events(words.RATE, min(BATCH_EVENTS, self._load.events - first))
            flying.add(asyncio.create_task(self._publisher.publish_many(batch)))
            self._progress(self._subscribers.arrived / self._load.events)
            if len(flying) == BATCHES_IN_FLIGHT:
                landed, flying = await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
                for task in landed:
                    task.result()
        await asyncio.gather(*flying)

    async def _room(self, published: int) -> None:
        """Wait while too many events are under way and still arriving."""
        seen, since = -1, time.monotonic()
        while published - self._subscribers.arrived - self._lost > WINDOW_EVENTS:
            if self._subscribers.arrived != seen:
                seen, since = self._subscribers.arrived, time.monotonic()
            elif time.monotonic() - since > STALL_S:
                self._lost = published - seen
            await asyncio.sleep(0.001)

    async def _over(self) -> words.PhaseOver:
        self._subscribers.tell(b"\n")
        told: words.PhaseOver = await self._subscribers.next()
        return told


def new_topic() -> str:
    return f"/bench/{secrets.token_hex(6)}"
