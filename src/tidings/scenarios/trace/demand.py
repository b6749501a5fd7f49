"""What subscriptions were owed, and what of it they did not get.

A subscription is owed every event that it selects and that was published from `accepted_ns` on and before
`cancelled_ns`. One that was never accepted is owed nothing.

A service may stop delivery at once when a subscription is cancelled, so what is still on its way then is lost to
nobody. As sources are heard in order, that is, for each source, what was published after the last of its events
that came: these are excused, unless `strict_end` says that they are not.
An event that did not come although a later one of its source did is a gap, cancelled or not. With order "total" or
"causal" that counts topic by topic: such a subscription stops at once on the topics that it leaves, and what is on its
way on the others still comes for it; and total order keeps that of a source on each topic alone.

On the links of best effort and epidemic networks events overtake each other: that a later one came does not tell that
an earlier one was not on its way. For them there is `cut_off_ns`: with order "none" or "fifo", what the service
confirmed so long after the subscription was cancelled, or later, is excused as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidings.scenarios.trace.coded import NEVER, Array, Coded, Mask, index_in_sorted

PIECE = 4_000_000
"""Owed events that are looked at together."""


@dataclass(frozen=True, slots=True)
class DeliveryDemand:
    """`missing` holds `subscription row * events + event`, ascending; `expected_of` is by row of `subscribed`."""

    expected_of: Array
    missing: Array

    @property
    def expected(self) -> int:
        return int(self.expected_of.sum())

    @property
    def delivered(self) -> int:
        return self.expected - len(self.missing)


def demand(
    coded: Coded, *, confirmed_only: bool = False, strict_end: bool = False, cut_off_ns: int | None = None
) -> DeliveryDemand:
    """What was owed. `confirmed_only` leaves out unconfirmed events, `strict_end` excuses nothing."""
    expected_of = np.zeros(len(coded.subscriptions), dtype=np.int64)
    parts = [np.empty(0, dtype=np.int64)]
    for piece in _owed(coded, confirmed_only):
        missing = piece[index_in_sorted(coded.delivered_keys, piece) < 0]
        excused = np.zeros(len(missing), dtype=np.bool_)
        if not strict_end:
            excused = _on_their_way(coded, missing, cut_off_ns=cut_off_ns)
        _count(expected_of, piece // len(coded.events), 1)
        _count(expected_of, missing[excused] // len(coded.events), -1)
        parts.append(missing[~excused])
    return DeliveryDemand(expected_of, np.concatenate(parts))


def excuses(coded: Coded, missing: Array) -> tuple[int, int]:
    """How many of the missing were on their way when their subscription ended, and how many others unconfirmed."""
    late = _on_their_way(coded, missing, cut_off_ns=None)
    event = missing[~late] % max(len(coded.events), 1)
    return int(np.count_nonzero(late)), int(np.count_nonzero(coded.events.confirmed_at[event] == NEVER))


def _count(counts: Array, rows: Array, step: int) -> None:
    distinct, times = np.unique(rows, return_counts=True)
    counts[distinct] += step * times


def windows(coded: Coded) -> tuple[Array, Array]:
    """For each subscription the first event number of its interval, and the first after it."""
    subscriptions, events = coded.subscriptions, coded.events
    return events.published_before(subscriptions.accepted), events.published_before(subscriptions.cancelled)


def _owed(coded: Coded, confirmed_only: bool) -> Iterator[Array]:
    """In pieces, as there may be far more of it than was delivered."""
    first, end = windows(coded)
    parts, size = [], 0
    for row in coded.own[first[coded.own] < end[coded.own]]:
        selected = coded.interests.selected(int(coded.interests.of_subscription[row]))
        low, high = np.searchsorted(selected, (first[row], end[row]))
        events = selected[low:high]
        if confirmed_only:
            events = events[coded.events.confirmed_at[events] != NEVER]
        parts.append(events + row * len(coded.events))
        size += len(events)
        if size >= PIECE:
            yield np.concatenate(parts)
            parts, size = [], 0
    if parts:
        yield np.concatenate(parts)


def _on_their_way(coded: Coded, missing: Array, *, cut_off_ns: int | None) -> Mask:
    """Which of the missing were behind everything that came of their source when the subscription ended.

    And which had reached the service so late that they may be, though later ones came.
    """
    events = coded.events
    ended = coded.subscriptions.cancelled != NEVER
    if not len(missing) or not ended[missing // len(events)].any():
        return np.zeros(len(missing), dtype=np.bool_)
    by_topic = coded.subscriptions.with_orders(frozenset({"causal", "total"}))
    streams_in_all = len(events.source_names) * (events.topics + 1)

    def stream(row: Array, event: Array) -> Array:
        """What is heard in order: a source or, of it, one topic."""
        topic = np.where(by_topic[row], events.topic[event] + 1, 0)
        return row * streams_in_all + events.source[event] * (events.topics + 1) + topic

    came_row, came_event = np.divmod(coded.delivered_keys, len(events))
    came_row, came_event = came_row[ended[came_row]], came_event[ended[came_row]]
    came_source = stream(came_row, came_event)
    order = np.lexsort((came_event, came_source))
    streams, counts = np.unique(came_source, return_counts=True)
    last = came_event[order][np.cumsum(counts) - 1]

    row, event = np.divmod(missing, len(events))
    place = index_in_sorted(streams, stream(row, event))
    last_came = np.full(len(missing), -1, dtype=np.int64)
    last_came[place >= 0] = last[place[place >= 0]]
    excused: Mask = ended[row] & (event > last_came)
    if cut_off_ns is not None:
        late = events.confirmed_at[event] - cut_off_ns >= coded.subscriptions.cancelled[row]
        excused |= ended[row] & ~by_topic[row] & late
    return excused
