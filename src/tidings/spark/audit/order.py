"""The tasks of an audit that look across subscribers: which events lie on a cycle, and what that means.

One task finds cycles among the events from edges alone (see `trace.checkers.total`). Causality works the same way: an
event that is shown before one in its past makes a cycle of the order shown and the causes. Both events lie on it, with
everything that leads from one to the other. So only deliveries of events on cycles are compared, and causes are
followed only among these events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from tidings.scenarios.trace.checkers import Check
from tidings.scenarios.trace.checkers.causal import CAUSAL_ORDER, find_late, source_edges
from tidings.scenarios.trace.checkers.gaps import (
    AGREEMENT,
    Keyed,
    find_unequal,
    got_in_time,
    missing_of_equals,
)
from tidings.scenarios.trace.checkers.total import ShownRows, SmallEdges, components, find_inversions, shown
from tidings.scenarios.trace.coded import NEVER, Array, Coded, Deliveries, segment_starts
from tidings.scenarios.trace.verdict import Found
from tidings.spark.audit.stages import Piece
from tidings.spark.audit.tasks import EDGE, FOUND
from tidings.spark.audit.trace import AuditJob, bucket_coded, packed, unpacked

ON_CYCLES, SHOWN, SEEN, MISSING, GOT = "on cycles", "shown", "seen", "missing", "got"
COMPONENT = np.dtype([("event", "<i8"), ("component", "<i8")])
SHOWN_ROW = np.dtype([("component", "<i4"), ("subscriber", "<i4"), ("event", "<i4"), ("position", "<i8")])
SEEN_ROW = np.dtype(
    [
        ("subscriber", "<i4"),
        ("subscription", "<i4"),
        ("event", "<i4"),
        ("position", "<i8"),
        ("at", "<i8"),
        ("ordered", "?"),
    ]
)
KEYED = np.dtype([("key", "<i8"), ("row", "<i4")])


def find_cycles(job: AuditJob, index: int, pieces: list[Piece]) -> Iterator[Piece]:
    """Find the events that share a component with others, from the edges of check `index`."""
    events = job.knowledge.events
    before, after = _all_edges(pieces)
    if job.checks[index].guarantee == CAUSAL_ORDER:
        more = source_edges(events)
        before = np.concatenate([before, more[0].astype(np.int32)])
        after = np.concatenate([after, more[1].astype(np.int32)])
    component = components((before, after), len(events))
    together = np.flatnonzero(component >= 0)
    yield Piece(index, 0, ON_CYCLES, packed(COMPONENT, together, component[together]))


def _all_edges(pieces: list[Piece]) -> SmallEdges:
    """Join the edges. There may be as many as deliveries, so each piece is freed as soon as it is read."""
    count = sum(len(piece.body) for piece in pieces) // EDGE.itemsize
    before, after = np.empty(count, np.int32), np.empty(count, np.int32)
    while pieces:
        rows = np.frombuffer(pieces.pop().body, EDGE)
        before[count - len(rows) : count] = rows["before"]
        after[count - len(rows) : count] = rows["after"]
        count -= len(rows)
    return before, after


@dataclass(frozen=True)
class Second:
    """What is still open after the first pass: the events on cycles by check, and the reducers of each check."""

    on_cycles: dict[int, bytes]
    reducers: tuple[int, ...]
    """The check of each reducer; agreement has several reducers, each with a range of events."""

    def reducers_of(self, index: int) -> range:
        return range(self.reducers.index(index), self.reducers.index(index) + self.reducers.count(index))

    def component_of(self, index: int, events: int) -> Array:
        found = np.full(events, -1, dtype=np.int64)
        rows = np.frombuffer(self.on_cycles[index], COMPONENT)
        found[rows["event"]] = rows["component"]
        return found


def gather(job: AuditJob, second: Second, bucket: int, pieces: list[Piece]) -> Iterator[Piece]:
    """Send each reducer what it needs from a bucket."""
    coded = bucket_coded(job, bucket, pieces)
    for index in dict.fromkeys(second.reducers):
        check, reducers = job.checks[index], second.reducers_of(index)
        if check.guarantee == AGREEMENT:
            yield from _by_events(coded, MISSING, bucket, reducers, missing_of_equals(coded))
            yield from _by_events(coded, GOT, bucket, reducers, got_in_time(coded))
            continue
        component_of = second.component_of(index, len(coded.events))
        if check.guarantee == CAUSAL_ORDER:
            body = _seen(coded, check, component_of)
            yield Piece(reducers[0], bucket, SEEN, body)
        else:
            rows = shown(coded, coded.ordered_rows(check.orders), component_of)
            yield Piece(reducers[0], bucket, SHOWN, packed(SHOWN_ROW, *rows))


def _by_events(coded: Coded, tag: str, bucket: int, reducers: range, keyed: Keyed) -> Iterator[Piece]:
    keys, rows = keyed
    events = max(len(coded.events), 1)
    part = keys % events * len(reducers) // events
    for number, reducer in enumerate(reducers):
        mine = part == number
        yield Piece(reducer, bucket, tag, packed(KEYED, keys[mine], rows[mine]))


def _seen(coded: Coded, check: Check, component_of: Array) -> bytes:
    """Pack the deliveries of events on cycles that are checked, or that a publisher received."""
    ordered = np.zeros(len(coded.event), dtype=np.bool_)
    ordered[coded.ordered_rows(check.orders)] = True
    sources = set(coded.events.source_names)
    publishes = np.array([name in sources for name in coded.subscriptions.subscriber_names], dtype=np.bool_)
    on_cycle = (coded.event >= 0) & (component_of[coded.event] >= 0)
    wanted = on_cycle & (ordered | publishes[coded.subscriber])
    rows = coded.by_position[wanted[coded.by_position]]
    columns = (coded.subscriber, coded.subscription, coded.event, coded.position, coded.at, ordered)
    return packed(SEEN_ROW, *(column[rows] for column in columns))


def decide(job: AuditJob, second: Second, reducer: int, pieces: list[Piece]) -> Iterator[Piece]:
    """Decide a check, from what a reducer got from all buckets."""
    index = second.reducers[reducer]
    guarantee = job.checks[index].guarantee
    known = job.knowledge
    if guarantee == AGREEMENT:
        missing, got = (_keyed(pieces, tag) for tag in (MISSING, GOT))
        order = np.lexsort((missing[0] % max(len(known.events), 1), missing[1]))
        missing = (missing[0][order], missing[1][order])
        found = find_unequal(known.events, known.subscriptions, missing, _first_of_each(got))
    elif guarantee == CAUSAL_ORDER:
        numbers = np.frombuffer(second.on_cycles[index], COMPONENT)["event"]
        found = _find_late(job, numbers, pieces)
    else:
        names = known.subscriptions.viewer_names
        columns = unpacked(SHOWN_ROW, pieces)
        order = np.argsort(columns[1], kind="stable")  # buckets do not follow the subscribers' numbers
        found = find_inversions(known.events, names, ShownRows(*(column[order] for column in columns)))
    yield Piece(index, reducer, FOUND, msgspec.msgpack.encode(found))


def _find_late(job: AuditJob, numbers: Array, pieces: list[Piece]) -> Found:
    known = job.knowledge
    subscriber, subscription, event, position, at, ordered = unpacked(SEEN_ROW, pieces)
    count = len(subscriber)
    deliveries = Deliveries(
        number=np.arange(count),
        subscriber=subscriber,
        subscription=subscription,
        event=np.searchsorted(numbers, event),
        position=position,
        at=at,
        out_of_order=np.zeros(count, dtype=np.bool_),
        attempt=np.ones(count, dtype=np.int64),
        done=np.full(count, NEVER),
    )
    coded = Coded(
        known.events.only(numbers),
        known.subscriptions,
        lambda: known.interests,
        deliveries,
        own=np.empty(0, dtype=np.int64),
        unknown_id=str,  # nothing here is unknown
    )
    return find_late(coded, coded.by_viewer[ordered[coded.by_viewer] == 1])


def _keyed(pieces: list[Piece], tag: str) -> Keyed:
    key, row = unpacked(KEYED, [piece for piece in pieces if piece.tag == tag])
    return key, row


def _first_of_each(keyed: Keyed) -> Keyed:
    order = np.lexsort((keyed[1], keyed[0]))
    keys, rows = keyed[0][order], keyed[1][order]
    first = segment_starts(keys)
    return keys[first], rows[first]
