"""Checks FIFO: a subscriber sees the events of each source in the order of their sequence numbers."""

from __future__ import annotations

import numpy as np

from tidings.scenarios.trace.coded import Coded, highest_before
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Case, Found, Verdict, Witness, first_cases, verdict_of

FIFO = "fifo"


def fifo(trace: Trace, *, orders: frozenset[str] | None = None) -> Verdict:
    """Check that along a subscriber's positions, the sequence numbers of each source increase.

    Ignores deliveries declared out of order. A delivery is a violation if an earlier one had an equal or higher
    sequence number. `orders` limits the check to subscriptions with one of these orders.

    A durable subscription is a subscriber of its own: the order holds across all who attach to it, one after the other,
    for the first delivery of each event. Groups promise no such order.
    """
    return verdict_of(FIFO, [find_unordered(trace.coded, orders)])


def find_unordered(coded: Coded, orders: frozenset[str] | None) -> Found:
    events = coded.events
    rows = coded.ordered_rows(orders)
    stream = coded.viewer[rows] * len(events.source_names) + events.source[coded.event[rows]]
    rows = rows[np.argsort(stream, kind="stable")]
    rank = events.sequence_rank[coded.event[rows]]
    broken = np.flatnonzero(rank <= highest_before(np.sort(stream), rank))

    def describe(place: int) -> Case:
        row = rows[place]
        # Some earlier delivery in the stream is higher; the nearest one explains most.
        earlier = place - 1
        while rank[earlier] < rank[place]:
            earlier -= 1
        pair = (coded.event_id(rows[earlier]), coded.event_id(row))
        positions = (int(coded.position[rows[earlier]]), int(coded.position[row]))
        name = coded.subscriber_name(row)
        text = (
            f"subscriber {name} sees {pair[0]} at position {positions[0]}, then {pair[1]} at {positions[1]}"
        )
        if coded.durable[row]:
            whose = coded.subscriptions.shares.name(int(coded.subscription[row]))
            before = coded.subscriber_name(rows[earlier])
            text = f"{whose} shows {pair[0]} to {before}, then {pair[1]} to {name}"
        return Case((int(coded.viewer[row]), place), Witness(text, pair, (name,), positions))

    return Found(len(broken), first_cases(broken.tolist(), describe))
