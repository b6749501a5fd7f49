"""Decides where entries are numbered and in which precedence: the plan's placement, and naive ones for comparison.

A stamp is local when it is made within one site. Its crossings are the messages between sites: the publisher's request,
the climbing, the answer. Publishers are assumed to be where subscribers are.

- planned: `ordering.placement`, with patterns after what they overlap with. It keeps some of the precedence free for
  future clients, so another placement can be better for exactly the clients of the table.
- identifiers: the entries by identifier, an equal share of them at each site, in the order of the list of sites.
- popularity: an entry is numbered where it is most popular, and the precedence is by identifier (paper ordering,
  section 5.1). A site's entries are then not adjacent, and a stamp passes every server in between.
- paper: the same with the paper's rule, by which a stamp goes straight from one topic of the group to the next. Stamps
  can then overtake each other, and subscribers wait forever: for comparison only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tidings.core.ordering.placement import Placement, PlacementDemand, measured, place_known
from tidings.spark.plan.counts import Flags, SubscriptionCounts
from tidings.spark.plan.entries import PlanEntries
from tidings.spark.plan.sizes import Floats


def demand_of(counts: SubscriptionCounts, groups: Flags, weights: Floats) -> PlacementDemand:
    """Return the demand; `weights` is how much is published on each entry. `ordering.placement` would count pairs
    client by client; here they are counted already."""
    return PlacementDemand(
        counts.interest.tolist(),
        weights.tolist(),
        [np.flatnonzero(members).tolist() for members in groups],
        np.argmax(counts.interest, axis=1).tolist(),
        counts.interest.shape[1],
    )


def planned(entries: PlanEntries, demand: PlacementDemand) -> Placement[int]:
    """Return the plan's placement. A pattern that must come after others goes to the last site of the chain."""
    if not len(entries):
        return measured(demand, (), ())
    found = place_known(demand)
    site_of = dict(zip(found.topics, found.sites, strict=True))
    order = entries.with_patterns_behind(found.topics)
    moved = frozenset(entries.behind())
    staying = [site_of[number] for number in order if number not in moved]
    last = staying[-1] if staying else found.sites[-1]
    return measured(demand, order, [last if number in moved else site_of[number] for number in order])


def placements(entries: PlanEntries, demand: PlacementDemand) -> Mapping[str, Placement[int]]:
    order = entries.with_patterns_behind(range(len(entries)))
    shares = [place * demand.sites // len(order) for place in range(len(order))]
    homes = [demand.homes[number] for number in order]
    return {
        "planned": planned(entries, demand),
        "identifiers": measured(demand, order, shares),
        "popularity": measured(demand, order, homes),
        "paper": measured(demand, order, homes, straight=True),
    }
