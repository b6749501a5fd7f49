"""Subscription forwarding as the epidemic paper describes it: one test per claim of its section 2.1.

The network of figure 1 is not in the text; the tree here has its features: inner dispatchers, leaves, two
subscribers of one pattern ('black') and one of another ('grey').

    b3   b4
      \\ /
       b1        b5 - b6
         \\      /
          b0 - b2
                \\
                 b7
"""

from __future__ import annotations

import pytest

from tidings.core.client.session import BestEffortClient
from tidings.core.events.event import Publication
from tidings.core.events.subscription import Interest, Subscription, make_interest
from tidings.core.facts import Delivered
from tidings.core.messages import Message
from tidings.core.overlay.best_effort.broker import Broker
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.messages import AddInterest, Changes, RemoveInterest
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.links import LOCAL, LinkSpec
from tidings.scenarios.file.schema import ConstantDelay, NoLoss

EDGES = (("b0", "b1"), ("b0", "b2"), ("b1", "b3"), ("b1", "b4"), ("b2", "b5"), ("b5", "b6"), ("b2", "b7"))
BROKERS = tuple(f"b{number}" for number in range(8))
TEN_MS = LinkSpec(ConstantDelay(value=10.0), NoLoss(), 0.0, 0.0, 0.0)
NS_PER_S = 1_000_000_000

BLACK = "colour = 'black'"
GREY = "shade BETWEEN 40 AND 60"


class Tree:
    """The network, a client `c<n>` at each broker, and all changes of subscription tables on their way."""

    def __init__(self) -> None:
        self.around: dict[str, list[str]] = {name: [] for name in BROKERS}
        for left, right in EDGES:
            self.around[left].append(right)
            self.around[right].append(left)
        self.network = SimulatedNetwork(1, self._spec)
        self.shown: list[tuple[str, str]] = []
        self.changes: list[tuple[str, str, object]] = []
        matcher = Matcher()
        for name in BROKERS:
            self.network.add(name, lambda node: self._broker(node, matcher))
        for name in BROKERS:
            client = f"c{name[1:]}"
            self.network.add(client, lambda node, at=name: BestEffortClient(node, at), self._on_fact(client))
            self.network.attach(client, name)
        self.network.start()
        self.run()

    def _spec(self, source: str, target: str) -> LinkSpec:
        return TEN_MS if source in self.around and target in self.around else LOCAL

    def _broker(self, node: SimulatedNode, matcher: Matcher) -> Broker:
        broker = Broker(node, self.around[node.node], incarnation=node.now + 1, matcher=matcher)
        take = broker.handlers[Changes]

        def noted(sender: str, message: Message) -> None:
            assert isinstance(message, Changes)
            self.changes += [(sender, node.node, change) for change in message.changes]
            take(sender, message)

        broker.handlers[Changes] = noted
        return broker

    def _on_fact(self, client: str):  # type: ignore[no-untyped-def]
        def on_fact(fact: object) -> None:
            if isinstance(fact, Delivered):
                self.shown.append((client, fact.subscription))

        return on_fact

    def run(self) -> None:
        self.network.run(self.network.schedule.now + 5 * NS_PER_S)

    def client(self, name: str) -> BestEffortClient:
        protocol = self.network.nodes[f"c{name[1:]}"].protocol
        assert isinstance(protocol, BestEffortClient)
        return protocol

    def subscribe(self, at: str, sql: str, name: str = "s") -> None:
        self.client(at).subscribe(Subscription(name, (), sql))
        self.run()

    def unsubscribe(self, at: str, name: str = "s") -> None:
        self.client(at).unsubscribe(name)
        self.run()

    def table(self, name: str) -> dict[Interest, list[str]]:
        """A dispatcher's subscription table: each pattern with the neighbours and clients that it is held for."""
        broker = self.network.nodes[name].protocol
        assert isinstance(broker, Broker)
        return {
            interest: [
                *(link.peer for link in broker.forwarding.links.values() if interest in link.keys),
                *(client for client, _ in broker.table.subscriptions(interest)),
            ]
            for interest in broker.table
        }

    def propagations(self, sql: str) -> list[tuple[str, str]]:
        """The directions in which the pattern was propagated."""
        key = make_interest((), sql).key
        return [
            (source, target)
            for source, target, change in self.changes
            if isinstance(change, AddInterest) and change.key == key
        ]

    def publish(self, at: str, attributes: dict[str, object]) -> list[tuple[str, str]]:
        """The links between dispatchers that the event passed."""
        before = {pair: link.publications for pair, link in self.network.links.items()}
        self.shown.clear()
        self.client(at).publish("/t", attributes, b"", self.network.schedule.now)  # type: ignore[arg-type]
        self.run()
        return sorted(
            pair
            for pair, link in self.network.links.items()
            for _ in range(link.publications - before.get(pair, 0))
            if pair[0] in self.around and pair[1] in self.around
        )


@pytest.fixture
def tree() -> Tree:
    return Tree()


def test_subscriptions_contain_expressions_matched_on_the_content_of_events(tree: Tree) -> None:
    tree.subscribe("b3", GREY)
    tree.publish("b6", {"shade": 50})
    assert tree.shown == [("c3", "s")]
    tree.publish("b6", {"shade": 61})
    tree.publish("b6", {})
    assert tree.shown == []


