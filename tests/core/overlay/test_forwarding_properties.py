"""Subscription forwarding on random trees, against what a filter says of each event: never wrong under faults,
and, once healed and quiet, complete, minimal and without anything left over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.client.session import BestEffortClient
from tidings.core.events.event import EventId, Publication
from tidings.core.events.subscription import Interest, Subscription, make_interest
from tidings.core.facts import Delivered, Misbehaviour, SubscriptionAccepted, SubscriptionFailed
from tidings.core.overlay.best_effort.broker import Broker
from tidings.core.overlay.matching import Matcher
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.links import LOCAL, LinkSpec
from tidings.scenarios.file.schema import NoLoss, UniformDelay

NS_PER_MS = 1_000_000
QUIET_NS = 60_000 * NS_PER_MS
LONGEST_DELAY_MS = 30.0

# Many of these cover one another, some in ways that the cover index finds and some in ways that it does not.
INTERESTS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    ((), None),
    ((), "x > 3"),
    ((), "x > 6"),
    (("/a/**",), None),
    (("/a/*",), None),
    (("/a/b",), None),
    (("/a/b", "/c"), None),
    (("/a/b", "/c"), "x > 3"),
    (("/*/b",), None),
    (("/a/b",), "x > 3"),
    (("/a/b",), "x > 6"),
    (("/a/b",), "x = 7 OR x = 8"),
    (("/a/**",), "x > 3 AND y = 'k'"),
    (("/c", "/a/d"), "y = 'k' OR y IS NULL"),
    (("/c",), "topic = '/c' AND x < 5"),
)
TOPICS = ("/a/b", "/a/d", "/c", "/a", "/z/b")


@dataclass
class Held:
    """A subscription as the test sees it."""

    client: str
    interest: Interest
    accepted: bool = False
    cancelled_at: int | None = None


@dataclass
class Published:
    publication: Publication
    owed: tuple[tuple[str, str], ...]
    """The subscriptions that were accepted when it was published, and match."""


@dataclass
class World:
    """Brokers `b0`.. in a tree, a client `c0`.. beside each, and a record of all that clients are told."""

    parents: list[int]
    seed: int = 0
    duplicate: float = 0.0
    reorder: float = 0.0
    matcher: Matcher = field(default_factory=Matcher)

    def __post_init__(self) -> None:
        self.names = [f"b{number}" for number in range(len(self.parents) + 1)]
        self.edges = [(f"b{parent}", f"b{child}") for child, parent in enumerate(self.parents, 1)]
        self.around: dict[str, list[str]] = {name: [] for name in self.names}
        for left, right in self.edges:
            self.around[left].append(right)
            self.around[right].append(left)
        self.between = LinkSpec(
            UniformDelay(low=1.0, high=LONGEST_DELAY_MS), NoLoss(), self.duplicate, self.reorder, 0.0
        )
        self.network = SimulatedNetwork(self.seed, self._spec)
        self.held: dict[tuple[str, str], Held] = {}
        self.delivered: dict[tuple[str, str], list[EventId]] = {}
        self.published: dict[EventId, Published] = {}
        self.counter = 0
        for name in self.names:
            self.network.add(name, self._make_broker, self._on_broker_fact)
        for number in range(len(self.names)):
            self._add_client(f"c{number}", f"b{number}")
        self.network.start()

    def _spec(self, source: str, target: str) -> LinkSpec:
        return self.between if source in self.around and target in self.around else LOCAL

    def _make_broker(self, node: SimulatedNode) -> Broker:
        return Broker(node, self.around[node.node], incarnation=node.now + 1, matcher=self.matcher)

    def _add_client(self, name: str, broker: str) -> None:
        self.network.add(
            name, lambda node: BestEffortClient(node, broker), lambda fact: self._on_fact(name, fact)
        )
        self.network.attach(name, broker)

    def client(self, number: int) -> BestEffortClient:
        protocol = self.network.nodes[f"c{number % len(self.names)}"].protocol
        assert isinstance(protocol, BestEffortClient)
        return protocol

    def broker(self, name: str) -> Broker:
        protocol = self.network.nodes[name].protocol
        assert isinstance(protocol, Broker)
        return protocol

    # --- What clients are told

    def _on_broker_fact(self, fact: object) -> None:
        assert not isinstance(fact, Misbehaviour), fact

    def _on_fact(self, client: str, fact: object) -> None:
        assert not isinstance(fact, SubscriptionFailed), fact
        if isinstance(fact, SubscriptionAccepted):
            self.held[client, fact.subscription].accepted = True
        elif isinstance(fact, Delivered):
            name = (client, fact.subscription)
            held = self.held[name]
            assert held.cancelled_at is None, "notified after it unsubscribed"
            assert held.interest.matches(fact.stretch), "notified of what it did not ask for"
            seen = self.delivered.setdefault(name, [])
            assert fact.stretch.id not in seen, "notified twice"
            seen.append(fact.stretch.id)

    # --- What clients do

    def subscribe(self, number: int, which: int) -> None:
        topics, sql = INTERESTS[which % len(INTERESTS)]
        self.subscribe_to(f"c{number % len(self.names)}", make_interest(topics, sql))

    def subscribe_to(self, client: str, interest: Interest) -> None:
        self.counter += 1
        topics = tuple(topic.text for topic in interest.topics)
        subscription = Subscription(f"s{self.counter}", topics, interest.sql)
        self.held[client, subscription.id] = Held(client, interest)
        self.client(int(client[1:])).subscribe(subscription)

    def unsubscribe(self, which: int) -> None:
        live = self.live()
        if live:
            name = live[which % len(live)]
            self.held[name].cancelled_at = self.network.schedule.now
            self.client(int(name[0][1:])).unsubscribe(name[1])

    def live(self) -> list[tuple[str, str]]:
        return [name for name, held in self.held.items() if held.cancelled_at is None]

    def publish(self, number: int, topic: str, attributes: dict[str, object]) -> Publication:
        now = self.network.schedule.now
        publication = self.client(number).publish(topic, attributes, b"", now)  # type: ignore[arg-type]
        owed = tuple(
            name
            for name in self.live()
            if self.held[name].accepted and self.held[name].interest.matches(publication)
        )
        self.published[publication.id] = Published(publication, owed)
        return publication

    def run(self, duration_ns: int) -> None:
        self.network.run(self.network.schedule.now + duration_ns)

    # --- What must be so

    def check_settled(self) -> None:
        """Everything is accepted, nothing is under way, and nothing is kept that nobody uses."""
        assert all(self.held[name].accepted for name in self.live())
        interests = {self.held[name].interest for name in self.live()}
        assert len(self.matcher) == len(interests)
        for name in self.names:
            broker = self.broker(name)
            assert broker.edge.unaccepted == 0
            assert set(broker.table) <= interests
            for link in broker.forwarding.links.values():
                assert link.stream.idle
                assert not link.owed
                assert not link.stale
                assert set(link.sent) | set(link.covered) <= interests
                assert set(link.settled) == set(link.sent)

    def check_probe(self, number: int, topic: str, attributes: dict[str, object]) -> None:
        """An event goes over exactly the links towards those who want it, and to each of them once."""
        before = {edge: self._publications(*edge) for edge in self._directions()}
        publication = self.publish(number, topic, attributes)
        self.run(3_000 * NS_PER_MS)
        wanted = sorted(self.published[publication.id].owed)
        got = sorted(name for name, seen in self.delivered.items() if publication.id in seen)
        assert got == wanted
        home = f"b{number % len(self.names)}"
        homes = {f"b{client[1:]}" for client, _ in wanted}
        for source, target in self._directions():
            behind = self._side(target, source)
            expected = int(home not in behind and bool(homes & behind))
            assert self._publications(source, target) - before[source, target] == expected

    def _directions(self) -> list[tuple[str, str]]:
        return [pair for left, right in self.edges for pair in ((left, right), (right, left))]

    def _publications(self, source: str, target: str) -> int:
        return self.network.link(source, target).publications

    def _side(self, start: str, without: str) -> set[str]:
        """The brokers that are reached from `start` without passing `without`."""
        found, frontier = {start, without}, [start]
        while frontier:
            for peer in self.around[frontier.pop()]:
                if peer not in found:
                    found.add(peer)
                    frontier.append(peer)
        return found - {without}

    def unsubscribe_all(self) -> None:
        while self.live():
            self.unsubscribe(0)
        self.run(QUIET_NS)
        self.check_settled()
        assert len(self.matcher) == 0
        for name in self.names:
            assert len(self.broker(name).table) == 0
            for link in self.broker(name).forwarding.links.values():
                assert not (link.sent or link.covered or link.received or link.keys or link.by_key)


# --- What happens: (kind, how long after the last, two numbers to choose with)

trees = st.lists(st.integers(0, 10), min_size=1, max_size=11).map(
    lambda numbers: [number % (child + 1) for child, number in enumerate(numbers)]
)
attributes = st.fixed_dictionaries({"x": st.integers(0, 9)}, optional={"y": st.sampled_from(["k", "l"])})
numbers = st.integers(0, 11)
pauses_ms = st.sampled_from([0, 1, 5, 20, 60, 400])
subscribing = st.tuples(st.just("subscribe"), pauses_ms, numbers, st.integers(0, len(INTERESTS) - 1))
unsubscribing = st.tuples(st.just("unsubscribe"), pauses_ms, numbers, st.just(0))
publishing = st.tuples(st.just("publish"), pauses_ms, numbers, st.tuples(st.sampled_from(TOPICS), attributes))
failing = st.tuples(
    st.sampled_from(["crash", "cut", "one-way", "unplug", "pause", "lose"]),
    pauses_ms,
    numbers,
    st.sampled_from([3, 40, 900, 5_000]),
)
probes = st.lists(st.tuples(numbers, st.sampled_from(TOPICS), attributes), min_size=1, max_size=4)


def begin_fault(world: World, kind: str, number: int) -> Callable[[], None]:
    """Lets a fault begin; what is returned ends it."""
    network = world.network
    name = world.names[number % len(world.names)]
    edge = world.edges[number % len(world.edges)]
    if kind == "unplug":
        edge = (f"c{name[1:]}", name)
    if kind == "crash":
        network.crash(name, keep_state=False)
        return lambda: network.restart(name)
    if kind == "pause":
        network.pause(name)
        return lambda: network.resume(name)
    if kind == "lose":
        rate = 0.1 + 0.05 * number
        network.lose(rate)
        return lambda: network.stop_losing(rate)

    def severed(source: str, target: str) -> bool:
        return (source, target) == edge or (kind != "one-way" and (target, source) == edge)

    network.sever(severed)
    return lambda: network.mend(severed)


def act(world: World, step: tuple[str, int, int, object], until: list[Callable[[], None]]) -> None:
    kind, pause_ms, number, detail = step
    world.run(pause_ms * NS_PER_MS)
    if kind == "subscribe":
        world.subscribe(number, detail)  # type: ignore[arg-type]
    elif kind == "unsubscribe":
        world.unsubscribe(number)
    elif kind == "publish":
        topic, attributes = detail  # type: ignore[misc]
        world.publish(number, topic, attributes)
    else:
        end = begin_fault(world, kind, number)
        ended: list[None] = []

        def end_once() -> None:
            if not ended:
                ended.append(None)
                end()

        until.append(end_once)
        at = world.network.schedule.now + detail * NS_PER_MS  # type: ignore[operator]
        world.network.schedule.at(at, lambda _first, _second: end_once())


@given(
    parents=trees,
    seed=st.integers(0, 1_000),
    duplicate=st.sampled_from([0.0, 0.5]),
    reorder=st.sampled_from([0.0, 0.5]),
    steps=st.lists(
        st.one_of(subscribing, subscribing, unsubscribing, publishing, failing), min_size=10, max_size=50
    ),
    probes=probes,
)
@settings(max_examples=examples(400))
def test_after_any_faults_the_network_heals_into_exactly_the_routes_in_use(
    parents: list[int],
    seed: int,
    duplicate: float,
    reorder: float,
    steps: list[tuple[str, int, int, object]],
    probes: list[tuple[int, str, dict[str, object]]],
) -> None:
    world = World(parents, seed, duplicate, reorder)
    until: list[Callable[[], None]] = []
    for step in steps:
        act(world, step, until)
    for end in until:
        end()
    world.run(QUIET_NS)
    world.check_settled()
    for probe in probes:
        world.check_probe(*probe)
    world.unsubscribe_all()


# Subscribing and unsubscribing in quick turns with few interests, so that one overtakes the other's effects.
few = st.lists(st.integers(0, len(INTERESTS) - 1), min_size=1, max_size=3)
turns = st.lists(
    st.tuples(
        st.sampled_from(["subscribe", "unsubscribe", "again", "again"]),
        st.sampled_from([0, 5, 15, 30, 60, 90]),
        st.integers(0, 1),
        st.integers(0, 3),
    ),
    min_size=10,
    max_size=30,
)


@given(
    parents=st.one_of(trees, st.integers(1, 3).map(lambda length: list(range(length)))),
    seed=st.integers(0, 1_000),
    reorder=st.sampled_from([0.0, 0.3]),
    few=few,
    turns=turns,
    event=st.tuples(st.sampled_from(TOPICS), attributes),
)
@settings(max_examples=examples(400))
def test_without_faults_nothing_slips_whoever_else_subscribes_and_unsubscribes(
    parents: list[int],
    seed: int,
    reorder: float,
    few: list[int],
    turns: list[tuple[str, int, int, int]],
    event: tuple[str, dict[str, object]],
) -> None:
    world = World(parents, seed, reorder=reorder)
    far = len(world.names) - 1
    for kind, pause_ms, client, which in turns:
        for _ in range(pause_ms // 5):
            world.run(5 * NS_PER_MS)
            world.publish(far, *event)
        if kind == "subscribe":
            world.subscribe(client, few[which % len(few)])
        elif world.live():
            name = world.live()[which % len(world.live())]
            world.unsubscribe(which)
            if kind == "again":
                world.subscribe_to(name[0], world.held[name].interest)
    for _ in range(60):
        world.run(5 * NS_PER_MS)
        world.publish(far, *event)
    world.run(QUIET_NS)
    world.check_settled()
    on_the_way_ns = round(2 * LONGEST_DELAY_MS * NS_PER_MS) * len(world.names)
    for event_id, published in world.published.items():
        for name in published.owed:
            cancelled_at = world.held[name].cancelled_at
            arrived_by = published.publication.published_at + on_the_way_ns
            if cancelled_at is None or arrived_by < cancelled_at:
                assert event_id in world.delivered.get(name, []), f"{event_id} never came to {name}"
    world.unsubscribe_all()
