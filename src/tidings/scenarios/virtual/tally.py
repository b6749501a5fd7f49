"""Keeps the counts of `summary.json` while a run goes on, in bounded memory.

An event is expected by every matching subscription that was accepted and not cancelled when the event was published.
This is decided here, from filters and topics alone, not by the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidings.core.events.event import RESERVED_ATTRIBUTE
from tidings.core.events.subscription import Interest
from tidings.core.filters.language.predicates import Scalar
from tidings.core.filters.matching.interest_index import InterestIndex
from tidings.core.structures.histogram import Histogram
from tidings.scenarios.trace.metrics import NS_PER_MS, Latency, Metrics, delivery_ratio


class SharedCounts(Protocol):
    """Counts what a durable subscription or group expects."""

    @property
    def expected(self) -> int: ...
    @property
    def expiring(self) -> int: ...
    def published(self, topic: str, attributes: Mapping[str, Scalar], at: int, *, expires: bool) -> None: ...


class Tally:
    def __init__(self) -> None:
        self.shares: list[SharedCounts] = []
        self.published = 0
        self.blocks = 0
        """Published events, counted in blocks."""
        self.recovered = 0
        self.delivered = 0
        self.expected = 0
        self.expected_delivered = 0
        self.expiring = 0
        """Of the expected deliveries, those of events that expire; `expiring_delivered` of these arrived."""
        self.expiring_delivered = 0
        self.duplicates = 0
        self.out_of_order = 0
        self.latency_ns = Histogram()
        self._coming: list[tuple[int, Interest]] = []
        """Accepted interests with the time, maybe still ahead, from which they expect events."""
        self._holders: dict[Interest, int] = {}
        self._index: InterestIndex[Interest] = InterestIndex()

    def metrics(self) -> Metrics:
        latency = self.latency_ns
        expiring = self.expiring + sum(share.expiring for share in self.shares)
        expired = expiring - self.expiring_delivered
        expected = self.expected + sum(share.expected for share in self.shares) - expired
        return Metrics(
            self.published,
            self.delivered,
            expected,
            delivery_ratio(expected, expected - self.expected_delivered),
            self.duplicates,
            self.out_of_order,
            Latency(
                latency.mean / NS_PER_MS,
                latency.deviation / NS_PER_MS,
                latency.quantile(0.5) / NS_PER_MS,
                latency.quantile(0.99) / NS_PER_MS,
                latency.maximum / NS_PER_MS,
            ),
            expired,
        )

    def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar],
        published_at: int,
        blocks: int = 1,
        *,
        expires: bool = False,
    ) -> None:
        """Count an event and the subscriptions that expect it; called when the application publishes it."""
        self.published += 1
        self.blocks += blocks
        for share in self.shares:
            share.published(topic, attributes, published_at, expires=expires)
        if self._coming:
            self._count_from(published_at)
        holders = self._holders
        for interest in self._index.match(topic, lambda: {**attributes, RESERVED_ATTRIBUTE: topic}):
            self.expected += holders[interest]
            if expires:
                self.expiring += holders[interest]

    def accepted(self, interest: Interest, at: int) -> None:
        """Expect, for a subscription with this interest, what is published from `at` on."""
        self._coming.append((at, interest))

    def _count_from(self, now: int) -> None:
        for _, interest in [entry for entry in self._coming if entry[0] <= now]:
            if interest not in self._holders:
                self._holders[interest] = 0
                self._index.add(interest, interest.topics, interest.pattern)
            self._holders[interest] += 1
        self._coming = [entry for entry in self._coming if entry[0] > now]

    def cancelled(self, interest: Interest, accepted_at: int) -> None:
        """Expect nothing more that is published from now on; earlier events are still expected."""
        if (accepted_at, interest) in self._coming:
            self._coming.remove((accepted_at, interest))
            return
        self._holders[interest] -= 1
        if self._holders[interest] == 0:
            del self._holders[interest]
            self._index.remove(interest)
