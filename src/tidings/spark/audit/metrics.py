"""Delivery ratio and latency, bucket by bucket and put together; the definitions are those of `trace.metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tidings.core.structures.histogram import SIGNIFICANT_BITS
from tidings.scenarios.trace.checkers.once import duplicates
from tidings.scenarios.trace.coded import Array, Coded, segment_starts
from tidings.scenarios.trace.demand import demand
from tidings.scenarios.trace.metrics import Latency, Metrics
from tidings.spark.audit.stages import Piece

if TYPE_CHECKING:
    from tidings.spark.audit.trace import AuditJob

METRICS = "metrics"
TIME_BINS = 200
NS_PER_MS = 1e6
Floats = npt.NDArray[np.float64]

SUBSCRIBER = np.dtype(
    [
        ("subscriber", "<i8"),
        ("delivered", "<i8"),
        ("expected", "<i8"),
        ("missing", "<i8"),
        ("mean", "<f8"),
        ("p50", "<f8"),
        ("p99", "<f8"),
        ("max", "<f8"),
    ]
)
"""Of one subscriber; milliseconds, NaN where nothing known was delivered."""
COUNTED_VALUE = np.dtype([("value", "<i8"), ("count", "<i8")])


class BucketMetrics(msgspec.Struct):
    delivered: int
    expected: int
    missing: int
    duplicates: int
    out_of_order: int
    known: int
    mean_ns: float
    squares: float
    """Of the distances from the mean."""
    latencies: bytes
    over_time: bytes
    subscribers: bytes


class Quantities(msgspec.Struct, frozen=True):
    """The metrics of a trace, and what its plots and tables are made of. `exact` is about quantiles."""

    metrics: Metrics
    exact: bool
    latency_rows: bytes
    time_counts: bytes
    subscriber_rows: bytes

    @property
    def latencies(self) -> npt.NDArray[np.void]:
        """Nanoseconds, ascending, and how often."""
        return np.frombuffer(self.latency_rows, COUNTED_VALUE)

    @property
    def over_time(self) -> Array:
        """Deliveries in each of `TIME_BINS` equal parts of the time from the first to the last."""
        return np.frombuffer(self.time_counts, np.int64)

    @property
    def subscribers(self) -> npt.NDArray[np.void]:
        """By number."""
        return np.frombuffer(self.subscriber_rows, SUBSCRIBER)


def bucket_metrics(job: AuditJob, bucket: int, coded: Coded) -> Iterator[Piece]:
    owed = demand(coded, strict_end=True)
    known = np.flatnonzero(coded.event >= 0)
    latency = coded.at[known] - coded.events.at[coded.event[known]]
    mean = float(latency.mean()) if len(latency) else 0.0
    values, counts = np.unique(latency if job.exact else rounded(latency), return_counts=True)
    low, high = job.span
    width = max(high - low + 1, 1) / TIME_BINS
    bins = np.bincount(
        ((coded.at - low) / width).astype(np.int64).clip(0, TIME_BINS - 1), minlength=TIME_BINS
    )
    found = BucketMetrics(
        delivered=len(coded.event),
        expected=owed.expected,
        missing=len(owed.missing),
        duplicates=duplicates(coded),
        out_of_order=int(np.count_nonzero(coded.out_of_order)),
        known=len(latency),
        mean_ns=mean,
        squares=float(np.square(latency - mean).sum()),
        latencies=_rows(COUNTED_VALUE, values, counts).tobytes(),
        over_time=bins.astype(np.int64).tobytes(),
        subscribers=_subscribers(
            job, bucket, coded, owed.expected_of, owed.missing, known, latency
        ).tobytes(),
    )
    yield Piece(0, bucket, METRICS, msgspec.msgpack.encode(found))


def rounded(values: Array) -> Array:
    """With eleven leading bits kept: less than 0.1 % too near to zero."""
    size = np.abs(values)
    excess = np.maximum(np.frexp(size.astype(np.float64))[1] - SIGNIFICANT_BITS, 0)
    kept: Array = np.sign(values) * (size >> excess << excess)
    return kept


def _subscribers(
    job: AuditJob, bucket: int, coded: Coded, expected_of: Array, missing: Array, known: Array, latency: Array
) -> npt.NDArray[np.void]:
    first = job.bounds[bucket]
    end = len(coded.subscriptions.subscriber_names)
    end = job.bounds[bucket + 1] if bucket + 1 < len(job.bounds) else end
    size = max(end - first, 0)
    owner = coded.subscriptions.subscriber[coded.own] - first
    rows = np.zeros(size, SUBSCRIBER)
    rows["subscriber"] = np.arange(first, end)
    rows["delivered"] = np.bincount(coded.subscriber - first, minlength=size)
    np.add.at(rows["expected"], owner, expected_of[coded.own])
    who = coded.subscriptions.subscriber[missing // max(len(coded.events), 1)] - first
    rows["missing"] = np.bincount(who, minlength=size)
    for name in ("mean", "p50", "p99", "max"):
        rows[name] = np.nan
    subscriber = coded.subscriber[known] - first
    order = np.lexsort((latency, subscriber))
    subscriber, sorted_ms = subscriber[order], latency[order] / NS_PER_MS
    starts = np.flatnonzero(segment_starts(subscriber))
    if len(starts):
        counts = np.diff(np.append(starts, len(subscriber)))
        seen = subscriber[starts]
        rows["mean"][seen] = np.add.reduceat(sorted_ms, starts) / counts
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            rows[name][seen] = sorted_ms[starts + np.maximum(np.ceil(share * counts), 1).astype(np.int64) - 1]
    return rows


def put_together(parts: Sequence[BucketMetrics], published: int, *, exact: bool) -> Quantities:
    values, counts = _latencies(parts)
    expected = sum(part.expected for part in parts)
    missing = sum(part.missing for part in parts)
    metrics = Metrics(
        published=published,
        delivered=sum(part.delivered for part in parts),
        expected=expected,
        delivery_ratio=(expected - missing) / expected if expected else 1.0,
        duplicates=sum(part.duplicates for part in parts),
        out_of_order=sum(part.out_of_order for part in parts),
        latency_ms=_latency(parts, values, counts),
    )
    return Quantities(
        metrics,
        exact,
        latency_rows=_rows(COUNTED_VALUE, values, counts).tobytes(),
        time_counts=np.sum([np.frombuffer(part.over_time, np.int64) for part in parts], axis=0).tobytes(),
        subscriber_rows=b"".join(part.subscribers for part in parts),
    )


def _latencies(parts: Sequence[BucketMetrics]) -> tuple[Array, Array]:
    rows = np.concatenate([np.frombuffer(part.latencies, COUNTED_VALUE) for part in parts])
    values, place = np.unique(rows["value"], return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, place, rows["count"])
    return values, counts


def _latency(parts: Sequence[BucketMetrics], values: Array, counts: Array) -> Latency | None:
    known = sum(part.known for part in parts)
    if not known:
        return None
    mean = sum(part.mean_ns * part.known for part in parts) / known
    squares = sum(part.squares + part.known * (part.mean_ns - mean) ** 2 for part in parts)
    ends = np.cumsum(counts)

    def quantile(share: float) -> float:
        return float(values[np.searchsorted(ends, share * known)] / NS_PER_MS)

    highest = np.concatenate([np.frombuffer(part.subscribers, SUBSCRIBER)["max"] for part in parts])
    return Latency(
        mean=mean / NS_PER_MS,
        std=sqrt(squares / known) / NS_PER_MS,
        p50=quantile(0.5),
        p99=quantile(0.99),
        max=float(np.nanmax(highest)),
    )


def _rows(dtype: np.dtype[Any], *columns: Array) -> npt.NDArray[np.void]:
    rows = np.empty(len(columns[0]), dtype)
    for name, column in zip(dtype.names or (), columns, strict=True):
        rows[name] = column
    return rows
