"""Polarized gossip: one test per claim of the paper and per correction of it, by the paper's own experiment.

The expected values and their bands, and the numbers of the corrections, are those of the design page on recovery. A
band is compared with a mean over few events, or the tests would take many minutes, so the mean's error counts: a test
fails if the band and three standard errors do not meet. TIDINGS_PAPER_SCALE=n runs n times as many seeds, and the
same tests are sharper then by the root of n. What more events gave is noted beside the narrow bands.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

import pytest

from polarized_runs import (
    BLOCKS,
    NONE,
    PULL,
    PUSH,
    SUBSCRIBERS,
    THREE_PG,
    Estimate,
    Measured,
    Run,
    estimate,
    measure,
    play,
)
from tidings.core.overlay.epidemic import gossip, gossip_partners, partners, settings
from tidings.core.overlay.epidemic.directory import Directory
from tidings.core.overlay.epidemic.gossip import Gossip
from tidings.core.overlay.epidemic.gossip_partners import GossipPartners
from tidings.core.overlay.epidemic.messages import Ask
from tidings.core.overlay.epidemic.partners import loss_weight
from tidings.core.overlay.labels import ROOT, Label, parse_label
from tidings.scenarios.file.topology import labels
from tidings.scenarios.simulate import Simulation

pytestmark = pytest.mark.xdist_group("polarized")  # they share runs

SCALE = int(os.environ.get("TIDINGS_PAPER_SCALE", "1"))
LOSS_RATE = 0.02
FANOUT_FOR_999 = {"push": 5.5, "pull": 6.7, "3pg": 5.0}
"""At which the success is .999, from the table of the design page."""


def in_band(found: Estimate, expected: float, width: float) -> bool:
    """Do the band and three standard errors meet?"""
    return abs(found.mean - expected) <= width + 3 * found.error


def below(left: Estimate, right: Estimate) -> bool:
    """By more than three standard errors of the difference."""
    return right.mean - left.mean > 3 * hypot(left.error, right.error)


# --- Runs that several tests share


def tree(redundancy: int = 0) -> Measured:
    seeds, events = (5, 25) if redundancy == 0 else (4, 10)
    return measure(NONE, redundancy=redundancy, seeds=seeds * SCALE, events=events)


def push_4() -> Measured:
    return measure(PUSH, fanout=4, seeds=4 * SCALE, events=10)


def pull_4() -> Measured:
    return measure(PULL, fanout=4, seeds=4 * SCALE, events=12)


def three_pg_4() -> Measured:
    return measure(THREE_PG, fanout=4, seeds=4 * SCALE, events=12)


def at_2(recovery: Mapping[str, Any], **changed: Any) -> Measured:
    # Pull costs more in the runs in which some broker's round comes while blocks are on their way: one in five.
    seeds = 6 if recovery is PULL else 3
    return measure(recovery, fanout=2, seeds=seeds * SCALE, events=10, **changed)


def push_6(selection: str) -> Measured:
    return measure(PUSH, fanout=6, selection=selection, seeds=3 * SCALE, events=8)


# --- Bands


def test_tree_alone() -> None:
    """Exactly: q = .98 * (1 - .02 / (2 * .98)) ** 15 passes a link whole, (3 q + 9 q^2 + 27 q^3) / 39 = .638."""
    assert in_band(tree().success, 0.642, 0.015)


@pytest.mark.parametrize(("redundancy", "expected"), [(1, 0.799), (2, 0.880), (3, 0.940), (4, 0.966)])
def test_coded_tree(redundancy: int, expected: float) -> None:
    assert in_band(tree(redundancy).success, expected, 0.02)


def test_redundancy_raises_the_success_of_the_tree() -> None:
    assert below(tree().success, tree(1).success)
    assert below(tree(1).success, tree(3).success)


def test_push_at_fanout_4() -> None:
    """Over 20 seeds, 600 events: .9943, standard error .0005."""
    assert in_band(push_4().success, 0.993, 0.002)


def test_pull_at_fanout_4() -> None:
    """Over 30 seeds, 1,040 events: .9895, standard error .0008."""
    assert in_band(pull_4().success, 0.988, 0.003)


def test_3pg_at_fanout_4() -> None:
    """Over 30 seeds, 1,040 events: .9955, standard error .0007: just the lower edge of the band.

    So a longer run may well fall out of the band. Why it is lower than .997 is not known; the standard deviation
    between seeds is .0036 in runs of 40 events, of which the events of one run account for about .003.
    """
    assert in_band(three_pg_4().success, 0.997, 0.0015)


@pytest.mark.parametrize(
    ("recovery", "changed", "expected"),
    [(PUSH, {}, 117), (PULL, {}, 45), (THREE_PG, {}, 64), (THREE_PG, {"window": 1.0}, 123)],
    ids=["push", "pull", "3pg .25", "3pg 1"],
)
def test_overhead_at_fanout_2(
    recovery: Mapping[str, Any], changed: Mapping[str, Any], expected: float
) -> None:
    assert in_band(at_2(recovery, **changed).overhead, expected, 0.02 * expected)


def test_overhead_of_3pg_at_equal_reliability() -> None:
    """Half of push's and twice pull's, says the paper; .3 to .6 and 1.6 to 2.7 of them. Overheads grow evenly with
    the fanout, so those at the fanouts for .999 follow from two others."""
    push = at_fanout(FANOUT_FOR_999["push"], at_2(PUSH), push_4())
    pull = at_fanout(FANOUT_FOR_999["pull"], at_2(PULL), pull_4())
    three_pg = at_fanout(FANOUT_FOR_999["3pg"], at_2(THREE_PG), three_pg_4())
    assert 0.3 < three_pg / push < 0.6
    assert 1.6 < three_pg / pull < 2.7


def at_fanout(fanout: float, with_2: Measured, with_4: Measured) -> float:
    return with_2.overhead.mean + (fanout - 2) / 2 * (with_4.overhead.mean - with_2.overhead.mean)


# --- Claims


def test_utility_falls_with_the_fanout() -> None:
    """Figure 1."""
    for few, many in ((at_2(PUSH), push_4()), (push_4(), push_6("random"))):
        assert few.push_utility is not None and many.push_utility is not None
        assert few.push_utility > many.push_utility
    few, many = at_2(PULL), pull_4()
    assert few.pull_utility is not None and many.pull_utility is not None
    assert few.pull_utility > 1.3 * many.pull_utility


def test_push_needs_less_fanout_than_pull() -> None:
    """At an equal fanout it reaches more. Neither of two fanouts shows it beyond doubt, both together do."""
    pairs = ((at_2(PUSH).success, at_2(PULL).success), (push_4().success, pull_4().success))
    assert sum((push.mean - pull.mean) / hypot(push.error, pull.error) for push, pull in pairs) > 0


def test_wdpg_is_below_random() -> None:
    assert below(push_6("wdpg").success, push_6("random").success)


def test_pgw_beats_wdpg_but_not_random() -> None:
    assert below(push_6("wdpg").success, push_6("pgw").success)
    assert push_6("pgw").success.mean < push_6("random").success.mean


def test_a_smaller_window_costs_success_and_saves_overhead() -> None:
    narrow, wide = at_2(THREE_PG), at_2(THREE_PG, window=1.0)
    assert below(narrow.success, wide.success)
    assert narrow.overhead.mean < 0.6 * wide.overhead.mean


def test_3pg_with_window_1_is_not_as_fast_as_random_push() -> None:
    """The paper says it is very close. It waits for rounds of pull where push has brought nothing."""
    assert at_2(THREE_PG, window=1.0).latency_ms > 1.05 * at_2(PUSH).latency_ms


def test_coding_lowers_the_fanout_of_random_push_by_a_quarter() -> None:
    """With two redundant blocks 3 partners do what 4 do without, .993; 3 without reach .982."""
    coded = measure(PUSH, fanout=3, redundancy=2, seeds=3 * SCALE, events=8).success
    assert not below(coded, push_4().success)
    assert coded.mean - 3 * coded.error > 0.982


def test_topology_weights_are_not_below_loss_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """WDPG, where the weights alone decide. The loss rates are as a long measurement gives them."""
    topology = push_6("wdpg").success
    monkeypatch.setattr(Directory, "rates", exact_rates)
    table = {**PUSH, "fanout": 6, "selection": "wdpg", "weights": "loss"}
    loss = [play(seed, 8, table).summary["delivery_ratio"] for seed in range(1, 3 * SCALE + 1)]
    assert not below(topology, estimate(loss))


# --- What the brokers did in a run


@dataclass(frozen=True)
class Choice:
    """Partners that a broker chose, by their labels."""

    broker: Label
    partners: tuple[Label, ...]
    pulling: bool
    by_tree: bool


def level(label: Label) -> int:
    return len(label) - 1


def is_above(x: Label, y: Label) -> bool:
    return x != y and y[: len(x)] == x


def branch(label: Label) -> Label:
    """The subtree under the root that it is in."""
    return label[:2]


def exact_rates(directory: Directory) -> Mapping[Label, float]:
    return dict.fromkeys(directory.labelled(), LOSS_RATE)


def watch(
    monkeypatch: pytest.MonkeyPatch, events: int, recovery: Mapping[str, Any], **changed: Any
) -> tuple[Run, list[Choice]]:
    """A run, and all choices of partners in it."""
    noted: list[tuple[str, Sequence[str], bool, bool]] = []
    choose = GossipPartners.choose

    def choose_and_note(
        self: GossipPartners, patterns: tuple[bytes, ...], count: int, **how: Any
    ) -> list[str]:
        chosen = choose(self, patterns, count, **how)
        noted.append((self._port.node, chosen, how.get("pulling", False), how.get("by_tree", True)))
        return chosen

    with monkeypatch.context() as patch:
        patch.setattr(GossipPartners, "choose", choose_and_note)
        run = play(1, events, {**recovery, **changed})
    label_of = {name: parse_label(text) for name, text in labels(run.simulation.plan.topology).items()}
    choices = [
        Choice(label_of[broker], tuple(label_of[name] for name in chosen), pulling, by_tree)
        for broker, chosen, pulling, by_tree in noted
    ]
    return run, choices


def sent(run: Run, kind: str) -> tuple[int, int]:
    """Messages of that kind: how many, and how many of them arrived."""
    rows = [row for row in run.trace.traffic.to_pylist() if row["kind"] == kind]
    messages = sum(row["messages"] for row in rows)
    return messages, messages - sum(row["dropped"] for row in rows)


# --- The corrections, by their numbers; each is taken back, which the test must show


Weight = Callable[[Label, Label], float]


def eq_9(shared: Callable[[Label, Label], int]) -> Weight:
    """Eq. 7 to 9 to the letter, with labels as the paper has them: without the root."""

    def weight(x: Label, y: Label) -> float:
        up, down = level(x), level(y)
        return (1 - up / (up + down)) * (1 - shared(x[1:], y[1:]) / up)

    return weight


def common_suffix(x: Label, y: Label) -> int:
    same = 0
    while same < min(len(x), len(y)) and x[-1 - same] == y[-1 - same]:
        same += 1
    return same


def common_prefix(x: Label, y: Label) -> int:
    return common_suffix(x[::-1], y[::-1])


def test_1_ancestry_is_a_common_prefix_of_labels_that_begin_at_the_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the highest weights are in other branches, and WDPG never leaves a push in its own."""

    def stays_in_its_branch() -> bool:
        _, choices = watch(monkeypatch, 3, PUSH, fanout=4, selection="wdpg")
        return any(
            branch(choice.broker) == branch(partner)
            for choice in choices
            if choice.broker != ROOT
            for partner in choice.partners
        )

    assert not stays_in_its_branch()
    suffix = eq_9(common_suffix)
    monkeypatch.setattr(gossip_partners, "topology_weight", lambda x, y: 1.0 if x == ROOT else suffix(x, y))
    assert stays_in_its_branch()


