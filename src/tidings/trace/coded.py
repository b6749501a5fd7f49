"""A trace as integer arrays, so that a check over millions of deliveries is a few passes of numpy.

Events are numbered by when they were published (`at_ns`, then row), so 'published in this interval' is a
range of numbers. -1 stands for what the trace does not know: an event never published, a subscription never
made.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.model.errors import TraceError
from tidings.trace.interests import Interests

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max
"""The instant of what did not happen."""


class Events:
    """Published events by number. An id that was published twice counts once, with its first row."""

    def __init__(self, published: Any) -> None:
        ids = _codes(published["event_id"])
        self.rows_published = len(ids)
        _, first_rows = np.unique(ids, return_index=True)
        self.repeated_rows = np.setdiff1d(np.arange(len(ids)), first_rows)
        at = _longs(published["at_ns"])
        self.row = np.sort(first_rows)[np.argsort(at[np.sort(first_rows)], kind="stable")]
        self.at = at[self.row]
        self.source = _codes(published["source"])[self.row]
        self.topic = _codes(published["topic"])[self.row]
        self.topics = int(self.topic.max(initial=-1)) + 1
        # Dense, so that arithmetic on them cannot overflow whatever the trace holds.
        self.sequence_rank = _ranks(_longs(published["sequence"])[self.row])
        self.ordinal = _ordinals(self.source)
        self.confirmed: Mask = pc.is_valid(published["confirmed_ns"]).to_numpy()[self.row]
        self.ids = published["event_id"].combine_chunks().take(pa.array(self.row))
        self.source_names: list[str] = pc.unique(published["source"]).to_pylist()

    def __len__(self) -> int:
        return len(self.row)

    def name(self, event: int) -> str:
        text: str = self.ids[int(event)].as_py()
        return text

    def number_of(self, ids: Any) -> Array:
        """The number of each event id, -1 where it was never published."""
        return _longs(pc.index_in(ids, value_set=self.ids).fill_null(-1))

    def published_before(self, at_ns: Array) -> Array:
        """How many events were published before each instant: the number of the first that was not."""
        return np.searchsorted(self.at, at_ns, side="left").astype(np.int64)


class Subscriptions:
    """Rows of the table `subscribed`. Subscribers are numbered as they appear there, then in `delivered`."""

    def __init__(self, subscribed: Any, delivered: Any) -> None:
        pairs = pa.chunked_array(
            [*subscribed["subscriber"].chunks, *delivered["subscriber"].chunks], pa.string()
        )
        names = pc.unique(pairs)
        self.subscriber_names: list[str] = names.to_pylist()
        self.names: list[str] = subscribed["subscription"].to_pylist()
        self.subscriber = _longs(pc.index_in(subscribed["subscriber"], value_set=names))
        self.requested = _longs(subscribed["requested_ns"])
        self.accepted = _longs(subscribed["accepted_ns"].fill_null(NEVER))
        self.cancelled = _longs(subscribed["cancelled_ns"].fill_null(NEVER))
        self.order: list[str] = subscribed["order"].to_pylist()
        self.delivered_subscriber = _longs(pc.index_in(delivered["subscriber"], value_set=names))
        self.delivered_row = self._rows_of(delivered)

    def __len__(self) -> int:
        return len(self.names)

    def describe(self, row: int) -> str:
        return f"{self.subscriber_names[self.subscriber[row]]}/{self.names[row]}"

    def with_orders(self, orders: frozenset[str] | None) -> Mask:
        """Which subscriptions asked for one of `orders`; all for None."""
        return np.array([orders is None or order in orders for order in self.order], dtype=np.bool_)

    def _rows_of(self, delivered: Any) -> Array:
        """The row of the subscription of each delivery, -1 where that subscriber has none of this name."""
        distinct = pa.array(sorted(set(self.names)), pa.string())
        own = _longs(pc.index_in(pa.array(self.names, pa.string()), value_set=distinct))
        keys = self.subscriber * len(distinct) + own
        order = np.argsort(keys, kind="stable")
        repeated = np.flatnonzero(np.diff(keys[order]) == 0)
        if repeated.size:
            raise TraceError(f"subscription {self.describe(order[repeated[0]])} is listed twice")
        named = _longs(pc.index_in(delivered["subscription"], value_set=distinct).fill_null(-1))
        wanted = np.where(named < 0, -1, self.delivered_subscriber * len(distinct) + named)
        found = index_in_sorted(keys[order], wanted)
        return np.where(found >= 0, order[found], -1) if len(order) else found


class Coded:
    """Events, subscriptions and deliveries of one trace as arrays; deliveries are in the table's order."""

    def __init__(self, published: Any, subscribed: Any, delivered: Any) -> None:
        self.events = Events(published)
        self.subscriptions = Subscriptions(subscribed, delivered)
        self.subscriber = self.subscriptions.delivered_subscriber
        self.subscription = self.subscriptions.delivered_row
        self.event = self.events.number_of(delivered["event_id"])
        self.position = _longs(delivered["position"])
        self.at = _longs(delivered["at_ns"])
        self.out_of_order: Mask = delivered["out_of_order"].to_numpy()
        self._tables = (published, subscribed, delivered)

    @cached_property
    def interests(self) -> Interests:
        """What each subscription selects."""
        published, subscribed, _ = self._tables
        return Interests(published, subscribed, self.events.row)

    @cached_property
    def by_position(self) -> Array:
        """Delivery rows, subscriber by subscriber in the order their applications saw them."""
        return np.lexsort((self.position, self.subscriber)).astype(np.int64)

    @cached_property
    def delivered_keys(self) -> Array:
        """`subscription row * events + event` of what was delivered, ascending and distinct."""
        known = (self.subscription >= 0) & (self.event >= 0)
        keys = np.sort(self.subscription[known] * len(self.events) + self.event[known])
        distinct: Array = keys[segment_starts(keys)]
        return distinct

    def event_id(self, row: int) -> str:
        """The event id of a delivery, also of one that was never published."""
        text: str = self._tables[2]["event_id"][int(row)].as_py()
        return text

    def published_id(self, row: int) -> str:
        """The event id in a row of the table `published`."""
        text: str = self._tables[0]["event_id"][int(row)].as_py()
        return text

    def subscriber_name(self, row: int) -> str:
        """The subscriber of a delivery."""
        return self.subscriptions.subscriber_names[int(self.subscriber[row])]

    def ordered_rows(self, orders: frozenset[str] | None) -> Array:
        """The deliveries that promises of order are about, subscriber by subscriber, by position.

        Set aside are those declared out of order, those of subscriptions that asked for none of `orders`,
        events never published, and all but the first delivery of an event to a subscriber (two of its
        subscriptions may select it).
        """
        keep = ~self.out_of_order & (self.event >= 0)
        if orders is not None:
            # The appended False is what subscription -1 picks.
            keep &= np.append(self.subscriptions.with_orders(orders), False)[self.subscription]
        rows: Array = self.by_position[keep[self.by_position]]
        keys = self.subscriber[rows] * len(self.events) + self.event[rows]
        _, first = np.unique(keys, return_index=True)
        kept: Array = rows[np.sort(first)]
        return kept


