"""Checks causal order: no subscriber sees an event before one that it may depend on.

Dependencies come from the trace alone. Event e is in the past of f if the same source published e earlier, or if the
publisher of f had been notified of e when it published f, or through a chain of these. A publisher is notified if a
subscriber has the same name as the source. At equal instants the order of rows in `published` decides, so no event
is in its own past. A source that restarts without its state has a new name; then its own sequence is its only past.

The past of an event is a vector: for each source, how many of its events are in the past. A source that is never
notified has only its own events in its past, so only the others need vectors. They are computed for a block of
columns at a time, to bound memory.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tidings.scenarios.trace.checkers.total import Edges
from tidings.scenarios.trace.coded import Array, Coded, Events, Mask, highest_before, segment_starts
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import (
    MAX_WITNESSES,
    Case,
    Found,
    Verdict,
    Witness,
    first_cases,
    verdict_of,
)

CAUSAL_ORDER = "causal_order"

MAX_CELLS = 16_000_000
"""The vector cells held in memory at a time."""

Vectors = npt.NDArray[np.int32]


def causal_order(trace: Trace, *, orders: frozenset[str] | None = None) -> Verdict:
    """Check that no subscriber sees an event after one that depends on it; count the deliveries that come too late.

    Ignores duplicates and deliveries declared out of order. `orders` limits the check, but not the dependencies, to
    subscriptions with one of these orders.
    """
    return verdict_of(CAUSAL_ORDER, [find_late(trace.coded, trace.coded.ordered_rows(orders))])


def find_late(coded: Coded, rows: Array) -> Found:
    """Find which of these deliveries, those of each viewer in its order, come too late.

    Dependencies come from all deliveries of `coded`.
    """
    late, shown_before = _late_in_own_source(coded, rows)
    past = _Pasts(coded)
    for low in range(0, past.sources, past.block):
        past.fill(low)
        late |= _late_by_vectors(coded, rows, past, shown_before)
    broken = np.flatnonzero(late)

    def describe(place: int) -> Case:
        # `shown_before` has an entry for the first late places, and only these are described.
        return Case(
            (int(coded.viewer[rows[place]]), place), _witness(coded, rows[place], shown_before[place])
        )

    return Found(len(broken), first_cases(broken.tolist(), describe))


def causal_edges(coded: Coded) -> Edges:
    """Return an edge from each event that a source was notified of to the first event that depends on it thereby.

    Together with `source_edges` these edges span all dependencies.
    """
    events = coded.events
    numbers = {name: number for number, name in enumerate(events.source_names)}
    source_of = np.array(
        [numbers.get(name, -1) for name in coded.subscriptions.subscriber_names], dtype=np.int64
    )
    rows = np.flatnonzero((coded.event >= 0) & (source_of[coded.subscriber] >= 0))
    counts_from = np.maximum(events.published_before(coded.at[rows]), coded.event[rows] + 1)
    source, size = source_of[coded.subscriber[rows]], len(events) + 1
    keys = events.source[events.by_source] * size + events.by_source
    place = np.searchsorted(keys, source * size + counts_from)
    made = np.flatnonzero(place < np.searchsorted(keys, (source + 1) * size))
    return coded.event[rows[made]], events.by_source[place[made]]


def source_edges(events: Events) -> Edges:
    order = events.by_source
    same = ~segment_starts(events.source[order])[1:]
    return order[:-1][same], order[1:][same]


class _Pasts:
    """Holds the pasts of the events of notified sources, for the columns `low` <= column < `high`."""

    def __init__(self, coded: Coded) -> None:
        events = coded.events
        self.events = events
        self.sources = len(events.source_names)
        numbers = {name: number for number, name in enumerate(coded.subscriptions.subscriber_names)}
        self._subscriber_of = np.array(
            [numbers.get(name, -1) for name in events.source_names], dtype=np.int64
        )
        notified = self._subscriber_of[events.source] >= 0
        self.events_with_vector = np.flatnonzero(notified)
        self.vector_of = np.where(notified, np.cumsum(notified) - 1, -1)
        self.block = max(1, min(self.sources, MAX_CELLS // max(1, len(self.events_with_vector))))
        self.low = self.high = 0
        self.vectors: Vectors = np.zeros((0, 0), dtype=np.int32)
        self._notified_of, self._bounds = self._notifications(coded)

    def _notifications(self, coded: Coded) -> tuple[Array, list[tuple[int, int]]]:
        """Return the events that notified sources were notified of, and for each event with a vector the range of
        its new ones.

        A notification counts for every event of its subscriber from number `counts_from` on.
        """
        rows = np.flatnonzero((coded.event >= 0) & np.isin(coded.subscriber, self._subscriber_of))
        counts_from = np.maximum(self.events.published_before(coded.at[rows]), coded.event[rows] + 1)
        order = np.lexsort((counts_from, coded.subscriber[rows]))
        size = len(self.events) + 1
        keys = (coded.subscriber[rows] * size + counts_from)[order]
        subscriber = self._subscriber_of[self.events.source[self.events_with_vector]]
        ends = np.searchsorted(keys, subscriber * size + self.events_with_vector, side="right")
        starts = np.searchsorted(keys, subscriber * size, side="left")
        # An event's range starts where that of its source's last event ends.
        by_source = np.argsort(subscriber, kind="stable")
        continued = ~segment_starts(subscriber[by_source])
        starts[by_source[continued]] = ends[by_source[np.flatnonzero(continued) - 1]]
        return coded.event[rows][order], list(zip(starts.tolist(), ends.tolist(), strict=True))

    def fill(self, low: int) -> None:
        """Compute the columns from `low` on, in the order of publication."""
        events = self.events
        self.low, self.high = low, min(low + self.block, self.sources)
        width = self.high - low
        self.vectors = np.zeros((len(self.events_with_vector), width), dtype=np.int32)
        latest: dict[int, Vectors] = {}
        for number, event in enumerate(self.events_with_vector.tolist()):
            source = int(events.source[event])
            vector = self.vectors[number]
            if source in latest:
                vector[:] = latest[source]
            start, end = self._bounds[number]
            if start < end:
                self._merge(vector, self._notified_of[start:end])
            if low <= source < self.high:
                vector[source - low] = events.ordinal[event]
            latest[source] = vector

    def _merge(self, vector: Vectors, notified_of: Array) -> None:
        source = self.events.source[notified_of] - self.low
        inside = (source >= 0) & (source < len(vector))
        np.maximum.at(vector, source[inside], (self.events.ordinal[notified_of[inside]] + 1).astype(np.int32))
        numbers = self.vector_of[notified_of]
        numbers = numbers[numbers >= 0]
        if len(numbers):
            np.maximum(vector, self.vectors[numbers].max(axis=0), out=vector)


def _late_in_own_source(coded: Coded, rows: Array) -> tuple[Mask, dict[int, int]]:
    """Find the places that come after a later event of their own source, and for some of them that event's row."""
    events = coded.events
    stream = coded.viewer[rows] * len(events.source_names) + events.source[coded.event[rows]]
    order = np.argsort(stream, kind="stable")
    ordinal = events.ordinal[coded.event[rows[order]]]
    broken = np.flatnonzero(ordinal < highest_before(stream[order], ordinal))
    late = np.zeros(len(rows), dtype=np.bool_)
    late[order[broken]] = True
    shown_before = {}
    for place in sorted(broken, key=lambda place: order[place])[:MAX_WITNESSES]:
        earlier = place - 1
        while ordinal[earlier] < ordinal[place]:
            earlier -= 1
        shown_before[int(order[place])] = int(rows[order[earlier]])
    return late, shown_before


