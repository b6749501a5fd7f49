"""Simulated connections: each promise alone, then random schedules of everything that can go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.facts import Misbehaviour, SessionUnwanted, SessionWanted
from tidings.core.kernel import Node, Part, TimerName
from tidings.core.messages import Unsubscribe
from tidings.drivers.virtual.link import VirtualLink
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.drivers.virtual.streams import Connections, StreamLink, VirtualStream
from tidings.scenarios.file.links import LOCAL, LinkSpec
from tidings.scenarios.file.schema import BernoulliLoss, ConstantDelay, NoLoss, UniformDelay

NS_PER_MS = 1_000_000
TEN_MS = LinkSpec(ConstantDelay(value=10.0), NoLoss(), 0.0, 0.0, 0.0)
LOSSY = LinkSpec(ConstantDelay(value=10.0), BernoulliLoss(rate=0.4), 0.0, 0.0, 0.0)

Note = tuple[float, str]
Cut = Callable[[str, str], bool]


class Diary(Part):
    """Notes what happens to it, with the time in milliseconds. It is kept outside the node's life."""

    name = "diary"
    handles = {Unsubscribe: "on_unsubscribe"}  # noqa: RUF012

    def __init__(
        self, node: SimulatedNode, notes: list[Note], replies: dict[str, Callable[[], None]]
    ) -> None:
        super().__init__(node)
        self.notes = notes
        self.replies = replies

    def note(self, what: str) -> None:
        self.notes.append((self.port.now / NS_PER_MS, what))
        if what in self.replies:
            self.replies.pop(what)()

    def start(self) -> None:
        self.note("start")

    def on_unsubscribe(self, sender: str, message: Unsubscribe) -> None:
        self.note(f"{message.subscription} from {sender}")

    def on_link_up(self, peer: str) -> None:
        self.note(f"up {peer}")

    def on_link_down(self, peer: str) -> None:
        self.note(f"down {peer}")


class Bench:
    """Nodes that keep diaries, 10 ms apart unless told otherwise, with connections."""

    def __init__(
        self, *names: str, spec: LinkSpec = TEN_MS, attached: dict[str, str] | None = None, seed: int = 1
    ) -> None:
        self.network = SimulatedNetwork(seed, lambda source, target: spec, streams=True)
        self.notes: dict[str, list[Note]] = {name: [] for name in names}
        self.replies: dict[str, dict[str, Callable[[], None]]] = {name: {} for name in names}
        self.facts: list[object] = []
        for name in names:
            self.network.add(name, self._make, self.facts.append)
        for client, broker in (attached or {}).items():
            self.network.attach(client, broker)
        self.network.start()

    def _make(self, node: SimulatedNode) -> Node:
        notes = self.notes.setdefault(node.node, [])
        return Node((Diary(node, notes, self.replies.setdefault(node.node, {})),))

    def send(self, source: str, target: str, *texts: str) -> None:
        for text in texts:
            self.network.nodes[source].send(target, Unsubscribe(text))

    def want(self, node: str, peer: str) -> None:
        self.network.nodes[node].emit(SessionWanted(peer))

    def unwant(self, node: str, peer: str) -> None:
        self.network.nodes[node].emit(SessionUnwanted(peer))

    def run(self, duration_ms: float) -> None:
        self.network.run(self.network.schedule.now + round(duration_ms * NS_PER_MS))

    def heard(self, name: str) -> list[Note]:
        notes = list(self.notes[name])
        self.notes[name].clear()
        return notes

    def words(self, name: str) -> list[str]:
        return [what for _, what in self.heard(name)]

    def dropped(self, source: str, target: str) -> int:
        traffic = self.network.link(source, target).traffic()
        return traffic[Unsubscribe].dropped if traffic else 0


def connected(*, at_ms: float = 100.0, **options: Any) -> Bench:
    """Two nodes a and b; a wanted the connection that they have. The diaries are empty."""
    bench = Bench("a", "b", **options)
    bench.want("a", "b")
    bench.run(at_ms)
    assert bench.words("a") == ["start", "up b"]
    assert bench.words("b") == ["start", "up a"]
    return bench


def one_way(source: str, target: str) -> Cut:
    return lambda first, second: (first, second) == (source, target)


def between(one: str, other: str) -> Cut:
    return lambda first, second: {first, second} == {one, other}


# --- Opening


def test_a_wanted_connection_opens_after_a_round_trip_and_both_learn_so_the_acceptor_first() -> None:
    bench = Bench("a", "b")
    order: list[str] = []
    bench.replies["a"]["up b"] = lambda: order.append("a")
    bench.replies["b"]["up a"] = lambda: order.append("b")
    bench.want("a", "b")
    bench.run(100)
    assert bench.heard("a") == [(0.0, "start"), (20.0, "up b")]
    assert bench.heard("b") == [(0.0, "start"), (20.0, "up a")]
    assert order == ["b", "a"]


def test_wishes_are_taken_and_other_facts_pass_on() -> None:
    bench = Bench("a", "b")
    bench.want("a", "b")
    bench.network.nodes["a"].emit(Misbehaviour("b", "none"))
    bench.unwant("a", "b")
    assert bench.facts == [Misbehaviour("b", "none")]


def test_a_wish_is_answered_by_nothing_but_the_schedule() -> None:
    bench = Bench("a", "b", spec=LOCAL)
    bench.want("a", "b")
    assert bench.words("a") == ["start"]
    bench.run(0)
    assert bench.words("a") == ["up b"]
    bench.unwant("a", "b")
    assert bench.words("a") == []
    bench.run(0)
    assert bench.heard("a") == [(0.0, "down b")]


