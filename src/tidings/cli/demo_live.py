"""The live half of `tidings demo`: real broker processes, one of which is killed and started again.

Two publishers publish steadily the whole time. Every event belongs to the phase in which it was published:
`before` the kill, `outage`, and `after`, which begins once every subscriber has heard from every publisher
again. What an outage costs is then a matter of counting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidings.cli.output import progress_bar
from tidings.cli.processes import BrokerNetwork, free_addresses
from tidings.cli.topology import tree
from tidings.model.errors import ConnectionFailed
from tidings.model.filter import Filter
from tidings.services.overlay import connect

if TYPE_CHECKING:
    from tidings.model.predicates import Scalar
    from tidings.services.bus import Bus
    from tidings.services.stream import Stream

RATE_HZ = 100.0
REACH_TIMEOUT_S = 20.0
ARRIVE_TIMEOUT_S = 10.0
PHASES = ("before", "outage", "after")
WARM_UP = "warm-up"
KILLED = "b1"
"""With two children each, b1 is the first broker below the root that has some of its own."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sent:
    phase: str
    topic: str
    attributes: Mapping[str, Scalar]

    @property
    def key(self) -> tuple[str, object]:
        return self.topic, self.attributes["number"]


@dataclass(slots=True)
class Writer:
    at: str
    topic: str
    sent: list[Sent] = field(default_factory=list)


@dataclass(slots=True)
class Reader:
    at: str
    where: str | None
    arrived: Counter[tuple[str, object]] = field(default_factory=Counter)

    def wants(self, sent: Sent) -> bool:
        return self.where is None or Filter(self.where).matches({**sent.attributes, "topic": sent.topic})


@dataclass(frozen=True, slots=True)
class ReaderResult:
    """Per phase: how many events the subscriber should have got, and how many of these it did."""

    at: str
    where: str | None
    expected: dict[str, int]
    arrived: dict[str, int]
    duplicates: int

    def missed(self, phase: str) -> int:
        return self.expected[phase] - self.arrived[phase]


@dataclass(frozen=True, slots=True)
class LiveResult:
    killed: str
    outage_s: float
    """From the kill to the restart."""
    resumed_s: float
    """From the restart until everybody heard from everybody again."""
    published: int
    readers: list[ReaderResult]

    @property
    def as_claimed(self) -> bool:
        """Nothing is missed while all brokers live, and nothing ever comes twice."""
        return not any(
            reader.missed("before") or reader.missed("after") or reader.duplicates for reader in self.readers
        )


