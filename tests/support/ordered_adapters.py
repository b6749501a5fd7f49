"""An order over existing brokers, for tests: sequencers in the process, and a crowd of publishers and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import order_checks
import tidings
from external_brokers import ExternalBroker, MosquittoBroker, NatsBroker, RedisBroker
from live_network import until
from live_ordering import Hosts
from tidings.bus.connect import connect
from tidings.bus.host import ApplicationHost
from tidings.bus.no_op_publisher import NoOpPublisher
from tidings.bus.ordered_service import OrderedService
from tidings.bus.service import EventService
from tidings.core.events.event import WHOLE, Event
from tidings.core.events.subscription import Subscription
from tidings.core.ordering.layout import Layout, spread
from tidings.core.ordering.replication.replica import Times
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.core.ordering.subscriber import Patience
from tidings.drivers.adapters.external import ExternalService

WAIT_S = 60.0
NODES = ("n1", "n2", "n3")
ENTRIES = {"n1": ("/a/**", "/b/*"), "n2": ("/c", "/**")}
TOPICS = ("/a/x", "/a/y/z", "/b/x", "/c", "/d")
TIMES = Times(sign_ns=50_000_000, lease_ns=1_000_000_000, publisher_ns=4_000_000_000)
PATIENT = Patience(events=65_536, limit_ns=600_000_000_000)
"""For services that may lose events, where none does."""

Key = tuple[str, int]
"""Who published an event, and the how manieth it is."""


class Kind(NamedTuple):
    name: str
    make: Callable[[Path], ExternalBroker]
    lossless: bool

    def __str__(self) -> str:
        return self.name


KINDS = (
    Kind("nats", NatsBroker, lossless=False),
    Kind("jetstream", lambda directory: NatsBroker(directory, jetstream=True), lossless=True),
    Kind("mqtt", MosquittoBroker, lossless=False),
    Kind("redis", RedisBroker, lossless=True),
)


def make_layout(*, causal: bool = True) -> Layout:
    """Two servers on three nodes: each is primary, standby or witness of each."""
    return spread(ENTRIES, NODES, causal=causal)


class _NoOps(list[PublishNoOps]):
    """What sequencers said, and those who publish it."""

    def __init__(self, publisher: NoOpPublisher) -> None:
        super().__init__()
        self._publisher = publisher

    def append(self, fact: PublishNoOps) -> None:
        super().append(fact)
        self._publisher.add(fact)


class Sequencers(Hosts):
    """With disks; their no-ops go to the service at the URL."""

    def __init__(self, url: str, data: Path, *, causal: bool = True) -> None:
        super().__init__(make_layout(causal=causal), data, times=TIMES)
        self._publisher = NoOpPublisher(lambda: connect(url).without_order(), self.layout, self._published)
        self.no_ops = _NoOps(self._publisher)

    def _published(self, server: str, number: int) -> None:
        for name, host in self.running.items():
            if server in self.servers(name):
                host.no_ops_published(server, number)

    @property
    def texts(self) -> list[str]:
        return [str(self.addresses[node]) for node in NODES]

    async def __aenter__(self) -> Sequencers:
        await super().__aenter__()
        for server in ENTRIES:
            await self.in_step(server)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._publisher.close()
        await super().__aexit__(*error)


class Reader:
    """An ordered subscription, what it was shown in order, and what came late."""

    def __init__(
        self, name: str, bus: ApplicationHost, *topics: str, order: str = "total", where: str | None = None
    ) -> None:
        self.name = name
        self.bus = bus
        self.topics = topics
        self.where = where
        self.shown: list[Event] = []
        self.late: list[Event] = []
        self.on_event: Callable[[Event], None] = lambda event: None
        self._stream = bus.subscribe(*topics, where=where, order=order)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._stream.__aenter__()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self._stream:
            (self.late if event.out_of_order else self.shown).append(event)
            self.on_event(event)

    async def close(self) -> None:
        await self._stream.__aexit__(None, None, None)
        if self._task is not None:
            await self._task  # an order that broke shows here

    def selects(self, topic: str, number: int) -> bool:
        wanted = any(tidings.TopicPattern(pattern).matches(topic) for pattern in self.topics)
        return wanted and (self.where is None or number % 2 == 0)

    @property
    def keys(self) -> set[Key]:
        return {key(event) for event in (*self.shown, *self.late)}


def key(event: Event) -> Key:
    return event.attributes["who"], event.attributes["n"]


class Crowd:
    """Clients of one service: all that they published, and what came of it."""

    def __init__(self, url: str, sequencers: Iterable[str], patience: Patience | None) -> None:
        self.published: dict[Key, str] = {}
        """With the topic."""
        self.confirmed: set[Key] = set()
        self.causes: dict[Key, list[Key]] = {}
        self.buses: dict[str, ApplicationHost] = {}
        self.readers: list[Reader] = []
        self.unordered: list[Event] = []
        """What an ordinary subscription to everything was shown."""
        self.no_ops: list[Event] = []
        self._url = url
        self._sequencers = list(sequencers)
        self._patience = patience
        self._counts: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._loads: list[asyncio.Task[None]] = []
        self._loading = False

    async def __aenter__(self) -> Crowd:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.stop()
            for reader in self.readers:
                await reader.close()
        finally:
            for bus in self.buses.values():
                await bus.close()

    async def join(self, name: str) -> ApplicationHost:
        bus = connect(self._url, name=name, sequencer=self._sequencers, order_patience=self._patience)
        await bus.open()
        self.buses[name] = bus
        return bus

    async def read(self, name: str, *topics: str, order: str = "total", where: str | None = None) -> Reader:
        reader = Reader(name, await self.join(name), *topics, order=order, where=where)
        self.readers.append(reader)
        await reader.open()
        return reader

    async def watch(self, name: str) -> None:
        """Without an order: as an application, and as a protocol that asks for headers."""
        service = (await self.join(name)).inner
        await service.add_subscription(Subscription("plain", ("/**",)), self.unordered.append)
        await service.add_subscription(Subscription("headers", ("/**",), headers=True), self._on_internal)

    def _on_internal(self, event: Event) -> None:
        if event.carrier.kind > WHOLE:
            self.no_ops.append(event)

    # --- Publishing

    def _next(self, who: str, topic: str, cause: Key | None = None) -> tuple[str, dict[str, Any], bytes]:
        """Each publisher's events come after its own earlier ones, and answers after what they answer."""
        number = self._counts[who] = self._counts.get(who, 0) + 1
        self.published[who, number] = topic
        self.causes[who, number] = [(who, number - 1)] if number > 1 else []
        if cause is not None:
            self.causes[who, number].append(cause)
        return topic, {"who": who, "n": number, "even": number % 2 == 0}, b"payload"

    async def publish(self, who: str, topic: str, cause: Key | None = None) -> None:
        event = self._next(who, topic, cause)
        await self.buses[who].publish(*event)
        self.confirmed.add(key_of(event))

    async def publish_many(self, who: str, topics: Iterable[str]) -> None:
        events = [self._next(who, topic) for topic in topics]
        assert await self.buses[who].publish_many(events) == len(events)
        self.confirmed.update(map(key_of, events))

    def answer(self, reader: Reader, who: str, topics: Sequence[str]) -> None:
        """`who` publishes an answer to every fifth event of others that the reader is shown, on each topic in turn."""

        def on_event(event: Event) -> None:
            cause = key(event)
            if cause[0] != who and cause[1] % 5 == 0:
                topic = topics[len(self._tasks) % len(topics)]
                self._tasks.append(asyncio.create_task(self.publish(who, topic, cause)))

        reader.on_event = on_event

    def load(self, *names: str) -> None:
        self._loading = True
        for at, who in enumerate(names):
            self._loads += [asyncio.create_task(self._load(who, at + step)) for step in range(2)]

    async def _load(self, who: str, step: int) -> None:
        while self._loading:
            step += 1
            if step % 4:
                await self.publish(who, TOPICS[step % len(TOPICS)])
            else:
                await self.publish_many(who, [*TOPICS, *TOPICS])
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Returns once all that was begun is with the service."""
        self._loading = False
        await asyncio.gather(*self._loads)
        while any(not task.done() for task in self._tasks):
            await asyncio.gather(*self._tasks)
        await asyncio.gather(*self._tasks)

    async def reach(self, count: int) -> None:
        """Until so many more are confirmed."""
        goal = len(self.confirmed) + count
        await until(lambda: len(self.confirmed) >= goal, WAIT_S, lambda: f"{len(self.confirmed)} of {goal}")

    # --- What came of it

    def wanted(self, reader: Reader, keys: Iterable[Key]) -> set[Key]:
        return {each for each in keys if reader.selects(self.published[each], each[1])}

    async def shown(self, keys: Iterable[Key]) -> None:
        """Until everybody was shown what it wants of these; answers make more, and are waited for first."""
        for reader in self.readers:
            await until(
                lambda: self.wanted(reader, keys) <= reader.keys,  # noqa: B023
                WAIT_S,
                lambda: (
                    f"{reader.name} misses {len(self.wanted(reader, keys) - reader.keys)} events, among them "  # noqa: B023
                    f"{min(self.wanted(reader, keys) - reader.keys)}"  # noqa: B023
                ),
            )

    def check(self, *, causal: bool) -> None:
        """What nobody marked is in one order; nothing is shown twice, or was not wanted."""
        shown = {reader.name: [key(event) for event in reader.shown] for reader in self.readers}
        order_checks.check_agreement(shown)
        if causal:
            order_checks.check_causes(shown, self.causes)
        for reader in self.readers:
            every = [key(event) for event in (*reader.shown, *reader.late)]
            assert len(set(every)) == len(every), f"{reader.name} was shown an event twice"
            assert self.wanted(reader, self.published) >= {*every}, f"{reader.name} was shown too much"
        self._check_places()

    def _check_places(self) -> None:
        """`event.order`: the same everywhere, and what is shown in order is in the order of the numbers."""
        places: dict[Key, tuple[str, int]] = {}
        for reader in self.readers:
            clocks: dict[str, int] = {}
            for event in reader.shown:
                topic, number = place = event.order.topic, event.order.number
                assert places.setdefault(key(event), place) == place
                assert number > clocks.get(topic, 0), f"{reader.name}: {topic} goes back to {number}"
                clocks[topic] = number
                for other, before in event.order.after.items():
                    clocks[other] = max(before, clocks.get(other, 0))
        assert len(set(places.values())) == len(places), "a number was used twice"


def key_of(event: tuple[str, dict[str, Any], bytes]) -> Key:
    return event[1]["who"], event[1]["n"]


def external(bus: EventService) -> ExternalService:
    """The adapter under the order."""
    assert isinstance(bus, OrderedService) and isinstance(bus.inner, ExternalService)
    return bus.inner


async def crash(bus: ApplicationHost) -> None:
    """It is gone without a word: what is not with the service by now never will be, and no sequencer is told."""
    assert bus._order is not None
    bus._order.module.leave = lambda: None  # type: ignore[method-assign]
    await bus.close()