def test_2_a_broker_weighs_others_by_the_rates_on_their_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of its own ancestors, which the paper lets it keep, say nothing about other branches."""

    def prefers_the_deepest_of_other_branches() -> bool:
        _, choices = watch(monkeypatch, 3, PUSH, fanout=4, selection="wdpg", weights="loss")
        return all(
            level(partner) == 3 and branch(partner) != branch(choice.broker)
            for choice in choices
            if choice.by_tree and choice.broker != ROOT
            for partner in choice.partners
        )

    def own_path(directory: Directory) -> Mapping[Label, float]:
        mine = directory.label or ROOT
        return {mine[:size]: LOSS_RATE for size in range(2, len(mine) + 1)}

    monkeypatch.setattr(Directory, "rates", exact_rates)
    assert prefers_the_deepest_of_other_branches()
    monkeypatch.setattr(Directory, "rates", own_path)
    assert not prefers_the_deepest_of_other_branches()


def test_3_the_weight_between_branches_is_the_probability_of_a_loss_on_the_path() -> None:
    """From the rates that the links measured and the directory spread; the paper's product of rates is 8e-6."""
    run = play(1, 100, {**NONE, "weights": "loss"})
    for broker in run.simulation.epidemic_brokers:
        mine, rates = broker.directory.label, broker.directory.rates()
        assert mine is not None and len(rates) == SUBSCRIBERS + 1
        leaves = [label for label in rates if level(label) == 3 and branch(label) != branch(mine)]
        weights = [loss_weight(mine, label, rates, by_tree=True) for label in leaves]
        assert sum(weights) / len(weights) == pytest.approx(1 - (1 - LOSS_RATE) ** 3, abs=0.03)


