"""Chooses the site that numbers each topic, and the topics' precedence, so that stamps seldom cross between sites.

The paper (ordering, section 5.1) hosts a topic where it is most popular and uses the topics' identifiers as precedence.
A topic's stamp then climbs whenever its group contains a topic of a higher site. Two clients with a stray interest are
enough for that: the groups of a site's most popular topics contain nearly everything.

Only higher-ranked topics make a stamp climb. So, of each pair in one group across two sites, the topic of less weight
moves to the end of the chain: a light vertex cover of these pairs. Its own stamps climb; those of the topics that
stayed no longer do. If popular topics of two sites are in one group, there is no light cover. Then only as many topics
move as make stamps cross less often, possibly none.

Clients come and go, and a placement that fits only the clients it was made for is worse than none: any client that
joins a topic that ranks too high makes others climb. Nobody knows where topics with few subscribers belong, so the
rarest ones are at the end of the chain from the beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise
from math import inf
from typing import Generic, TypeVar

from tidings.core.ordering.groups import SequencingGroups

Topic = TypeVar("Topic", bound=Hashable)
RARE_SHARE = 0.1
"""Maximum share of all publications on the topics that are at the end of the chain because they are rare."""


@dataclass(frozen=True)
class Placement(Generic[Topic]):
    """A precedence of topics, their sites, and what stamps are expected to cost."""

    topics: tuple[Topic, ...]
    """By descending precedence."""
    sites: tuple[int, ...]
    """The site of each topic. The topics of a site are adjacent."""
    local: float
    """Expected share of stamps made within one site."""
    crossings: float
    """Expected number of messages between sites per stamp: request, relays, answer."""
    is_local: tuple[bool, ...]
    """Whether the stamps of each topic are made within one site."""

    def starts(self) -> dict[int, int]:
        """Return site -> rank of its first topic, from the top of the chain down; sites without topics are omitted."""
        starts: dict[int, int] = {}
        for rank, site in enumerate(self.sites):
            starts.setdefault(site, rank)
        return starts

    def servers(self) -> list[tuple[int, list[Topic]]]:
        """Return the sites and their topics, from the top of the chain down."""
        found: list[tuple[int, list[Topic]]] = []
        for topic, site in zip(self.topics, self.sites, strict=True):
            if not found or found[-1][0] != site:
                found.append((site, []))
            found[-1][1].append(topic)
        return found


@dataclass(frozen=True)
class PlacementDemand:
    """The input of a placement; topics are indexes into the caller's list."""

    interest: list[list[int]]
    """Topic and site -> subscribers. Publishers are assumed to be where the subscribers are."""
    weights: list[float]
    groups: list[list[int]]
    homes: list[int]
    """The site where each topic is most popular."""
    sites: int

    def strangers(self, topic: int) -> list[int]:
        """Return the topics of its group that have another home."""
        home = self.homes[topic]
        return [other for other in self.groups[topic] if self.homes[other] != home]

    def away(self, topic: int, site: int) -> float:
        """Return the share of a topic's publishers that are not at the site."""
        everybody = sum(self.interest[topic])
        return 1 - (self.interest[topic][site] / everybody if everybody else 1 / self.sites)


@dataclass(frozen=True)
class _Layout:
    chain: list[int]
    """Sites by descending precedence."""
    site_of: list[int]
    sunk: frozenset[int]


def place(
    topics: Sequence[Topic],
    subscriptions: Iterable[tuple[int, Collection[Topic]]],
    sites: int,
    *,
    threshold: int = 2,
    rates: Mapping[Topic, float] | None = None,
    rare_share: float = RARE_SHARE,
) -> Placement[Topic]:
    """Place topics for clients, each given by its site (0 to `sites` - 1) and its topics.

    `threshold` is that of the groups. `rates` are the publication rates of the topics; without them, a topic's weight
    is its number of subscribers. A lower `rare_share` suits these clients better and others worse.
    """
    demand = _demand(topics, subscriptions, sites, threshold, rates)
    placed = place_known(demand, rare_share=rare_share)
    named = tuple(topics[number] for number in placed.topics)
    return Placement(named, placed.sites, placed.local, placed.crossings, placed.is_local)


def place_known(demand: PlacementDemand, *, rare_share: float = RARE_SHARE) -> Placement[int]:
    """Place topics whose interests and groups are known; topics are indexes into the demand."""
    if not 0 <= rare_share <= 1:
        raise ValueError(f"rare_share {rare_share} is not between 0 and 1")
    rare = _rare(demand, rare_share)
    cover = _light_cover(demand, rare)
    layouts = (_layout(demand, rare, frozenset(cover[:size])) for size in _sizes(len(cover)))
    return min((_placed(demand, layout) for layout in layouts), key=lambda placed: placed.crossings)


def measured(
    demand: PlacementDemand, order: Sequence[int], sites: Sequence[int], *, straight: bool = False
) -> Placement[int]:
    """Compute what stamps cost with this precedence and these sites.

    A stamp climbs through all servers up to the highest topic of its group. With `straight`, it goes directly from one
    topic of the group to the next.
    """
    rank_of = {topic: rank for rank, topic in enumerate(order)}
    server = [0, *accumulate(one != other for one, other in pairwise(sites))]
    is_local = [True] * len(order)
    total = local = crossings = 0.0
    for topic, weight in enumerate(demand.weights):
        rank = rank_of[topic]
        above = [at for other in demand.groups[topic] if (at := rank_of[other]) < rank]
        top = min(above, default=rank)
        climb = server[rank] - server[top]
        if straight:
            climb = sum(sites[one] != sites[other] for one, other in pairwise((*sorted(above), rank)))
        is_local[rank] = climb == 0
        total += weight
        local += weight * is_local[rank]
        crossings += weight * (climb + demand.away(topic, sites[rank]) + demand.away(topic, sites[top]))
    shares = (local / total, crossings / total) if total else (1.0, 0.0)
    return Placement(tuple(order), tuple(sites), *shares, tuple(is_local))


