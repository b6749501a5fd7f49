"""Checks gap-freeness and agreement: owed events are delivered, and equal subscriptions get equal events."""

from __future__ import annotations

import numpy as np

from tidings.scenarios.trace.coded import Array, Coded, CodedSubscriptions, Events, index_in_sorted
from tidings.scenarios.trace.demand import demand, windows
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Case, Found, Verdict, Witness, first_cases, verdict_of

GAP_FREE = "gap_free"
AGREEMENT = "agreement"


def gap_free(
    trace: Trace, *, confirmed_only: bool = False, strict_end: bool = False, cut_off_ns: int | None = None
) -> Verdict:
    """Check that every event that a subscription is owed (see `trace.demand`) was delivered to it.

    `counts` has how many were `expected`, how many of these were `delivered`, and how many others had `expired`.
    """
    found = find_gaps(
        trace.coded, confirmed_only=confirmed_only, strict_end=strict_end, cut_off_ns=cut_off_ns
    )
    return verdict_of(GAP_FREE, [found])


def find_gaps(
    coded: Coded, *, confirmed_only: bool = False, strict_end: bool = False, cut_off_ns: int | None = None
) -> Found:
    owed = demand(coded, confirmed_only=confirmed_only, strict_end=strict_end, cut_off_ns=cut_off_ns)

    def describe(key: int) -> Case:
        row, event = divmod(int(key), len(coded.events))
        return _missing(coded.events, coded.subscriptions, row, event, "never arrived")

    counts = {"expected": owed.expected, "delivered": owed.delivered, "expired": owed.expired}
    return Found(len(owed.missing), first_cases(owed.missing, describe), counts)


def agreement(trace: Trace, *, strict_end: bool = False) -> Verdict:
    """Check that equal subscriptions deliver the same events.

    Subscriptions are equal if they select the same topics and have the same filter. An event counts for those that
    select it and were accepted and not yet cancelled when it was published. A violation is an event missing at one of
    them (see `trace.demand`) while another got it.
    """
    coded = trace.coded
    missing = missing_of_equals(coded, strict_end=strict_end)
    return verdict_of(
        AGREEMENT, [find_unequal(coded.events, coded.subscriptions, missing, got_in_time(coded))]
    )


Keyed = tuple[Array, Array]
"""Keys `interest * events + event`, and for each a row of `subscribed`."""


def missing_of_equals(coded: Coded, *, strict_end: bool = False) -> Keyed:
    """Return what is missing, by row of `subscribed`, then by event."""
    row, event = np.divmod(demand(coded, strict_end=strict_end).missing, max(len(coded.events), 1))
    return coded.interests.of_subscription[row] * len(coded.events) + event, row


def got_in_time(coded: Coded) -> Keyed:
    """Return what subscriptions in force at publication got, ascending, each with the first row that got it."""
    first, end = windows(coded)
    row, event = np.divmod(coded.delivered_keys, max(len(coded.events), 1))
    in_force = (event >= first[row]) & (event < end[row])
    row, event = row[in_force], event[in_force]
    keys, places = np.unique(
        coded.interests.of_subscription[row] * len(coded.events) + event, return_index=True
    )
    return keys, row[places]


def find_unequal(events: Events, subscriptions: CodedSubscriptions, missing: Keyed, got: Keyed) -> Found:
    """Find the missing events that an equal subscription got."""
    place = index_in_sorted(got[0], missing[0])

    def describe(case: int) -> Case:
        row, event = int(missing[1][case]), int(missing[0][case]) % len(events)
        other = subscriptions.describe(int(got[1][place[case]]))
        return _missing(events, subscriptions, row, event, f"never arrived, but did at {other}")

    broken = np.flatnonzero(place >= 0)
    return Found(len(broken), first_cases(broken.tolist(), describe))


def _missing(events: Events, subscriptions: CodedSubscriptions, row: int, event: int, what: str) -> Case:
    event_id = events.name(event)
    text = f"event {event_id}, selected by {subscriptions.describe_account(row)}, {what}"
    name = subscriptions.subscriber_names[subscriptions.subscriber[row]]
    return Case((row, event), Witness(text, (event_id,), (name,)))