def test_4_what_came_by_gossip_may_be_missing_in_ones_own_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the common ancestor is the root; of what came by the tree, a predecessor never lacks anything."""
    monkeypatch.setattr(Directory, "rates", exact_rates)

    def stay_in_their_branch(choices: Sequence[Choice], *, by_tree: bool) -> bool:
        return any(
            branch(partner) == branch(choice.broker)
            for choice in choices
            if choice.by_tree == by_tree and choice.broker != ROOT
            for partner in choice.partners
        )

    def play_it() -> list[Choice]:
        return watch(monkeypatch, 3, PUSH, fanout=4, selection="wdpg", weights="loss")[1]

    choices = play_it()
    assert not stay_in_their_branch(choices, by_tree=True)
    assert stay_in_their_branch(choices, by_tree=False)
    monkeypatch.setattr(
        gossip_partners, "loss_weight", lambda x, y, rates, by_tree: loss_weight(x, y, rates, by_tree=True)
    )
    assert not stay_in_their_branch(play_it(), by_tree=False)


def test_5_eq_8_is_1_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the root pushes to all levels alike, where the equation to the letter divides by zero."""
    _, choices = watch(monkeypatch, 5, PUSH, fanout=8, selection="wrpg")
    levels = [level(partner) for choice in choices if choice.broker == ROOT for partner in choice.partners]
    assert set(levels) == {1, 2, 3}
    monkeypatch.setattr(gossip_partners, "topology_weight", eq_9(common_prefix))
    with pytest.raises(ZeroDivisionError):
        watch(monkeypatch, 5, PUSH, fanout=8, selection="wrpg")


