"""Generates the clients of [workload] from the scenario's seed.

Topics are `/t0`, `/t1`, ... by falling popularity. A subscriber draws different topics, one after the other, by
popularity (the ordering paper's power-law subscriptions). A publisher publishes on all topics equally often. Clients
are dealt to the brokers in a shuffled order, so their numbers differ by at most one.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from tidings.scenarios.file.schema import Popularity, PowerlawPopularity, Publisher, SubscriberTable, Workload

DEFAULT_TOPICS_PER_SUBSCRIBER = 10


def publisher_names(workload: Workload) -> Iterator[str]:
    return (f"p{index}" for index in range(workload.publishers))


def subscriber_names(workload: Workload) -> Iterator[str]:
    return (f"s{index}" for index in range(workload.subscribers))


def topics_per_subscriber(workload: Workload) -> int:
    if workload.topics_per_subscriber is None:
        return min(DEFAULT_TOPICS_PER_SUBSCRIBER, workload.topics)
    return workload.topics_per_subscriber


def topic_weights(popularity: Popularity, topics: int) -> list[float]:
    """Return the weight of each topic by rank; the first is 1."""
    if isinstance(popularity, PowerlawPopularity):
        return [float(rank + 1) ** -popularity.shape for rank in range(topics)]
    return [1.0] * topics


def generate_clients(
    workload: Workload, brokers: Sequence[str], seed: int
) -> tuple[tuple[Publisher, ...], tuple[SubscriberTable, ...]]:
    """Return the publishers and subscribers; without brokers (mode peers), `at` is the client's own name."""
    generator = random.Random(f"{seed}:workload")
    topics = tuple(f"/t{rank}" for rank in range(workload.topics))
    seats = _seats(brokers, generator)
    publishers = tuple(
        _publisher(workload, name, next(seats, name), topics) for name in publisher_names(workload)
    )
    draw = _TopicDraw(topic_weights(workload.popularity, workload.topics), generator)
    count = topics_per_subscriber(workload)
    subscribers = tuple(
        SubscriberTable(
            name=name,
            at=next(seats, name),
            topics=tuple(topics[rank] for rank in sorted(draw.distinct(count))),
            order=workload.order,
        )
        for name in subscriber_names(workload)
    )
    return publishers, subscribers


def _publisher(workload: Workload, name: str, at: str, topics: tuple[str, ...]) -> Publisher:
    return Publisher(
        name=name,
        at=at,
        topics=topics,
        rate_hz=workload.rate_hz,
        count=workload.count,
        arrival=workload.arrival,
        size_bytes=workload.size_bytes,
    )


def _seats(brokers: Sequence[str], generator: random.Random) -> Iterator[str]:
    """Cycle through all brokers in a shuffled order, for ever."""
    order = list(brokers)
    generator.shuffle(order)
    while order:
        yield from order


class _TopicDraw:
    """Draws ranks without replacement, each in proportion to the weights of the remaining ones."""

    def __init__(self, weights: list[float], generator: random.Random) -> None:
        self._weights = weights
        self._cumulative = list(accumulate(weights))
        self._generator = generator

    def distinct(self, count: int) -> list[int]:
        """Draw `count` different ranks: rejects duplicates, and switches to an exact method once they are too many."""
        drawn: dict[int, None] = {}
        attempts = 4 * count
        while len(drawn) < count and attempts > 0:
            attempts -= 1
            drawn[self._any()] = None
        if len(drawn) < count:
            drawn |= dict.fromkeys(self._from_rest(drawn, count - len(drawn)))
        return list(drawn)

    def _any(self) -> int:
        point = self._generator.random() * self._cumulative[-1]
        return min(bisect_right(self._cumulative, point), len(self._weights) - 1)

    def _from_rest(self, drawn: dict[int, None], count: int) -> list[int]:
        """Draw by exponential race: taking the first `count` ranks to arrive draws them in proportion to weight."""
        arrivals = [
            (self._generator.expovariate(1.0) / weight, rank)
            for rank, weight in enumerate(self._weights)
            if rank not in drawn
        ]
        return [rank for _, rank in sorted(arrivals)[:count]]