def _late_by_vectors(coded: Coded, rows: Array, past: _Pasts, shown_before: dict[int, int]) -> Mask:
    """Find the places that come after an event whose vector includes them; add rows to `shown_before` for some."""
    late = np.zeros(len(rows), dtype=np.bool_)
    bounds = [*np.flatnonzero(segment_starts(coded.viewer[rows])), len(rows)]
    for start, end in pairwise(bounds):
        event = coded.event[rows[start:end]]
        source = coded.events.source[event] - past.low
        ordinal = coded.events.ordinal[event]
        with_vector = np.flatnonzero(past.vector_of[event] >= 0)
        if not len(with_vector):
            continue
        inside = (source >= 0) & (source < past.high - past.low)
        known = _known_before(past, event, with_vector, source, inside)
        broken = np.flatnonzero(inside & (ordinal < known))
        late[start + broken] = True
        for place in broken[:MAX_WITNESSES]:
            includes = past.vectors[past.vector_of[event[with_vector]], source[place]] > ordinal[place]
            shown_before.setdefault(int(start + place), int(rows[start + with_vector[np.argmax(includes)]]))
    return late


def _known_before(past: _Pasts, event: Array, with_vector: Array, source: Array, inside: Mask) -> Array:
    """Return, for each place of one subscriber, how many events of its source are in the pasts of earlier places."""
    known = np.zeros(len(event), dtype=np.int64)
    vectors_before = np.searchsorted(with_vector, np.arange(len(event)), side="left")
    step = max(1, MAX_CELLS // 4 // max(1, past.high - past.low))
    carried = np.zeros((1, past.high - past.low), dtype=np.int32)
    for low in range(0, len(with_vector), step):
        chunk = past.vectors[past.vector_of[event[with_vector[low : low + step]]]]
        running = np.maximum.accumulate(np.concatenate([carried, chunk]), axis=0)
        places = np.flatnonzero(inside & (vectors_before > low) & (vectors_before <= low + step))
        known[places] = running[vectors_before[places] - low, source[places]]
        carried = running[-1:]
    return known


def _witness(coded: Coded, late_row: int, shown_row: int) -> Witness:
    pair = (coded.event_id(shown_row), coded.event_id(late_row))
    positions = (int(coded.position[shown_row]), int(coded.position[late_row]))
    name = coded.subscriptions.viewer_names[coded.viewer[late_row]]
    text = (
        f"subscriber {name} sees {pair[0]} at position {positions[0]}, "
        f"then {pair[1]}, which is in its past, at {positions[1]}"
    )
    return Witness(text, pair, (name,), positions)
