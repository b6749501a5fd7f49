"""Partners of gossip: weights against values worked out by hand, choices against sorting and against frequencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.core.overlay.epidemic import partners
from tidings.core.overlay.epidemic.partners import (
    PartnerSelection,
    is_deep,
    loss_weight,
    may_push,
    topology_weight,
)
from tidings.core.overlay.epidemic.settings import Strategy
from tidings.core.overlay.labels import Label

TREE: list[Label] = [(0, *rest) for depth in range(4) for rest in product(range(3), repeat=depth)]
"""The tree of the paper's experiment: 40 brokers, level by level."""
STRATEGIES: tuple[Strategy, ...] = ("random", "wdpg", "wrpg", "pgw")

some_label = st.sampled_from(TREE)
some_weight = st.sampled_from((0.0, 0.1, 0.25, 0.5, 1.0)) | st.floats(0, 1)


@st.composite
def some_choices(draw: st.DrawFn) -> tuple[list[float], int]:
    """Weights, and how many to choose: mostly fewer than there are, since a choice of all shows no preference."""
    size = draw(st.integers(0, 12))
    weights = draw(st.lists(some_weight, min_size=size, max_size=size))
    return weights, draw(st.integers(0, size + 1))


# --- Weights


@pytest.mark.parametrize(
    ("x", "y", "weight"),
    [
        ((0,), (0, 1), 1.0),  # eq. 7: 1 - 0/1; the vertical cut of the root is 1
        ((0,), (0, 1, 2, 0), 1.0),
        ((0, 0), (0,), 0.0),  # 1 - 1/1
        ((0, 0), (0, 1), 1 / 2),  # (1 - 1/2) * (1 - 0/1)
        ((0, 0), (0, 1, 2), 2 / 3),  # (1 - 1/3) * (1 - 0/1)
        ((0, 0), (0, 0, 2), 0.0),  # a descendant: the vertical cut is 1 - 1/1
        ((0, 0, 1), (0, 0), 1 / 6),  # the parent: (1 - 2/3) * (1 - 1/2)
        ((0, 0, 1), (0, 0, 2), 1 / 4),  # a sibling: (1 - 2/4) * (1 - 1/2)
        ((0, 0, 0, 0), (0, 1, 0, 0), 1 / 2),  # (1 - 3/6) * (1 - 0/3)
        ((0, 0, 0, 0), (0, 1, 0), 2 / 5),  # (1 - 3/5) * (1 - 0/3)
        ((0, 0, 0, 0), (0, 0, 1, 0), 1 / 3),  # (1 - 3/6) * (1 - 1/3)
        ((0, 0, 0, 0), (0, 0, 0), 2 / 15),  # (1 - 3/5) * (1 - 2/3)
        ((0, 0, 0, 0), (0, 0, 0, 1), 1 / 6),  # (1 - 3/6) * (1 - 2/3)
        ((0, 0, 0, 0), (0, 0), 1 / 6),  # (1 - 3/4) * (1 - 1/3): ties with the one before
    ],
)
def test_topology_weight(x: Label, y: Label, weight: float) -> None:
    assert topology_weight(x, y) == weight


@given(some_label, some_label)
def test_topology_weight_is_the_product_of_the_cuts(x: Label, y: Label) -> None:
    shared = 0
    while shared < min(len(x), len(y)) - 1 and x[shared + 1] == y[shared + 1]:
        shared += 1
    up, down = len(x) - 1, len(y) - 1
    horizontal = 1 - up / (up + down) if down else 0
    vertical = 1 - shared / up if up else 1
    assert topology_weight(x, y) == pytest.approx(horizontal * vertical)


RATES = {(0, 0): 0.5, (0, 0, 0): 0.2, (0, 0, 1): 0.1, (0, 1): 0.25, (0, 1, 0): 0.4}


@pytest.mark.parametrize(
    ("x", "y", "by_tree", "weight"),
    [
        ((0, 0), (0, 1, 0), True, 0.55),  # other branches, eq. 3: 1 - 0.75 * 0.6
        ((0, 0, 0), (0, 0, 1), True, 0.1),  # they part at (0, 0): only the last link
        ((0, 0), (0, 0, 0), True, 0.2),  # a descendant
        ((0,), (0, 0, 0), True, 0.6),  # 1 - 0.5 * 0.8
        ((0, 0, 0), (0, 0), True, 0.0),  # predecessors have it, eq. 4
        ((0, 0, 0), (0,), True, 0.0),
        ((0, 0, 0), (0, 0), False, 0.5),  # but not if x got it by gossip
        ((0, 0, 0), (0, 0, 1), False, 0.55),  # 1 - 0.5 * 0.9
        ((0, 0, 0), (0,), False, 0.0),
        ((0, 0), (0, 1, 2), True, 0.25),  # nothing known of the link to (0, 1, 2)
        ((0, 0), (0, 2), True, 0.0),
    ],
)
def test_loss_weight(x: Label, y: Label, by_tree: bool, weight: float) -> None:
    assert loss_weight(x, y, RATES, by_tree=by_tree) == pytest.approx(weight)


