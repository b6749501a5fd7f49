"""Everything that can go wrong with simulated nodes and links, one at a time and overlapping."""

from __future__ import annotations

import pytest

from tidings.core.client.session import BestEffortClient
from tidings.core.events.event import EventId
from tidings.core.events.subscription import Subscription
from tidings.core.facts import Delivered
from tidings.core.kernel import Node, Part, TimerName
from tidings.core.messages import Message, Unsubscribe
from tidings.core.overlay.best_effort.broker import Broker
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.links import LOCAL, LinkSpec
from tidings.scenarios.file.schema import ConstantDelay, NoLoss, UniformDelay

NS_PER_MS = 1_000_000
TEN_MS = LinkSpec(ConstantDelay(value=10.0), NoLoss(), 0.0, 0.0, 0.0)


class Diary(Part):
    """Notes what happens to it, with the time in milliseconds. It is kept outside the node's life."""

    name = "diary"
    handles = {Unsubscribe: "on_unsubscribe"}  # noqa: RUF012

    def __init__(self, node: SimulatedNode, notes: list[tuple[float, str]]) -> None:
        super().__init__(node)
        self.notes = notes

    def note(self, what: str) -> None:
        self.notes.append((self.port.now / NS_PER_MS, what))

    def start(self) -> None:
        self.note("start")

    def on_unsubscribe(self, sender: str, message: Unsubscribe) -> None:
        self.note(f"{message.subscription} from {sender}")

    def on_timer(self, name: TimerName) -> None:
        self.note(f"timer {name[1]}")

    def on_link_up(self, peer: str) -> None:
        self.note(f"up {peer}")

    def on_link_down(self, peer: str) -> None:
        self.note(f"down {peer}")


class Bench:
    """Nodes that keep diaries, 10 ms apart."""

    def __init__(self, *names: str, attached: dict[str, str] | None = None) -> None:
        self.network = SimulatedNetwork(1, lambda source, target: TEN_MS)
        self.notes: dict[str, list[tuple[float, str]]] = {name: [] for name in names}
        self.lives: list[dict[str, object]] = []
        for name in names:
            self.network.add(name, self._make)
        for client, broker in (attached or {}).items():
            self.network.attach(client, broker)
        self.network.start()
        for notes in self.notes.values():
            notes.clear()

    def _make(self, node: SimulatedNode) -> Node:
        self.lives.append(dict(node.disk))
        return Node((Diary(node, self.notes[node.node]),))

    def send(self, source: str, target: str, *texts: str) -> None:
        for text in texts:
            self.network.nodes[source].send(target, Unsubscribe(text))

    def run(self, duration_ms: float) -> None:
        self.network.run(self.network.schedule.now + round(duration_ms * NS_PER_MS))

    def heard(self, name: str) -> list[tuple[float, str]]:
        notes = list(self.notes[name])
        self.notes[name].clear()
        return notes


# --- Crashes


def test_what_comes_while_a_node_is_down_is_lost_and_counted() -> None:
    bench = Bench("a", "b")
    bench.send("a", "b", "on its way at the crash")
    bench.network.nodes["b"].set_timer(("diary", "t"), 15 * NS_PER_MS)
    bench.run(5)
    bench.network.crash("b", keep_state=True)
    bench.send("a", "b", "sent to the dead")
    bench.run(20)
    bench.network.restart("b")
    assert bench.heard("b") == [(25.0, "start")]
    bench.send("a", "b", "sent to the living")
    bench.run(10)
    assert bench.heard("b") == [(35.0, "sent to the living from a")]
    assert bench.network.link("a", "b").traffic()[Unsubscribe].dropped == 2


def test_what_is_on_its_way_when_a_node_is_back_reaches_its_new_life() -> None:
    bench = Bench("a", "b")
    bench.send("a", "b", "x")
    bench.network.crash("b", keep_state=True)
    bench.run(5)
    bench.network.restart("b")
    bench.run(5)
    assert bench.heard("b") == [(5.0, "start"), (10.0, "x from a")]


@pytest.mark.parametrize(("keep_state", "found"), [(True, {"count": 1}), (False, {})])
def test_a_crash_keeps_or_loses_the_disk(keep_state: bool, found: dict[str, object]) -> None:
    bench = Bench("a")
    bench.network.nodes["a"].disk["count"] = 1
    bench.network.crash("a", keep_state=keep_state)
    bench.network.restart("a")
    assert bench.lives == [{}, found]


