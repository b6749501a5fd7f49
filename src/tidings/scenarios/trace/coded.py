"""Holds a trace as integer arrays, so that a check over millions of deliveries is a few passes of numpy.

Events are numbered by publication (`at_ns`, then row), so 'published in this interval' is a range of numbers. -1
stands for what the trace does not know: an event never published, a subscription never made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.errors import TraceError
from tidings.core.events.subscription import Order
from tidings.scenarios.trace.disturbances import UNDISTURBED, Disturbances
from tidings.scenarios.trace.interests import Interests
from tidings.scenarios.trace.shares import SharedSubscriptions
from tidings.scenarios.trace.tables import table_text

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max
"""The instant of what never happened."""


class Events:
    """Holds published events by number. An id that was published twice counts once, with its first row."""

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
        # Ranks are dense, so arithmetic on them cannot overflow, whatever the trace holds.
        self.sequence_rank = _ranks(_longs(published["sequence"])[self.row])
        self.ordinal = _ordinals(self.source)
        self.confirmed_at = _longs(published["confirmed_ns"].fill_null(NEVER))[self.row]
        self.expires_at = _longs(published["expires_ns"].fill_null(NEVER))[self.row]
        self.ids = published["event_id"].combine_chunks().take(pa.array(self.row))
        self.source_names: list[str] = pc.unique(published["source"]).to_pylist()

    def __len__(self) -> int:
        return len(self.row)

    @property
    def any_expire(self) -> bool:
        return bool((self.expires_at != NEVER).any())

    def name(self, event: int) -> str:
        text: str = self.ids[int(event)].as_py()
        return text

    def number_of(self, ids: Any) -> Array:
        """Return the number of each event id; -1 if it was never published."""
        return numbers_in(ids, self.ids)

    def published_before(self, at_ns: Array) -> Array:
        """Return how many events were published before each instant, which is the number of the first that was not."""
        return np.searchsorted(self.at, at_ns, side="left").astype(np.int64)

    @cached_property
    def by_source(self) -> Array:
        """The events, source by source."""
        return np.argsort(self.source, kind="stable").astype(np.int64)

    def only(self, numbers: Array) -> Self:
        """Return these events, given ascending, as if there were no others: renumbered from 0."""
        few = copy(self)
        few.__dict__.pop("by_source", None)
        few.row, few.at, few.topic = self.row[numbers], self.at[numbers], self.topic[numbers]
        few.sequence_rank, few.confirmed_at = self.sequence_rank[numbers], self.confirmed_at[numbers]
        few.expires_at = self.expires_at[numbers]
        sources, few.source = np.unique(self.source[numbers], return_inverse=True)
        few.source_names = [self.source_names[source] for source in sources]
        few.ordinal = _ordinals(few.source)
        few.ids = self.ids.take(pa.array(numbers))
        return few


class CodedSubscriptions:
    """Holds the rows of `subscribed`. Subscribers are numbered as they appear there, then as in `others`.

    `accepted` and `cancelled` are those of what a row shares with others (see `shares`): only its first row, the
    account, is accepted and owed something. `ended` says that nobody is there any more to get what is under way.
    """

    def __init__(
        self,
        subscribed: Any,
        others: Sequence[str] = (),
        directory: Path | str | None = None,
        disturbances: Disturbances = UNDISTURBED,
    ) -> None:
        """Raise TraceError, which names `directory`, for an unknown order or a subscription listed twice."""
        self.disturbances = disturbances
        names = pc.unique(
            pa.chunked_array([*subscribed["subscriber"].chunks, pa.array(others, pa.string())], pa.string())
        )
        self._subscribers = names
        self.subscriber_names: list[str] = names.to_pylist()
        self.names: list[str] = subscribed["subscription"].to_pylist()
        self.subscriber = self.numbers_of(subscribed["subscriber"])
        self.requested = _longs(subscribed["requested_ns"])
        accepted = _longs(subscribed["accepted_ns"].fill_null(NEVER))
        cancelled = _longs(subscribed["cancelled_ns"].fill_null(NEVER))
        gone = np.array([disturbances.gone(name) for name in subscribed["subscriber"].to_pylist()], np.int64)
        self.shares = SharedSubscriptions(subscribed, self.requested, accepted, cancelled, gone, NEVER)
        self.accepted, self.cancelled = self.shares.accepted, self.shares.cancelled
        self.account, self.ended = self.shares.account, self.shares.ended
        self.order: list[str] = subscribed["order"].to_pylist()
        self._check_orders(directory)
        self._distinct = pa.array(sorted(set(self.names)), pa.string())
        own = numbers_in(subscribed["subscription"], self._distinct)
        keys = self.subscriber * len(self._distinct) + own
        self._by_key = np.argsort(keys, kind="stable")
        self._keys = keys[self._by_key]
        repeated = np.flatnonzero(np.diff(self._keys) == 0)
        if repeated.size:
            twice = self.describe(self._by_key[repeated[0]])
            raise TraceError(f"{table_text(directory, 'subscribed')}: subscription {twice} is listed twice")

    def __len__(self) -> int:
        return len(self.names)

    def describe(self, row: int) -> str:
        return f"{self.subscriber_names[self.subscriber[row]]}/{self.names[row]}"

    @cached_property
    def viewer_names(self) -> list[str]:
        """Names of the subscribers and then, for each row, of what it shares (see `Coded.viewer`)."""
        return [*self.subscriber_names, *map(self.shares.name, range(len(self)))]

    def describe_account(self, row: int) -> str:
        """Return the name of the share or, of a plain subscription, whose it is."""
        return self.shares.name(row) or f"subscription {self.describe(row)}"

    def _check_orders(self, directory: Path | str | None) -> None:
        """Reject unknown orders: no checker would look at them."""
        unknown = set(self.order) - {None, *Order}
        if unknown:
            row = next(row for row, order in enumerate(self.order) if order in unknown)
            raise TraceError(
                f"{table_text(directory, 'subscribed')}: subscription {self.describe(row)} has order "
                f"{self.order[row]!r}; known: {', '.join(Order)}"
            )

    def with_orders(self, orders: frozenset[str] | None) -> Mask:
        """Return which subscriptions have one of `orders`; None selects all."""
        return np.array([orders is None or order in orders for order in self.order], dtype=np.bool_)

    def numbers_of(self, subscribers: Any) -> Array:
        """Return the number of each subscriber; -1 if there is none of this name."""
        return numbers_in(subscribers, self._subscribers)

    def rows_of(self, subscriber: Array, names: Any) -> Array:
        """Return the row of each subscriber's subscription of this name; -1 if it has none."""
        named = numbers_in(names, self._distinct)
        wanted = np.where(named < 0, -1, subscriber * len(self._distinct) + named)
        found = index_in_sorted(self._keys, wanted)
        return np.where(found >= 0, self._by_key[found], -1) if len(self._keys) else found


