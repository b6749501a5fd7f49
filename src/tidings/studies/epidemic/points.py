"""The runs of the study of epidemic recovery: a base, and sweeps that change one or two of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tidings.studies.epidemic.runs import ALGORITHMS
from tidings.studies.study import Point

Base = Mapping[str, Any]

QUICK: Base = {
    "brokers": 30,
    "patterns": 21,
    "patterns_per_broker": 2,
    "used_patterns": 21,
    "publishers": 5,
    "loss": 0.1,
    "bursts": False,
    "buffer_events": 1_500,
    "interval_ms": 60.0,
    "cache_policy": "fifo",
    "adaptive": False,
    "start_s": 8.0,
    "publish_s": 1.0,
    "settle_s": 4.0,
}
FULL: Base = {
    **QUICK,
    "brokers": 100,
    "patterns": 70,
    "used_patterns": 70,
    "interval_ms": 30.0,
    "start_s": 60.0,
    "publish_s": 4.0,
    "settle_s": 20.0,
}
QUICK_SEEDS, FULL_SEEDS = 4, 12
MORE_SEEDS = 2
"""This many times the seeds, for comparisons that are close."""
SLOW_MS = 240.0
"""An interval that is too long for small buffers."""
SMALL_BUFFER = 10
MORE_PATTERNS = 3
RECOVERING = tuple(name for name in ALGORITHMS if name != "none")
PARAMETERS = pa.schema(
    [
        ("algorithm", pa.string()),
        ("seed", pa.int64()),
        ("brokers", pa.int64()),
        ("patterns", pa.int64()),
        ("patterns_per_broker", pa.int64()),
        ("used_patterns", pa.int64()),
        ("publishers", pa.int64()),
        ("loss", pa.float64()),
        ("bursts", pa.bool_()),
        ("buffer_events", pa.int64()),
        ("interval_ms", pa.float64()),
        ("cache_policy", pa.string()),
        ("adaptive", pa.bool_()),
    ]
)


def base_of(quick: bool) -> Base:
    return QUICK if quick else FULL


def where(base: Base, *free: str, **changes: Any) -> dict[str, Any]:
    """Select the runs that differ from the base only in `changes`; `free` columns may have any value."""
    named = {name: base[name] for name in PARAMETERS.names if name in base and name not in free}
    return {**named, **changes}


def points(quick: bool) -> list[Point]:
    seeds = QUICK_SEEDS if quick else FULL_SEEDS
    distinct: dict[str, Point] = {}
    for changes, times in ((sweeps(quick), 1), (close_calls(base_of(quick)), MORE_SEEDS)):
        for change in changes:
            for seed in range(1, times * seeds + 1):
                point = {**base_of(quick), **change, "seed": seed}
                distinct[repr(sorted(point.items()))] = point
    return list(distinct.values())


def sweeps(quick: bool) -> Iterator[dict[str, Any]]:
    """Yield what each run changes of the base; several sweeps pass through the base itself."""
    base = base_of(quick)
    for loss in (0.0, 0.1, 0.2) if quick else (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
        yield from ({"algorithm": name, "loss": loss} for name in ALGORITHMS)
    for name in RECOVERING:
        for size in (SMALL_BUFFER, 30, 1_500) if quick else (3, SMALL_BUFFER, 30, 100, 300, 1_500):
            yield {"algorithm": name, "buffer_events": size}
        for interval_ms in (60.0, SLOW_MS, 960.0) if quick else (10.0, 30.0, 60.0, 120.0, SLOW_MS, 960.0):
            yield {"algorithm": name, "interval_ms": interval_ms}
        for each in (1, 2, 6) if name != "publisher pull" or not quick else ():
            yield {"algorithm": name, "patterns_per_broker": each}
        yield {"algorithm": name, "bursts": True, "loss": 0.0}
    yield from broker_sweep(base, (10, 20, 30) if quick else (25, 50, 100, 200))
    yield {"algorithm": "push", "interval_ms": SLOW_MS, "buffer_events": SMALL_BUFFER}


def close_calls(base: Base) -> Iterator[dict[str, Any]]:
    """Yield changes with a small effect, which takes more runs to see: patterns, cache policies, an adaptive
    interval."""
    yield {"algorithm": "push"}
    for used in (MORE_PATTERNS * base["patterns"], base["patterns"]):
        yield more_patterns(base, used)
    for policy in ("fifo", "foreign-first", "random"):
        yield {"algorithm": "combined pull", "buffer_events": SMALL_BUFFER, "cache_policy": policy}
    for adaptive in (False, True):
        yield {"algorithm": "push", "interval_ms": SLOW_MS, "adaptive": adaptive}


def more_patterns(base: Base, used: int) -> dict[str, Any]:
    """Return changes for more patterns, each with as many subscribers as in the base; events match `used` of them."""
    return {
        "algorithm": "push",
        "patterns": MORE_PATTERNS * base["patterns"],
        "patterns_per_broker": MORE_PATTERNS * base["patterns_per_broker"],
        "used_patterns": used,
    }


def broker_sweep(base: Base, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yield networks of several sizes, with the same load per broker."""
    for brokers in sizes:
        patterns = base["patterns"] * brokers // base["brokers"]
        publishers = max(1, round(base["publishers"] * brokers / base["brokers"]))
        scaled = {"brokers": brokers, "patterns": patterns, "used_patterns": patterns}
        for name in ("push", "combined pull"):
            yield {**scaled, "publishers": publishers, "algorithm": name}
