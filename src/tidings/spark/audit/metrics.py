"""Computes the metrics of `trace.metrics` bucket by bucket, and what plots and subscriber tables also need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tidings.scenarios.trace import metrics as trace_metrics
from tidings.scenarios.trace.coded import Array, Coded, segment_starts
from tidings.scenarios.trace.demand import demand, excuses
from tidings.scenarios.trace.metrics import (
    COUNTED_VALUE,
    NS_PER_MS,
    Metrics,
    PartMetrics,
    latencies,
    measured,
    timed_rows,
)
from tidings.spark.audit.stages import Piece

if TYPE_CHECKING:
    from tidings.spark.audit.trace import AuditJob

METRICS = "metrics"
TIME_BINS = 200
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
"""One subscriber; latencies in milliseconds, NaN where nothing known was delivered."""


class BucketMetrics(msgspec.Struct):
    part: PartMetrics
    in_flight: int
    unconfirmed: int
    over_time: bytes
    subscribers: bytes


class Missing(msgspec.Struct, frozen=True):
    """Expected deliveries that never arrived. Of these, `in_flight` were on their way when their subscription was
    cancelled or wait for somebody to attach to it, and `unconfirmed` are others that were never confirmed to their
    publisher."""

    deliveries: int
    in_flight: int
    unconfirmed: int


class Quantities(msgspec.Struct, frozen=True):
    """The metrics of a trace, and the data of its plots and tables. `exact` refers to quantiles."""

    metrics: Metrics
    missing: Missing
    exact: bool
    latency_rows: bytes
    time_counts: bytes
    subscriber_rows: bytes

    @property
    def latencies(self) -> npt.NDArray[np.void]:
        """Latencies in nanoseconds, ascending, with their counts."""
        return np.frombuffer(self.latency_rows, COUNTED_VALUE)

    @property
    def over_time(self) -> Array:
        """Deliveries in each of `TIME_BINS` equal parts of the time from the first to the last."""
        return np.frombuffer(self.time_counts, np.int64)

    @property
    def subscribers(self) -> npt.NDArray[np.void]:
        """One row per subscriber, by number."""
        return np.frombuffer(self.subscriber_rows, SUBSCRIBER)


def bucket_metrics(job: AuditJob, bucket: int, coded: Coded) -> Iterator[Piece]:
    owed = demand(coded, strict_end=True)
    in_flight, unconfirmed = excuses(coded, owed.missing)
    known = timed_rows(coded)
    latency = latencies(coded)
    low, high = job.span
    width = max(high - low + 1, 1) / TIME_BINS
    bins = np.bincount(
        ((coded.at - low) / width).astype(np.int64).clip(0, TIME_BINS - 1), minlength=TIME_BINS
    )
    found = BucketMetrics(
        measured(coded, owed, latency, exact=job.exact),
        in_flight,
        unconfirmed,
        over_time=bins.astype(np.int64).tobytes(),
        subscribers=_subscribers(
            job, bucket, coded, owed.expected_of, owed.missing, known, latency
        ).tobytes(),
    )
    yield Piece(0, bucket, METRICS, msgspec.msgpack.encode(found))


def _subscribers(
    job: AuditJob, bucket: int, coded: Coded, expected_of: Array, missing: Array, known: Array, latency: Array
) -> npt.NDArray[np.void]:
    members = job.subscribers(bucket)
    size = len(members)

    def place(subscriber: Array) -> Array:
        return np.searchsorted(members, subscriber).astype(np.int64)

    owner = place(coded.subscriptions.subscriber[coded.own])
    rows = np.zeros(size, SUBSCRIBER)
    rows["subscriber"] = members
    rows["delivered"] = np.bincount(place(coded.subscriber), minlength=size)
    np.add.at(rows["expected"], owner, expected_of[coded.own])
    who = coded.subscriptions.subscriber[missing // max(len(coded.events), 1)]
    rows["missing"] = np.bincount(place(who), minlength=size)
    for name in ("mean", "p50", "p99", "max"):
        rows[name] = np.nan
    subscriber = place(coded.subscriber[known])
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


def put_together(buckets: Sequence[BucketMetrics], published: int, *, exact: bool) -> Quantities:
    parts = [bucket.part for bucket in buckets]
    latencies = trace_metrics.sum_latencies(parts)
    subscribers = np.concatenate([np.frombuffer(one.subscribers, SUBSCRIBER) for one in buckets])
    return Quantities(
        trace_metrics.put_together(published, parts, latencies),
        Missing(
            sum(part.missing for part in parts),
            sum(one.in_flight for one in buckets),
            sum(one.unconfirmed for one in buckets),
        ),
        exact,
        latency_rows=latencies.tobytes(),
        time_counts=np.sum([np.frombuffer(one.over_time, np.int64) for one in buckets], axis=0).tobytes(),
        subscriber_rows=subscribers[np.argsort(subscribers["subscriber"])].tobytes(),
    )