def test_a_node_is_down_until_as_many_restarts_as_crashes() -> None:
    bench = Bench("a")
    for _ in range(2):
        bench.network.crash("a", keep_state=True)
    bench.network.restart("a")
    assert not bench.network.nodes["a"].up
    bench.network.restart("a")
    assert bench.network.nodes["a"].up


def test_client_and_broker_hear_of_each_others_crashes() -> None:
    bench = Bench("b", "c", attached={"c": "b"})
    bench.network.crash("b", keep_state=True)
    assert bench.heard("c") == [(0.0, "down b")]
    bench.run(5)
    bench.network.restart("b")
    assert bench.heard("c") == [(5.0, "up b")]
    assert bench.heard("b") == [(5.0, "start"), (5.0, "up c")]
    bench.network.crash("c", keep_state=True)
    bench.network.restart("c")
    assert bench.heard("b") == [(5.0, "down c"), (5.0, "up c")]


# --- Pauses


def test_a_paused_node_gets_messages_and_timers_later_in_their_order() -> None:
    bench = Bench("a", "b")
    node = bench.network.nodes["b"]
    bench.send("a", "b", "1")
    node.set_timer(("diary", "2"), 12 * NS_PER_MS)
    bench.run(5)
    bench.network.pause("b")
    bench.run(10)
    bench.send("a", "b", "3")
    bench.run(15)
    assert bench.heard("b") == []
    bench.network.resume("b")
    bench.run(0)
    assert bench.heard("b") == [(30.0, "1 from a"), (30.0, "timer 2"), (30.0, "3 from a")]


def test_what_arrives_in_the_instant_of_the_resumption_comes_after_what_waited() -> None:
    bench = Bench("a", "b")
    bench.network.pause("b")
    bench.network.schedule.at(20 * NS_PER_MS, lambda _first, _second: bench.network.resume("b"))
    bench.send("a", "b", "1")
    bench.run(10)
    bench.send("a", "b", "2")
    bench.run(10)
    assert bench.heard("b") == [(20.0, "1 from a"), (20.0, "2 from a")]


def test_a_timer_cancelled_or_set_again_while_paused_does_not_fire_twice() -> None:
    bench = Bench("a")
    node = bench.network.nodes["a"]
    node.set_timer(("diary", "t"), 5 * NS_PER_MS)
    node.set_timer(("diary", "u"), 5 * NS_PER_MS)
    bench.network.pause("a")
    bench.run(10)
    node.cancel_timer(("diary", "u"))
    node.set_timer(("diary", "t"), 30 * NS_PER_MS)
    bench.network.resume("a")
    bench.run(100)
    assert bench.heard("a") == [(30.0, "timer t")]


def test_pauses_may_overlap_each_other_and_a_crash() -> None:
    bench = Bench("a", "b")
    bench.network.pause("b")
    bench.network.pause("b")
    bench.send("a", "b", "lost in the crash")
    bench.run(10)
    bench.network.resume("b")
    bench.run(1)
    assert bench.heard("b") == []
    bench.network.crash("b", keep_state=True)
    bench.network.restart("b")
    bench.send("a", "b", "held")
    bench.run(20)
    assert bench.heard("b") == [(11.0, "start")]
    bench.network.resume("b")
    bench.run(1)
    assert bench.heard("b") == [(31.0, "held from a")]


def test_a_paused_node_hears_of_connections_when_it_goes_on() -> None:
    bench = Bench("b", "c", attached={"c": "b"})
    bench.network.pause("c")
    bench.network.crash("b", keep_state=True)
    bench.network.restart("b")
    assert bench.heard("c") == []
    bench.network.resume("c")
    bench.run(0)
    assert [what for _, what in bench.heard("c")] == ["down b", "up b"]


# --- Links


def test_a_slow_node_takes_longer_both_ways_and_factors_multiply() -> None:
    bench = Bench("a", "b", "c")
    bench.network.slow("b", 3.0)
    bench.network.slow("b", 2.0)
    for source, target in (("a", "b"), ("b", "a"), ("a", "c")):
        bench.send(source, target, "x")
    bench.run(100)
    assert bench.heard("b") == [(60.0, "x from a")]
    assert bench.heard("a") == [(60.0, "x from b")]
    assert bench.heard("c") == [(10.0, "x from a")]
    bench.network.stop_slowing("b", 3.0)
    bench.send("a", "b", "x")
    bench.run(100)
    assert bench.heard("b") == [(120.0, "x from a")]


