"""Audits one trace of any size: every check and all metrics, in stages (`stages`).

1. Count the deliveries of each subscriber, and divide the subscribers into buckets of similar size. Those
   that share a durable subscription or group stay together.
2. Code deliveries as numbers, and send them to their buckets. A bucket has whole subscribers, so the functions of
   `trace.checkers` check there what was promised to each subscriber, with all publications at hand.
3. Orders across subscribers: one task looks for cycles among the events (`order`). If there are none, they hold.
4. Only where there are cycles, or where a delivery is missing that a subscription with the same interest may have got:
   the deliveries concerned are sent to reducers of the check, which decide.

The verdicts and their witnesses are those of the checkers on the whole trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from tidings.scenarios.trace.checkers import Check
from tidings.scenarios.trace.checkers.gaps import AGREEMENT
from tidings.scenarios.trace.checkers.once import EXACTLY_ONCE
from tidings.scenarios.trace.coded import segment_starts
from tidings.scenarios.trace.origin import trace_origin
from tidings.scenarios.trace.verdict import Found, Verdict, verdict_of
from tidings.spark.audit.checks import ACROSS_SUBSCRIBERS, checks_of
from tidings.spark.audit.files import Chunk, chunks, trace_files
from tidings.spark.audit.metrics import METRICS, BucketMetrics, Quantities, put_together
from tidings.spark.audit.order import ON_CYCLES, Second, decide, find_cycles, gather
from tidings.spark.audit.remarks import remarks_of
from tidings.spark.audit.stages import Piece, Progress, Stages, part_of
from tidings.spark.audit.tasks import (
    COUNTED,
    EDGES,
    FOUND,
    PUBLICATIONS,
    ChunkCounts,
    Publications,
    check_bucket,
    code,
    count,
    decoded,
    look_at_publications,
)
from tidings.spark.audit.trace import AuditJob
from tidings.spark.audit.traffic import TrafficSums, crashed_nodes, only_clients_crash, sum_traffic

MAX_BUCKETS = 50_000
PUBLISHED_PER_ROW = 4
"""At most this many publications per row of a chunk."""


@dataclass(frozen=True, slots=True)
class AuditSizes:
    """Rows of `delivered` in a chunk, at least; rows in a bucket; and up to how many rows latency quantiles are
    exact."""

    chunk_rows: int = 2_000_000
    bucket_rows: int = 2_000_000
    exact_rows: int = 5_000_000


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What to check: the named guarantees, or what subscriptions asked for and the mode promises.

    `mode` is "guaranteed", or "asked" to ignore the mode's promises; None takes the mode that the trace reports.
    """

    guarantees: tuple[str, ...] = ()
    mode: str | None = None


class Audited(msgspec.Struct, frozen=True):
    """The result of an audit of one trace.

    `mode` is the mode that the trace reports. `span` is the time of the first and of the last delivery.
    """

    directory: str
    mode: str | None
    verdicts: list[Verdict]
    quantities: Quantities
    traffic: TrafficSums
    subscribers: list[str]
    span: tuple[int, int]
    remarks: list[str]

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)


def audit_trace(
    stages: Stages,
    directory: Path,
    request: AuditRequest = AuditRequest(),  # noqa: B008 - it is frozen
    sizes: AuditSizes = AuditSizes(),  # noqa: B008
    progress: Progress = lambda share: None,
) -> Audited:
    """Audit the trace in a directory; TraceError or PipelineError if it cannot be audited."""
    return _Audit(stages, directory, request, sizes, progress).run()


