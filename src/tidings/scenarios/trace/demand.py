"""Computes what subscriptions were owed, and what of it did not arrive.

A subscription is owed every event that it selects and that was published from `accepted_ns` on and before
`cancelled_ns`. A subscription that was never accepted is owed nothing. All who attach to a durable subscription or join
a group are owed an event once, together. Nobody is owed an event that had an expiry and did not arrive.

A service may stop delivery at once when a subscription is cancelled, so events still under way then are excused,
unless `strict_end` is set. As the events of a source arrive in order, these are, for each source, the events published
after the last one that arrived. An event that did not arrive although a later one of its source did is a gap,
cancelled or not. With order "total" or "causal" this holds per topic: such a subscription stops at once on the topics
that it leaves, while events under way on others still arrive; and total order keeps a source's order only per topic.
A durable subscription to which nobody is attached at the end keeps what is under way, which is excused alike. So is
everything of a group that was cancelled or has no member left: its events do not wait in one line. And so is what a
durable subscription or group kept when its lease was over (`leases` checks that it was).

In best effort and epidemic networks, events overtake each other: the arrival of a later event does not mean that an
earlier one was not under way. `cut_off_ns` is for them: with order "none" or "fifo", events that the service confirmed
at least this long after the cancellation are excused as well.

An event that did not arrive and had a time to expire is counted as expired, and is not owed: nobody may show it later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidings.scenarios.trace.coded import NEVER, Array, Coded, Mask, index_in_sorted

PIECE = 4_000_000
"""The owed events processed at a time."""


@dataclass(frozen=True, slots=True)
class DeliveryDemand:
    """Holds `missing` as `subscription row * events + event`, ascending, and `expected_of` by row of `subscribed`."""

    expected_of: Array
    missing: Array
    expired: int = 0
    """Events that subscriptions would be owed, had they not expired."""

    @property
    def expected(self) -> int:
        return int(self.expected_of.sum())

    @property
    def delivered(self) -> int:
        return self.expected - len(self.missing)


def demand(
    coded: Coded,
    *,
    confirmed_only: bool = False,
    strict_end: bool = False,
    cut_off_ns: int | None = None,
    accounts: Array | None = None,
    arrived: Array | None = None,
) -> DeliveryDemand:
    """Return what was owed. `confirmed_only` leaves out unconfirmed events; `strict_end` excuses nothing at the end.

    `accounts` are the rows of `subscribed` to look at, by default all; `arrived` has the keys that count as arrived, by
    default those of all deliveries.
    """
    arrived = coded.delivered_keys if arrived is None else arrived
    expected_of = np.zeros(len(coded.subscriptions), dtype=np.int64)
    parts = [np.empty(0, dtype=np.int64)]
    expired = 0
    for piece in _owed(coded, coded.own if accounts is None else accounts, confirmed_only):
        missing = piece[index_in_sorted(arrived, piece) < 0]
        expires = coded.events.expires_at[missing % len(coded.events)] != NEVER
        expired += int(np.count_nonzero(expires))
        _count(expected_of, missing[expires] // len(coded.events), -1)
        missing = missing[~expires]
        excused = np.zeros(len(missing), dtype=np.bool_)
        if not strict_end:
            excused = excused | _on_their_way(coded, missing, cut_off_ns=cut_off_ns)
        _count(expected_of, piece // len(coded.events), 1)
        _count(expected_of, missing[excused] // len(coded.events), -1)
        parts.append(missing[~excused])
    return DeliveryDemand(expected_of, np.concatenate(parts), expired)


def excuses(coded: Coded, missing: Array) -> tuple[int, int]:
    """Return how many missing events were under way when their subscription ended, and how many others unconfirmed."""
    late = _on_their_way(coded, missing, cut_off_ns=None)
    event = missing[~late] % max(len(coded.events), 1)
    return int(np.count_nonzero(late)), int(np.count_nonzero(coded.events.confirmed_at[event] == NEVER))


def _count(counts: Array, rows: Array, step: int) -> None:
    distinct, times = np.unique(rows, return_counts=True)
    counts[distinct] += step * times


def windows(coded: Coded) -> tuple[Array, Array]:
    """Return for each subscription the first event number of its interval, and the first after it."""
    subscriptions, events = coded.subscriptions, coded.events
    return events.published_before(subscriptions.accepted), events.published_before(subscriptions.cancelled)


def _owed(coded: Coded, accounts: Array, confirmed_only: bool) -> Iterator[Array]:
    """Yield what is owed in pieces, as it may be far more than was delivered."""
    first, end = windows(coded)
    parts, size = [], 0
    for row in accounts[first[accounts] < end[accounts]]:
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
    """Return which missing events follow everything that arrived of their source before the subscription ended.

    With `cut_off_ns`, also those that reached the service so late that they may have been under way although later
    ones arrived. What arrived counts as under way if it is missing for another reason: nobody was done with it.
    """
    events = coded.events
    ended = coded.subscriptions.ended
    if not len(missing) or not ended[missing // len(events)].any():
        return np.zeros(len(missing), dtype=np.bool_)
    by_topic = coded.subscriptions.with_orders(frozenset({"causal", "total"}))
    streams_in_all = len(events.source_names) * (events.topics + 1)

    def stream(row: Array, event: Array) -> Array:
        """Return what arrives in order: a source or, with an order, one topic of it."""
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
    excused |= ended[row] & (
        coded.subscriptions.shares.group[row]
        | coded.subscriptions.shares.over[row]
        | (index_in_sorted(coded.delivered_keys, missing) >= 0)
    )
    if cut_off_ns is not None:
        late = events.confirmed_at[event] - cut_off_ns >= coded.subscriptions.cancelled[row]
        excused |= ended[row] & ~by_topic[row] & late
    return excused