def test_5_own_descendants_weigh_nothing_by_topology_and_something_by_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Directory, "rates", exact_rates)

    def pushes_down(weights: str) -> bool:
        _, choices = watch(monkeypatch, 10, PUSH, fanout=2, selection="wrpg", weights=weights)
        return any(
            is_above(choice.broker, partner)
            for choice in choices
            if choice.by_tree and choice.broker != ROOT
            for partner in choice.partners
        )

    assert not pushes_down("topology")
    assert pushes_down("loss")


def pushers(run: Run) -> set[str]:
    return {broker.name for broker in run.simulation.epidemic_brokers if broker.gossip.pushed}


def test_6_the_window_is_the_share_that_pushes_the_top_of_the_tree_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The root, its three children, and six of the next nine, two below each child.
    top = {"b0", "b1", "b2", "b3", "b4", "b5", "b7", "b8", "b10", "b11"}
    assert pushers(play(1, 3, {**THREE_PG, "fanout": 2})) == top
    may = partners.may_push
    monkeypatch.setattr(
        gossip_partners, "may_push", lambda mine, labels, window: not may(mine, labels, window)
    )
    assert pushers(play(1, 3, {**THREE_PG, "fanout": 2})) == {
        "b0",  # the origin pushes in any case
        *({f"b{number}" for number in range(40)} - top),
    }


def skippers(choices: Sequence[Choice]) -> set[Label]:
    """The brokers that never choose from their top tier: the deepest of the other branches."""
    tops: defaultdict[Label, list[bool]] = defaultdict(list)
    for choice in choices:
        if choice.broker != ROOT:
            tops[choice.broker] += [
                level(partner) == 3 and branch(partner) != branch(choice.broker)
                for partner in choice.partners
            ]
    assert all(len(set(are_top)) == 1 for are_top in tops.values()), "all or none"
    return {broker for broker, are_top in tops.items() if not any(are_top)}


def test_7_in_pgw_the_deepest_share_skips_the_top_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    def play_it() -> set[Label]:
        return skippers(watch(monkeypatch, 3, PUSH, fanout=2, selection="pgw")[1])

    deep = play_it()
    assert len(deep) == 10 and {level(broker) for broker in deep} == {3}
    assert len({branch(broker) for broker in deep}) == 3, "they are not all neighbours"
    monkeypatch.setattr(gossip_partners, "is_deep", lambda mine, labels, window: level(mine) == 3)
    assert len(play_it()) == 27