class Deliveries(NamedTuple):
    """Holds rows of `delivered`, ascending by `number`, the row in the whole table."""

    number: Array
    subscriber: Array
    subscription: Array
    event: Array
    position: Array
    at: Array
    out_of_order: Mask
    attempt: Array
    done: Array
    """When it was done; NEVER if it was not."""


class Coded:
    """Holds events, subscriptions and deliveries of a trace as arrays.

    The deliveries, and `own` (the rows of `subscribed` to check), may be those of some subscribers only.
    """

    def __init__(
        self,
        events: Events,
        subscriptions: CodedSubscriptions,
        interests: Callable[[], Interests],
        deliveries: Deliveries,
        *,
        own: Array,
        unknown_id: Callable[[int], str],
    ) -> None:
        self.events = events
        self.subscriptions = subscriptions
        self.own = own
        self._interests = interests
        self._number = deliveries.number
        self.subscriber = deliveries.subscriber
        self.subscription = deliveries.subscription
        self.event = deliveries.event
        self.position = deliveries.position
        self.at = deliveries.at
        self.out_of_order = deliveries.out_of_order
        self.done = deliveries.done
        # Subscription -1 picks the appended value.
        self.account = np.append(subscriptions.account, -1)[deliveries.subscription]
        self.durable = np.append(subscriptions.shares.durable, False)[deliveries.subscription]
        self.in_group = np.append(subscriptions.shares.group, False)[deliveries.subscription]
        self.attempt = np.where(self.durable | self.in_group, deliveries.attempt, 1)
        """Of a plain subscription every delivery is the first, or a duplicate."""
        self._unknown_id = unknown_id

    @classmethod
    def of_tables(
        cls,
        published: Any,
        subscribed: Any,
        delivered: Any,
        directory: Path | None = None,
        disturbances: Disturbances = UNDISTURBED,
    ) -> Self:
        """Return the whole trace as arrays; errors name the directory that it was read from."""
        events = Events(published)
        subscriptions = CodedSubscriptions(
            subscribed, pc.unique(delivered["subscriber"]).to_pylist(), directory, disturbances
        )
        return cls(
            events,
            subscriptions,
            lambda: Interests(published, subscribed, events.row, directory),
            coded_deliveries(events, subscriptions, delivered),
            own=np.arange(len(subscriptions)),
            unknown_id=lambda number: str(delivered["event_id"][number]),
        )

    @cached_property
    def interests(self) -> Interests:
        """What each subscription selects."""
        return self._interests()

    @cached_property
    def by_position(self) -> Array:
        """Delivery rows by subscriber, in the order in which its application saw them."""
        return np.lexsort((self.position, self.subscriber)).astype(np.int64)

    @cached_property
    def viewer(self) -> Array:
        """Who sees the deliveries in order: their subscriber, or the durable subscription whoever is attached to it."""
        durable = len(self.subscriptions.subscriber_names) + self.account
        return np.where(self.durable, durable, self.subscriber)

    @cached_property
    def turn(self) -> Array:
        """Numbers the deliveries' subscriptions in the order in which they first showed something: of those who attach
        to a durable subscription, somebody may ask early, and wait until the others have gone."""
        attachment = self.subscriptions.shares.attachment
        shown_at = np.full(len(attachment) + 1, NEVER)
        np.minimum.at(shown_at, self.subscription, self.at)
        turn = np.zeros(len(attachment) + 1, dtype=np.int64)
        turn[np.lexsort((attachment, shown_at[:-1]))] = np.arange(len(attachment))
        return turn[self.subscription]

    @cached_property
    def by_viewer(self) -> Array:
        """Delivery rows by viewer, in the order in which it saw them: turn by turn, by position."""
        if not self.durable.any():
            return self.by_position
        return np.lexsort((self.position, self.turn * self.durable, self.viewer)).astype(np.int64)

    @cached_property
    def delivered_keys(self) -> Array:
        """`account * events + event` of all deliveries, ascending and distinct."""
        return self.keys_of(self.known)

    @cached_property
    def known(self) -> Mask:
        """Which deliveries are those of a subscription that was made, of an event that was published."""
        known: Mask = (self.subscription >= 0) & (self.event >= 0)
        return known

    def keys_of(self, deliveries: Mask) -> Array:
        """Return `account * events + event` of these known deliveries, ascending and distinct."""
        return distinct_sorted(self.account[deliveries] * len(self.events) + self.event[deliveries])

    def number(self, row: int) -> int:
        """Return a delivery's row in the whole table."""
        return int(self._number[row])

    def event_id(self, row: int) -> str:
        """Return the event id of a delivery, even if it was never published."""
        event = int(self.event[row])
        return self.events.name(event) if event >= 0 else self._unknown_id(self.number(row))

    def subscriber_name(self, row: int) -> str:
        """Return the subscriber of a delivery."""
        return self.subscriptions.subscriber_names[int(self.subscriber[row])]

    def ordered_rows(self, orders: frozenset[str] | None) -> Array:
        """Return the deliveries that promises of order cover, by viewer, in the order in which it saw them.

        Leaves out deliveries declared out of order, those of subscriptions with none of `orders`, events never
        published, and all but the first delivery of an event to a viewer (two of its subscriptions may select it). All
        attachments to a durable subscription are one viewer; groups promise no order but by value.
        """
        keep = ~self.out_of_order & (self.event >= 0) & ~self.in_group
        if orders is not None:
            # Subscription -1 picks the appended False.
            keep &= np.append(self.subscriptions.with_orders(orders), False)[self.subscription]
        rows: Array = self.by_viewer[keep[self.by_viewer]]
        keys = self.viewer[rows] * len(self.events) + self.event[rows]
        if len(distinct_sorted(keys)) == len(keys):  # by far the usual case, and cheap to detect
            return rows
        _, first = np.unique(keys, return_index=True)
        kept: Array = rows[np.sort(first)]
        return kept


