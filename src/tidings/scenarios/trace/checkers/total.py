"""Checks total order: two subscribers that see the same two events see them in the same order.

The check is exact and near-linear. Draw an edge from each delivery of a subscriber to its next. If two subscribers
disagree on two events, there is a path from either event to the other, so both lie in one strongly connected
component. Pairs of subscribers are compared only inside components of more than one event. A cycle does not mean
that two of them disagree: three subscribers that see ab, bc and ca do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tidings.extras import need
from tidings.scenarios.trace.coded import Array, Coded, segment_starts
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.verdict import Case, Found, Verdict, Witness, first_cases, verdict_of

TOTAL_ORDER = "total_order"

Edges = tuple[Array, Array]
"""Pairs of event numbers."""
SmallEdges = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


class ShownRows(NamedTuple):
    """Holds deliveries, sorted by subscriber and position; `component` is the event's.

    A subscriber is a `Coded.viewer` here: a durable subscription is one of its own.
    """

    component: Array
    subscriber: Array
    event: Array
    position: Array


class Named(Protocol):
    """Gives an event's name by its number."""

    def name(self, event: int) -> str: ...


class _Inversion(NamedTuple):
    """Holds places in `ShownRows`: one subscriber sees `first` as (a, b), the other sees `second` as (b, a)."""

    first: tuple[int, int]
    second: tuple[int, int]


def total_order(trace: Trace, *, orders: frozenset[str] | None = None) -> Verdict:
    """Check that no two subscribers see two events in different orders; count the pairs of subscribers that do.

    Ignores deliveries declared out of order. A subscriber's order is that of its positions over all its
    subscriptions; an event that several of them got counts at its first position. `orders` limits the check to
    subscriptions with one of these orders.
    """
    coded = trace.coded
    rows = coded.ordered_rows(orders)
    suspects = components(order_edges(coded, rows), len(coded.events))
    found = find_inversions(coded.events, coded.subscriptions.viewer_names, shown(coded, rows, suspects))
    return verdict_of(TOTAL_ORDER, [found])


def order_edges(coded: Coded, rows: Array) -> Edges:
    """Return an edge from each of these deliveries to the same viewer's next."""
    event, viewer = coded.event[rows], coded.viewer[rows]
    same = viewer[1:] == viewer[:-1]
    return event[:-1][same], event[1:][same]


def components(edges: Edges | SmallEdges, size: int) -> Array:
    """Return the component of each of `size` events, named by its lowest event; -1 for a component of one event."""
    need("the check of a total order", "sim", "scipy")
    # Imported here: scipy takes longer to import than all checkers together.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(edges[0]), dtype=np.int8), edges), shape=(size, size))
    _, label = connected_components(graph, directed=True, connection="strong")
    together = np.flatnonzero((np.bincount(label, minlength=1) > 1)[label])
    component = np.full(size, -1, dtype=np.int64)
    _, first, inverse = np.unique(label[together], return_index=True, return_inverse=True)
    component[together] = together[first[inverse]]
    return component


def shown(coded: Coded, rows: Array, component_of: Array) -> ShownRows:
    """Return the deliveries whose events are not alone in their components."""
    rows = rows[component_of[coded.event[rows]] >= 0]
    event = coded.event[rows]
    return ShownRows(component_of[event], coded.viewer[rows], event, coded.position[rows])


def find_inversions(events: Named, names: Sequence[str], rows: ShownRows) -> Found:
    """Find the pairs of subscribers that disagree, each with its first inversion in the first component with one."""
    disagreeing: dict[tuple[int, int], _Inversion] = {}
    order = np.argsort(rows.component, kind="stable")
    bounds = np.flatnonzero(segment_starts(rows.component[order]))
    for part in np.split(order, bounds[1:]):
        for inversion in _inversions(rows, part):
            pair = (int(rows.subscriber[inversion.first[0]]), int(rows.subscriber[inversion.second[0]]))
            disagreeing.setdefault(pair, inversion)

    def describe(pair: tuple[int, int]) -> Case:
        return Case(pair, _witness(events, names, rows, disagreeing[pair]))

    return Found(len(disagreeing), first_cases(sorted(disagreeing), describe))


def _inversions(shown: ShownRows, rows: Array) -> Iterator[_Inversion]:
    """Yield one inversion for each pair of subscribers that disagree in this component."""
    _, event = np.unique(shown.event[rows], return_inverse=True)
    subscriber = shown.subscriber[rows]
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


def _witness(events: Named, names: Sequence[str], rows: ShownRows, inversion: _Inversion) -> Witness:
    (first_a, first_b), (second_b, second_a) = inversion
    a, b = events.name(rows.event[first_a]), events.name(rows.event[first_b])
    who = (names[rows.subscriber[first_a]], names[rows.subscriber[second_a]])
    positions = tuple(int(rows.position[row]) for row in (first_a, first_b, second_b, second_a))
    text = (
        f"subscriber {who[0]} sees {a} (position {positions[0]}) before {b} ({positions[1]}), "
        f"subscriber {who[1]} sees {b} ({positions[2]}) before {a} ({positions[3]})"
    )
    return Witness(text, (a, b), who, positions)
