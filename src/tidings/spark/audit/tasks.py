"""The tasks of an audit that need whole subscribers: count and code their deliveries, check each bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from tidings.scenarios.trace.checkers import Check
from tidings.scenarios.trace.checkers.causal import CAUSAL_ORDER, causal_edges
from tidings.scenarios.trace.checkers.expiry import EXPIRY, find_expired
from tidings.scenarios.trace.checkers.gaps import AGREEMENT, GAP_FREE, find_gaps, missing_of_equals
from tidings.scenarios.trace.checkers.once import EXACTLY_ONCE, find_wrong_deliveries, find_wrong_publications
from tidings.scenarios.trace.checkers.per_source import FIFO, find_unordered
from tidings.scenarios.trace.checkers.seam import SEAM, find_seams
from tidings.scenarios.trace.checkers.shared import DURABLE, GROUP, find_wrong_shares
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER, Edges, order_edges
from tidings.scenarios.trace.coded import Coded, coded_deliveries, distinct_sorted
from tidings.scenarios.trace.tables import SCHEMAS
from tidings.scenarios.trace.verdict import Found
from tidings.spark.audit.files import Chunk, read_chunk
from tidings.spark.audit.metrics import bucket_metrics
from tidings.spark.audit.stages import Piece
from tidings.spark.audit.trace import AuditJob, bucket_coded, packed

COUNTED, PUBLICATIONS, FOUND, EDGES = "counted", "publications", "found", "edges"
DELIVERED_COLUMNS = tuple(name for name in SCHEMAS["delivered"].names if name != "recovered_by")
EDGE = np.dtype([("before", "<i4"), ("after", "<i4")])


class ChunkCounts(msgspec.Struct):
    """The subscribers of a chunk: those with subscriptions by number, others by name with their first row and count."""

    deliveries: dict[int, int]
    others: dict[str, tuple[int, int]]
    span: tuple[int, int] | None


class Publications(msgspec.Struct):
    """What the publications alone show; `killed`: one of the publishers was killed; `expiring`: some of them expire."""

    events: int
    wrong: Found
    killed: bool
    expiring: bool


def count(job: AuditJob, chunk: Chunk) -> Iterator[Piece]:
    """Count the deliveries of each subscriber."""
    subscriptions = job.knowledge.subscriptions
    counted = ChunkCounts({}, {}, None)
    for first, table in read_chunk(chunk, ("subscriber", "at_ns"), job.batch_rows):
        encoded = table["subscriber"].combine_chunks().dictionary_encode()
        codes = encoded.indices.to_numpy()
        _, first_rows, times = np.unique(codes, return_index=True, return_counts=True)
        numbers = subscriptions.numbers_of(encoded.dictionary)
        names = encoded.dictionary.to_pylist()
        for name, number, row, many in zip(
            names, numbers.tolist(), first_rows.tolist(), times.tolist(), strict=True
        ):
            if number >= 0:
                counted.deliveries[number] = counted.deliveries.get(number, 0) + many
            else:
                before = counted.others.get(name, (first + row, 0))
                counted.others[name] = (before[0], before[1] + many)
        at = table["at_ns"].to_numpy()
        if len(at):
            low, high = counted.span or (int(at[0]), int(at[0]))
            counted.span = (min(low, int(at.min())), max(high, int(at.max())))
    yield Piece(0, chunk[0].first if chunk else 0, COUNTED, msgspec.msgpack.encode(counted))


def look_at_publications(job: AuditJob, crashed: frozenset[str]) -> Iterator[Piece]:
    known = job.knowledge
    wrong = find_wrong_publications(known.published, known.events)
    killed = not crashed.isdisjoint(known.events.source_names)
    found = Publications(len(known.events), wrong, killed, known.events.any_expire)
    yield Piece(0, 0, PUBLICATIONS, msgspec.msgpack.encode(found))


def code(job: AuditJob, chunk: Chunk) -> Iterator[Piece]:
    """Code the deliveries of a chunk as numbers, and send each to the reducer of its subscriber's bucket."""
    known = job.knowledge
    if not chunk or chunk[0].first == 0:  # a bucket without deliveries is checked, too
        yield from (Piece(bucket, -1, "", b"") for bucket in range(len(job.bounds)))
    for first, table in read_chunk(chunk, DELIVERED_COLUMNS, job.batch_rows):
        coded = coded_deliveries(known.events, known.subscriptions, table, first)
        # numpy sorts 16-bit numbers by radix, which is fast.
        place = known.place_of[coded.subscriber]
        bucket = (np.searchsorted(job.bounds, place, side="right") - 1).astype(np.uint16)
        order = np.argsort(bucket, kind="stable")
        rows = np.empty(len(order), known.row)
        for name in known.row.names or ():
            rows[name] = getattr(coded, name)[order]
        ends = np.searchsorted(bucket[order], np.arange(len(job.bounds)), side="right").tolist()
        for reducer, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start < end:
                yield Piece(reducer, first, "", rows[start:end].tobytes())


def check_bucket(job: AuditJob, bucket: int, pieces: list[Piece]) -> Iterator[Piece]:
    """Run each check on the subscribers of a bucket; for an order across subscribers, also return its edges."""
    coded = bucket_coded(job, bucket, pieces)
    for index, check in enumerate(job.checks):
        yield Piece(index, bucket, FOUND, msgspec.msgpack.encode(_found(coded, check)))
        if check.guarantee in (TOTAL_ORDER, CAUSAL_ORDER):
            yield Piece(index, bucket, EDGES, packed(EDGE, *_edges(coded, check)))
    yield from bucket_metrics(job, bucket, coded)


def _found(coded: Coded, check: Check) -> Found:
    match check.guarantee:
        case name if name == EXACTLY_ONCE:
            return find_wrong_deliveries(coded, check.members)
        case name if name == FIFO:
            return find_unordered(coded, check.orders)
        case name if name == GAP_FREE:
            return find_gaps(coded, confirmed_only=check.confirmed_only)
        case name if name in (DURABLE, GROUP):
            return find_wrong_shares(
                coded, name, check.confirmed_only, check.complete, check.members, check.calm
            )
        case name if name == SEAM:
            return find_seams(coded, check.confirmed_only)
        case name if name == EXPIRY:
            return find_expired(coded)
        case name if name == AGREEMENT:
            # The next stage finds out whether others got what is missing here.
            return Found(len(missing_of_equals(coded)[0]))
        case _:
            return Found(0)


def _edges(coded: Coded, check: Check) -> Edges:
    edges = order_edges(coded, coded.ordered_rows(check.orders))
    if check.guarantee == CAUSAL_ORDER:
        more = causal_edges(coded)
        edges = (np.concatenate([edges[0], more[0]]), np.concatenate([edges[1], more[1]]))
    size = max(len(coded.events), 1)
    before, after = np.divmod(distinct_sorted(edges[0] * size + edges[1]), size)
    return before, after


def decoded(pieces: Iterable[Piece], kind: Any) -> list[Any]:
    decode = msgspec.msgpack.Decoder(kind).decode
    return [decode(piece.body) for piece in pieces]
