"""Where entries are numbered and in which precedence: the plan's placement, and naive ones to compare it with.

A stamp is local when it is made within one site. Its crossings are the messages between sites: the publisher's request,
the climbing, the answer. Publishers are taken to be where subscribers are.

- planned: `ordering.placement`, with patterns behind what they overlap with. It keeps some of the precedence free for
  clients to come, so for the very clients of the table another placement can be better.
- identifiers: the entries by identifier, an equal share of them at each site, by the sites' listing.
- popularity: an entry is numbered where it is most popular, and the precedence is by identifier (paper ordering,
  section 5.1). A site's entries are then not next to each other, and a stamp passes every server between.
- paper: the same with the paper's rule, by which a stamp goes straight from one topic of the group to the next. Stamps
  can then overtake each other, and subscribers wait for ever: it is there for comparison alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tidings.core.ordering import placement as placing
from tidings.spark.plan.counts import Flags, Ints, SubscriptionCounts
from tidings.spark.plan.entries import PlanEntries

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Placed:
    """Entries by falling precedence, with the site of each, and what that is expected to cost."""

    order: tuple[int, ...]
    sites: tuple[int, ...]
    local: float
    """The share of the stamps that are made within one site."""
    crossings: float
    """Messages between sites per stamp."""
    is_local: tuple[bool, ...]
    """Of each entry, by falling precedence."""

    def servers(self) -> list[tuple[int, list[int]]]:
        """Sites and their entries, from the top of the chain down."""
        found: list[tuple[int, list[int]]] = []
        for number, site in zip(self.order, self.sites, strict=True):
            if not found or found[-1][0] != site:
                found.append((site, []))
            found[-1][1].append(number)
        return found


@dataclass(frozen=True)
class PlannedDemand:
    counts: SubscriptionCounts
    groups: Flags
    weights: Floats
    """Of each entry, how much is published on it."""

    @property
    def sites(self) -> int:
        return int(self.counts.interest.shape[1])

    def homes(self) -> Ints:
        """The site where an entry is most popular; the first of several."""
        return np.asarray(np.argmax(self.counts.interest, axis=1))

    def away(self) -> Floats:
        """Entry and site -> the share of the entry's publishers that are not there."""
        interest = self.counts.interest.astype(np.float64)
        everybody = interest.sum(axis=1, keepdims=True)
        there = np.divide(
            interest, everybody, out=np.full_like(interest, 1 / self.sites), where=everybody > 0
        )
        return np.asarray(1 - there)


def planned(entries: PlanEntries, demand: PlannedDemand) -> Placed:
    """The placement's precedence. A pattern that has to stand behind others goes to the last site of the chain."""
    if not len(entries):
        return measured(demand, (), ())
    found = _place(demand)
    site_of = dict(zip(found.topics, found.sites, strict=True))
    order = entries.with_patterns_behind(found.topics)
    moved = frozenset(entries.behind())
    staying = [site_of[number] for number in order if number not in moved]
    last = staying[-1] if staying else found.sites[-1]
    return measured(demand, order, [last if number in moved else site_of[number] for number in order])


def _place(demand: PlannedDemand) -> placing.Placement[int]:
    """`placing.place` would count pairs client by client; here they are counted."""
    return placing.place_known(
        placing.PlacementDemand(
            demand.counts.interest.tolist(),
            demand.weights.tolist(),
            [np.flatnonzero(members).tolist() for members in demand.groups],
            demand.homes().tolist(),
            demand.sites,
        )
    )


def by_identifier(entries: PlanEntries, demand: PlannedDemand) -> Placed:
    order = entries.with_patterns_behind(range(len(entries)))
    return measured(demand, order, [place * demand.sites // len(order) for place in range(len(order))])


def by_popularity(entries: PlanEntries, demand: PlannedDemand, *, straight: bool) -> Placed:
    order = entries.with_patterns_behind(range(len(entries)))
    homes = demand.homes()
    return measured(demand, order, [int(homes[number]) for number in order], straight=straight)


def placements(entries: PlanEntries, demand: PlannedDemand) -> Mapping[str, Placed]:
    return {
        "planned": planned(entries, demand),
        "identifiers": by_identifier(entries, demand),
        "popularity": by_popularity(entries, demand, straight=False),
        "paper": by_popularity(entries, demand, straight=True),
    }


def measured(
    demand: PlannedDemand, order: Sequence[int], sites: Sequence[int], *, straight: bool = False
) -> Placed:
    """What the stamps cost; `straight`: they go from topic to topic of the group, else through all servers between."""
    ranked = np.asarray(order, dtype=np.int64)
    at = np.asarray(sites, dtype=np.int64)
    climbs = np.zeros(len(ranked), dtype=np.int64)
    ends = np.arange(len(ranked))
    server = np.cumsum(at != np.concatenate([at[:1], at[:-1]]))
    for rank, number in enumerate(order):
        above = np.flatnonzero(demand.groups[number, ranked[:rank]])
        if len(above):
            ends[rank] = above[0]
            climbs[rank] = _changes([*at[above], at[rank]]) if straight else server[rank] - server[above[0]]
    away, weights = demand.away(), demand.weights[ranked]
    crossings = climbs + away[ranked, at] + away[ranked, at[ends]]
    is_local = climbs == 0
    total = float(weights.sum())
    return Placed(
        tuple(order),
        tuple(sites),
        float(weights @ is_local) / total if total else 1.0,
        float(weights @ crossings) / total if total else 0.0,
        tuple(is_local.tolist()),
    )


def _changes(path: Sequence[int]) -> int:
    return sum(one != other for one, other in pairwise(path))