def test_there_is_one_connection_if_both_want_it() -> None:
    bench = Bench("a", "b")
    bench.want("a", "b")
    bench.run(5)
    bench.want("b", "a")
    bench.want("b", "a")
    bench.run(10_000)
    assert bench.heard("a") == [(0.0, "start"), (20.0, "up b")]
    assert bench.heard("b") == [(0.0, "start"), (20.0, "up a")]


def test_slowness_makes_opening_slower() -> None:
    bench = Bench("a", "b")
    bench.network.slow("b", 5.0)
    bench.want("a", "b")
    bench.run(200)
    assert bench.heard("a")[-1] == (100.0, "up b")


def test_who_waits_dials_again_and_again_at_doubling_times_with_jitter() -> None:
    def opened_at_ms(seed: int, up_after_ms: float) -> float:
        bench = Bench("a", "b", seed=seed)
        bench.network.crash("b", keep_state=True)
        bench.want("a", "b")
        bench.run(up_after_ms)
        bench.network.restart("b")
        bench.run(10_000)
        return bench.heard("a")[-1][0]

    first = [opened_at_ms(seed, 10) - 20 for seed in range(40)]
    assert all(75 <= at <= 125 for at in first)
    assert max(first) - min(first) > 30
    third = [opened_at_ms(seed, 400) - 20 for seed in range(20)]
    assert all(400 <= at <= 1.25 * 700 for at in third)
    late = [opened_at_ms(seed, 60_000) - 20 for seed in range(20)]
    assert all(60_000 <= at <= 60_000 + 2_500 for at in late)
    assert max(late) > 60_000 + 1_000
    assert first == [opened_at_ms(seed, 10) - 20 for seed in range(40)]


@pytest.mark.parametrize("cut", [one_way("a", "b"), one_way("b", "a")])
@pytest.mark.parametrize("cut_at_ms", [0, 10])
def test_no_connection_opens_over_a_cut_in_either_direction(cut: Cut, cut_at_ms: float) -> None:
    bench = Bench("a", "b")
    bench.want("a", "b")
    if cut_at_ms:
        bench.run(cut_at_ms)
    bench.network.sever(cut)
    bench.run(1_000)
    assert bench.words("a") == ["start"]
    bench.network.mend(cut)
    bench.run(2_500)
    assert bench.words("a") == ["up b"]
    assert bench.words("b") == ["start", "up a"]


def test_a_cut_that_comes_and_goes_during_the_attempt_does_not_matter() -> None:
    bench = Bench("a", "b")
    bench.want("a", "b")
    bench.run(5)
    cut = between("a", "b")
    bench.network.sever(cut)
    bench.run(5)
    bench.network.mend(cut)
    bench.run(10)
    assert bench.heard("a")[-1] == (20.0, "up b")


def test_a_paused_peer_accepts_after_it_resumes() -> None:
    bench = Bench("a", "b")
    bench.network.pause("b")
    bench.want("a", "b")
    bench.run(1_000)
    bench.network.resume("b")
    bench.run(1_000)
    assert bench.words("a") == ["start", "up b"]
    ((_, _), (at, up)) = bench.heard("b")
    assert up == "up a"
    assert at >= 1_000


def test_a_node_paused_while_it_dials_learns_of_its_connection_when_it_goes_on() -> None:
    bench = Bench("a", "b")
    bench.want("a", "b")
    bench.replies["b"]["up a"] = lambda: bench.send("b", "a", "hello")
    bench.run(10)
    bench.network.pause("a")
    bench.run(90)
    assert bench.words("a") == ["start"]
    bench.network.resume("a")
    assert bench.heard("a") == [(100.0, "up b"), (100.0, "hello from b")]


def test_a_paused_node_does_not_dial() -> None:
    bench = Bench("a", "b")
    bench.want("a", "b")
    bench.network.pause("a")
    bench.run(5_000)
    assert bench.words("b") == ["start"]
    bench.network.resume("a")
    bench.run(3_000)
    assert bench.words("b") == ["up a"]


def test_a_peer_that_does_not_exist_yet_is_dialled_until_it_joins() -> None:
    bench = Bench("a")
    bench.want("a", "n")
    bench.run(1_000)
    bench.network.add("n", bench._make).start()
    bench.run(3_000)
    assert bench.words("a") == ["start", "up n"]
    assert bench.words("n") == ["start", "up a"]


def test_nodes_that_want_each_other_from_their_start_need_no_second_attempt() -> None:
    """The first of them dials the second when all have started."""

    class Eager(Diary):
        def start(self) -> None:
            super().start()
            if self.port.node == "a":
                self.port.emit(SessionWanted("b"))

    notes: dict[str, list[Note]] = {"a": [], "b": []}
    network = SimulatedNetwork(1, lambda source, target: TEN_MS, streams=True)
    for name in notes:
        network.add(name, lambda node: Node((Eager(node, notes[node.node], {}),)))
    network.start()
    network.run(100 * NS_PER_MS)
    assert notes["b"] == [(0.0, "start"), (20.0, "up a")]


def test_a_wish_taken_back_before_the_connection_opens_opens_none() -> None:
    bench = Bench("a", "b")
    bench.want("a", "b")
    bench.run(10)
    bench.unwant("a", "b")
    bench.run(5_000)
    assert bench.words("a") == bench.words("b") == ["start"]


# --- Closing


