"""The goals, as ratios to other systems within one repetition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from live.measure import Figures
from live.systems import BEST_EFFORT, GUARANTEED, JETSTREAM, NATS, REDIS, TOTAL

Key = tuple[str, str]
"""Workload and system."""
Repetition = Mapping[Key, Figures]


class Goal(NamedTuple):
    what: str
    ours: Key
    against: Key | float
    """The same figure of another system or workload, or a number."""
    ratio: float
    figure: str = "events_per_s"
    at_most: bool = False

    @property
    def text(self) -> str:
        other = f"{self.against:,.0f}" if isinstance(self.against, float) else " ".join(self.against[::-1])
        return f"{'at most' if self.at_most else 'at least'} {self.ratio:g} x {other}"


class Reached(NamedTuple):
    goal: Goal
    ours: float
    ratio: float

    @property
    def held(self) -> bool:
        return self.ratio <= self.goal.ratio if self.goal.at_most else self.ratio >= self.goal.ratio


ONE, TEN, LATENCY = "one to one", "one to ten", "latency"

GOALS = (
    Goal("best effort, one to one", (ONE, BEST_EFFORT), (ONE, NATS), 1.5),
    Goal("guaranteed, one to one", (ONE, GUARANTEED), (ONE, JETSTREAM), 8),
    Goal("guaranteed, one to one", (ONE, GUARANTEED), (ONE, REDIS), 3),
    Goal("guaranteed, one to ten", (TEN, GUARANTEED), (TEN, JETSTREAM), 6),
    Goal("guaranteed, one to ten", (TEN, GUARANTEED), (TEN, NATS), 2),
    Goal("total order, one to one", (ONE, TOTAL), (ONE, JETSTREAM), 3),
    Goal("p99, guaranteed", (LATENCY, GUARANTEED), (LATENCY, NATS), 2, "p99_us", at_most=True),
    Goal("p99, total order", (LATENCY, TOTAL), (LATENCY, JETSTREAM), 1, "p99_us", at_most=True),
    Goal("three in a row, guaranteed", ("three brokers in a row", GUARANTEED), (ONE, GUARANTEED), 0.5),
    Goal("recorder keeping up", ("archive", GUARANTEED), 100_000.0, 1),
)


def reached(repetitions: Sequence[Repetition]) -> list[Reached]:
    """Return for each goal whose sides were both measured: our median, and the median of the ratios."""
    found = []
    for goal in GOALS:
        pairs = [
            (one[goal.ours][goal.figure], other)
            for one in repetitions
            if goal.ours in one and (other := other_side(goal, one)) is not None
        ]
        if pairs:
            ratios = [ours / other for ours, other in pairs if other]
            found.append(Reached(goal, median(ours for ours, _ in pairs), median(ratios or [0.0])))
    return found


def other_side(goal: Goal, repetition: Repetition) -> float | None:
    if isinstance(goal.against, float):
        return goal.against
    return repetition[goal.against][goal.figure] if goal.against in repetition else None