class _Audit:
    def __init__(
        self, stages: Stages, directory: Path, request: AuditRequest, sizes: AuditSizes, progress: Progress
    ) -> None:
        files = trace_files(directory)
        self._directory = str(directory)
        self._origin = trace_origin(directory)
        self._stages = stages
        self._request = request
        self._sizes = sizes
        self._progress = progress
        # Each chunk looks up ids in a table of all publications, which is built anew per chunk.
        chunk_rows = max(sizes.chunk_rows, files.published // PUBLISHED_PER_ROW)
        self._job = AuditJob(files, exact=files.rows <= sizes.exact_rows, batch_rows=chunk_rows)
        self._chunks = chunks(files.delivered, chunk_rows)

    def run(self) -> Audited:
        known = self._job.knowledge
        known.check_interests()  # report a bad filter before any work is done
        publications = self._count(known.subscriptions.order)
        first = self._bucketed(check_bucket).kept()
        pieces = first.tagged(FOUND, METRICS).collect(part_of(self._progress, 0.1, 0.7))
        found = self._found(pieces, publications)
        second = self._open_questions(first, found)
        if second.reducers:
            gathered = self._bucketed(gather, second)
            decided = gathered.to_reducers(len(second.reducers), partial(_reduced, decide, self._job, second))
            answers = decided.collect(part_of(self._progress, 0.8, 1.0))
            for index in dict.fromkeys(second.reducers):
                found[index] = _found_by(answers, index)
        self._progress(1.0)
        metrics = decoded((piece for piece in pieces if piece.tag == METRICS), BucketMetrics)
        return self._audited(
            [verdict_of(check.guarantee, found[index]) for index, check in enumerate(self._job.checks)],
            put_together(metrics, publications.events, exact=self._job.exact),
        )

    def _audited(self, verdicts: list[Verdict], quantities: Quantities) -> Audited:
        job = self._job
        subscribed = job.knowledge.subscribed
        never = int(subscribed["accepted_ns"].null_count)
        return Audited(
            self._directory,
            self._origin.mode,
            verdicts,
            quantities,
            sum_traffic(job.files, quantities.metrics.published),
            job.knowledge.subscriptions.subscriber_names,
            job.span,
            remarks_of(self._origin, verdicts, quantities, len(subscribed), never),
        )

    def _count(self, orders: Sequence[str]) -> Publications:
        """Count deliveries, and decide on subscribers, buckets and checks for the tasks that follow."""
        items = [_Item(None, crashed_nodes(self._job.files)), *(_Item(chunk) for chunk in self._chunks)]
        stage = self._stages.map(partial(_first_look, self._job), items)
        pieces = stage.collect(part_of(self._progress, 0.0, 0.1))
        counted: list[ChunkCounts] = decoded((piece for piece in pieces if piece.tag == COUNTED), ChunkCounts)
        publications: Publications
        (publications,) = decoded((piece for piece in pieces if piece.tag == PUBLICATIONS), Publications)
        others = sorted(_first_rows(counted).items(), key=lambda item: item[1])
        names = tuple(name for name, _ in others)
        subscribers = len(self._job.knowledge.subscriptions.subscriber_names)
        deliveries = [0] * (subscribers + len(names))
        for part in counted:
            for number, many in part.deliveries.items():
                deliveries[number] += many
            for number, name in enumerate(names, subscribers):
                deliveries[number] += part.others.get(name, (0, 0))[1]
        spans = [part.span for part in counted if part.span is not None]
        checks = checks_of(
            orders,
            self._request.guarantees,
            self._request.mode or self._origin.mode,
            publisher_killed=publications.killed,
            shares=self._job.knowledge.subscriptions.shares,
            expiring=publications.expiring,
            calm=self._origin.is_virtual and only_clients_crash(self._job.files),
        )
        self._job = replace(
            self._job,
            checks=tuple(checks),
            others=names,
            span=(min(low for low, _ in spans), max(high for _, high in spans)) if spans else (0, 0),
        )
        known = self._job.knowledge  # of all subscribers, those without subscriptions included
        by_place, family = known.by_place, known.family[known.by_place]
        places = [deliveries[subscriber] for subscriber in by_place.tolist()]
        bounds = buckets(places, self._sizes.bucket_rows, segment_starts(family).tolist())
        self._job = replace(self._job, bounds=bounds)
        return publications

    def _bucketed(self, reduce: Callable[..., Iterator[Piece]], *more: Any) -> Any:
        coded = self._stages.map(partial(code, self._job), self._chunks)
        return coded.to_reducers(len(self._job.bounds), partial(_reduced, reduce, self._job, *more))

    def _found(self, pieces: Sequence[Piece], publications: Publications) -> list[list[Found]]:
        found = [_found_by(pieces, index) for index in range(len(self._job.checks))]
        for index, check in enumerate(self._job.checks):
            if check.guarantee == EXACTLY_ONCE:
                found[index].append(publications.wrong)
        return found

    def _open_questions(self, first: Any, found: list[list[Found]]) -> Second:
        checks = self._job.checks
        on_cycles: dict[int, bytes] = {}
        if any(check.guarantee in ACROSS_SUBSCRIBERS - {AGREEMENT} for check in checks):
            edges = first.tagged(EDGES).to_reducers(len(checks), partial(_reduced, find_cycles, self._job))
            for piece in edges.collect(part_of(self._progress, 0.7, 0.8)):
                if piece.tag == ON_CYCLES and piece.body:
                    on_cycles[piece.reducer] = piece.body
        reducers: list[int] = []
        for index, check in enumerate(checks):
            if index in on_cycles:
                reducers.append(index)
            elif check.guarantee == AGREEMENT and any(part.violations for part in found[index]):
                reducers += [index] * (self._job.files.rows // self._sizes.bucket_rows + 1)
        return Second(on_cycles, tuple(reducers))


@dataclass(frozen=True, slots=True)
class _Item:
    """A chunk to count or, without one, the publications to check."""

    chunk: Chunk | None
    crashed: frozenset[str] = frozenset()


def _first_look(job: AuditJob, item: _Item) -> Iterator[Piece]:
    if item.chunk is None:
        return look_at_publications(job, item.crashed)
    return count(job, item.chunk)


def _reduced(reduce: Callable[..., Iterator[Piece]], *arguments: Any) -> Iterator[Piece]:
    """Call `reduce`; used with `partial`, since a reducer's number and pieces come last."""
    return reduce(*arguments)


def _found_by(pieces: Sequence[Piece], index: int) -> list[Found]:
    return decoded((piece for piece in pieces if piece.tag == FOUND and piece.reducer == index), Found)


def _first_rows(counted: Sequence[ChunkCounts]) -> dict[str, int]:
    """Return the subscribers without subscriptions, with the first row of each."""
    first: dict[str, int] = {}
    for part in counted:
        for name, (row, _) in part.others.items():
            first[name] = min(first.get(name, row), row)
    return first


def buckets(deliveries: Sequence[int], rows: int, starts: Sequence[bool] | None = None) -> tuple[int, ...]:
    """Return the first subscriber of each bucket: a bucket has up to `rows` deliveries, or one subscriber with more.

    `starts` says where a family of subscribers begins, which is not divided either; by default each is one of its own.
    """
    rows = max(rows, sum(deliveries) // MAX_BUCKETS)
    bounds = [0]
    size = 0
    firsts = [number for number in range(len(deliveries)) if starts is None or starts[number]]
    for number, end in pairwise([*firsts, len(deliveries)]):
        many = sum(deliveries[number:end])
        if size + many > rows and number > bounds[-1]:
            bounds.append(number)
            size = 0
        size += many
    return tuple(bounds)


__all__ = ["AuditRequest", "AuditSizes", "Audited", "Check", "audit_trace", "buckets"]