def test_a_close_is_told_at_once_here_and_after_all_that_was_sent_there() -> None:
    bench = connected()
    bench.send("a", "b", "1", "2")
    bench.unwant("a", "b")
    bench.run(5_000)
    assert bench.heard("a") == [(100.0, "down b")]
    assert bench.heard("b") == [(110.0, "1 from a"), (110.0, "2 from a"), (110.0, "down a")]


def test_a_close_waits_for_what_was_sent_when_it_was_slow() -> None:
    bench = connected()
    bench.network.slow("b", 10.0)
    bench.send("a", "b", "1")
    bench.network.stop_slowing("b", 10.0)
    bench.unwant("a", "b")
    bench.run(5_000)
    assert bench.heard("b") == [(200.0, "1 from a"), (200.0, "down a")]


def test_what_the_other_side_sent_before_it_knew_of_the_close_is_dropped_and_counted() -> None:
    bench = connected()
    bench.send("b", "a", "1")
    bench.unwant("a", "b")
    bench.run(5)
    bench.send("b", "a", "2")
    bench.run(5_000)
    assert bench.words("a") == ["down b"]
    assert bench.words("b") == ["down a"]
    assert bench.dropped("b", "a") == 2


def test_without_a_connection_everything_is_dropped_and_counted() -> None:
    bench = Bench("a", "b")
    bench.send("a", "b", "1")
    bench.want("a", "b")
    bench.run(10)
    bench.send("a", "b", "2")
    bench.run(100)
    assert bench.words("b") == ["start", "up a"]
    assert bench.dropped("a", "b") == 2


def test_a_cached_sender_serves_all_connections() -> None:
    bench = connected()
    send = bench.network.nodes["a"].sender("b")
    send(Unsubscribe("1"))
    bench.run(50)
    bench.unwant("a", "b")
    bench.run(50)
    send(Unsubscribe("2"))
    bench.want("a", "b")
    bench.run(50)
    send(Unsubscribe("3"))
    bench.run(50)
    assert bench.words("b") == ["1 from a", "down a", "up a", "3 from a"]
    assert bench.network.link("a", "b").traffic()[Unsubscribe].messages == 3


def test_a_close_over_a_cut_is_not_told_and_the_next_connection_ends_the_old() -> None:
    bench = connected()
    cut = one_way("a", "b")
    bench.network.sever(cut)
    bench.unwant("a", "b")
    bench.run(1_000)
    assert bench.words("a") == ["down b"]
    assert bench.words("b") == []
    bench.network.mend(cut)
    bench.want("a", "b")
    bench.run(20)
    assert bench.heard("b") == [(1_120.0, "down a"), (1_120.0, "up a")]
    assert bench.words("a") == ["up b"]


def test_who_missed_the_close_learns_of_it_when_it_sends_after_the_cut() -> None:
    bench = connected()
    cut = one_way("a", "b")
    bench.network.sever(cut)
    bench.unwant("a", "b")
    bench.send("b", "a", "during the cut")
    bench.run(1_000)
    bench.network.mend(cut)
    bench.run(1_000)
    assert bench.words("b") == []
    bench.send("b", "a", "after the cut")
    bench.run(1_000)
    assert bench.heard("b") == [(2_120.0, "down a")]
    assert bench.words("a") == ["down b"]
    assert bench.dropped("b", "a") == 2


def test_a_close_that_meets_a_cut_on_its_way_is_not_told() -> None:
    bench = connected()
    bench.unwant("a", "b")
    bench.run(5)
    bench.network.sever(one_way("a", "b"))
    bench.run(1_000)
    assert bench.words("b") == []


def test_after_a_gap_no_close_is_told() -> None:
    bench = connected()
    cut = one_way("a", "b")
    bench.network.sever(cut)
    bench.send("a", "b", "lost")
    bench.network.mend(cut)
    bench.unwant("a", "b")
    bench.run(1_000)
    assert bench.words("b") == []


def test_the_peers_wish_stays_and_it_dials_after_the_close() -> None:
    bench = Bench("a", "b")
    bench.want("a", "b")
    bench.want("b", "a")
    bench.run(100)
    bench.unwant("a", "b")
    bench.run(1_000)
    (_, _, (down_at, down), (up_at, up)) = bench.heard("b")
    assert (down_at, down, up) == (110.0, "down a", "up a")
    assert 110 + 75 + 20 <= up_at <= 110 + 125 + 20
    assert bench.words("a") == ["start", "up b", "down b", "up b"]


def test_a_wish_taken_back_and_said_again_makes_a_new_connection() -> None:
    bench = connected()
    bench.unwant("a", "b")
    bench.want("a", "b")
    bench.run(1_000)
    assert bench.heard("a") == [(100.0, "down b"), (120.0, "up b")]
    assert bench.heard("b") == [(110.0, "down a"), (120.0, "up a")]


def test_both_may_close_at_once() -> None:
    bench = connected()
    bench.unwant("a", "b")
    bench.unwant("b", "a")
    bench.run(1_000)
    assert bench.heard("a") == [(100.0, "down b")]
    assert bench.heard("b") == [(100.0, "down a")]


def test_a_connection_may_be_closed_from_within_its_opening() -> None:
    bench = Bench("a", "b")
    bench.replies["b"]["up a"] = lambda: bench.unwant("b", "a")
    bench.replies["a"]["up b"] = lambda: bench.send("a", "b", "dropped")
    bench.want("a", "b")
    bench.run(50)
    assert bench.heard("b") == [(0.0, "start"), (20.0, "up a"), (20.0, "down a")]
    assert bench.heard("a") == [(0.0, "start"), (20.0, "up b"), (30.0, "down b")]
    assert bench.dropped("a", "b") == 1


