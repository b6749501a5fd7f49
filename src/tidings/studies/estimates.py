"""Means over random runs with their 95 % intervals, and verdicts on comparisons of them.

Runs of one seed share the network and the publications, so comparisons go seed by seed: differences between networks do
not hide differences between algorithms. A statement holds only if the interval says so.
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
"""A function of the runs of these seeds, which may contain duplicates."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % confidence interval; a single run has an unbounded one."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the interval, for error bars; 0 if it is unbounded."""
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
    """Estimate left minus right, over the seeds of both."""
    return estimate([left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())])


def pooled(differences: Sequence[tuple[BySeed, BySeed]]) -> Estimate:
    """Estimate the mean of several differences, seed by seed: one answer where each alone would be too uncertain."""
    shared = [left.keys() & right.keys() for left, right in differences]
    seeds = sorted(frozenset.intersection(*map(frozenset, shared))) if shared else []
    return estimate([fmean(left[seed] - right[seed] for left, right in differences) for seed in seeds])


def resampled(statistic: Statistic, seeds: Sequence[int]) -> Estimate:
    """Estimate a statistic that is not a mean, such as a ratio, by resampling the seeds."""
    random = Random(1)
    known = cache(lambda drawn: statistic(drawn))  # few seeds give few distinct draws
    drawn = sorted(known(tuple(sorted(random.choices(seeds, k=len(seeds))))) for _ in range(RESAMPLINGS))
    outside = round(RESAMPLINGS * (1 - CONFIDENCE) / 2)
    return Estimate(statistic(seeds), drawn[outside], drawn[-1 - outside])


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """Whether a claim holds; `undecided`: the interval contains both answers."""

    holds: bool
    undecided: bool = False


def above(found: Estimate, limit: float = 0.0) -> ClaimVerdict:
    if found.low > limit:
        return ClaimVerdict(True)
    return ClaimVerdict(False, undecided=found.high > limit)


def below(found: Estimate, limit: float = 0.0) -> ClaimVerdict:
    return above(Estimate(-found.mean, -found.high, -found.low), -limit)


def within(found: Estimate, low: float, high: float) -> ClaimVerdict:
    """Check 'about this much': the mean is in the band. Outside it, undecided if the interval overlaps the band."""
    if low <= found.mean <= high:
        return ClaimVerdict(True)
    return ClaimVerdict(False, undecided=found.low <= high and found.high >= low)


def inside(found: Estimate, low: float, high: float) -> ClaimVerdict:
    """Check 'the same': the whole interval is in the band."""
    return both(above(found, low), below(found, high))


def both(*verdicts: ClaimVerdict) -> ClaimVerdict:
    """Check that all hold; if not, undecided unless one is known not to hold."""
    return ClaimVerdict(
        all(verdict.holds for verdict in verdicts),
        undecided=all(verdict.holds or verdict.undecided for verdict in verdicts)
        and not all(verdict.holds for verdict in verdicts),
    )


def sure(holds: bool) -> ClaimVerdict:
    """Return a verdict where nothing is random."""
    return ClaimVerdict(holds)


def claimed(
    figure: str, text: str, paper: str, measured: str, verdict: ClaimVerdict, why: str = "", note: str = ""
) -> PaperClaim:
    """Return the claim. `why` is shown if it is known not to hold, `note` (how our experiment differs) always."""
    reasons = [note] if note else []
    if verdict.undecided:
        reasons.append("too few runs to decide: the 95 % interval contains both answers")
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
        """Return the values by seed, without runs that had nothing to measure."""
        return {row["seed"]: row[column] for row in self.rows(**where) if row[column] is not None}

    def mean(self, column: str, **where: Any) -> Estimate:
        return estimate(list(self.by_seed(column, **where).values()))

    def series(self, x: str, y: str, **where: Any) -> list[tuple[float, float, float]]:
        """Return points to plot: x, the mean of y, and half its interval."""
        found = [(value, self.mean(y, **{**where, x: value})) for value in self.distinct(x, **where)]
        return [(float(value), mean.mean, mean.half) for value, mean in found if mean.mean == mean.mean]
