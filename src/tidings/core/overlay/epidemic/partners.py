"""Whom to prefer in gossip: weights from labels or loss rates, and the choice by weight (polarized, section III).

The weight that x gives to y says how useful a message of x is to y: the probability that y lacks what x has (by
loss, eq. 2-6), or a guess at it from the two places in the tree alone (by topology, eq. 7-9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest, nsmallest
from math import log, prod

from tidings.core.kernel import RandomSource
from tidings.core.overlay.epidemic.settings import Strategy
from tidings.core.overlay.labels import ROOT, Label, distance

ROUNDING = 1e-9
"""A share of the brokers that exceeds a whole number by less is that number: 0.07 * 100 is 7.000000000000001."""


def topology_weight(x: Label, y: Label) -> float:
    """Eq. 9: deep brokers (horizontal cut, eq. 7) of other branches (vertical cut, eq. 8) weigh most.

    Eq. 8 divides by zero where x is the root; no branch is nearer to it than another, so the cut is 1 there.
    One division of whole numbers, so that weights which are equal in theory are equal, and tie.
    """
    x_level, y_level = len(x) - 1, len(y) - 1
    if y_level == 0:
        return 0.0
    if x_level == 0:
        return 1.0
    shared = _common(x, y) - 1
    return (y_level * (x_level - shared)) / ((x_level + y_level) * x_level)


def loss_weight(x: Label, y: Label, rates: Mapping[Label, float], *, by_tree: bool) -> float:
    """Eq. 6: the probability that y lacks what x got; `rates` has each link's loss under its lower end's label.

    What x got by the tree was not lost above the place where their paths part. What it got by gossip says nothing
    about the tree, so all of y's path counts. A link without a rate is taken for a good one.
    """
    parting = _common(x, y) if by_tree else len(ROOT)
    return 1 - prod(1 - rates.get(y[:size], 0.0) for size in range(parting + 1, len(y) + 1))


def may_push(mine: Label, labels: Sequence[Label], window: float) -> bool:
    """Is `mine` in the share `window` of the labels, the top of the tree first, those of equal depth spread over it?

    The paper calls the window once the brokers that may not push; its results fit only those that may.
    """
    place = len(mine), mine[-1], mine  # by the last digit first: not all of one subtree
    before = sum((len(label), label[-1], label) < place for label in labels)
    return before < window * len(labels) - ROUNDING


def is_deep(mine: Label, labels: Sequence[Label], window: float) -> bool:
    """Is `mine` in the share `window` of the labels, the deepest first, those of equal depth spread over the tree?

    Spread: ties go by the last digit first, so that not all of one subtree skip the same tier.
    """
    place = -len(mine), mine[-1], mine
    before = sum((-len(label), label[-1], label) < place for label in labels)
    return before < window * len(labels) - ROUNDING


class PartnerSelection:
    """One way to choose partners (section III.D). 3PG is two of them: a push, and a pull by the lowest weights."""

    def __init__(self, strategy: Strategy, window: float) -> None:
        if not 0 <= window <= 1:
            raise ValueError(f"the window is a share of the brokers, from 0 to 1, not {window}")
        self._strategy = strategy
        self._has_window = strategy == "pgw" and window > 0

    def choose(
        self,
        candidates: Sequence[str],
        weights: Sequence[float],
        count: int,
        random: RandomSource,
        *,
        lowest: bool = False,
        deep: bool = False,
    ) -> list[str]:
        """So many distinct candidates, or all; `lowest` prefers low weights, `deep` is for PGW's deepest brokers."""
        count = max(0, min(count, len(candidates)))
        if self._strategy == "random":
            return random.sample(candidates, count)
        if count == 0:
            return []
        if self._strategy == "wrpg":
            chosen = _drawn(weights, count, random, lowest)
        else:
            wanted = [-weight for weight in weights] if lowest else weights
            chosen = _best(wanted, count, random, skip_top=deep and self._has_window)
        return [candidates[index] for index in chosen]


def _best(wanted: Sequence[float], count: int, random: RandomSource, *, skip_top: bool) -> list[int]:
    """The positions of the most wanted, ties at random; those of the top tier only for want of others if skipped."""
    if not skip_top:
        return _top(range(len(wanted)), wanted, count, random)
    highest = max(wanted)
    others = [index for index, value in enumerate(wanted) if value != highest]
    chosen = _top(others, wanted, min(count, len(others)), random)
    if len(chosen) < count:
        tier = [index for index, value in enumerate(wanted) if value == highest]
        chosen += random.sample(tier, count - len(chosen))
    return chosen


def _top(indices: Sequence[int], wanted: Sequence[float], count: int, random: RandomSource) -> list[int]:
    """The `count` most wanted of the positions. Only those that tie for the last places are drawn."""
    if count == 0:
        return []
    least = nlargest(count, (wanted[index] for index in indices))[-1]
    chosen = [index for index in indices if wanted[index] > least]
    ties = [index for index in indices if wanted[index] == least]
    return chosen + random.sample(ties, count - len(chosen))


def _drawn(weights: Sequence[float], count: int, random: RandomSource, lowest: bool) -> list[int]:
    """Positions drawn one after the other without replacement, by weight or, if `lowest`, by inverse weight.

    The first of exponential times with the weights as rates are such a draw (Efraimidis and Spirakis), in one pass.
    Weight 0 is never drawn before another, and its inverse always is.
    """
    zero = [index for index, weight in enumerate(weights) if weight == 0]
    if lowest:
        chosen = random.sample(zero, min(count, len(zero)))
        return chosen + _earliest(weights, count - len(chosen), random, lowest)
    chosen = _earliest(weights, count, random, lowest)
    return chosen + random.sample(zero, count - len(chosen))


def _earliest(weights: Sequence[float], count: int, random: RandomSource, lowest: bool) -> list[int]:
    times: list[tuple[float, int]] = []
    for index, weight in enumerate(weights):
        if weight != 0:
            time = -log(1 - random.random())
            times.append((time * weight if lowest else time / weight, index))
    return [index for _, index in nsmallest(count, times)]


def _common(x: Label, y: Label) -> int:
    """How many items the labels begin with in common: the length of the label where their paths part."""
    return (len(x) + len(y) - distance(x, y)) // 2