# --- While it is open


def test_each_direction_is_in_order_whatever_the_delays() -> None:
    spec = LinkSpec(UniformDelay(low=1.0, high=50.0), NoLoss(), 0.5, 0.5, 0.0)
    bench = connected(spec=spec, at_ms=200)
    for number in range(100):
        bench.send("a", "b", str(number))
        bench.run(1)
    bench.run(100)
    heard = bench.heard("b")
    assert [what for _, what in heard] == [f"{number} from a" for number in range(100)]
    delays = [at - 200 - number for number, (at, _) in enumerate(heard)]
    assert all(1 <= delay <= 50 for delay in delays)
    assert len(set(delays)) > 5
    assert bench.network.link("a", "b").traffic()[Unsubscribe].messages == 100


def test_what_is_sent_after_a_slow_time_does_not_overtake_and_haste_returns() -> None:
    bench = connected()
    bench.send("a", "b", "1")
    bench.network.slow("b", 10.0)
    bench.send("a", "b", "2")
    bench.network.stop_slowing("b", 10.0)
    bench.send("a", "b", "3")
    bench.run(95)
    bench.send("a", "b", "4")
    bench.run(5)
    bench.send("a", "b", "5")
    bench.run(10)
    assert bench.heard("b") == [
        (110.0, "1 from a"),
        (200.0, "2 from a"),
        (200.0, "3 from a"),
        (205.0, "4 from a"),
        (210.0, "5 from a"),
    ]


def test_no_message_overtakes_another_when_a_node_becomes_faster() -> None:
    bench = connected()
    bench.send("a", "b", "1")
    bench.network.slow("b", 0.1)
    bench.send("a", "b", "2")
    bench.unwant("a", "b")
    bench.run(10)
    assert bench.words("b") == ["1 from a", "2 from a", "down a"]


def test_bandwidth_limits_a_stream() -> None:
    bench = connected(spec=LinkSpec(ConstantDelay(value=10.0), NoLoss(), 0.0, 0.0, 0.001))
    bench.send("a", "b", "x" * 100, "y" * 100)
    bench.run(10_000)
    (first_at, _), (second_at, _) = bench.heard("b")
    assert first_at - 110 == pytest.approx(second_at - first_at)
    assert second_at - first_at > 8 * 100


def test_losses_delay_a_message_and_those_behind_it_and_lose_none() -> None:
    bench = connected(spec=LOSSY)
    for number in range(200):
        bench.send("a", "b", str(number))
        bench.run(5_000)
    heard = bench.heard("b")
    assert [what for _, what in heard] == [f"{number} from a" for number in range(200)]
    delays = [round(at - 100 - 5_000 * number - 10) for number, (at, _) in enumerate(heard)]
    expected = [220 * (2**losses - 1) for losses in range(9)]  # 200 ms and a round trip of 20 ms, doubling
    assert set(delays) <= set(expected)
    assert delays.count(0) > 90
    assert {220, 660} <= set(delays)
    assert bench.dropped("a", "b") == 0


def test_no_message_is_lost_more_than_eight_times() -> None:
    bench = connected()
    bench.network.lose(1.0)
    bench.send("a", "b", "1", "2")
    bench.network.stop_losing(1.0)
    bench.send("a", "b", "3")
    bench.run(60_000)
    at = 110 + 220 * 255
    assert bench.heard("b") == [(at, "1 from a"), (at, "2 from a"), (at, "3 from a")]


# --- Cuts


def test_a_connection_survives_a_cut_in_which_nothing_was_lost() -> None:
    bench = connected()
    cut = between("a", "b")
    bench.send("a", "b", "1")
    bench.run(20)
    bench.network.sever(cut)
    bench.run(10_000)
    bench.network.mend(cut)
    bench.send("a", "b", "2")
    bench.run(20)
    assert bench.words("b") == ["1 from a", "2 from a"]
    assert bench.words("a") == []


@pytest.mark.parametrize("on_its_way", [True, False])
def test_what_meets_a_cut_is_lost_and_all_that_follows_on_the_connection(on_its_way: bool) -> None:
    bench = connected()
    cut = one_way("a", "b")
    if on_its_way:
        bench.send("a", "b", "lost")
        bench.run(5)
        bench.network.sever(cut)
    else:
        bench.network.sever(cut)
        bench.send("a", "b", "lost")
    bench.run(10)
    bench.network.mend(cut)
    bench.send("a", "b", "lost too")
    bench.send("b", "a", "the other direction is whole")
    bench.run(1_000)
    assert bench.words("b") == []
    assert bench.words("a") == ["the other direction is whole from b"]
    assert bench.dropped("a", "b") == 2


def test_an_attempt_that_completes_replaces_a_broken_connection() -> None:
    bench = Bench("a", "b")
    bench.network.link("b", "a").slowness = 9.0  # a's attempt takes 100 ms; so does b's
    bench.want("a", "b")
    bench.run(50)
    bench.want("b", "a")
    bench.run(50)
    assert bench.words("a") == ["start", "up b"]
    cut = one_way("a", "b")
    bench.network.sever(cut)
    bench.send("a", "b", "lost")
    bench.network.mend(cut)
    bench.run(50)
    assert bench.heard("a") == [(150.0, "down b"), (150.0, "up b")]
    assert bench.words("b") == ["start", "up a", "down a", "up a"]
    bench.send("a", "b", "arrives")
    bench.run(10)
    assert bench.words("b") == ["arrives from a"]


# --- Crashes


