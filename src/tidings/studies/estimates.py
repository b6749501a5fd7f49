"""Means over random runs, with their 95 % intervals, and what a comparison of two of them shows.

Runs of one seed share the network and what is published, so that comparisons go seed by seed: what differs between
networks does not hide what differs between algorithms. A statement holds only where the interval says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite, sqrt
from random import Random
from statistics import fmean, stdev
from typing import Any

import pyarrow as pa
from scipy.special import stdtrit

from tidings.studies.study import PaperClaim

CONFIDENCE = 0.95
RESAMPLINGS = 500
BySeed = Mapping[int, float]
Statistic = Callable[[Sequence[int]], float]
"""Of the runs of these seeds, one of which may be there twice."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and how far it may be off, on either side, with 95 % confidence; one run alone says nothing of that."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """For error bars, which cannot be without end."""
        width = (self.high - self.low) / 2
        return width if isfinite(width) else 0.0

    def text(self, digits: int = 1, unit: str = "") -> str:
        if not isfinite(self.high - self.low):
            return f"{self.mean:.{digits}f}{unit}"
        return f"{self.mean:.{digits}f}{unit} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def estimate(values: Sequence[float]) -> Estimate:
    if not values:
        return Estimate(float("nan"), -inf, inf)
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, -inf, inf)
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def difference(left: BySeed, right: BySeed) -> Estimate:
    """Left less right, over the seeds of both."""
    return estimate([left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())])


def pooled(differences: Sequence[tuple[BySeed, BySeed]]) -> Estimate:
    """The mean of several differences, seed by seed: one answer where each alone would be too uncertain."""
    shared = [left.keys() & right.keys() for left, right in differences]
    seeds = sorted(frozenset.intersection(*map(frozenset, shared))) if shared else []
    return estimate([fmean(left[seed] - right[seed] for left, right in differences) for seed in seeds])


def resampled(statistic: Statistic, seeds: Sequence[int]) -> Estimate:
    """A statistic that is no mean, such as a ratio: its interval by drawing the seeds again and again."""
    random = Random(1)
    known = cache(lambda drawn: statistic(drawn))  # of few seeds there are few different draws
    drawn = sorted(known(tuple(sorted(random.choices(seeds, k=len(seeds))))) for _ in range(RESAMPLINGS))
    outside = round(RESAMPLINGS * (1 - CONFIDENCE) / 2)
    return Estimate(statistic(seeds), drawn[outside], drawn[-1 - outside])


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """`undecided`: the interval contains both answers."""

    holds: bool
    undecided: bool = False


def above(found: Estimate, limit: float = 0.0) -> ClaimVerdict:
    if found.low > limit:
        return ClaimVerdict(True)
    return ClaimVerdict(False, undecided=found.high > limit)


def below(found: Estimate, limit: float = 0.0) -> ClaimVerdict:
    return above(Estimate(-found.mean, -found.high, -found.low), -limit)


def within(found: Estimate, low: float, high: float) -> ClaimVerdict:
    """'About so much': the mean is in the band; beside it, undecided where its interval meets the band."""
    if low <= found.mean <= high:
        return ClaimVerdict(True)
    return ClaimVerdict(False, undecided=found.low <= high and found.high >= low)


def inside(found: Estimate, low: float, high: float) -> ClaimVerdict:
    """'The same': all of the interval is in the band."""
    return both(above(found, low), below(found, high))


def both(*verdicts: ClaimVerdict) -> ClaimVerdict:
    """All of them hold; if not, undecided unless one of them is known not to."""
    return ClaimVerdict(
        all(verdict.holds for verdict in verdicts),
        undecided=all(verdict.holds or verdict.undecided for verdict in verdicts)
        and not all(verdict.holds for verdict in verdicts),
    )


def sure(holds: bool) -> ClaimVerdict:
    """Where nothing is random."""
    return ClaimVerdict(holds)


def claimed(
    figure: str, text: str, paper: str, measured: str, verdict: ClaimVerdict, why: str = "", note: str = ""
) -> PaperClaim:
    """`why` is told where the claim is known not to hold, `note` always: what is different in our experiment."""
    reasons = [note] if note else []
    if verdict.undecided:
        reasons.append("not decided by so few runs: the 95 % interval contains both answers")
    elif not verdict.holds and why:
        reasons.append(why)
    return PaperClaim(figure, text, paper, measured, verdict.holds, "; ".join(reasons), verdict.undecided)


class StudyRows:
    """The rows of a study, looked up by the values of their columns."""

    def __init__(self, table: pa.Table) -> None:
        self._rows: list[dict[str, Any]] = table.to_pylist()

    def rows(self, **where: Any) -> list[dict[str, Any]]:
        return [row for row in self._rows if all(row[name] == value for name, value in where.items())]

    def distinct(self, column: str, **where: Any) -> list[Any]:
        return sorted({row[column] for row in self.rows(**where)})

    def by_seed(self, column: str, **where: Any) -> dict[int, float]:
        """Runs in which there was nothing to measure are not among them."""
        return {row["seed"]: row[column] for row in self.rows(**where) if row[column] is not None}

    def mean(self, column: str, **where: Any) -> Estimate:
        return estimate(list(self.by_seed(column, **where).values()))

    def series(self, x: str, y: str, **where: Any) -> list[tuple[float, float, float]]:
        """For a drawing: over x, the mean of y and half its interval."""
        found = [(value, self.mean(y, **{**where, x: value})) for value in self.distinct(x, **where)]
        return [(float(value), mean.mean, mean.half) for value, mean in found if mean.mean == mean.mean]
