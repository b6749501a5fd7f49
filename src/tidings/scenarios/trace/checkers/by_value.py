"""The order of a group with `group_by`: the events of a source that have equal values go to one member, in order.

Only what is done counts: what a member held when it went comes again, and what follows with the same value comes after
that. So a done delivery is wrong if one of a later event with its value came before. At one member the first delivery
of each event counts, for its application may finish in another order. For the same reason another member's delivery of
a later event is no offence if that member was shown the earlier one first.
"""

from __future__ import annotations

import numpy as np

from tidings.scenarios.trace.coded import NEVER, Array, Coded, highest_before, index_in_sorted

NEAR = 64
"""How many places are looked at first."""


def overtaken_rows(coded: Coded) -> Array:
    """Return the done deliveries that came after one of a later event of the source with the same value."""
    rows = _rows_with_values(coded)
    if not len(rows):
        return rows
    return _Values(coded, rows).overtaken()


def _rows_with_values(coded: Coded) -> Array:
    """Return the known deliveries of groups that keep values together."""
    grouped = np.array([name is not None for name in coded.subscriptions.shares.group_by], dtype=np.bool_)
    return np.flatnonzero(coded.in_group & coded.known & np.append(grouped, False)[coded.account])


def values(coded: Coded, rows: Array) -> tuple[Array, Array]:
    """Return those of these deliveries whose groups keep values together, and a number for the value of each."""
    rows = np.intersect1d(rows, _rows_with_values(coded))
    return rows, _value_numbers(coded, rows)


def _value_numbers(coded: Coded, rows: Array) -> Array:
    account, event = coded.account[rows], coded.event[rows]
    value = np.zeros(len(account), dtype=np.int64)
    names = coded.subscriptions.shares.group_by
    for name in sorted({name for name in names if name is not None}):
        mine = np.array([other == name for other in names], dtype=np.bool_)[account]
        value[mine] = coded.interests.values_of(name)[event[mine]]
    return value


class _Values:
    def __init__(self, coded: Coded, rows: Array) -> None:
        self._coded = coded
        self._keys, self._first = self._first_positions(rows)
        self._done = rows[coded.done[rows] != NEVER]
        self._rank = coded.events.sequence_rank[coded.event[self._done]]
        self._member = coded.subscriber[self._done]
        self._stream = self._streams()
        shown = index_in_sorted(self._keys, self._key(self._done, self._member))
        self._shown = self._first[shown]
        """Where each done event was shown first to the member that did it."""

    def overtaken(self) -> Array:
        overtaken: Array = self._done[np.union1d(self._at_one_member(), self._between_members())]
        return overtaken

    def _key(self, rows: Array, member: Array) -> Array:
        """Return numbers for share, member and event."""
        coded = self._coded
        size = len(coded.subscriptions.subscriber_names)
        return (coded.account[rows] * size + member) * len(coded.events) + coded.event[rows]

    def _first_positions(self, rows: Array) -> tuple[Array, Array]:
        coded = self._coded
        key = self._key(rows, coded.subscriber[rows])
        order = np.lexsort((coded.position[rows], key))
        keys, first = np.unique(key[order], return_index=True)
        return keys, coded.position[rows][order][first]

    def _streams(self) -> Array:
        """Number what keeps an order of its own: share, value and source."""
        coded = self._coded
        account, event = coded.account[self._done], coded.event[self._done]
        columns = np.stack([account, _value_numbers(coded, self._done), coded.events.source[event]])
        return np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def _at_one_member(self) -> Array:
        label = self._stream * len(self._coded.subscriptions.subscriber_names) + self._member
        order = np.lexsort((self._shown, label))
        rank = self._rank[order]
        late: Array = order[rank < highest_before(label[order], rank)]
        return late

    def _between_members(self) -> Array:
        at = self._coded.at[self._done]
        order = np.lexsort((self._rank, at, self._stream))  # at one instant, they may have come in order
        rank, stream = self._rank[order], self._stream[order]
        late = np.flatnonzero(rank < highest_before(stream, rank))
        starts = np.searchsorted(stream, stream[late])
        places = zip(late.tolist(), starts.tolist(), strict=True)
        return np.array(
            [order[place] for place, start in places if self._came_late(order, rank, start, place)],
            dtype=np.int64,
        )

    def _came_late(self, order: Array, rank: Array, start: int, place: int) -> bool:
        """Look for a later event that offends, from the nearest back: in bad traces most have one near by."""
        end, length = place, NEAR
        while end > start:
            low = max(start, end - length)
            if self._offended(order[place], order[low:end][rank[low:end] > rank[place]]):
                return True
            end, length = low, 2 * length
        return False

    def _offended(self, late: int, before: Array) -> bool:
        """Return whether a member was given one of these later events without having been shown this one."""
        others = before[self._member[before] != self._member[late]]
        rows = np.full(len(others), self._done[late])
        place = index_in_sorted(self._keys, self._key(rows, self._member[others]))
        unknown = place < 0
        return bool((unknown | (self._first[place] > self._shown[others])).any())