def test_a_crash_is_not_told_and_a_message_after_the_restart_is_answered_by_a_reset() -> None:
    bench = connected()
    bench.network.crash("a", keep_state=True)
    bench.send("b", "a", "to the dead")
    bench.run(1_000)
    bench.network.restart("a")
    bench.run(1_000)
    assert bench.words("b") == []
    bench.send("b", "a", "to the next life")
    bench.run(1_000)
    assert bench.heard("b") == [(2_120.0, "down a")]
    assert bench.words("a") == ["start"]
    assert bench.dropped("b", "a") == 2


def test_a_reset_does_not_pass_a_cut() -> None:
    bench = connected()
    bench.network.crash("a", keep_state=True)
    bench.network.restart("a")
    cut = one_way("a", "b")
    bench.network.sever(cut)
    bench.send("b", "a", "1")
    bench.run(1_000)
    assert bench.words("b") == []
    bench.network.mend(cut)
    bench.send("b", "a", "2")
    bench.run(1_000)
    assert bench.heard("b") == [(1_120.0, "down a")]


def test_who_still_wants_the_crashed_peer_dials_it_after_the_reset() -> None:
    bench = Bench("a", "b")
    bench.want("b", "a")
    bench.run(100)
    bench.network.crash("a", keep_state=True)
    bench.network.restart("a")
    bench.send("b", "a", "1")
    bench.run(1_000)
    assert bench.words("b") == ["start", "up a", "down a", "up a"]
    assert bench.words("a") == ["start", "up b", "start", "up b"]


def test_what_a_node_sent_before_its_crash_arrives_unless_a_new_connection_comes_first() -> None:
    bench = connected()
    bench.send("a", "b", "1")
    bench.network.slow("b", 20.0)
    bench.send("a", "b", "2")
    bench.network.stop_slowing("b", 20.0)
    bench.network.crash("a", keep_state=True)
    bench.run(50)
    bench.network.restart("a")
    bench.want("a", "b")
    bench.run(1_000)
    assert bench.heard("b") == [(110.0, "1 from a"), (170.0, "down a"), (170.0, "up a")]
    assert bench.words("a") == ["start", "up b"]
    assert bench.dropped("a", "b") == 1


def test_what_is_on_its_way_to_a_node_that_crashes_does_not_reach_its_next_life() -> None:
    bench = connected()
    bench.send("a", "b", "1")
    bench.network.crash("b", keep_state=True)
    bench.network.restart("b")
    bench.run(50)
    assert bench.words("b") == ["start"]
    assert bench.heard("a") == [(120.0, "down b")]


@pytest.mark.parametrize("crash_at_ms", [0, 10, 50])
def test_a_crash_clears_the_wishes_of_the_crashed(crash_at_ms: float) -> None:
    bench = Bench("a", "b")
    if crash_at_ms == 50:
        bench.network.pause("b")  # the request waits for another attempt
    bench.want("a", "b")
    bench.run(crash_at_ms)
    bench.network.crash("a", keep_state=True)
    bench.network.restart("a")
    if crash_at_ms == 50:
        bench.network.resume("b")
    bench.run(10_000)
    assert bench.words("a") == ["start", "start"]
    assert bench.words("b") == ["start"]


def test_a_close_and_a_crash_in_one_instant_tell_the_next_life_nothing() -> None:
    bench = connected()
    bench.unwant("a", "b")
    bench.network.crash("a", keep_state=True)
    bench.network.restart("a")
    bench.run(1_000)
    assert bench.words("a") == ["start"]


# --- Pauses


def test_a_paused_node_hears_everything_of_its_connection_later_and_in_order() -> None:
    bench = connected()
    bench.network.pause("b")
    bench.send("a", "b", "1")
    bench.run(50)
    bench.send("a", "b", "2")
    bench.unwant("a", "b")
    bench.run(50)
    assert bench.words("b") == []
    bench.network.resume("b")
    assert bench.heard("b") == [(200.0, "1 from a"), (200.0, "2 from a"), (200.0, "down a")]


def test_a_node_sends_nothing_on_a_connection_that_it_has_not_heard_of() -> None:
    """It was paused while one connection ended and another began: what it says meanwhile was for the old one."""
    bench = Bench("a", "b", attached={"a": "b"})
    bench.network.pause("a")
    bench.send("b", "a", "1")
    bench.run(50)
    bench.network.crash("b", keep_state=True)
    bench.network.restart("b")
    bench.replies["a"]["1 from b"] = lambda: bench.send("a", "b", "for the old one")
    bench.replies["a"]["down b"] = lambda: bench.send("a", "b", "for none")
    bench.network.resume("a")
    bench.send("a", "b", "for the new one")
    bench.run(50)
    assert bench.words("a") == ["start", "up b", "1 from b", "down b", "up b"]
    assert bench.words("b") == ["start", "up a", "start", "up a", "for the new one from a"]
    assert bench.dropped("a", "b") == 2


# --- Clients


def test_clients_are_connected_when_all_have_started_the_broker_first() -> None:
    bench = Bench("c", "b", attached={"c": "b"})
    assert bench.heard("c") == [(0.0, "start"), (0.0, "up b")]
    assert bench.heard("b") == [(0.0, "start"), (0.0, "up c")]
    bench.send("c", "b", "1")
    bench.send("b", "c", "2")
    bench.run(10)
    assert bench.heard("b") == [(10.0, "1 from c")]
    assert bench.heard("c") == [(10.0, "2 from b")]


