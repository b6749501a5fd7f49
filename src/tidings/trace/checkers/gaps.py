"""Gap-freeness and agreement: what is owed is delivered, and equal subscriptions get equal events."""

from __future__ import annotations

import numpy as np

from tidings.trace.coded import Array, Coded, index_in_sorted
from tidings.trace.demand import demand, windows
from tidings.trace.reader import Trace
from tidings.trace.verdict import Verdict, Witness, first_witnesses

GAP_FREE = "gap_free"
AGREEMENT = "agreement"


def gap_free(trace: Trace, *, confirmed_only: bool = False, strict_end: bool = False) -> Verdict:
    """Every event that a subscription is owed (see `trace.demand`) was delivered to it.

    `counts` says how many were `expected` and how many of these `delivered`.
    """
    coded = trace.coded
    owed = demand(coded, confirmed_only=confirmed_only, strict_end=strict_end)

    def describe(key: int) -> Witness:
        row, event = divmod(int(key), len(coded.events))
        return _missing(coded, row, event, "never came")

    counts = {"expected": owed.expected, "delivered": owed.delivered}
    witnesses = first_witnesses(owed.missing, describe)
    return Verdict(GAP_FREE, not len(owed.missing), len(owed.missing), witnesses, counts)


def agreement(trace: Trace, *, strict_end: bool = False) -> Verdict:
    """What one of several equal subscriptions delivered, the others delivered as well.

    Subscriptions are equal if they select the same topics and have the same filter. An event counts for those
    that were accepted and not yet cancelled when it was published, and select it. A violation is an event
    missing at one of them (see `trace.demand`) while another got it.
    """
    coded = trace.coded
    missing = demand(coded, strict_end=strict_end).missing
    events = max(len(coded.events), 1)
    row, event = np.divmod(missing, events)
    wanted = coded.interests.of_subscription[row] * events + event
    keys, got_row = _got_in_time(coded)
    place = index_in_sorted(keys, wanted)

    def describe(case: int) -> Witness:
        other = coded.subscriptions.describe(int(got_row[place[case]]))
        return _missing(coded, int(row[case]), int(event[case]), f"never came, but did at {other}")

    broken = np.flatnonzero(place >= 0)
    return Verdict(AGREEMENT, not len(broken), len(broken), first_witnesses(broken.tolist(), describe))


def _got_in_time(coded: Coded) -> tuple[Array, Array]:
    """`interest * events + event`, ascending, of what a subscription got that was in force at publication.

    With each the first row of `subscribed` that got it.
    """
    first, end = windows(coded)
    row, event = np.divmod(coded.delivered_keys, max(len(coded.events), 1))
    in_force = (event >= first[row]) & (event < end[row])
    row, event = row[in_force], event[in_force]
    keys, places = np.unique(
        coded.interests.of_subscription[row] * len(coded.events) + event, return_index=True
    )
    return keys, row[places]


def _missing(coded: Coded, row: int, event: int, what: str) -> Witness:
    subscriptions = coded.subscriptions
    event_id = coded.events.name(event)
    text = f"event {event_id}, selected by subscription {subscriptions.describe(row)}, {what}"
    return Witness(text, (event_id,), (subscriptions.subscriber_names[subscriptions.subscriber[row]],))
