"""Checks exactly once: no event is delivered twice, and none that should not be delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tidings.scenarios.trace.checkers.rules import BrokenRule, Key, found_by_rules
from tidings.scenarios.trace.checkers.steady import KEPT, excused
from tidings.scenarios.trace.coded import Array, Coded, Events, Mask, index_in_sorted, segment_starts
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Found, Verdict, Witness, verdict_of

EXACTLY_ONCE = "exactly_once"


def exactly_once(trace: Trace, *, members: str = KEPT) -> Verdict:
    """Check that each subscription gets an event at most once, and only events that it selects.

    A delivery must belong to a subscription that its subscriber made, and must not come before the request. Its event
    must have been published, before the delivery and before the subscription was cancelled, and the subscription must
    select it. Events published before the cancellation may arrive after it. A subscriber's positions run from 0
    without gaps or duplicates. Event ids are unique, and `source:sequence`. A row counts once for each rule it breaks.

    Durable subscriptions and groups may get an event again as another attempt (`checkers.shared` checks when). What
    members of a group may get twice depends on what the network promises (`steady`).
    """
    published = find_wrong_publications(trace.published, trace.coded.events)
    return verdict_of(EXACTLY_ONCE, [published, find_wrong_deliveries(trace.coded, members)])


def find_wrong_deliveries(coded: Coded, members: str = KEPT) -> Found:
    def of_subscriber(row: int) -> Key:
        return (int(coded.subscriber[row]), int(coded.position[row]), coded.number(row))

    describe, repeated = describe_delivery(coded), repeated_rows(coded)
    broken = [
        *_broken_deliveries(coded),
        repetitions(coded, "is delivered again", repeated[~excused(coded, repeated, members)]),
        BrokenRule("does not follow the position before", _misplaced(coded), describe, of_subscriber),
    ]
    return found_by_rules(broken, first_rule=_PUBLICATION_RULES)


def find_wrong_publications(published: Any, events: Events) -> Found:
    """Check all publications, delivered or not."""
    names = pc.binary_join_element_wise(published["source"], published["sequence"].cast("string"), ":")
    misnamed = np.flatnonzero(pc.not_equal(names, published["event_id"]).to_numpy())

    def describe(rule: str, row: int) -> Witness:
        event_id: str = published["event_id"][row].as_py()
        return Witness(f"event {event_id} {rule}", events=(event_id,))

    broken = [
        BrokenRule("is published again", events.repeated_rows, describe, _by_row),
        BrokenRule("is not called source:sequence", misnamed, describe, _by_row),
    ]
    return found_by_rules(broken)


_PUBLICATION_RULES = 2


def _by_row(row: int) -> Key:
    return (row,)


def duplicates(coded: Coded) -> int:
    """Return how many deliveries repeat an event to the same subscription."""
    return len(repeated_rows(coded))


def _broken_deliveries(coded: Coded) -> list[BrokenRule]:
    subscriptions, events = coded.subscriptions, coded.events
    subscribed, published = coded.subscription >= 0, coded.event >= 0
    # The appended value stands for unknown rows (-1); it breaks no rule but the first two.
    requested = np.append(subscriptions.requested, np.iinfo(np.int64).min)[coded.subscription]
    cancelled = np.append(subscriptions.cancelled, np.iinfo(np.int64).max)[coded.subscription]
    published_at = np.append(events.at, np.iinfo(np.int64).min)[coded.event]
    rules: list[tuple[str, Mask]] = [
        ("belongs to a subscription that the subscriber does not have", ~subscribed),
        ("was never published", ~published),
        ("is not selected by the subscription", _unselected(coded, subscribed & published)),
        ("is delivered before it was published", coded.at < published_at),
        ("is delivered before the subscription was requested", coded.at < requested),
        ("was published after the subscription was cancelled", published_at > cancelled),
    ]
    return [
        BrokenRule(rule, np.flatnonzero(mask), describe_delivery(coded), lambda row: (coded.number(row),))
        for rule, mask in rules
    ]


def _unselected(coded: Coded, known: Mask) -> Mask:
    rows = np.flatnonzero(known)
    interest = coded.interests.of_subscription[coded.subscription[rows]]
    keys = interest * len(coded.events) + coded.event[rows]
    unselected = np.zeros(len(known), dtype=np.bool_)
    unselected[rows] = index_in_sorted(coded.interests.selected_keys(np.unique(interest)), keys) < 0
    return unselected


def repeated_rows(coded: Coded) -> Array:
    """Return duplicates: for each subscription, event and attempt, all deliveries but the first that was shown."""
    rows = np.flatnonzero(coded.known)
    if len(rows) == len(coded.delivered_keys):
        return rows[:0]
    keys = coded.account[rows] * len(coded.events) + coded.event[rows]
    order = np.lexsort((_order_of_showing(coded)[rows], coded.attempt[rows], keys))
    attempt = coded.attempt[rows][order]
    repeated: Array = rows[order][~(segment_starts(keys[order]) | segment_starts(attempt))]
    return repeated


def repetitions(coded: Coded, rule: str, repeated: Array) -> BrokenRule:
    """Return some of the `repeated_rows` as violations of a rule."""
    shown_at = _order_of_showing(coded)

    def place(row: int) -> Key:
        key = (coded.account[row], coded.event[row], coded.attempt[row], shown_at[row])
        return (*map(int, key), coded.number(row))

    return BrokenRule(rule, repeated, describe_delivery(coded), place)


def _order_of_showing(coded: Coded) -> Array:
    """Return positions or, where several subscribers share a subscription, times."""
    return np.where(coded.durable | coded.in_group, coded.at, coded.position)


def _misplaced(coded: Coded) -> Array:
    rows = coded.by_position
    position = coded.position[rows]
    before = np.append(-1, position[:-1])
    before[segment_starts(coded.subscriber[rows])] = -1
    misplaced: Array = rows[position != before + 1]
    return misplaced


def describe_delivery(coded: Coded) -> Callable[[str, int], Witness]:
    """Return what makes a sentence of a rule and the delivery that breaks it."""

    def describe(rule: str, row: int) -> Witness:
        event_id, subscriber, position = (
            coded.event_id(row),
            coded.subscriber_name(row),
            int(coded.position[row]),
        )
        text = f"event {event_id} at position {position} of subscriber {subscriber} {rule}"
        return Witness(text, (event_id,), (subscriber,), (position,))

    return describe