def coded_deliveries(
    events: Events, subscriptions: CodedSubscriptions, delivered: Any, first: int = 0
) -> Deliveries:
    """Return the given rows of `delivered` as arrays; `first` is the number of the first."""
    subscriber = subscriptions.numbers_of(delivered["subscriber"])
    return Deliveries(
        number=np.arange(first, first + len(subscriber)),
        subscriber=subscriber,
        subscription=subscriptions.rows_of(subscriber, delivered["subscription"]),
        event=events.number_of(delivered["event_id"]),
        position=_longs(delivered["position"]),
        at=_longs(delivered["at_ns"]),
        out_of_order=delivered["out_of_order"].to_numpy(),
        attempt=_longs(delivered["attempt"]),
        done=_longs(delivered["done_ns"].fill_null(NEVER)),
    )


def numbers_in(column: Any, values: Any) -> Array:
    """Return each string's index among the distinct `values`; -1 if it is not there."""
    return _longs(pc.index_in(column, value_set=values).fill_null(-1))


def index_in_sorted(keys: Array, wanted: Array) -> Array:
    """Return each wanted number's index in the sorted `keys`; -1 if it is not there."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, -1)


def distinct_sorted(keys: Array) -> Array:
    """Return the distinct keys, ascending."""
    keys = np.sort(keys)
    distinct: Array = keys[segment_starts(keys)]
    return distinct


def segment_starts(labels: Array) -> Mask:
    """Return True where a run of equal labels begins."""
    starts = np.ones(len(labels), dtype=np.bool_)
    starts[1:] = labels[1:] != labels[:-1]
    return starts


def highest_before(labels: Array, values: Array) -> Array:
    """Return, for each place, the highest earlier value in its run of equal labels; -1 for the first.

    Values are at least 0.
    """
    if not len(values):
        return values
    starts = segment_starts(labels)
    run = np.cumsum(starts) - 1
    # Each run is lifted above the one before, so one cumulative maximum serves all runs.
    span = int(values.max()) + 1
    lifted = np.maximum.accumulate(values + run * span) - run * span
    before = np.empty_like(values)
    before[1:] = lifted[:-1]
    before[starts] = -1
    return before


def _codes(column: Any) -> Array:
    """Return strings as numbers, by first appearance."""
    encoded = column.combine_chunks().dictionary_encode()
    return _longs(encoded.indices)


def _ranks(values: Array) -> Array:
    """Return each value's rank among the distinct ones."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _ordinals(labels: Array) -> Array:
    """Return, for each place, how many earlier places have the same label."""
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
