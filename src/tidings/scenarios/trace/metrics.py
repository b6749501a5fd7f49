"""The numbers of `summary.json` that follow from the trace tables."""

from __future__ import annotations

import msgspec
import numpy as np

from tidings.scenarios.trace.checkers.once import duplicates
from tidings.scenarios.trace.coded import Coded
from tidings.scenarios.trace.demand import demand
from tidings.scenarios.trace.reader import Trace

_NS_PER_MS = 1e6


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from publication to delivery; `std` is that of the population."""

    mean: float
    std: float
    p50: float
    p99: float
    max: float


class Metrics(msgspec.Struct, frozen=True):
    """Fields are called as in `summary.json`. Where nothing was expected the ratio is 1."""

    published: int
    delivered: int
    expected: int
    delivery_ratio: float
    duplicates: int
    out_of_order: int
    latency_ms: Latency | None


def metrics(trace: Trace) -> Metrics:
    """`delivered` counts all deliveries; `expected` and the ratio are as the strict `gap_free` counts them."""
    coded = trace.coded
    owed = demand(coded, strict_end=True)
    return Metrics(
        published=len(coded.events),
        delivered=len(coded.event),
        expected=owed.expected,
        delivery_ratio=owed.delivered / owed.expected if owed.expected else 1.0,
        duplicates=duplicates(coded),
        out_of_order=int(np.count_nonzero(coded.out_of_order)),
        latency_ms=_latency(coded),
    )


def _latency(coded: Coded) -> Latency | None:
    """Over all deliveries of published events, those of recovered events included; None without any."""
    known = coded.event >= 0
    if not known.any():
        return None
    latency_ms = (coded.at[known] - coded.events.at[coded.event[known]]) / _NS_PER_MS
    median, high = np.percentile(latency_ms, (50, 99), method="inverted_cdf")
    return Latency(
        mean=float(latency_ms.mean()),
        std=float(latency_ms.std()),
        p50=float(median),
        p99=float(high),
        max=float(latency_ms.max()),
    )
