"""Brokers that join and leave a running network, and circuits around a failed last hop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidings.core.client.reliable_session import ReliableClient
from tidings.core.events.event import Publication
from tidings.core.events.subscription import Subscription
from tidings.core.facts import (
    Delivered,
    JoinAnswered,
    JoinRefused,
    LeftNetwork,
    SubscriptionAccepted,
    SubscriptionProgress,
)
from tidings.core.kernel import Node
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.membership import JoiningBroker
from tidings.core.overlay.guaranteed.share_messages import ShareAttach
from tidings.core.store import MemoryStore
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.links import LOCAL, LinkSpec
from tidings.scenarios.file.schema import ConstantDelay, NoLoss
from tidings.scenarios.file.topology import Topology, neighbourhoods

S = 1_000_000_000
BETWEEN = LinkSpec(ConstantDelay(value=10.0), NoLoss(), 0.0, 0.0, 0.0)


class World:
    """Brokers of a tree, and others that join it."""

    def __init__(self, edges: tuple[tuple[str, str], ...], delta: int = 1) -> None:
        names = tuple(dict.fromkeys(name for edge in edges for name in edge))
        self.delta = delta
        self.brokers = set(names)
        self.network = SimulatedNetwork(1, self._spec, streams=True)
        self.facts: dict[str, list[object]] = {}
        self.delivered: dict[str, list[int]] = {}
        for name, within in neighbourhoods(Topology(names, edges), delta + 1).items():
            self._add(name, self._maker(within[name], {peer: (at, "") for peer, at in within.items()}))
        self.network.start()

    def _spec(self, a: str, b: str) -> LinkSpec:
        return BETWEEN if a in self.brokers and b in self.brokers else LOCAL

    def _add(self, name: str, make: Callable[[SimulatedNode], Node]) -> SimulatedNode:
        facts = self.facts[name] = []
        return self.network.add(name, make, facts.append)

    def _maker(
        self, label: tuple[int, ...], around: dict[str, tuple[tuple[int, ...], str]]
    ) -> Callable[[SimulatedNode], Node]:
        def make(node: SimulatedNode) -> Node:
            others = {peer: at for peer, at in around.items() if peer != node.node}
            store = MemoryStore(node.disk.setdefault("tables", {}))
            return GuaranteedBroker(
                node, label, others, store, delta=self.delta, incarnation=node.now + 1, new=node.now == 0
            )

        return make

    def join(self, name: str, parent: str) -> None:
        """As a driver does it: ask, then start with what was answered."""
        self.brokers.add(name)

        def make(node: SimulatedNode) -> Node:
            store = MemoryStore(node.disk.setdefault("tables", {}))
            if store.count("identity"):
                return GuaranteedBroker(node, None, {}, store, delta=self.delta, incarnation=node.now + 1)
            answers = [fact for fact in self.facts[name] if isinstance(fact, JoinAnswered)]
            if answers:
                (answer, *_) = answers
                return GuaranteedBroker(
                    node, answer.label, answer.neighbours, store, delta=self.delta, incarnation=node.now + 1
                )
            return JoiningBroker(node, parent)

        self._add(name, make).start()
        self.run(1)
        if any(isinstance(fact, JoinAnswered) for fact in self.facts[name]):
            self.network.crash(name, keep_state=True)
            self.network.restart(name)

    def client(self, name: str, at: str) -> ReliableClient:
        clients: list[ReliableClient] = []
        shown = self.delivered[name] = []

        def make(node: SimulatedNode) -> Node:
            clients.append(ReliableClient(node, at))
            return clients[-1]

        def emit(fact: object) -> None:
            if isinstance(fact, Delivered):
                shown.append(fact.stretch.sequence)

        node = self.network.add(name, make, emit)
        self.network.attach(name, at)
        node.start()
        return clients[-1]

    def broker(self, name: str) -> GuaranteedBroker:
        node = self.network.nodes[name].protocol
        assert isinstance(node, GuaranteedBroker)
        return node

    def run(self, seconds: float) -> None:
        self.network.run(self.network.schedule.now + round(seconds * S))

    def publish(self, client: ReliableClient) -> Publication:
        return client.publish("/a", {}, b"", self.network.schedule.now)


def test_a_broker_joins_and_serves_and_finds_its_place_again_after_a_restart() -> None:
    world = World((("b0", "b1"), ("b1", "b2")))
    subscriber = world.client("s", "b0")
    subscriber.subscribe(Subscription("all", ("/a",)))
    world.run(3)
    world.join("b9", "b2")
    world.run(5)
    joined = world.broker("b9")
    assert joined.neighbourhood.label == (0, 0, 0, 0)
    assert set(joined.neighbourhood) == {"b1", "b2"}
    assert "b9" in world.broker("b1").neighbourhood
    assert "b9" not in world.broker("b0").neighbourhood
    assert not joined.subscriptions.recovering
    publisher = world.client("p", "b9")
    world.publish(publisher)
    world.run(1)
    assert world.delivered["s"] == [1]
    world.network.crash("b9", keep_state=True)
    world.network.crash("b2", keep_state=True)
    world.run(1)
    world.network.restart("b9")
    world.publish(publisher)
    world.run(8)  # b2 is away: b9 knows b1, too
    assert world.delivered["s"] == [1, 2]


def test_a_joined_broker_is_known_to_who_was_away() -> None:
    world = World((("b0", "b1"), ("b1", "b2"), ("b1", "b3")), delta=2)
    world.run(2)
    world.network.crash("b3", keep_state=True)
    world.run(1)
    world.join("b9", "b2")
    world.run(3)
    world.network.restart("b3")
    world.run(5)
    assert "b9" in world.broker("b3").neighbourhood


def test_labels_and_names_are_not_given_twice() -> None:
    world = World((("b0", "b1"),))
    world.run(2)
    world.join("b8", "b1")
    world.join("b9", "b1")
    world.run(4)
    labels = [world.broker(name).neighbourhood.label for name in ("b8", "b9")]
    assert labels == [(0, 0, 0), (0, 0, 1)]
    world.broker("b9").leave()
    world.run(4)
    assert any(isinstance(fact, LeftNetwork) for fact in world.facts["b9"])
    world.network.crash("b9", keep_state=False)
    world.run(3)
    assert "b9" not in world.broker("b1").neighbourhood
    assert "b9" not in world.broker("b0").neighbourhood
    world.facts["b9"].clear()
    world.network.restart("b9")
    world.run(3)
    refusals = [fact.reason for fact in world.facts["b9"] if isinstance(fact, JoinRefused)]
    assert refusals
    assert "has left" in refusals[0]
    world.join("b7", "b1")
    world.run(3)
    assert world.broker("b7").neighbourhood.label == (0, 0, 2)


def test_only_a_broker_with_nobody_below_leaves_and_its_subscriptions_end() -> None:
    world = World((("b0", "b1"), ("b1", "b2")))
    subscriber = world.client("s", "b2")
    subscriber.subscribe(Subscription("all", ("/a",)))
    publisher = world.client("p", "b0")
    world.run(3)
    with pytest.raises(ValueError, match="b1 cannot leave: b2"):
        world.broker("b1").leave()
    world.publish(publisher)
    world.run(1)
    world.broker("b2").leave()
    world.run(5)
    assert world.delivered["s"] == [1]
    assert any(isinstance(fact, LeftNetwork) for fact in world.facts["b2"])
    assert len(world.broker("b0").log) == 0
    world.network.crash("b2", keep_state=False)
    world.publish(publisher)
    late = world.client("t", "b0")
    late.subscribe(Subscription("more", ("/a",)))
    world.run(5)
    # Complete although b2 is gone for good: its place is b1's again.
    assert not world.broker("b0").attachments.incomplete()
    assert not world.broker("b0").delivery.queue


def test_a_broker_that_keeps_durable_subscriptions_cannot_leave() -> None:
    world = World((("b0", "b1"), ("b1", "b2")))
    client = world.client("s", "b2")
    world.run(2)
    for number in range(12):
        client.shares.attach(ShareAttach(f"s{number}", f"name{number:02}", ("/a",), None))
    world.run(3)
    with pytest.raises(ValueError, match=r"b2 cannot leave: it keeps name00, name01, .* and 2 more.*cancel"):
        world.broker("b2").leave()
    for number in range(12):
        client.shares.end(f"name{number:02}")
    world.run(3)
    world.broker("b2").leave()
    world.run(5)
    assert any(isinstance(fact, LeftNetwork) for fact in world.facts["b2"])
    assert len(world.broker("b0").log) == 0


def test_a_broker_leaves_when_its_durable_subscriptions_have_moved() -> None:
    world = World((("b0", "b1"), ("b1", "b2")))
    here, there, publisher = world.client("s", "b2"), world.client("t", "b0"), world.client("p", "b1")
    world.run(2)
    here.shares.attach(ShareAttach("s", "billing", ("/a",), None))
    world.run(3)
    here.shares.leave("s")
    there.shares.attach(ShareAttach("t", "billing", ("/a",), None))
    world.run(15)
    assert world.broker("b0").shares.status()
    world.network.crash("b0", keep_state=True)
    world.run(10)
    with pytest.raises(ValueError, match=r"b2 cannot leave yet: it passes on events of billing"):
        world.broker("b2").leave()
    world.network.restart("b0")
    world.run(15)
    world.broker("b2").leave()
    world.run(5)
    assert any(isinstance(fact, LeftNetwork) for fact in world.facts["b2"])
    world.network.crash("b2", keep_state=False)
    world.publish(publisher)
    world.run(15)
    [status] = world.broker("b0").shares.status()
    assert not status["uncovered"]
    assert not world.broker("b0").delivery.queue and not world.broker("b1").delivery.queue


def test_a_cut_last_hop_is_bridged_by_a_common_neighbour() -> None:
    world = World((("b0", "b1"), ("b1", "b2"), ("b1", "b3")))
    subscriber = world.client("s", "b2")
    subscriber.subscribe(Subscription("all", ("/a",)))
    publisher = world.client("p", "b0")
    world.run(3)

    def cut(a: str, b: str) -> bool:
        return {a, b} == {"b1", "b2"}

    world.network.sever(cut)
    world.run(1)
    world.publish(publisher)
    world.run(8)
    assert world.delivered["s"] == [1]
    assert world.broker("b1").relays.circuit("b2") in ("b0", "b3")
    through = world.broker("b1").status()["neighbours"]
    assert isinstance(through, dict)
    assert through["b2"]["through"] in ("b0", "b3")
    world.network.mend(cut)
    world.run(10)
    assert world.broker("b1").relays.circuit("b2") is None
    world.publish(publisher)
    world.run(1)
    assert world.delivered["s"] == [1, 2]
    assert not any(world.broker(name).relays.carried for name in ("b0", "b3"))


def test_the_status_tells_islands_from_barriers_and_who_is_uncovered() -> None:
    world = World((("b0", "b1"), ("b1", "b2"), ("b2", "b3")), delta=1)
    world.run(2)
    world.network.crash("b1", keep_state=True)
    world.run(5)
    subscriber = world.client("s", "b0")
    subscriber.subscribe(Subscription("all", ("/a",)))
    world.run(2)
    status = world.broker("b0").status()
    (partition,) = status["partitions"]  # type: ignore[misc]
    assert (partition["kind"], partition["brokers"], partition["bypassed_to"]) == ("island", "b1", "b2")
    (incomplete,) = status["incomplete_subscriptions"]  # type: ignore[misc]
    assert incomplete["client"] == "s"
    assert incomplete["uncovered"].startswith("b1")
    world.network.crash("b2", keep_state=True)
    world.run(6)
    (partition,) = world.broker("b0").status()["partitions"]  # type: ignore[misc]
    assert (partition["kind"], partition["brokers"]) == ("barrier", "b1 b2")
    world.network.restart("b1")
    world.network.restart("b2")
    world.run(8)
    status = world.broker("b0").status()
    assert status["partitions"] == status["incomplete_subscriptions"] == []


def test_who_is_uncovered_is_told_also_by_those_far_away() -> None:
    world = World((("b0", "b1"), ("b1", "b2"), ("b2", "b3"), ("b3", "b4")), delta=1)
    world.run(2)
    world.network.crash("b4", keep_state=True)
    world.run(5)
    progress: list[object] = []
    subscriber = world.client("s", "b0")
    world.network.nodes["s"].emit = progress.append
    subscriber.subscribe(Subscription("all", ("/a",)))
    world.run(2)
    (incomplete,) = world.broker("b0").attachments.incomplete()
    assert incomplete == ("s", "all", ["0.0.0.0.0 and below"])
    (told,) = [fact for fact in progress if isinstance(fact, SubscriptionProgress)]
    assert told.uncovered == ("0.0.0.0.0 and below",)
    world.network.restart("b4")
    world.run(5)
    assert not world.broker("b0").attachments.incomplete()
    assert any(isinstance(fact, SubscriptionAccepted) for fact in progress)


def test_a_client_that_starts_anew_goes_on_with_an_equal_subscription_and_replaces_another() -> None:
    world = World((("b0", "b1"),))
    subscriber = world.client("s", "b1")
    subscriber.subscribe(Subscription("one", ("/a",)))
    subscriber.subscribe(Subscription("two", ("/b",)))
    publisher = world.client("p", "b0")
    world.run(2)
    world.network.crash("s", keep_state=False)
    world.publish(publisher)
    world.run(1)
    attachments = world.broker("b1").attachments
    node = world.network.nodes["s"]
    again: list[ReliableClient] = []

    def make(node: SimulatedNode) -> Node:
        again.append(ReliableClient(node, "b1", incarnation=9))
        return again[-1]

    node._make = make
    world.network.restart("s")
    again[0].subscribe(Subscription("one", ("/a",)))
    again[0].subscribe(Subscription("two", ("/c",)))
    world.run(3)
    assert world.delivered["s"] == [1]
    assert sorted(attachments.clients["s"].subscriptions) == ["one", "two"]
    texts = sorted(held.interest.text for held in attachments.clients["s"].subscriptions.values())
    assert texts == ["/a", "/c"]


def test_subscriptions_of_a_nameless_client_are_not_kept_long() -> None:
    world = World((("b0", "b1"),))
    named = world.client("named", "b1")
    nameless = world.client("nameless", "b1")
    nameless.session._lasting = False
    for client in (named, nameless):
        client.subscribe(Subscription("one", (f"/{client.session.port.node}",)))
    world.run(2)
    nameless.session.on_link_up("b1")  # attaches again, as nameless
    world.run(1)
    world.network.crash("named", keep_state=True)
    world.network.crash("nameless", keep_state=True)
    world.run(120)
    attachments = world.broker("b1").attachments
    assert list(attachments.clients["named"].subscriptions) == ["one"]
    assert "nameless" not in attachments.clients