def test_a_subscription_is_inserted_in_the_table_of_its_dispatcher_with_the_subscriber(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    assert tree.table("b3") == {make_interest((), BLACK): ["c3"]}


def test_subscriptions_are_delivered_to_every_dispatcher_along_the_tree(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    assert all(make_interest((), BLACK) in tree.table(name) for name in BROKERS)


def test_towards_the_rest_of_the_network_a_dispatcher_behaves_as_a_subscriber(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    black = make_interest((), BLACK)
    assert tree.table("b1") == {black: ["b3"]}
    assert tree.table("b0") == {black: ["b1"]}
    assert tree.table("b6") == {black: ["b5"]}


def test_a_subscription_goes_to_all_neighbours_except_the_one_that_sent_it(tree: Tree) -> None:
    tree.subscribe("b0", BLACK)
    away_from_b0 = [
        ("b0", "b1"),
        ("b0", "b2"),
        ("b1", "b3"),
        ("b1", "b4"),
        ("b2", "b5"),
        ("b2", "b7"),
        ("b5", "b6"),
    ]
    assert sorted(tree.propagations(BLACK)) == away_from_b0


def test_the_same_pattern_is_not_propagated_twice_in_the_same_direction(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    tree.subscribe("b3", BLACK, "again")
    tree.subscribe("b4", "'black' = colour", "written otherwise")
    tree.subscribe("b6", BLACK)
    directions = tree.propagations(BLACK)
    assert len(directions) == len(set(directions))
    assert {("b1", "b0"), ("b0", "b1")} <= set(directions), (
        "both ways, for there are subscribers on both sides"
    )


def test_events_follow_the_reverse_path_from_the_publisher_to_the_subscriber(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    passed = tree.publish("b6", {"colour": "black"})
    assert passed == sorted([("b6", "b5"), ("b5", "b2"), ("b2", "b0"), ("b0", "b1"), ("b1", "b3")])
    assert tree.shown == [("c3", "s")]


def test_an_event_that_nobody_wants_goes_nowhere(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    assert tree.publish("b6", {"colour": "white"}) == []


def test_unsubscribing_propagates_as_subscribing_does_and_removes_the_entries(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    subscribed = tree.propagations(BLACK)
    tree.changes.clear()
    tree.unsubscribe("b3")
    removed = [
        (source, target) for source, target, change in tree.changes if isinstance(change, RemoveInterest)
    ]
    assert sorted(removed) == sorted(subscribed)
    assert all(tree.table(name) == {} for name in BROKERS)
    assert tree.publish("b6", {"colour": "black"}) == []


def test_unsubscribing_one_of_two_leaves_the_routes_of_the_other(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    tree.subscribe("b7", BLACK)
    tree.unsubscribe("b3")
    assert tree.publish("b4", {"colour": "black"}) == sorted(
        [("b4", "b1"), ("b1", "b0"), ("b0", "b2"), ("b2", "b7")]
    )
    assert tree.shown == [("c7", "s")]


def test_figure_1_routes_of_two_patterns_are_laid_on_the_single_tree(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    tree.subscribe("b6", BLACK)
    tree.subscribe("b7", GREY)
    black, grey = make_interest((), BLACK), make_interest((), GREY)
    for name in BROKERS:
        held = tree.table(name)
        assert held.keys() == {black, grey}
        assert held[grey] == [
            {"b7": "c7", "b2": "b7", "b0": "b2", "b1": "b0", "b5": "b2"}.get(name, "")
            or {"b3": "b1", "b4": "b1", "b6": "b5"}[name]
        ]
    assert sorted(tree.table("b0")[black]) == ["b1", "b2"]
    assert sorted(tree.table("b2")[black]) == ["b0", "b5"]


def test_an_event_that_matches_several_patterns_passes_each_link_once(tree: Tree) -> None:
    tree.subscribe("b3", BLACK)
    tree.subscribe("b6", BLACK)
    tree.subscribe("b6", GREY, "t")
    tree.subscribe("b7", GREY)
    passed = tree.publish("b4", {"colour": "black", "shade": 50})
    assert len(passed) == len(set(passed))
    assert passed == sorted(
        [("b4", "b1"), ("b1", "b3"), ("b1", "b0"), ("b0", "b2"), ("b2", "b5"), ("b5", "b6"), ("b2", "b7")]
    )
    assert sorted(tree.shown) == [("c3", "s"), ("c6", "s"), ("c6", "t"), ("c7", "s")]


def test_a_dispatcher_is_a_subscriber_if_at_least_one_of_its_clients_is(tree: Tree) -> None:
    tree.network.add("other", lambda node: BestEffortClient(node, "b3"))
    tree.network.attach("other", "b3")
    tree.network.nodes["other"].start()
    tree.subscribe("b3", BLACK)
    other = tree.network.nodes["other"].protocol
    assert isinstance(other, BestEffortClient)
    other.subscribe(Subscription("s", (), BLACK))
    tree.run()
    tree.unsubscribe("b3")
    black = make_interest((), BLACK)
    assert tree.table("b3") == {black: ["other"]}
    assert tree.table("b1") == {black: ["b3"]}


def test_an_event_is_one_message_however_many_want_it_behind_a_link(tree: Tree) -> None:
    for name in ("b5", "b6", "b7"):
        tree.subscribe(name, BLACK)
    tree.publish("b0", {"colour": "black"})
    traffic = tree.network.link("b0", "b2").traffic()
    assert traffic[Publication].messages == 1
