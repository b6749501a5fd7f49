"""Brokers in epidemic mode, driven by a script: a whole network in virtual time, or one broker among recorded peers.

    network = EpidemicNetwork("b0-b1-b2", RecoverySettings(algorithm="publisher-pull"))
    network.subscribe("b2")
    network.lose = lambda passage: passage.between("b1", "b2") and passage.tells_event(2)
    network.publish("b0", 3)
    assert network.shown("b2") == [1, 2, 3]

Links lose what `lose` says and nothing else, and `passages` has all that brokers sent to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar, cast

from recording_port import RecordingPort
from tidings.core.client.session import BestEffortClient
from tidings.core.events.event import Publication, make_publication
from tidings.core.events.run import Run, RunMaker, singles
from tidings.core.events.subscription import Subscription, make_interest
from tidings.core.facts import Delivered, Misbehaviour
from tidings.core.kernel import Handler, Node, Port
from tidings.core.messages import Message, Notify, Subscribe, Unsubscribe
from tidings.core.overlay.epidemic.broker import EpidemicBroker
from tidings.core.overlay.epidemic.messages import Announce, BrokerEntry, Carried, Fragment, PatternNumbers
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.messages import AddInterest, Changes, ChangesTaken, LinkOpen, Settled
from tidings.drivers.virtual.brokers import BrokerMaker
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.brokers import broker_specs
from tidings.scenarios.file.links import LOCAL, LinkSpec
from tidings.scenarios.file.schema import ConstantDelay, NoLoss, Overlay
from tidings.scenarios.file.topology import Topology

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
TEN_MS = LinkSpec(ConstantDelay(value=10.0), NoLoss(), 0.0, 0.0, 0.0)
TOPIC = "/t"

Published = tuple[str, int, bytes]
"""(topic, attribute x, payload)"""
Sent = TypeVar("Sent", bound=Message)


# --- A network


@dataclass(frozen=True)
class Passage:
    """A message between brokers, at the moment in which it arrives or is lost."""

    source: str
    target: str
    message: Message

    def between(self, source: str, target: str) -> bool:
        return (self.source, self.target) == (source, target)

    @property
    def sequence(self) -> int | None:
        """Of the event that it carries, all of it or a block; of several the first."""
        match self.message:
            case Carried(stretch=stretch):
                return stretch.first
            case Fragment(sequence=sequence):
                return sequence
        return None

    @property
    def by(self) -> str | None:
        """How it carries an event: by the tree (empty), or by which algorithm; None if it carries none."""
        return self.message.by if isinstance(self.message, Carried | Fragment) else None


class EpidemicNetwork:
    """`edges` has paths of the tree. Every broker b has a client c<b>, which subscribes and publishes there."""

    def __init__(self, edges: str, settings: RecoverySettings, *, seed: int = 1) -> None:
        pairs = [pair for path in edges.split() for pair in pairwise(path.split("-"))]
        self.around: dict[str, list[str]] = {}
        for left, right in pairs:
            self.around.setdefault(left, []).append(right)
            self.around.setdefault(right, []).append(left)
        self.lose: Callable[[Passage], bool] = lambda passage: False
        self.alter: Callable[[Passage], Message] = lambda passage: passage.message
        self.passages: list[Passage] = []
        self.lost: list[Passage] = []
        self.deliveries: list[tuple[str, int, Delivered]] = []
        """(broker, when, what)"""
        topology = Topology(tuple(self.around), tuple(pairs))
        self._make_broker = BrokerMaker(broker_specs(topology, Overlay(mode="epidemic"), settings))
        self.network = SimulatedNetwork(seed, self._spec)
        for name in self.around:
            self.network.add(name, self._broker)
        for name in self.around:
            client = f"c{name}"
            self.network.add(client, partial(BestEffortClient, broker=name), self._on_fact(name))
            self.network.attach(client, name)
        self.network.start()
        self.run(5)

    def _spec(self, source: str, target: str) -> LinkSpec:
        return TEN_MS if source in self.around and target in self.around else LOCAL

    def _broker(self, node: SimulatedNode) -> Node:
        broker = self._make_broker(node)
        for kind, handler in broker.handlers.items():
            broker.handlers[kind] = self._watched(node.node, handler)
        return broker

    def _watched(self, target: str, handler: Handler) -> Handler:
        def take(sender: str, message: Message) -> None:
            if sender in self.around:
                passage = Passage(sender, target, message)
                self.passages.append(passage)
                if self.lose(passage):
                    self.lost.append(passage)
                    return
                message = self.alter(passage)
            handler(sender, message)

        return take

    def _on_fact(self, broker: str) -> Callable[[object], None]:
        def on_fact(fact: object) -> None:
            for shown in delivered(fact):
                self.deliveries.append((broker, self.network.schedule.now, shown))

        return on_fact

    # --- What a test does

    def run(self, seconds: float) -> None:
        self.network.run(self.network.schedule.now + round(seconds * NS_PER_S))

    def subscribe(self, at: str, *topics: str, name: str = "s", where: str | None = None) -> None:
        self.client(at).subscribe(Subscription(name, topics or (TOPIC,), where))
        self.run(3)

    def unsubscribe(self, at: str, name: str = "s") -> None:
        self.client(at).unsubscribe(name)
        self.run(3)

    def publish(
        self, at: str, count: int = 1, *, topic: str = TOPIC, payload: bytes = b"", pause_s: float = 0.1
    ) -> None:
        """So many events, one after the other."""
        for _ in range(count):
            self.client(at).publish(topic, {}, payload, self.network.schedule.now)
            self.run(pause_s)

    def publish_all(self, at: str, events: Sequence[Published], *, together: bool = True) -> None:
        """Events on these topics, with these attributes and payloads, in one instant."""
        client, now = self.client(at), self.network.schedule.now
        for topic, x, payload in events:
            if together:
                client.session.add(topic, {"x": x}, payload, now)
            else:
                client.publish(topic, {"x": x}, payload, now)
        client.flush()

    # --- What a test looks at

    def client(self, at: str) -> BestEffortClient:
        protocol = self.network.nodes[f"c{at}"].protocol
        assert isinstance(protocol, BestEffortClient)
        return protocol

    def broker(self, name: str) -> EpidemicBroker:
        protocol = self.network.nodes[name].protocol
        assert isinstance(protocol, EpidemicBroker)
        return protocol

    def shown(self, at: str, name: str = "s") -> list[int]:
        """The sequences that the subscription was shown, sorted; a repetition would be there twice."""
        return sorted(
            fact.stretch.sequence
            for broker, _, fact in self.deliveries
            if (broker, fact.subscription) == (at, name)
        )

    def ways(self, at: str) -> dict[int, str]:
        """sequence -> by which algorithm the client got it"""
        return {
            fact.stretch.sequence: fact.recovered_by for broker, _, fact in self.deliveries if broker == at
        }

    def sent(self, *kinds: type) -> list[Passage]:
        return [passage for passage in self.passages if isinstance(passage.message, kinds)]

    def answers(self, to: str) -> list[Passage]:
        """Events and blocks that gossip brought to a broker."""
        return [passage for passage in self.passages if passage.by and passage.target == to]


def delivered(fact: object) -> list[Delivered]:
    """What a client is shown, one by one."""
    if not isinstance(fact, Delivered):
        return []
    how = (fact.out_of_order, fact.recovered_by)
    return [Delivered(fact.subscription, each, *how) for each in singles(fact.stretch)]


def first_copy(source: str, target: str, *sequences: int) -> Callable[[Passage], bool]:
    """Loses these events on that link of the tree; what gossip brings passes."""
    return lambda passage: (
        passage.between(source, target) and passage.by == "" and passage.sequence in sequences
    )


def run_of(sequences: Sequence[int], *, topic: str = TOPIC, source: str = "p", payload: bytes = b"") -> Run:
    maker = RunMaker(source, 0)
    for sequence in sequences:
        maker.add(sequence, topic, {"x": sequence % 3}, payload, 0)
    (run,) = maker.take_all()
    assert isinstance(run, Run)
    return run


# --- One broker


class LoneBroker:
    """A broker `me` of neighbours `n1` and `n2`, which are there, and of `far`, which it knows of.

    Its client `c` subscribes to TOPIC, and so do all the others. Whatever it sends is in `port.sent`.
    """

    ORIGIN_EPOCH = 7

    def __init__(self, settings: RecoverySettings, *, topics: Sequence[str] = (TOPIC,)) -> None:
        self.port = RecordingPort()
        self.port.now = NS_PER_S
        self.neighbours = ("n1", "n2")
        port = cast("Port", self.port)
        self.broker = EpidemicBroker(port, self.neighbours, settings, incarnation=1, label=(0,))
        self.broker.start()
        self.patterns = [make_interest((topic,), None).key[:8] for topic in topics]
        self._changes = dict.fromkeys(self.neighbours, 0)
        for peer in self.neighbours:
            self.receive(peer, LinkOpen(5, 1, False))
        labelled = {"n1": (0, 0), "n2": (0, 1), "far": (0, 0, 0)}
        entries = [self.entry(name, label) for name, label in labelled.items()]
        self.receive("n1", Announce(tuple(entries)))
        for topic in topics:
            self._install(topic)
        self.advance(100 * NS_PER_MS)
        self.port.sent.clear()

    @property
    def pattern(self) -> bytes:
        return self.patterns[0]

    def entry(self, name: str, label: tuple[int, ...] = (), version: int = 1) -> BrokerEntry:
        return BrokerEntry(name, 5, version, label, "", 0, tuple(self.patterns), False)

    def _install(self, topic: str) -> None:
        interest = make_interest((topic,), None)
        for peer in self.neighbours:
            self._change(peer, AddInterest(interest.key, (topic,), None, 1))
        self.receive("c", Subscribe(topic, (topic,), None, "none"))
        for peer in self.neighbours:
            serial = self.broker.forwarding.links[peer].sent[interest]
            self._change(peer, Settled(interest.key, serial))

    def _change(self, peer: str, change: AddInterest | Settled) -> None:
        self._changes[peer] += 1
        self.receive(peer, Changes(5, 1, self._changes[peer], (change,)))
        stream = self.broker.forwarding.links[peer].stream
        while stream.in_flight is not None:
            self.receive(peer, ChangesTaken(5, 1, stream.number))

    def unsubscribe(self) -> None:
        self.receive("c", Unsubscribe(TOPIC))

    def receive(self, sender: str, message: Message) -> None:
        self.broker.receive(sender, message)

    def advance(self, delay_ns: int) -> None:
        """Lets time pass, with all timers that are due."""
        until = self.port.now + delay_ns
        timers = self.port.timers
        while timers and min(timers.values()) <= until:
            name = min(timers, key=lambda each: timers[each])
            self.port.now = max(self.port.now, timers.pop(name))
            self.broker.timer(name)
        self.port.now = until

    def round(self) -> None:
        """Makes the next round of gossip happen now."""
        self.port.timers.pop(("gossip", "round"), None)
        self.broker.timer(("gossip", "round"))

    # --- Messages for it

    def numbers(self, number: int) -> PatternNumbers:
        return ((self.pattern, self.ORIGIN_EPOCH, number),)

    def carried(
        self,
        number: int,
        *,
        by: str = "",
        topic: str = TOPIC,
        numbers: PatternNumbers | None = None,
        route: tuple[str, ...] = (),
        source: str = "p",
        payload: bytes = b"",
    ) -> Carried:
        """The event that its origin `far` counted so: its sequence, too."""
        publication = self.publication(number, topic=topic, source=source, payload=payload)
        return Carried("far", self.numbers(number) if numbers is None else numbers, route, by, publication)

    def carried_run(
        self,
        first: int,
        last: int,
        *,
        by: str = "",
        topic: str = TOPIC,
        numbers: PatternNumbers | None = None,
        payload: bytes = b"",
    ) -> Carried:
        """The events that its origin `far` counted so, together."""
        stretch = run_of(range(first, last + 1), topic=topic, payload=payload)
        return Carried("far", self.numbers(first) if numbers is None else numbers, (), by, stretch)

    def publication(
        self, sequence: int, *, topic: str = TOPIC, source: str = "p", payload: bytes = b""
    ) -> Publication:
        return make_publication(source, 0, sequence, topic, {}, payload, 0)

    def fill(self, count: int, *, payload: bytes = b"") -> None:
        """Events 1 to `count` come by the tree."""
        for number in range(1, count + 1):
            self.receive("n1", self.carried(number, payload=payload))
        self.port.sent.clear()

    # --- What it did

    def sent(self, *kinds: type[Sent]) -> list[tuple[str, Sent]]:
        return [(to, message) for to, message in self.port.sent if isinstance(message, kinds)]

    @property
    def events_sent(self) -> list[Carried | Fragment]:
        """Events and blocks that it sent to brokers."""
        return [message for _, message in self.port.sent if isinstance(message, Carried | Fragment)]

    @property
    def notified(self) -> list[int]:
        """The sequences of which the client was notified, in order."""
        stretches = [message.stretch for _, message in self.sent(Notify)]
        return [number for stretch in stretches for number in range(stretch.first, stretch.last + 1)]

    @property
    def misbehaviours(self) -> list[tuple[str, str]]:
        return [(fact.peer, fact.what) for fact in self.port.facts if isinstance(fact, Misbehaviour)]

    @property
    def lost(self) -> int:
        return self.broker.recovery_state.losses.lost
