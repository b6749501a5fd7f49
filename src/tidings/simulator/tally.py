"""The running count behind `summary.json`, in bounded memory.

An event is expected by every subscription that was accepted and not cancelled when it was published, and that
it matches. What is expected is decided here, from filters and topics alone, not by the protocol.
"""

from __future__ import annotations

from tidings.model.event import Publication
from tidings.model.subscription import Interest, Subscription
from tidings.structures.histogram import Histogram
from tidings.structures.interest_index import InterestIndex
from tidings.structures.recent_ids import RecentIds


class Accepted:
    """An accepted subscription, until it is cancelled and drained."""

    __slots__ = ("accepted_at", "interest", "recent")

    def __init__(self, interest: Interest, accepted_at: int) -> None:
        self.interest = interest
        self.accepted_at = accepted_at
        self.recent = RecentIds()


class Tally:
    def __init__(self) -> None:
        self.published_count = 0
        self.delivered_count = 0
        self.expected = 0
        self.expected_delivered = 0
        self.duplicates = 0
        self.out_of_order = 0
        self.latency_ns = Histogram()
        self._accepted: dict[str, Accepted] = {}
        self._holders: dict[Interest, int] = {}
        self._index: InterestIndex[Interest] = InterestIndex()

    def published(self, publication: Publication) -> None:
        self.published_count += 1
        holders = self._holders
        for interest in self._index.match(publication.topic, publication.attributes):
            self.expected += holders[interest]

    def accepted(self, subscription: Subscription, at: int) -> None:
        """The subscription's guarantee begins."""
        interest = subscription.interest()
        self._accepted[subscription.id] = Accepted(interest, at)
        if interest not in self._holders:
            self._holders[interest] = 0
            self._index.add(interest, interest.topics, interest.pattern)
        self._holders[interest] += 1

    def cancelled(self, subscription_id: str) -> None:
        """Nothing that is published from now on is expected; what was published before still is."""
        accepted = self._accepted.get(subscription_id)
        if accepted is not None:
            self._holders[accepted.interest] -= 1
            if self._holders[accepted.interest] == 0:
                del self._holders[accepted.interest]
                self._index.remove(accepted.interest)

    def drained(self, subscription_id: str) -> None:
        """Nothing more will be delivered for the cancelled subscription."""
        self._accepted.pop(subscription_id, None)

    def delivered(self, subscription_id: str, publication: Publication, at: int, late: bool) -> None:
        self.delivered_count += 1
        if late:
            self.out_of_order += 1
        published_at = publication.published_at
        self.latency_ns.add(at - published_at)
        accepted = self._accepted.get(subscription_id)
        if accepted is None:
            return
        if not accepted.recent.first_time(publication.source, publication.incarnation, publication.sequence):
            self.duplicates += 1
        elif published_at >= accepted.accepted_at:
            self.expected_delivered += 1
