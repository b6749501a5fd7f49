"""Success, overhead and latency of a scheme over its fanout, and at the fanout that makes it reliable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import inf, isfinite, log
from statistics import fmean
from typing import Any, NamedTuple

from tidings.studies.estimates import Estimate, StudyRows, resampled
from tidings.studies.polarized.runs import SUBSCRIBERS

TREE = "tree alone"
"""Fanout 0: where every scheme begins."""


class Scheme(NamedTuple):
    name: str
    redundancy: int = 0
    weights: str = "topology"

    def __str__(self) -> str:
        coded = f", {self.redundancy} redundant" if self.redundancy else ""
        return f"{self.name}{' by loss' if self.weights == 'loss' else ''}{coded}"


class Curves:
    def __init__(self, results: StudyRows, goal: float) -> None:
        self.goal = goal
        self._runs: dict[Scheme, dict[int, dict[int, dict[str, Any]]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        for row in results.rows():
            scheme = Scheme(row["scheme"], row["redundancy"], row["weights"])
            self._runs[scheme][row["fanout"]][row["seed"]] = row
        self.seeds: list[int] = results.distinct("seed")

    def schemes(self, redundancy: int = 0) -> list[Scheme]:
        """Return the schemes with gossip, in the order in which they were run."""
        return [found for found in self._runs if found.redundancy == redundancy and found.name != TREE]

    def redundancies(self) -> list[int]:
        return sorted({found.redundancy for found in self._runs if found.name != TREE} - {0})

    def fanouts(self, scheme: Scheme) -> list[int]:
        return sorted(self._runs[scheme]) if scheme in self._runs else []

    def by_seed(self, column: str, scheme: Scheme, fanout: int) -> dict[int, float]:
        runs = self._runs[scheme][fanout]
        return {seed: row[column] for seed, row in runs.items() if row[column] is not None}

    def mean(self, column: str, scheme: Scheme, fanout: int, seeds: Sequence[int] | None = None) -> float:
        found = self.by_seed(column, scheme, fanout)
        return fmean(found[seed] for seed in (seeds or self.seeds) if seed in found)

    def fanout_for_goal(self, scheme: Scheme, seeds: Sequence[int]) -> float:
        """Return the fanout for the goal, interpolating the logarithm of what is missed linearly; inf if none
        suffices."""
        if self._missed(scheme, 0, seeds) <= log(1 - self.goal):
            return 0.0
        for low, high in pairwise([0, *self.fanouts(scheme)]):
            before, after = self._missed(scheme, low, seeds), self._missed(scheme, high, seeds)
            if after <= log(1 - self.goal):
                return low + (high - low) * (before - log(1 - self.goal)) / (before - after)
        return inf

    def reaches_goal(self, scheme: Scheme) -> bool:
        return isfinite(self.fanout_for_goal(scheme, self.seeds))

    def _missed(self, scheme: Scheme, fanout: int, seeds: Sequence[int]) -> float:
        """Return the logarithm of the share missed; if nothing was missed, half a delivery counts as missed."""
        at = scheme if fanout else Scheme(TREE, scheme.redundancy)
        deliveries = SUBSCRIBERS * sum(self._runs[at][fanout][seed]["events"] for seed in seeds)
        return log(max(1 - self.mean("success", at, fanout, seeds), 0.5 / deliveries))

    def at_goal(self, column: str, scheme: Scheme, seeds: Sequence[int]) -> float:
        """Return a column at the fanout for the goal, interpolated between two measured ones; inf if it is not
        reached."""
        fanout = self.fanout_for_goal(scheme, seeds)
        if not isfinite(fanout):
            return inf
        measured = self.fanouts(scheme)
        if fanout <= measured[0]:
            return self.mean(column, scheme, measured[0], seeds)
        low, high = next((low, high) for low, high in pairwise(measured) if low <= fanout <= high)
        before, after = self.mean(column, scheme, low, seeds), self.mean(column, scheme, high, seeds)
        return before + (after - before) * (fanout - low) / (high - low)

    # --- Estimates, with their intervals

    def fanout(self, scheme: Scheme) -> Estimate:
        return resampled(lambda seeds: self.fanout_for_goal(scheme, seeds), self.seeds)

    def fanout_ratio(self, left: Scheme, right: Scheme) -> Estimate:
        return resampled(
            lambda seeds: quotient(self.fanout_for_goal(left, seeds), self.fanout_for_goal(right, seeds)),
            self.seeds,
        )

    def goal_ratio(self, column: str, left: Scheme, right: Scheme) -> Estimate:
        return resampled(
            lambda seeds: quotient(self.at_goal(column, left, seeds), self.at_goal(column, right, seeds)),
            self.seeds,
        )

    def ratio_at(self, column: str, fanout: int, left: Scheme, right: Scheme) -> Estimate:
        return resampled(
            lambda seeds: self.mean(column, left, fanout, seeds) / self.mean(column, right, fanout, seeds),
            self.seeds,
        )

    def goal_over(self, column: str, fanout: int, scheme: Scheme) -> Estimate:
        """Estimate a column at the goal, relative to its value at that fanout."""
        return resampled(
            lambda seeds: quotient(
                self.at_goal(column, scheme, seeds), self.mean(column, scheme, fanout, seeds)
            ),
            self.seeds,
        )

    def saved_by_coding(self, scheme: Scheme, redundancy: int) -> Estimate:
        """Estimate the share of the fanout that coding saves; a lower bound where the goal is not reached without
        coding."""

        def saved(seeds: Sequence[int]) -> float:
            without = min(self.fanout_for_goal(scheme, seeds), float(self.fanouts(scheme)[-1]))
            return 1 - self.fanout_for_goal(scheme._replace(redundancy=redundancy), seeds) / without

        return resampled(saved, self.seeds)


def quotient(left: float, right: float) -> float:
    """Return the ratio; 1 if neither is finite, since then neither is known to be larger."""
    return 1.0 if left == right else left / right if isfinite(right) else 0.0
