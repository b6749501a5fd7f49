"""Weighs gossip partners by labels or loss rates, and chooses them by weight (polarized, section III).

The weight that x gives to y says how useful a message from x is to y: the probability that y lacks what x has (by loss,
eq. 2-6), or a guess at it from their positions in the tree alone (by topology, eq. 7-9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest, nsmallest
from math import log, prod

from tidings.core.kernel import RandomSource
from tidings.core.overlay.epidemic.settings import Strategy
from tidings.core.overlay.labels import ROOT, Label, distance

ROUNDING = 1e-9
"""If a share of the brokers exceeds a whole number by less, take that number: 0.07 * 100 is 7.000000000000001."""


def topology_weight(x: Label, y: Label) -> float:
    """Compute eq. 9: deep brokers (horizontal cut, eq. 7) of other branches (vertical cut, eq. 8) weigh most.

    Eq. 8 divides by zero if x is the root; no branch is nearer to it than another, so the cut is 1 there. This is one
    division of integers, so that weights that are equal in theory are exactly equal, and tie.
    """
    x_level, y_level = len(x) - 1, len(y) - 1
    if y_level == 0:
        return 0.0
    if x_level == 0:
        return 1.0
    shared = _common(x, y) - 1
    return (y_level * (x_level - shared)) / ((x_level + y_level) * x_level)


def loss_weight(x: Label, y: Label, rates: Mapping[Label, float], *, by_tree: bool) -> float:
    """Compute eq. 6: the probability that y lacks what x has; `rates` has each link's loss by its lower end's label.

    What x got by the tree was not lost above the point where their paths part. What it got by gossip says nothing about
    the tree, so all of y's path counts. A link without a rate counts as lossless.
    """
    parting = _common(x, y) if by_tree else len(ROOT)
    return 1 - prod(1 - rates.get(y[:size], 0.0) for size in range(parting + 1, len(y) + 1))


def may_push(mine: Label, labels: Sequence[Label], window: float) -> bool:
    """Return True if `mine` is in the topmost share `window` of the labels; ties are spread over the tree.

    The paper once calls the window the brokers that may not push, but its results fit only those that may.
    """
    place = len(mine), mine[-1], mine  # by the last digit first, so that not all are of one subtree
    before = sum((len(label), label[-1], label) < place for label in labels)
    return before < window * len(labels) - ROUNDING


def is_deep(mine: Label, labels: Sequence[Label], window: float) -> bool:
    """Return True if `mine` is in the deepest share `window` of the labels; ties are spread over the tree.

    Ties go by the last digit first, so that not all brokers of one subtree skip the same tier.
    """
    place = -len(mine), mine[-1], mine
    before = sum((-len(label), label[-1], label) < place for label in labels)
    return before < window * len(labels) - ROUNDING


class PartnerSelection:
    """One way to choose partners (section III.D). 3PG uses two: one for pushes, one for pulls by lowest weight."""

    def __init__(self, strategy: Strategy, window: float) -> None:
        if not 0 <= window <= 1:
            raise ValueError(f"window {window}: expected a share of the brokers, from 0 to 1")
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
        """Choose up to `count` candidates; `lowest` prefers low weights, `deep` says that we are deep (PGW)."""
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
    """Return the indices of the most wanted, ties at random; with `skip_top`, the top tier only if others run out."""
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
    """Return the `count` most wanted of the indices; draw only among those that tie for the last places."""
    if count == 0:
        return []
    least = nlargest(count, (wanted[index] for index in indices))[-1]
    chosen = [index for index in indices if wanted[index] > least]
    ties = [index for index in indices if wanted[index] == least]
    return chosen + random.sample(ties, count - len(chosen))


def _drawn(weights: Sequence[float], count: int, random: RandomSource, lowest: bool) -> list[int]:
    """Draw indices one by one without replacement, by weight or, if `lowest`, by inverse weight.

    The earliest of exponential times with the weights as rates are such a draw, in one pass (Efraimidis and Spirakis).
    Weight 0 comes after all others, or with `lowest` before them.
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
    """Return the length of the labels' common prefix: of the label where their paths part."""
    return (len(x) + len(y) - distance(x, y)) // 2
