"""The load of the ordering paper (section 5.2): how popular topics are, who subscribes to what, and the resulting
groups.

We read the paper's 'power law of shape s' as the integer part of a Pareto variable of that shape, and a subscription of
n topics as n different ones: this reading gives the paper's sizes of stamps (benchmarks/README.md compares readings).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

TOPICS = 1000
SITES = 5
SHAPES = (0.349, 0.901)
SPRAY, GEOGRAPHIC = SHAPES
"""'Spray-and-diffuse' and 'geographic topic popularity', as the paper calls them."""
Floats = np.ndarray[Any, np.dtype[np.float64]]
Topics = np.ndarray[Any, np.dtype[np.int64]]
"""A row of topics per client, in the order drawn."""
Draws = list[list[int]]
"""The topics of each client, as drawn."""


def pareto(shape: float, topics: int = TOPICS) -> Floats:
    """Return the probabilities of the integer part of a Pareto variable, at most `topics`: P(rank > r) falls as r **
    -shape."""
    ranks = np.arange(1.0, topics + 1)
    weights = ranks**-shape - (ranks + 1) ** -shape
    return np.asarray(weights / weights.sum())


def zipf(shape: float, topics: int = TOPICS) -> Floats:
    weights = np.arange(1.0, topics + 1) ** -shape
    return np.asarray(weights / weights.sum())


def draw_in_order(chances: Floats, clients: int, count: int, random: np.random.Generator) -> Topics:
    """Draw different topics one by one, in proportion to what is left: the first arrivals of a race of exponential
    times."""
    arrivals = random.exponential(size=(clients, len(chances))) / chances
    if count == len(chances):
        return np.asarray(arrivals.argsort(axis=1))
    first = np.argpartition(arrivals, count, axis=1)[:, :count]
    order = np.take_along_axis(arrivals, first, axis=1).argsort(axis=1)
    return np.take_along_axis(first, order, axis=1)


def draw_different(chances: Floats, clients: int, count: int, random: np.random.Generator) -> Draws:
    drawn: Draws = draw_in_order(chances, clients, count, random).tolist()
    return drawn


def draw_repeated(chances: Floats, clients: int, count: int, random: np.random.Generator) -> Draws:
    """Draw with repetition; duplicates count once, so these clients have fewer topics."""
    drawn = random.choice(len(chances), size=(clients, count), p=chances).tolist()
    return [list(dict.fromkeys(topics)) for topics in drawn]


DRAWS = {"different": draw_different, "repeated": draw_repeated}


def entries_by_topic(drawn: Topics, topics: int, threshold: int = 2) -> Floats:
    """Return for each topic how many others at least `threshold` clients have with it: what `Groups` finds one by
    one."""
    member = np.zeros((len(drawn), topics), dtype=np.float32)
    np.put_along_axis(member, drawn, 1.0, axis=1)
    together = member.T @ member
    np.fill_diagonal(together, 0.0)
    return np.asarray((together >= threshold).sum(axis=1), dtype=np.float64)


def popularity_at(
    site: int, shape: float, topics: int = TOPICS, shuffled: np.random.Generator | None = None
) -> Floats:
    """Return the popularity of topics at a site: its own topics first, by identifier, then the others, perhaps
    shuffled."""
    own = topics // SITES
    by_rank = (np.arange(topics) + site * own) % topics
    if shuffled is not None:
        by_rank[own:] = shuffled.permutation(by_rank[own:])
    chances = np.empty(topics)
    chances[by_rank] = pareto(shape, topics)
    return chances


def clients_at_sites(
    chances: Sequence[Floats], clients: int, count: int, drawn: str, random: np.random.Generator
) -> list[tuple[int, list[int]]]:
    """Return the clients, equally many per site, each with its site and topics."""
    draw = DRAWS[drawn]
    return [
        (site, topics)
        for site in range(SITES)
        for topics in draw(chances[site], clients // SITES, count, random)
    ]
