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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidings.bus.connect import connect
from tidings.cli.shared.output import progress_bar
from tidings.core.errors import ConnectionFailed
from tidings.core.filters.language.filter import Filter
from tidings.drivers.processes.brokers import BrokerNetwork, free_addresses
from tidings.drivers.processes.topology_file import tree
from tidings.scenarios.file.topology import Topology, parents

if TYPE_CHECKING:
    from tidings.bus.host import ApplicationHost
    from tidings.bus.stream import Stream
    from tidings.core.events.event import Event
    from tidings.core.filters.language.predicates import Scalar

RATE_HZ = 100.0
REACH_TIMEOUT_S = 20.0
ARRIVE_TIMEOUT_S = 10.0
PHASES = ("before", "outage", "after")
KILLED = "b1"
"""With two children each, b1 is the first broker below the root that has some of its own."""

Tell = Callable[[str], None]


Key = tuple[str, int]
"""An event of the demo: its topic, which is its publisher's own, and its number there."""


@dataclass(slots=True)
class Writer:
    at: str
    topic: str
    published: int = 0


class Reader:
    """One subscriber: what it should get, by phase, and what it got."""

    def __init__(self, at: str, where: str | None) -> None:
        self.at = at
        self.where = where
        self.wanted: dict[Key, str] = {}
        self.arrived: Counter[Key] = Counter()
        self.latest: dict[str, int] = {}
        self.cut_off: frozenset[str] = frozenset()
        """The topics whose publisher is beyond the broker that is killed."""
        self._filter = None if where is None else Filter(where)

    def wants(self, topic: str, attributes: Mapping[str, Scalar]) -> bool:
        return self._filter is None or self._filter.matches({**attributes, "topic": topic})

    def take(self, event: Event) -> None:
        number = event.attributes["number"]
        assert isinstance(number, int)
        self.arrived[event.topic, number] += 1
        self.latest[event.topic] = max(number, self.latest.get(event.topic, -1))

    def result(self) -> ReaderResult:
        expected, arrived = dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, 0)
        for key, phase in self.wanted.items():
            expected[phase] += 1
            arrived[phase] += key in self.arrived
        unexplained = sum(
            key not in self.arrived
            for key, phase in self.wanted.items()
            if phase != "outage" or key[0] not in self.cut_off
        )
        duplicates = sum(count - 1 for count in self.arrived.values())
        return ReaderResult(self.at, self.where, expected, arrived, unexplained, duplicates)


@dataclass(frozen=True, slots=True)
class ReaderResult:
    """Per phase: how many events the subscriber should have got, and how many of these it did."""

    at: str
    where: str | None
    expected: dict[str, int]
    arrived: dict[str, int]
    unexplained: int
    """Missed although no broker on the way was dead."""
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
        """Nothing is missed but what had to pass the dead broker, and nothing ever comes twice."""
        return not any(reader.unexplained or reader.duplicates for reader in self.readers)


class LiveDemo:
    def __init__(self, brokers: int, phase_s: float, tell: Tell, *, quiet: bool) -> None:
        topology = tree(brokers)
        self.network = BrokerNetwork(topology, free_addresses(topology.brokers))
        self.phase: str | None = None
        """None: not counted, while the network is still getting together."""
        self.published = 0
        self.phase_s = phase_s
        self.tell = tell
        self.quiet = quiet
        last = topology.brokers[-1]
        self.writers = [Writer("b2", "/news/west"), Writer("b3", "/news/east")]
        self.readers = [
            Reader("b0", None),
            Reader("b2", "provider = 'BBC'"),
            Reader("b3", "topic = '/news/east'"),
            Reader(last, "size > 50 AND subject LIKE 'oil%'"),
        ]
        side = sides(topology, KILLED)
        for reader in self.readers:
            beyond = (writer.topic for writer in self.writers if side[writer.at] != side[reader.at])
            reader.cut_off = frozenset(beyond)

    async def play(self) -> LiveResult:
        """The whole course; whatever happens, no process is left."""
        try:
            return await self._play()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the others are its consequences

    async def _play(self) -> LiveResult:
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
        results = [reader.result() for reader in self.readers]
        return LiveResult(
            KILLED, restarted_at - killed_at, resumed_at - restarted_at, self.published, results
        )

    # --- Steady work

    async def _write(self, writer: Writer, bus: ApplicationHost) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        while True:
            number = writer.published
            await asyncio.sleep(max(0.0, began_at + number / RATE_HZ - loop.time()))
            attributes = story(number)
            self._count(writer.topic, attributes)
            writer.published += 1
            await bus.publish(writer.topic, attributes, b"...")

    def _count(self, topic: str, attributes: Mapping[str, Any]) -> None:
        """Before it is published: it may arrive before `publish` returns."""
        if self.phase is None:
            return
        self.published += 1
        for reader in self.readers:
            if reader.wants(topic, attributes):
                reader.wanted[topic, attributes["number"]] = self.phase

    async def _read(self, reader: Reader, stream: Stream) -> None:
        async for event in stream:
            reader.take(event)

    async def _publish_for(self, phase: str) -> None:
        self.phase = phase
        steps = 20
        with progress_bar(f"publishing: {phase}", quiet=self.quiet) as progress:
            for step in range(steps):
                await asyncio.sleep(self.phase_s / steps)
                progress((step + 1) / steps)

    # --- Conditions

    async def _everybody_hears(self) -> None:
        """Until each subscriber got something of what each publisher publishes from now on, if it wants any."""
        awaited = [
            (reader, writer.topic, writer.published)
            for reader in self.readers
            for writer in self.writers
            if any(reader.wants(writer.topic, story(number)) for number in range(STORIES))
        ]

        def heard() -> bool:
            return all(reader.latest.get(topic, -1) >= first for reader, topic, first in awaited)

        if not await comes_true(heard, REACH_TIMEOUT_S):
            raise ConnectionFailed("not every subscriber heard from every publisher in time")

    async def _all_arrived(self, phase: str) -> None:
        """Until all events of that phase are where they are wanted; who is late will be counted as missing."""
        await comes_true(
            lambda: not any(reader.result().missed(phase) for reader in self.readers), ARRIVE_TIMEOUT_S
        )


def sides(topology: Topology, without: str) -> dict[str, str]:
    """For each broker the part of the tree that it is in when `without` is gone, by the part's top broker."""
    result: dict[str, str] = {}
    for name, parent in parents(topology).items():  # parents first
        result[name] = name if parent is None or parent == without else result[parent]
    return result


STORIES = 60
"""Among so many events in a row there is one for every filter here."""


def story(number: int) -> dict[str, Any]:
    """Event number so-and-so, with attributes for the filters to choose from."""
    return {
        "number": number,
        "provider": ("BBC", "CNN", "Reuters")[number % 3],
        "location": ("USA", "UK", "India", "Brazil")[number % 4],
        "subject": ("oil price", "oil spill", "football", "elections", "weather")[number % 5],
        "size": number * 7 % 100,
    }


async def comes_true(condition: Callable[[], bool], timeout_s: float) -> bool:
    """True as soon as it holds; False if it does not in time."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s
    while not condition():
        if loop.time() > ends_at:
            return False
        await asyncio.sleep(0.02)
    return True
