"""Computes the numbers of `summary.json` that follow from the trace tables, from a whole trace or from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import msgspec
import numpy as np
import numpy.typing as npt

from tidings.core.structures.histogram import SIGNIFICANT_BITS
from tidings.scenarios.trace.checkers.once import duplicates
from tidings.scenarios.trace.coded import Array, Coded
from tidings.scenarios.trace.demand import DeliveryDemand, demand
from tidings.scenarios.trace.reader import Trace

NS_PER_MS = 1e6
COUNTED_VALUE = np.dtype([("value", "<i8"), ("count", "<i8")])


class Latency(msgspec.Struct, frozen=True):
    """Holds milliseconds from publication to delivery; `std` is the population's.

    All deliveries of published events count, including recovered ones, except repetitions. A quantile is the smallest
    value that at least this share of all values do not exceed.
    """

    mean: float = 0.0
    std: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Metrics(msgspec.Struct, frozen=True):
    """Has fields named as in `summary.json`. `delivered` counts all deliveries; `expected` and the ratio are counted as
    by strict `gap_free`. The ratio is 1 if nothing was expected. `expired` counts matching events that were not
    delivered and had a time to expire; they are not among `expected`."""

    published: int
    delivered: int
    expected: int
    delivery_ratio: float
    duplicates: int
    out_of_order: int
    latency_ms: Latency | None
    """None if no published event was delivered."""
    expired: int = 0


class PartMetrics(msgspec.Struct, frozen=True):
    """Holds the counts of some of the subscribers."""

    delivered: int
    expected: int
    missing: int
    expired: int
    duplicates: int
    out_of_order: int
    known: int
    """Deliveries of published events, without repetitions; the fields below are about their latency."""
    mean_ns: float
    squares: float
    """The sum of squared distances from the mean."""
    max_ns: int
    latency_rows: bytes

    @property
    def latencies(self) -> npt.NDArray[np.void]:
        """Latencies in nanoseconds, ascending, with their counts."""
        return np.frombuffer(self.latency_rows, COUNTED_VALUE)


def metrics(trace: Trace) -> Metrics:
    coded = trace.coded
    part = measured(coded, demand(coded, strict_end=True), latencies(coded))
    return put_together(len(coded.events), [part], part.latencies)


def timed_rows(coded: Coded) -> Array:
    """Return the deliveries that have a latency: of published events, for the first time."""
    return np.flatnonzero((coded.event >= 0) & (coded.attempt == 1)).astype(np.int64)


def latencies(coded: Coded) -> Array:
    """Return the latency of each of the `timed_rows`, in nanoseconds."""
    rows = timed_rows(coded)
    return coded.at[rows] - coded.events.at[coded.event[rows]]


def measured(coded: Coded, owed: DeliveryDemand, latency: Array, *, exact: bool = True) -> PartMetrics:
    """Return the counts of a part. Unless `exact`, quantiles are up to 0.1 % too low."""
    mean = float(latency.mean()) if len(latency) else 0.0
    counted = np.unique(latency if exact else rounded(latency), return_counts=True)
    return PartMetrics(
        delivered=len(coded.event),
        expected=owed.expected,
        missing=len(owed.missing),
        expired=owed.expired,
        duplicates=duplicates(coded),
        out_of_order=int(np.count_nonzero(coded.out_of_order)),
        known=len(latency),
        mean_ns=mean,
        squares=float(np.square(latency - mean).sum()),
        max_ns=int(latency.max()) if len(latency) else 0,
        latency_rows=_counted_rows(*counted).tobytes(),
    )


def rounded(values: Array) -> Array:
    """Keep the eleven leading bits, which rounds towards zero by less than 0.1 %."""
    size = np.abs(values)
    excess = np.maximum(np.frexp(size.astype(np.float64))[1] - SIGNIFICANT_BITS, 0)
    kept: Array = np.sign(values) * (size >> excess << excess)
    return kept


def sum_latencies(parts: Sequence[PartMetrics]) -> npt.NDArray[np.void]:
    rows = np.concatenate([part.latencies for part in parts])
    values, place = np.unique(rows["value"], return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, place, rows["count"])
    return _counted_rows(values, counts)


def _counted_rows(values: Array, counts: Array) -> npt.NDArray[np.void]:
    rows = np.empty(len(values), COUNTED_VALUE)
    rows["value"], rows["count"] = values, counts
    return rows


def put_together(published: int, parts: Sequence[PartMetrics], latencies: npt.NDArray[np.void]) -> Metrics:
    """Return the metrics of all parts; `latencies` has the latencies of all parts."""
    expected = sum(part.expected for part in parts)
    return Metrics(
        published=published,
        delivered=sum(part.delivered for part in parts),
        expected=expected,
        delivery_ratio=delivery_ratio(expected, sum(part.missing for part in parts)),
        duplicates=sum(part.duplicates for part in parts),
        out_of_order=sum(part.out_of_order for part in parts),
        latency_ms=_latency(parts, latencies) if len(latencies) else None,
        expired=sum(part.expired for part in parts),
    )


def delivery_ratio(expected: int, missing: int) -> float:
    return (expected - missing) / expected if expected else 1.0


def _latency(parts: Sequence[PartMetrics], latencies: npt.NDArray[np.void]) -> Latency:
    known = sum(part.known for part in parts)
    mean = sum(part.mean_ns * part.known for part in parts) / known
    squares = sum(part.squares + part.known * (part.mean_ns - mean) ** 2 for part in parts)
    up_to = np.cumsum(latencies["count"])
    median, high = latencies["value"][np.searchsorted(up_to, (0.5 * known, 0.99 * known))]
    return Latency(
        mean=mean / NS_PER_MS,
        std=sqrt(squares / known) / NS_PER_MS,
        p50=float(median / NS_PER_MS),
        p99=float(high / NS_PER_MS),
        max=max(part.max_ns for part in parts if part.known) / NS_PER_MS,
    )