def index_in_sorted(keys: Array, wanted: Array) -> Array:
    """Where each wanted number is in the sorted `keys`, -1 where it is not."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, -1)


def segment_starts(labels: Array) -> Mask:
    """True where a run of equal labels begins."""
    starts = np.ones(len(labels), dtype=np.bool_)
    starts[1:] = labels[1:] != labels[:-1]
    return starts


def highest_before(labels: Array, values: Array) -> Array:
    """For each place, the highest of the earlier values of its run of equal labels; -1 where it is the first.

    Values are at least 0.
    """
    if not len(values):
        return values
    starts = segment_starts(labels)
    run = np.cumsum(starts) - 1
    # Lifting every run above the one before lets one cumulative maximum serve all runs.
    span = int(values.max()) + 1
    lifted = np.maximum.accumulate(values + run * span) - run * span
    before = np.empty_like(values)
    before[1:] = lifted[:-1]
    before[starts] = -1
    return before


def _codes(column: Any) -> Array:
    """Strings as numbers, by first appearance."""
    encoded = column.combine_chunks().dictionary_encode()
    return _longs(encoded.indices)


def _ranks(values: Array) -> Array:
    """Each value's rank among the distinct ones."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _ordinals(labels: Array) -> Array:
    """For each place, how many earlier places have the same label."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(segment_starts(labels[order]))
    lengths = np.diff(np.append(starts, len(labels)))
    ordinals = np.empty(len(labels), dtype=np.int64)
    ordinals[order] = np.arange(len(labels)) - np.repeat(starts, lengths)
    return ordinals


def _longs(column: Any) -> Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