def _demand(
    topics: Sequence[Topic],
    subscriptions: Iterable[tuple[int, Collection[Topic]]],
    sites: int,
    threshold: int,
    rates: Mapping[Topic, float] | None,
) -> PlacementDemand:
    number_of = {topic: number for number, topic in enumerate(topics)}
    if sites < 1 or len(number_of) < len(topics):
        raise ValueError(f"{sites} sites, {len(topics)} topics: need a site, and distinct topics")
    interest = [[0] * sites for _ in topics]
    groups = SequencingGroups(range(len(topics)), threshold)
    for site, wanted in subscriptions:
        unknown = [topic for topic in wanted if topic not in number_of]
        if unknown or not 0 <= site < sites:
            raise ValueError(f"a client at site {site} of {sites}, unknown topics {unknown}")
        numbers = {number_of[topic] for topic in wanted}
        groups.change(set(), numbers, ())
        for number in numbers:
            interest[number][site] += 1
    return PlacementDemand(
        interest,
        _weights(topics, interest, rates),
        [sorted(groups.members(number)) for number in range(len(topics))],
        [max(range(sites), key=of_sites.__getitem__) for of_sites in interest],
        sites,
    )


def _weights(
    topics: Sequence[Topic], interest: list[list[int]], rates: Mapping[Topic, float] | None
) -> list[float]:
    if rates is None:
        return [float(sum(of_sites)) for of_sites in interest]
    known = set(topics)
    wrong = {topic: rate for topic, rate in rates.items() if topic not in known or not 0 <= rate < inf}
    if wrong:
        raise ValueError(f"unknown topics, or rates that are negative or not finite: {wrong}")
    return [float(rates.get(topic, 0.0)) for topic in topics]


def _rare(demand: PlacementDemand, share: float) -> frozenset[int]:
    """Return the topics with the fewest subscribers, up to that share of the weight, and those without any."""
    left = share * sum(demand.weights)
    rare = set()
    for topic in sorted(range(len(demand.weights)), key=lambda topic: (sum(demand.interest[topic]), topic)):
        if any(demand.interest[topic]):
            left -= demand.weights[topic]
            if left < 0:
                break
        rare.add(topic)
    return frozenset(rare)


def _light_cover(demand: PlacementDemand, rare: frozenset[int]) -> list[int]:
    """Return topics that cover every pair in one group across two sites, those that cover most per weight first."""
    open_pairs = {
        topic: {*demand.strangers(topic)} - rare for topic in range(len(demand.homes)) if topic not in rare
    }
    heap = [(demand.weights[topic] / len(pairs), topic) for topic, pairs in open_pairs.items() if pairs]
    heapify(heap)
    cover: dict[int, None] = {}
    while heap:
        price, topic = heappop(heap)
        pairs = open_pairs[topic]
        if not pairs:
            continue
        current = demand.weights[topic] / len(pairs)
        if current > price:  # some of its pairs were covered since
            heappush(heap, (current, topic))
            continue
        cover[topic] = None
        for other in pairs:
            open_pairs[other].discard(topic)
        pairs.clear()
    for topic in sorted(cover, key=lambda topic: -demand.weights[topic]):
        if all(other in cover or other in rare for other in demand.strangers(topic)):
            del cover[topic]
    return list(cover)


def _sizes(longest: int) -> list[int]:
    """Return 0, 1, 2, 4, ... and the longest."""
    return sorted({0, longest, *(1 << power for power in range(longest.bit_length()))})


def _layout(demand: PlacementDemand, rare: frozenset[int], cover: frozenset[int]) -> _Layout:
    """Keep topics at home, except for those that move to the last site of the chain."""
    moved = rare | cover
    chain = _chain(demand, moved)
    position = {site: at for at, site in enumerate(chain)}
    sunk = rare | {topic for topic in cover if _hinders(demand, topic, position, moved)}
    site_of = [chain[-1] if topic in sunk else home for topic, home in enumerate(demand.homes)]
    return _Layout(chain, site_of, sunk)


def _chain(demand: PlacementDemand, moved: frozenset[int]) -> list[int]:
    """Order the sites: those whose stamps would climb most first, those with most interest in moved topics last."""
    gain = [0.0] * demand.sites
    for topic, home in enumerate(demand.homes):
        if topic not in moved:
            others = sorted({demand.homes[other] for other in demand.strangers(topic) if other not in moved})
            gain[home] += demand.weights[topic] * len(others)
            for other in others:
                gain[other] -= demand.weights[topic]
    wanted = [sum(demand.interest[topic][site] for topic in moved) for site in range(demand.sites)]
    return sorted(range(demand.sites), key=lambda site: (-gain[site], wanted[site], site))


def _hinders(demand: PlacementDemand, topic: int, position: Mapping[int, int], moved: frozenset[int]) -> bool:
    """Return whether, at its home, the topic would make the stamps of a lower topic climb."""
    here = position[demand.homes[topic]]
    return any(
        other not in moved and position[demand.homes[other]] > here for other in demand.strangers(topic)
    )


def _placed(demand: PlacementDemand, layout: _Layout) -> Placement[int]:
    """Rank the topics of a site by descending weight, those that were moved there last."""
    position = {site: at for at, site in enumerate(layout.chain)}
    order = sorted(
        range(len(layout.site_of)),
        key=lambda topic: (
            position[layout.site_of[topic]],
            topic in layout.sunk,
            -demand.weights[topic],
            topic,
        ),
    )
    return measured(demand, order, [layout.site_of[topic] for topic in order])
