"""The experiment of the polarized paper, and what the tests of its claims measure in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from tidings.scenarios.file.schema import Recovery
from tidings.studies.polarized.runs import (
    BLOCK_BYTES,
    BLOCKS,
    SCHEMES,
    SUBSCRIBERS,
    polarized_scenario,
)
from tidings.studies.recovery_runs import Played as Run
from tidings.studies.recovery_runs import play as play_scenario

__all__ = ["BLOCKS", "SUBSCRIBERS", "Run"]

NONE: Mapping[str, Any] = {"algorithm": "none"}
PUSH = SCHEMES["push random"]
PULL = SCHEMES["pull random"]
THREE_PG = SCHEMES["3PG .25"]


def play(seed: int, events: int, recovery: Mapping[str, Any], *, block_bytes: int = BLOCK_BYTES) -> Run:
    """`recovery` is the table of that name."""
    table = Recovery(**recovery, block_bytes=block_bytes)
    run = play_scenario(polarized_scenario(table, events, seed=seed))
    assert run.summary["published"] == events
    assert run.summary["expected"] == events * SUBSCRIBERS, "all were subscribed in time"
    return run


@dataclass(frozen=True)
class Estimate:
    """A mean over runs and its standard error. Runs, not events: a run's brokers keep their phases in the second."""

    mean: float
    error: float


def estimate(samples: Sequence[float]) -> Estimate:
    return Estimate(fmean(samples), stdev(samples) / sqrt(len(samples)))


@dataclass(frozen=True)
class Measured:
    success: Estimate
    overhead: Estimate
    push_utility: float | None
    pull_utility: float | None
    latency_ms: float


def measure(recovery: Mapping[str, Any], *, seeds: int, events: int, **changed: Any) -> Measured:
    """Runs of the seeds 1, 2, ...; the same ones are not run twice in a process."""
    table = tuple(sorted({**recovery, **changed}.items()))
    return _measured(table, seeds, events)


@cache
def _measured(table: tuple[tuple[str, Any], ...], seeds: int, events: int) -> Measured:
    summaries = [play(seed, events, dict(table)).summary for seed in range(1, seeds + 1)]
    return Measured(
        success=estimate([summary["delivery_ratio"] for summary in summaries]),
        overhead=estimate([summary["overhead"] for summary in summaries]),
        push_utility=_mean([summary["utility"]["push"] for summary in summaries]),
        pull_utility=_mean([summary["utility"]["pull"] for summary in summaries]),
        latency_ms=fmean(summary["latency_ms"]["mean"] for summary in summaries),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
