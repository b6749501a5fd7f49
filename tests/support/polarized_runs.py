"""The experiment of the polarized paper (section IV), run through the simulator, and what is measured in it.

A complete ternary tree of 40 brokers, a publisher at its root, a subscriber at each other broker; one event of 16
blocks a second; links of 50 ms that lose 2 % in bursts of 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from tidings.scenario.expand import expand
from tidings.scenario.load import parse_scenario
from tidings.simulator.memory_trace import MemoryWriter
from tidings.simulator.run import Simulation
from tidings.trace.reader import Trace

BROKERS = 40
SUBSCRIBERS = BROKERS - 1
BLOCKS = 16
BLOCK_BYTES = 1_472
START_S = 15.0
"""Announcements are lost, too: until about 8 s some brokers do not know all others, which few events would show."""

NONE: Mapping[str, Any] = {"algorithm": "none"}
PUSH: Mapping[str, Any] = {"algorithm": "push"}
PULL: Mapping[str, Any] = {"algorithm": "subscriber-pull", "pull": "advertise"}
THREE_PG: Mapping[str, Any] = {"algorithm": "push+pull", "pull": "advertise", "window": 0.25}

_SCENARIO = """
seed = {seed}
duration_s = {duration_s}
settle_s = 10.0

[network]
delay_ms = {{ kind = "constant", value = 50 }}
loss = {{ kind = "gilbert", rate = 0.02, burst = 2 }}

[overlay]
mode = "epidemic"
shape = {{ kind = "tree", brokers = {brokers}, children = 3 }}

[recovery]
block_bytes = {block_bytes}
{recovery}

[[publisher]]
name = "p"
at = "b0"
arrival = "periodic"
rate_hz = 1.0
count = {events}
start_s = {start_s}
size_bytes = {size_bytes}
"""


def scenario_text(
    seed: int, events: int, recovery: Mapping[str, Any], *, block_bytes: int = BLOCK_BYTES
) -> str:
    """`recovery` is the table of that name; its values are written as JSON, which is TOML here."""
    head = _SCENARIO.format(
        seed=seed,
        start_s=START_S,
        duration_s=START_S + events,
        brokers=BROKERS,
        block_bytes=block_bytes,
        recovery="\n".join(f"{name} = {json.dumps(value)}" for name, value in recovery.items()),
        events=events,
        size_bytes=BLOCKS * block_bytes,
    )
    subscribers = (f'[[subscriber]]\nname = "s{n}"\nat = "b{n}"\n' for n in range(1, BROKERS))
    return head + "\n".join(subscribers)


class _Writer(MemoryWriter):
    """A trace in memory, of which the summary wants a hash."""

    sha256 = ""


@dataclass(frozen=True)
class Run:
    simulation: Simulation
    summary: Mapping[str, Any]
    trace: Trace


def play(seed: int, events: int, recovery: Mapping[str, Any], *, block_bytes: int = BLOCK_BYTES) -> Run:
    writer = _Writer()
    text = scenario_text(seed, events, recovery, block_bytes=block_bytes)
    simulation = Simulation(expand(parse_scenario(text)), writer)
    simulation.run()
    summary = simulation.close()
    assert summary["published"] == events
    assert summary["expected"] == events * SUBSCRIBERS, "all were subscribed in time"
    assert summary["duplicates"] == 0
    return Run(simulation, summary, writer.trace())


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