def test_a_client_that_joins_is_connected_when_it_has_started() -> None:
    bench = Bench("b")
    node = bench.network.add("c", bench._make)
    bench.network.attach("c", "b")
    bench.run(5)
    assert bench.words("b") == ["start"]
    node.start()
    assert bench.heard("b") == [(5.0, "up c")]
    assert bench.heard("c") == [(5.0, "start"), (5.0, "up b")]


@pytest.mark.parametrize("crashing", ["b", "c"])
def test_the_other_side_of_a_clients_connection_hears_of_a_crash_at_once(crashing: str) -> None:
    bench = Bench("b", "c", attached={"c": "b"})
    other = "c" if crashing == "b" else "b"
    bench.heard(other)
    bench.send("b", "c", "lost")
    bench.send("c", "b", "lost")
    bench.run(5)
    bench.network.crash(crashing, keep_state=True)
    bench.network.restart(crashing)
    bench.send("b", "c", "arrives")
    bench.send("c", "b", "arrives")
    bench.run(100)
    assert bench.heard(other) == [
        (5.0, f"down {crashing}"),
        (5.0, f"up {crashing}"),
        (15.0, f"arrives from {crashing}"),
    ]
    assert bench.words(crashing) == ["start", f"up {other}", "start", f"up {other}", f"arrives from {other}"]
    assert bench.dropped("b", "c") == bench.dropped("c", "b") == 1


def test_a_cut_ends_a_clients_connection_on_both_sides_and_its_mending_opens_another() -> None:
    bench = Bench("b", "c", attached={"c": "b"})
    bench.send("b", "c", "lost")
    cut = one_way("b", "c")
    bench.network.sever(cut)
    bench.run(5)
    bench.send("c", "b", "dropped")
    bench.network.mend(cut)
    bench.send("b", "c", "arrives")
    bench.run(100)
    assert bench.heard("c")[1:] == [(0.0, "up b"), (0.0, "down b"), (5.0, "up b"), (15.0, "arrives from b")]
    assert bench.words("b") == ["start", "up c", "down c", "up c"]


def test_a_client_is_connected_only_while_both_are_up_and_uncut() -> None:
    bench = Bench("b", "c", attached={"c": "b"})
    cut = between("b", "c")
    bench.network.sever(cut)
    bench.network.crash("b", keep_state=True)
    assert bench.words("c") == ["start", "up b", "down b"]
    bench.network.mend(cut)
    assert bench.words("c") == []
    bench.network.restart("b")
    assert bench.words("c") == ["up b"]
    assert bench.words("b") == ["start", "up c", "down c", "start", "up c"]


def test_a_broker_that_restarts_paused_hears_of_its_client_when_it_goes_on() -> None:
    bench = Bench("b", "c", attached={"c": "b"})
    bench.network.pause("b")
    bench.network.crash("b", keep_state=True)
    bench.network.restart("b")
    assert bench.words("b") == ["start", "up c", "start"]
    bench.network.resume("b")
    assert bench.words("b") == ["up c"]


def test_wishes_do_not_matter_to_the_connections_of_clients() -> None:
    bench = Bench("b", "c", attached={"c": "b"})
    bench.want("c", "b")
    bench.want("b", "c")
    bench.unwant("b", "c")
    bench.run(1_000)
    assert bench.words("b") == ["start", "up c"]
    assert bench.words("c") == ["start", "up b"]


def test_general_loss_spares_clients() -> None:
    bench = Bench("b", "c", attached={"c": "b"})
    bench.network.lose(1.0)
    bench.send("c", "b", "1")
    bench.run(10)
    assert bench.heard("b")[-1] == (10.0, "1 from c")


@settings(max_examples=examples(200))
@given(
    steps=st.lists(
        st.tuples(st.sampled_from((0, 1, 5, 10, 40)), st.sampled_from((None, 1.0, 2.0, 5.0, 10.0))),
        max_size=40,
    )
)
def test_arrivals_are_those_of_a_queue(steps: list[tuple[int, float | None]]) -> None:
    """Twin: a message arrives after its delay, or with the one before it if that is later; the close likewise."""
    bench = connected()
    expected: list[Note] = []
    now, factor, arrives_at = 100.0, 1.0, 0.0
    for number, (wait_ms, change) in enumerate(steps):
        bench.run(wait_ms)
        now += wait_ms
        if change is None:
            bench.send("a", "b", str(number))
            arrives_at = max(arrives_at, now + 10 * factor)
            expected.append((arrives_at, f"{number} from a"))
        else:
            bench.network.slow("b", change / factor)
            factor = change
    bench.unwant("a", "b")
    expected.append((max(arrives_at, now + 10 * factor), "down a"))
    bench.run(1_000)
    heard = bench.heard("b")
    assert [what for _, what in heard] == [what for _, what in expected]
    assert [at for at, _ in heard] == pytest.approx([at for at, _ in expected], abs=0.001)


# --- Random schedules

BROKERS = ("a", "b", "c")
CLIENT = "k"
PAIRS = (
    *((one, other) for one in BROKERS for other in BROKERS if one != other),
    ("a", CLIENT),
    (CLIENT, "a"),
)
BEAT_NS = 500 * NS_PER_MS
SILENCE_NS = 2_000 * NS_PER_MS
SETTLE_BEATS = 30
NO_EPOCH = "none"
FACTORS = (20.0, 2.0)
WAITS_MS = (0, 0, 1, 5, 10, 20, 150, 1_000, 3_000)

Step = tuple[int, str, int]
"""Milliseconds to wait, what to do, and the number of the pair to do it to."""

ACTIONS = (
    *("send",) * 6,
    *("want", "unwant", "want", "sever", "sever one way", "crash", "pause", "slow", "lose"),
    *("mend", "restart", "resume", "stop slowing", "stop losing") * 2,
)