# --- The window


@pytest.mark.parametrize(
    ("window", "pushers"),
    [(0, 0), (0.01, 1), (0.025, 1), (0.1, 4), (0.25, 10), (0.26, 11), (0.5, 20), (1, 40)],
)
def test_the_top_of_the_tree_pushes(window: float, pushers: int) -> None:
    shuffled = Random(1).sample(TREE, len(TREE))
    spread = sorted(TREE, key=lambda label: (len(label), label[-1], label))  # not all of one subtree
    assert {label for label in TREE if may_push(label, shuffled, window)} == set(spread[:pushers])


def test_a_share_is_not_rounded_up_by_the_noise_of_floats() -> None:
    labels: list[Label] = [(0,), *((0, child) for child in range(99))]
    assert 0.07 * 100 > 7
    assert sum(may_push(label, labels, 0.07) for label in labels) == 7


@pytest.mark.parametrize("window", [-0.1, 1.1, float("nan")])
def test_a_window_is_a_share(window: float) -> None:
    with pytest.raises(ValueError, match="expected a share of the brokers"):
        PartnerSelection("pgw", window)


# --- The choice


def names(count: int) -> list[str]:
    return [f"b{index}" for index in range(count)]


def choose(
    strategy: Strategy,
    weights: Sequence[float],
    count: int,
    seed: int = 0,
    lowest: bool = False,
    deep: bool = False,
) -> list[str]:
    selection = PartnerSelection(strategy, 0.25)
    return selection.choose(names(len(weights)), weights, count, Random(seed), lowest=lowest, deep=deep)


def chosen_weights(weights: Sequence[float], chosen: Sequence[str]) -> list[float]:
    return sorted(weights[int(name[1:])] for name in chosen)


@given(
    st.sampled_from(STRATEGIES),
    some_choices(),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
)
def test_so_many_distinct_and_the_same_for_the_same_seed(
    strategy: Strategy, case: tuple[list[float], int], seed: int, lowest: bool, deep: bool
) -> None:
    weights, count = case
    chosen = choose(strategy, weights, count, seed, lowest, deep)
    assert len(chosen) == len(set(chosen)) == min(count, len(weights))
    assert set(chosen) <= set(names(len(weights)))
    assert choose(strategy, weights, count, seed, lowest, deep) == chosen


def check_extremes() -> None:
    """wdpg, and pgw where it has no reason to differ, choose the extreme weights."""

    @given(st.sampled_from(("wdpg", "pgw")), some_choices(), st.booleans())
    def check(strategy: Strategy, case: tuple[list[float], int], lowest: bool) -> None:
        weights, count = case
        chosen = choose(strategy, weights, count, lowest=lowest)
        assert chosen_weights(weights, chosen) == sorted(sorted(weights, reverse=not lowest)[:count])

    check()


def check_skipped_tier() -> None:
    """A deep broker of pgw takes the preferred tier last; one of wdpg does not."""

    @given(some_choices(), st.booleans())
    def check(case: tuple[list[float], int], lowest: bool) -> None:
        weights, count = case
        order = sorted(weights, reverse=not lowest)
        tier = order.count(order[0]) if order else 0
        skipped = (order[tier:] + order[:tier])[:count]
        assert chosen_weights(weights, choose("pgw", weights, count, lowest=lowest, deep=True)) == sorted(
            skipped
        )
        straight = choose("wdpg", weights, count, lowest=lowest, deep=True)
        assert chosen_weights(weights, straight) == sorted(order[:count])

    check()


def check_zero_weights() -> None:
    """wrpg chooses weight 0 after all others, or before them if the lowest are wanted."""

    @given(some_choices(), st.integers(0, 9))
    def check(case: tuple[list[float], int], seed: int) -> None:
        weights, count = case
        count, zeros = min(count, len(weights)), weights.count(0)
        highest = chosen_weights(weights, choose("wrpg", weights, count, seed))
        assert highest.count(0) == max(0, count - (len(weights) - zeros))
        lowest = chosen_weights(weights, choose("wrpg", weights, count, seed, lowest=True))
        assert lowest.count(0) == min(count, zeros)

    check()