def test_a_one_way_cut_stops_one_way_and_cuts_may_overlap() -> None:
    def forward(source: str, target: str) -> bool:
        return (source, target) == ("a", "b")

    def both(source: str, target: str) -> bool:
        return {source, target} == {"a", "b"}

    def exchange() -> tuple[bool, bool]:
        bench.send("a", "b", "x")
        bench.send("b", "a", "x")
        bench.run(20)
        return bool(bench.heard("b")), bool(bench.heard("a"))

    bench = Bench("a", "b")
    assert exchange() == (True, True)
    bench.network.sever(forward)
    assert exchange() == (False, True)
    bench.network.sever(both)
    assert exchange() == (False, False)
    bench.network.mend(forward)
    assert exchange() == (False, False)
    bench.network.mend(both)
    assert exchange() == (True, True)


def test_a_cut_does_not_touch_what_has_left_and_holds_for_links_made_later() -> None:
    bench = Bench("a", "b", "c")
    bench.send("a", "b", "left before")
    bench.network.sever(lambda source, target: source == "a")
    bench.send("a", "c", "on a new link")
    bench.run(20)
    assert bench.heard("b") == [(10.0, "left before from a")]
    assert bench.heard("c") == []


def test_client_and_broker_hear_when_their_connection_is_cut_either_way() -> None:
    def severed(source: str, target: str) -> bool:
        return (source, target) == ("b", "c")

    bench = Bench("b", "c", attached={"c": "b"})
    bench.network.sever(severed)
    assert [what for _, what in bench.heard("c")] == ["down b"]
    assert [what for _, what in bench.heard("b")] == ["down c"]
    bench.network.sever(severed)
    assert bench.heard("b") == []
    bench.network.mend(severed)
    assert bench.heard("b") == []
    bench.network.mend(severed)
    assert [what for _, what in bench.heard("b")] == ["up c"]


def test_general_loss_spares_the_connections_of_clients() -> None:
    bench = Bench("a", "b", "c", attached={"c": "b"})
    bench.network.lose(0.999_999)
    bench.send("c", "b", "x")
    bench.send("a", "b", "x")
    bench.run(20)
    assert bench.heard("b") == [(10.0, "x from c")]
    bench.network.stop_losing(0.999_999)
    bench.send("a", "b", "y")
    bench.run(20)
    assert [what for _, what in bench.heard("b")] == ["y from a"]


def test_names_are_unique() -> None:
    bench = Bench("a")
    with pytest.raises(ValueError, match="'a'"):
        bench.network.add("a", bench._make)


# --- Brokers and clients


def test_a_copy_that_outlives_a_crash_of_the_broker_is_not_shown_again() -> None:
    """The broker forgets what it has sent; its client does not."""
    copies = LinkSpec(UniformDelay(low=10.0, high=500.0), NoLoss(), 1.0, 0.0, 0.0)
    around = {"b0": ["b1"], "b1": ["b0"]}

    def make_broker(node: SimulatedNode) -> Node:
        return Broker(node, around[node.node], incarnation=node.now + 1)

    for seed in range(10):
        network = SimulatedNetwork(
            seed, lambda source, target: copies if source in around and target in around else LOCAL
        )
        shown: list[EventId] = []

        def on_fact(fact: object, shown: list[EventId] = shown) -> None:
            if isinstance(fact, Delivered):
                shown.append(fact.stretch.id)

        for name in around:
            network.add(name, make_broker)
        network.add("c0", lambda node: BestEffortClient(node, "b0"))
        network.add("c1", lambda node: BestEffortClient(node, "b1"), on_fact)
        for client, broker in (("c0", "b0"), ("c1", "b1")):
            network.attach(client, broker)
        network.start()
        network.nodes["c1"].protocol.subscribe(Subscription("s"))  # type: ignore[attr-defined]
        network.run(5_000 * NS_PER_MS)
        for _ in range(20):
            network.nodes["c0"].protocol.publish("/a", {}, b"", network.schedule.now)  # type: ignore[attr-defined]
        network.run(5_250 * NS_PER_MS)
        network.crash("b1", keep_state=True)
        network.run(5_251 * NS_PER_MS)
        network.restart("b1")
        network.run(9_000 * NS_PER_MS)
        assert len(shown) == len(set(shown)) >= 1


def test_a_message_that_a_node_does_not_understand_is_ignored() -> None:
    bench = Bench("a", "b")
    message: Message = Unsubscribe("x")
    bench.network.nodes["b"].handlers.clear()
    bench.network.nodes["b"].protocol.handlers.clear()
    bench.network.nodes["a"].send("b", message)
    bench.run(20)
    assert bench.heard("b") == []