class World:
    """What a random run saw, over all lives of its nodes."""

    def __init__(self) -> None:
        self.epochs: dict[tuple[str, str], int] = {}
        self.received: list[tuple[str, str, int | None, str]] = []
        """Receiver, sender, the receiver's epoch, the text."""
        self.log: list[tuple[int, str]] = []


class Beater(Part):
    """Wants its peers, sends beats, and gives up a connection on which it hears none."""

    name = "beater"
    handles = {Unsubscribe: "on_unsubscribe"}  # noqa: RUF012

    def __init__(self, node: SimulatedNode, world: World) -> None:
        super().__init__(node)
        self.world = world
        self.up: dict[str, int] = {}
        self.heard_at: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.wants: dict[str, None] = {}
        self.in_handler = False

    def start(self) -> None:
        self.port.set_timer((self.name,), self.port.now + BEAT_NS)

    def want(self, peer: str) -> None:
        self.wants[peer] = None
        self.port.emit(SessionWanted(peer))

    def unwant(self, peer: str) -> None:
        self.wants.pop(peer, None)
        self.port.emit(SessionUnwanted(peer))

    def send(self, peer: str) -> None:
        """The text says on which connection of ours it is which message."""
        epoch = self.up.get(peer)
        number = self.sent.get(peer, 0)
        self.sent[peer] = number + 1
        text = NO_EPOCH if epoch is None else f"{epoch}:{number}"
        self.port.send(peer, Unsubscribe(text))

    def on_timer(self, name: TimerName) -> None:
        self._enter("beat")
        for peer in list(self.up):
            self.send(peer)
            if self.port.now - self.heard_at[peer] > SILENCE_NS:
                self.port.emit(SessionUnwanted(peer))
                if peer in self.wants:
                    self.port.emit(SessionWanted(peer))
        self.port.set_timer((self.name,), self.port.now + BEAT_NS)
        self.in_handler = False

    def on_link_up(self, peer: str) -> None:
        self._enter(f"up {peer}")
        assert peer not in self.up, "told twice that the connection is up"
        pair = (self.port.node, peer)
        self.up[peer] = self.world.epochs[pair] = self.world.epochs.get(pair, 0) + 1
        self.heard_at[peer] = self.port.now
        self.sent[peer] = 0
        self.send(peer)
        self.in_handler = False

    def on_link_down(self, peer: str) -> None:
        self._enter(f"down {peer}")
        assert peer in self.up, "told that a connection is down that was not up"
        del self.up[peer]
        self.in_handler = False

    def on_unsubscribe(self, sender: str, message: Unsubscribe) -> None:
        self._enter(f"{message.subscription} from {sender}")
        self.heard_at[sender] = self.port.now
        self.world.received.append((self.port.node, sender, self.up.get(sender), message.subscription))
        self.in_handler = False

    def _enter(self, what: str) -> None:
        assert not self.in_handler, "called from within itself"
        self.in_handler = True
        self.world.log.append((self.port.now, f"{self.port.node}: {what}"))


class Run:
    """One random schedule, ended by the end of all faults."""

    def __init__(self, seed: int, spec: LinkSpec) -> None:
        self.world = World()
        self.network = SimulatedNetwork(
            seed, lambda source, target: TEN_MS if CLIENT in (source, target) else spec, streams=True
        )
        self.beaters: dict[str, Beater] = {}
        self.cuts: list[Cut] = []
        self.down: list[str] = []
        self.paused: list[str] = []
        self.slowed: list[tuple[str, float]] = []
        self.losing = 0
        for name in (*BROKERS, CLIENT):
            self.network.add(name, self._make)
        self.network.attach(CLIENT, "a")
        self.network.start()
        self.all_want_each_other()

    def _make(self, node: SimulatedNode) -> Node:
        beater = self.beaters[node.node] = Beater(node, self.world)
        return Node((beater,))

    def step(self, action: str, number: int) -> None:
        node, peer = PAIRS[number]
        if action in ("send", "want", "unwant"):
            if self.network.nodes[node].up and not self.network.nodes[node].paused:
                getattr(self.beaters[node], action)(peer)
        elif action.startswith("sever"):
            self.cuts.append(between(node, peer) if action == "sever" else one_way(node, peer))
            self.network.sever(self.cuts[-1])
        elif action == "crash":
            self.down.append(node)
            self.network.crash(node, keep_state=True)
        elif action == "pause":
            self.paused.append(node)
            self.network.pause(node)
        elif action == "slow":
            if not self.slowed:  # factors multiply, and clients wait for what is late
                self.slowed.append((node, FACTORS[number % 2]))
                self.network.slow(*self.slowed[-1])
        elif action == "lose":
            self.losing += 1
            self.network.lose(0.3)
        else:
            self.end(action)

    def end(self, action: str) -> None:
        if action == "mend" and self.cuts:
            self.network.mend(self.cuts.pop(0))
        elif action == "restart" and self.down:
            self.network.restart(self.down.pop(0))
        elif action == "resume" and self.paused:
            self.network.resume(self.paused.pop(0))
        elif action == "stop slowing" and self.slowed:
            self.network.stop_slowing(*self.slowed.pop(0))
        elif action == "stop losing" and self.losing:
            self.losing -= 1
            self.network.stop_losing(0.3)

    def wait(self, duration_ms: float) -> None:
        self.network.run(self.network.schedule.now + round(duration_ms * NS_PER_MS))

    def settle(self) -> None:
        """All faults end and all want each other: before long, all are connected and hear each other."""
        for action in ("mend", "restart", "resume", "stop slowing", "stop losing"):
            for _ in range(len(self.cuts) + len(self.down + self.paused) + len(self.slowed) + self.losing):
                self.end(action)
        self.all_want_each_other()
        for _ in range(SETTLE_BEATS):
            self.wait(BEAT_NS / NS_PER_MS)
            if not unconnected(self):
                return
        raise AssertionError(f"no connection: {unconnected(self)}")

    def all_want_each_other(self) -> None:
        for node, peer in PAIRS:
            self.beaters[node].want(peer)


