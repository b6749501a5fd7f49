"""The size of stamps, and the readings of the paper's power law; for benchmarks/ordering.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from output import progress

from tidings.core.ordering.groups import SequencingGroups
from tidings.studies.ordering.load import (
    DRAWS,
    SHAPES,
    TOPICS,
    Floats,
    draw_different,
    pareto,
    zipf,
)

PAPER_MEAN = {0.349: 46, 0.901: 17}
NOBODY: frozenset[int] = frozenset()


class Sizes(NamedTuple):
    shape: float
    threshold: int
    topics_per_client: int
    mean: float
    p50: float
    p95: float
    max: int
    mean_over_events: float
    paper: int | None


def sizes(quick: bool) -> Iterator[Sizes]:
    clients, most = (1000, 10) if quick else (10_000, 20)
    for shape in SHAPES:
        chances = pareto(shape)
        draws = draw_different(chances, clients, most, np.random.default_rng(1))
        for threshold in (2, 1):
            progress(f"sizes: shape {shape}, threshold {threshold}")
            groups = SequencingGroups(range(TOPICS), threshold)
            for count in range(1, most + 1):
                for topics in draws:
                    groups.change(frozenset(topics[: count - 1]), frozenset(topics[:count]), ())
                entries = entries_of(groups)
                p50, p95 = np.quantile(entries, (0.5, 0.95)).tolist()
                published = (threshold, count, clients) == (2, 10, 10_000)
                yield Sizes(
                    shape,
                    threshold,
                    count,
                    float(entries.mean()),
                    p50,
                    p95,
                    int(entries.max()),
                    float(entries @ chances),
                    PAPER_MEAN[shape] if published else None,
                )


def entries_of(groups: SequencingGroups) -> Floats:
    return np.array([len(groups.members(topic)) for topic in range(TOPICS)], dtype=np.float64)


class Reading(NamedTuple):
    law: str
    topics_drawn: str
    shape: float
    percent_of_topics_with_80_percent: float
    mean_over_topics: float
    mean_over_subscribed_topics: float
    mean_over_events: float
    paper: int


def steeper_zipf(shape: float) -> Floats:
    return zipf(1 + shape)


LAWS: dict[str, Callable[[float], Floats]] = {
    "Pareto": pareto,
    "rank ** -shape": zipf,
    "rank ** -(1 + shape)": steeper_zipf,
}


def readings(quick: bool) -> Iterator[Reading]:
    for law, chances_of in LAWS.items():
        for drawn, draw in DRAWS.items():
            progress(f"readings: {law}, {drawn}")
            for shape in SHAPES:
                chances = chances_of(shape)
                groups = SequencingGroups(range(TOPICS), 2)
                subscribed: set[int] = set()
                for topics in draw(chances, 1000 if quick else 10_000, 10, np.random.default_rng(1)):
                    groups.change(NOBODY, frozenset(topics), ())
                    subscribed.update(topics)
                entries = entries_of(groups)
                head = int(np.searchsorted(np.cumsum(chances), 0.8)) + 1
                yield Reading(
                    law,
                    drawn,
                    shape,
                    100 * head / TOPICS,
                    float(entries.mean()),
                    float(entries[sorted(subscribed)].mean()),
                    float(entries @ chances),
                    PAPER_MEAN[shape],
                )