DRAWS = 20_000


def check_frequencies() -> None:
    """Ordered pairs come as often as drawing one after the other says."""
    weights = [0.1, 0.2, 0.3, 0.4]
    for lowest in (False, True):
        random, selection = Random(7), PartnerSelection("wrpg", 0.25)
        counts = Counter(
            tuple(selection.choose(names(4), weights, 2, random, lowest=lowest)) for _ in range(DRAWS)
        )
        rates = [1 / weight if lowest else weight for weight in weights]
        for first, second in permutations(range(4), 2):
            share = rates[first] / sum(rates) * rates[second] / (sum(rates) - rates[first])
            assert counts[f"b{first}", f"b{second}"] / DRAWS == pytest.approx(share, abs=0.015)


def check_ties() -> None:
    """Every one of those that tie is chosen equally often, by every strategy."""
    for strategy in STRATEGIES:
        for weights in ([0.5] * 5, [0.0] * 5):
            random, selection = Random(3), PartnerSelection(strategy, 0.25)
            counts = Counter(
                name
                for _ in range(DRAWS // 5)
                for name in selection.choose(names(5), weights, 2, random, deep=True)
            )
            assert all(counts[name] / (DRAWS // 5) == pytest.approx(0.4, abs=0.03) for name in names(5))


CHECKS = [check_extremes, check_skipped_tier, check_zero_weights, check_frequencies, check_ties]


@pytest.mark.parametrize("check", CHECKS)
def test_choice(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fewer_than_none_is_none(strategy: Strategy) -> None:
    assert choose(strategy, [0.5, 1.0], -1) == []


def test_random_reads_no_weights() -> None:
    assert len(PartnerSelection("random", 0.25).choose(names(5), (), 3, Random(0))) == 3


class Counting(Random):
    calls = 0

    def random(self) -> float:
        self.calls += 1
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        self.calls += 1
        return super().getrandbits(k)


def test_random_draws_as_often_as_it_chooses() -> None:
    """Thousands of candidates cost no more than a few."""
    random = Counting(1)
    PartnerSelection("random", 0.25).choose(names(5_000), (), 3, random)
    assert random.calls < 30


# --- Planted bugs, each of which some check must notice


def unshuffled_top(indices: Sequence[int], wanted: Sequence[float], count: int, random: Random) -> list[int]:
    return sorted(indices, key=lambda index: -wanted[index])[:count]


def never_skipping(wanted: Sequence[float], count: int, random: Random, *, skip_top: bool) -> list[int]:
    return partners._top(range(len(wanted)), wanted, count, random)


def by_squares(weights: Sequence[float], count: int, random: Random, lowest: bool) -> list[int]:
    return EARLIEST([weight**2 for weight in weights], count, random, lowest)


def always_highest(weights: Sequence[float], count: int, random: Random, lowest: bool) -> list[int]:
    return EARLIEST(weights, count, random, False)


def zeros_as_last(weights: Sequence[float], count: int, random: Random, lowest: bool) -> list[int]:
    order = EARLIEST(weights, count, random, lowest)
    zero = [index for index, weight in enumerate(weights) if weight == 0]
    return order + random.sample(zero, count - len(order))


EARLIEST = partners._earliest


@pytest.mark.parametrize(
    ("place", "bug", "noticed_by"),
    [
        ("_top", unshuffled_top, check_ties),
        ("_best", never_skipping, check_skipped_tier),
        ("_earliest", by_squares, check_frequencies),
        ("_earliest", always_highest, check_frequencies),
        ("_drawn", zeros_as_last, check_zero_weights),
    ],
)
def test_planted_bugs_are_noticed(
    monkeypatch: pytest.MonkeyPatch, place: str, bug: Callable[..., list[int]], noticed_by: Callable[[], None]
) -> None:
    monkeypatch.setattr(partners, place, bug)
    with pytest.raises(AssertionError):
        noticed_by()


def test_the_deepest_share_is_spread_over_the_tree() -> None:
    labels = [(0,), *((0, a) for a in range(3)), *((0, a, b) for a in range(3) for b in range(3))]
    deep = [label for label in labels if is_deep(label, labels, 4 / 13)]
    assert deep == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 2, 0)]
    assert all(is_deep(label, labels, 1) for label in labels)
    assert not any(is_deep(label, labels, 0) for label in labels)
