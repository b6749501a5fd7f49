"""Total order: two subscribers that see the same two events see them in the same order.

Exact and near-linear. Draw an edge from each delivery of a subscriber to its next. If two subscribers
disagree on two events, there is a path from either to the other, so both lie in one strongly connected
component. Only inside components of more than one event are pairs of subscribers compared: a cycle need not
mean that any two of them disagree (three subscribers that see ab, bc and ca do not).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tidings.trace.coded import Array, Coded, segment_starts
from tidings.trace.reader import Trace
from tidings.trace.verdict import Verdict, Witness, first_witnesses

TOTAL_ORDER = "total_order"


class _Inversion(NamedTuple):
    """Delivery rows: `first` sees its pair as (a, b), `second` as (b, a)."""

    first: tuple[int, int]
    second: tuple[int, int]


def total_order(trace: Trace, *, orders: frozenset[str] | None = None) -> Verdict:
    """No two subscribers see two events in different orders; counts pairs of subscribers that do.

    Deliveries declared out of order are set aside. A subscriber's order is that of its positions over all its
    subscriptions; an event that several of them got counts where it came first. `orders` limits the check to
    subscriptions that asked for one of these.
    """
    coded = trace.coded
    disagreeing: dict[tuple[int, int], _Inversion] = {}
    for rows in _suspicious_components(coded, coded.ordered_rows(orders)):
        for inversion in _inversions(coded, rows):
            pair = (int(coded.subscriber[inversion.first[0]]), int(coded.subscriber[inversion.second[0]]))
            disagreeing.setdefault(pair, inversion)
    cases = [disagreeing[pair] for pair in sorted(disagreeing)]
    witnesses = first_witnesses(cases, lambda inversion: _witness(coded, inversion))
    return Verdict(TOTAL_ORDER, not cases, len(cases), witnesses)


def _suspicious_components(coded: Coded, rows: Array) -> Iterator[Array]:
    """The rows of each component of several events, by subscriber and position."""
    event, subscriber = coded.event[rows], coded.subscriber[rows]
    same = subscriber[1:] == subscriber[:-1]
    edges = (event[:-1][same], event[1:][same])
    size = len(coded.events)
    graph = coo_array((np.ones(len(edges[0]), dtype=np.int8), edges), shape=(size, size))
    _, component_of = connected_components(graph, directed=True, connection="strong")
    events_in = np.bincount(component_of, minlength=1)
    component = component_of[event]
    suspicious = events_in[component] > 1
    rows, component = rows[suspicious], component[suspicious]
    order = np.argsort(component, kind="stable")
    bounds = np.flatnonzero(segment_starts(component[order]))
    yield from (part for part in np.split(rows[order], bounds) if len(part))


def _inversions(coded: Coded, rows: Array) -> Iterator[_Inversion]:
    """One inversion for each two subscribers that have any, both having rows in this component."""
    _, event = np.unique(coded.event[rows], return_inverse=True)
    subscriber = coded.subscriber[rows]
    bounds = [*np.flatnonzero(segment_starts(subscriber)), len(rows)]
    place_of = np.full(len(rows), -1, dtype=np.int64)
    for start, end in pairwise(bounds[:-1]):
        mine = event[start:end]
        place_of[mine] = np.arange(start, end)
        place = place_of[event[end:]]
        shared = np.flatnonzero(place >= 0)
        place, theirs = place[shared], subscriber[end:][shared]
        place_of[mine] = -1
        falls = np.flatnonzero((place[1:] < place[:-1]) & (theirs[1:] == theirs[:-1]))
        for fall in falls[segment_starts(theirs[falls])]:
            later, earlier = shared[fall] + end, shared[fall + 1] + end
            yield _Inversion(
                (int(rows[place[fall + 1]]), int(rows[place[fall]])), (int(rows[later]), int(rows[earlier]))
            )


def _witness(coded: Coded, inversion: _Inversion) -> Witness:
    (first_a, first_b), (second_b, second_a) = inversion
    a, b = coded.event_id(first_a), coded.event_id(first_b)
    names = (coded.subscriber_name(first_a), coded.subscriber_name(second_a))
    rows = (first_a, first_b, second_b, second_a)
    positions = tuple(int(coded.position[row]) for row in rows)
    text = (
        f"subscriber {names[0]} sees {a} (position {positions[0]}) before {b} ({positions[1]}), "
        f"subscriber {names[1]} sees {b} ({positions[2]}) before {a} ({positions[3]})"
    )
    return Witness(text, (a, b), names, positions)