def test_7_ties_are_broken_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a broker would push to the same few for ever, and never reach the others."""

    def fewest_partners() -> int:
        found: defaultdict[Label, set[Label]] = defaultdict(set)
        for choice in watch(monkeypatch, 8, PUSH, fanout=2, selection="wdpg")[1]:
            found[choice.broker].update(choice.partners)
        return min(map(len, found.values()))

    def first(indices: Sequence[int], wanted: Sequence[float], count: int, random: object) -> list[int]:
        return sorted(indices, key=lambda index: -wanted[index])[:count]

    assert fewest_partners() > 4
    monkeypatch.setattr(partners, "_top", first)
    assert fewest_partners() <= 4, "two, and another where one of them was the sender"


def test_8_push_has_a_fan_in_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker draws partners once per event and passes each block to each of them once."""
    fanout, events = 2, 3

    def fan_in() -> tuple[int, float]:
        """The most draws of a broker per event, and the most blocks that it pushed, in those of an event."""
        run, choices = watch(monkeypatch, events, PUSH, fanout=fanout)
        draws = Counter(choice.broker for choice in choices)
        pushed = max(broker.gossip.pushed for broker in run.simulation.epidemic_brokers)
        return max(draws.values()) // events, pushed / (events * fanout * BLOCKS)

    assert fan_in() == (1, 1.0)
    monkeypatch.setattr(gossip, "MAX_PUSHED", 0)  # partners are forgotten at once
    draws, _ = fan_in()
    assert draws > 1


def test_8_an_event_is_listed_for_a_second_or_pull_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rounds of 100 ms and a fanout of 4 all is recovered in ten rounds, and about .977 in one."""
    table = {**PULL, "fanout": 4, "interval_ms": 100}

    def successes() -> list[float]:
        return [play(seed, 10, table).summary["delivery_ratio"] for seed in (1, 2)]

    assert min(successes()) > 0.999
    monkeypatch.setattr(settings, "LISTED_NS", 1)
    assert min(successes()) < 0.999


def test_9_pull_advertises_or_solicits() -> None:
    """Soliciting suits 3PG's lowest weights: who lacks something asks those that have it most surely."""
    advertising = play(1, 12, {**THREE_PG, "fanout": 2})
    soliciting = play(1, 12, {**THREE_PG, "fanout": 2, "pull": "solicit"})
    assert sent(advertising, "offer")[0] and not sent(advertising, "solicit")[0]
    assert sent(soliciting, "solicit")[0] and not sent(soliciting, "offer")[0]
    assert soliciting.summary["delivery_ratio"] > 0.99 > advertising.summary["delivery_ratio"]
    assert soliciting.summary["overhead"] < advertising.summary["overhead"]


def test_10_the_utility_of_pull_counts_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were answered by a request, of those that arrived; not the events that were requested."""

    def counts_calls() -> bool:
        run = play(1, 10, {**PULL, "fanout": 4})
        asks, _ = sent(run, "ask")
        _, offers = sent(run, "offer")
        return bool(run.summary["utility"]["pull"] == asks / offers)

    def on_ask(self: Gossip, sender: str, message: Ask) -> None:
        self.useful_pulls += len(message.events) + len(message.partial)
        take(self, sender, message)

    assert counts_calls()
    take = Gossip.on_ask
    monkeypatch.setattr(Gossip, "on_ask", on_ask)
    assert not counts_calls()


def test_11_blocks_for_real_networks_fit_into_1400_bytes_with_all_that_goes_along() -> None:
    """Blocks of the paper's size do not."""

    def largest(block_bytes: int) -> float:
        run = play(1, 2, {**NONE, "redundancy": 2}, block_bytes=block_bytes)
        rows = [row for row in run.trace.traffic.to_pylist() if row["kind"] == "fragment"]
        return float(max(row["bytes"] / row["messages"] for row in rows))

    assert largest(settings.RecoverySettings().block_bytes) <= 1_400
    assert largest(1_472) > 1_472


def test_12_overhead_divides_by_16_blocks_per_event_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the publisher's broker sends 18."""

    def divides_by_16() -> bool:
        run = play(1, 5, {**NONE, "redundancy": 2})
        return bool(run.summary["overhead"] == sent(run, "fragment")[0] / (5 * BLOCKS))

    assert divides_by_16()
    monkeypatch.setattr(Simulation, "_blocks", lambda self, size_bytes: BLOCKS + 2)
    assert not divides_by_16()