def check_streams(world: World) -> None:
    """Each connection brings what was sent on one connection of the sender, from its first on, without a gap."""
    by_epoch: dict[tuple[str, str, int], list[str]] = {}
    for receiver, sender, epoch, text in world.received:
        assert epoch is not None, "received without a connection"
        assert text != NO_EPOCH, "sent without a connection"
        by_epoch.setdefault((receiver, sender, epoch), []).append(text)
    matched: dict[tuple[str, str], list[int]] = {}
    for (receiver, sender, _), texts in by_epoch.items():
        sent_on = texts[0].split(":")[0]
        assert texts == [f"{sent_on}:{number}" for number in range(len(texts))]
        matched.setdefault((receiver, sender), []).append(int(sent_on))
    for epochs in matched.values():
        assert all(earlier < later for earlier, later in pairwise(epochs))


def unconnected(run: Run) -> list[tuple[str, str]]:
    """The pairs that have no connection, or of which the first has not heard the second for long."""
    now = run.network.schedule.now
    connections = run.network.connections
    assert connections is not None
    return [
        (node, peer)
        for node, peer in PAIRS
        if not connections.connected(node, peer)
        or peer not in run.beaters[node].up
        or now - run.beaters[node].heard_at[peer] > 2 * BEAT_NS
    ]


def run_schedule(seed: int, spec: LinkSpec, steps: Iterable[Step]) -> World:
    run = Run(seed, spec)
    for wait_ms, action, number in steps:
        run.wait(wait_ms)
        run.step(action, number)
    run.settle()
    check_streams(run.world)
    return run.world


SPECS = (
    TEN_MS,
    LinkSpec(ConstantDelay(value=0.0), NoLoss(), 0.0, 0.0, 0.0),
    LinkSpec(UniformDelay(low=1.0, high=80.0), NoLoss(), 0.3, 0.3, 0.0),
    LinkSpec(ConstantDelay(value=10.0), BernoulliLoss(rate=0.1), 0.0, 0.0, 0.1),
)


@settings(max_examples=examples(120))
@given(
    seed=st.integers(0, 2**32),
    spec=st.sampled_from(SPECS),
    steps=st.lists(
        st.tuples(st.sampled_from(WAITS_MS), st.sampled_from(ACTIONS), st.integers(0, len(PAIRS) - 1)),
        max_size=60,
    ),
)
def test_random_schedules(seed: int, spec: LinkSpec, steps: list[Step]) -> None:
    world = run_schedule(seed, spec, steps)
    assert world.log == run_schedule(seed, spec, steps).log


def random_steps(random: Random) -> list[Step]:
    return [
        (random.choice(WAITS_MS), random.choice(ACTIONS), random.randrange(len(PAIRS))) for _ in range(60)
    ]


def run_many(count: int = 40) -> None:
    for seed in range(count):
        random = Random(seed)
        run_schedule(seed, random.choice(SPECS), random_steps(random))


def test_the_random_schedules_exercise_what_they_are_for() -> None:
    random = Random(1)
    worlds = [run_schedule(seed, TEN_MS, random_steps(random)) for seed in range(20)]
    assert sum(len(world.received) for world in worlds) > 1_000
    assert sum(sum(world.epochs.values()) for world in worlds) > 20 * 6 * 2


def _read_after_gaps(stream: VirtualStream, source: str, message: Unsubscribe) -> None:
    if stream.link.cuts or not stream._target.up:
        stream._miss(message)
    else:
        stream._target_handlers[type(message)](source, message)


def _keep_reading(connections: Connections, node: str, peer: str) -> bool:
    stream = connections._ends.get(node, {}).pop(peer, None)
    if stream is None:
        return False
    stream.is_open = False
    stream.link.end()
    return True


def _tell_too_early(connections: Connections, stream: VirtualStream, _second: object) -> None:
    stream.link.begin(stream)
    connections._nodes[stream.link.source].connection(stream.link.target, True)


def _close_within_emit(connections: Connections, node: str, peer: str) -> None:
    connections._requests.get(node, {}).pop(peer, None)
    stream = connections._end(node, peer)
    if stream is not None:
        connections._close(stream, None)


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (VirtualStream, "arrive", _read_after_gaps),
        (StreamLink, "_transmit_disturbed", VirtualLink._transmit_disturbed),
        (StreamLink, "_is_level", lambda link: True),
        (Connections, "_take_end", _keep_reading),
        (Connections, "_tell_open", _tell_too_early),
        (Connections, "_is_sound", lambda connections, node, peer: True),
        (Connections, "_retry", lambda connections, request: None),
        (Connections, "crash", lambda connections, node: connections._requests.pop(node, None)),
        (Connections, "unwant", _close_within_emit),
        (Connections, "disconnect", lambda connections, first, second: None),
        (SimulatedNetwork, "_can_connect", lambda network, client, broker: True),
    ],
)
def test_planted_bugs_are_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: object
) -> None:
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises((AssertionError, KeyError)):
        run_many()