class LiveDemo:
    def __init__(self, brokers: int, phase_s: float, tell: Tell, *, quiet: bool) -> None:
        topology = tree(brokers)
        self.network = BrokerNetwork(topology, free_addresses(topology.brokers))
        self.phase = WARM_UP
        self.phase_s = phase_s
        self.tell = tell
        self.quiet = quiet
        last = topology.brokers[-1]
        self.writers = [Writer("b2", "/news/west"), Writer("b3", "/news/east")]
        self.readers = [
            Reader("b0", None),
            Reader("b2", "provider = 'BBC'"),
            Reader("b3", "size > 50 AND topic = '/news/east'"),
            Reader(last, "subject LIKE 'oil%' OR location IN ('UK', 'USA')"),
        ]

    async def play(self) -> LiveResult:
        """The whole course; whatever happens, no process is left."""
        async with self.network, AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            urls = {name: broker.url for name, broker in self.network.brokers.items()}
            self.tell(f"{len(urls)} brokers run as processes: {', '.join(urls)}.")
            steady: list[asyncio.Task[None]] = []
            for reader in self.readers:
                bus = await stack.enter_async_context(connect(urls[reader.at]))
                stream = await stack.enter_async_context(bus.subscribe("/news/**", where=reader.where))
                steady.append(tasks.create_task(self._read(reader, stream)))
            for writer in self.writers:
                bus = await stack.enter_async_context(connect(urls[writer.at]))
                steady.append(tasks.create_task(self._write(writer, bus)))
            result = await self._course(steady[len(self.readers) :])
            for task in steady:
                task.cancel()
        return result

    async def _course(self, writing: list[asyncio.Task[None]]) -> LiveResult:
        loop = asyncio.get_running_loop()
        await self._everybody_hears()
        self.tell(f"Publishing {RATE_HZ:.0f} events/s at each of {', '.join(w.at for w in self.writers)}.")
        await self._publish_for("before")
        self.phase = "outage"
        await self._all_arrived("before")
        await self.network.kill(KILLED)
        killed_at = loop.time()
        self.tell(
            f"kill -9 {KILLED}: what is to pass it is lost, for in this mode nobody keeps or repairs it."
        )
        await self._publish_for("outage")
        await self.network.restart(KILLED)
        restarted_at = loop.time()
        self.tell(f"{KILLED} is started again.")
        await self._everybody_hears()
        resumed_at = loop.time()
        self.tell(f"{resumed_at - restarted_at:.1f} s later everybody hears from everybody again.")
        await self._publish_for("after")
        for task in writing:
            task.cancel()
        await self._all_arrived("after")
        return LiveResult(
            KILLED, restarted_at - killed_at, resumed_at - restarted_at, self._published(), self._results()
        )

    # --- Steady work

    async def _write(self, writer: Writer, bus: Bus) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        number = 0
        while True:
            await asyncio.sleep(max(0.0, began_at + number / RATE_HZ - loop.time()))
            sent = Sent(self.phase, writer.topic, story(number))
            writer.sent.append(sent)
            await bus.publish(sent.topic, sent.attributes, b"...")
            number += 1

    async def _read(self, reader: Reader, stream: Stream) -> None:
        async for event in stream:
            reader.arrived[event.topic, event.attributes["number"]] += 1

    async def _publish_for(self, phase: str) -> None:
        self.phase = phase
        steps = 20
        with progress_bar(f"publishing: {phase}", quiet=self.quiet) as progress:
            for step in range(steps):
                await asyncio.sleep(self.phase_s / steps)
                progress((step + 1) / steps)

    # --- Conditions

    async def _everybody_hears(self) -> None:
        """Until each subscriber got something that each publisher published after this call, if it wants any."""
        first = [len(writer.sent) for writer in self.writers]

        def heard(reader: Reader, writer: Writer, begin: int) -> bool:
            wanted = [sent for sent in writer.sent[begin:] if reader.wants(sent)]
            if not wanted and len(writer.sent) < begin + STORIES:
                return False
            return not wanted or any(sent.key in reader.arrived for sent in wanted)

        await until(
            lambda: all(
                heard(reader, writer, begin)
                for reader in self.readers
                for writer, begin in zip(self.writers, first, strict=True)
            ),
            REACH_TIMEOUT_S,
            "not every subscriber heard from every publisher in time",
        )

    async def _all_arrived(self, phase: str) -> None:
        """Until all events of that phase are where they are wanted; who is late is counted as missing."""
        try:
            await until(
                lambda: all(not result.missed(phase) for result in self._results()), ARRIVE_TIMEOUT_S, ""
            )
        except ConnectionFailed:
            return

    # --- Counting

    def _published(self) -> int:
        return sum(sent.phase in PHASES for writer in self.writers for sent in writer.sent)

    def _results(self) -> list[ReaderResult]:
        return [self._result(reader) for reader in self.readers]

    def _result(self, reader: Reader) -> ReaderResult:
        expected, arrived = dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, 0)
        for writer in self.writers:
            for sent in writer.sent:
                if sent.phase in expected and reader.wants(sent):
                    expected[sent.phase] += 1
                    arrived[sent.phase] += sent.key in reader.arrived
        duplicates = sum(count - 1 for count in reader.arrived.values())
        return ReaderResult(reader.at, reader.where, expected, arrived, duplicates)


STORIES = 60
"""After so many events the attributes repeat."""


def story(number: int) -> dict[str, Scalar]:
    """Event number so-and-so, with attributes for the filters to choose from."""
    return {
        "number": number,
        "provider": ("BBC", "CNN", "Reuters")[number % 3],
        "location": ("USA", "UK", "India", "Brazil")[number % 4],
        "subject": ("oil price", "oil spill", "football", "elections", "weather")[number % 5],
        "size": number * 7 % 100,
    }


async def until(condition: Callable[[], bool], timeout_s: float, complaint: str) -> None:
    """ConnectionFailed with that complaint if it does not come to pass."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s
    while not condition():
        if loop.time() > ends_at:
            raise ConnectionFailed(complaint)
        await asyncio.sleep(0.02)
