"""The running count behind `summary.json`, in bounded memory.

An event is expected by every subscription that was accepted and not cancelled when it was published, and that
it matches. What is expected is decided here, from filters and topics alone, not by the protocol.
"""

from __future__ import annotations

from tidings.model.event import Publication
from tidings.model.subscription import Interest
from tidings.structures.histogram import Histogram
from tidings.structures.interest_index import InterestIndex


class Tally:
    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.expected = 0
        self.expected_delivered = 0
        self.duplicates = 0
        self.out_of_order = 0
        self.latency_ns = Histogram()
        self._latest: list[Publication] = []
        """What was published in the instant of the last publication."""
        self._holders: dict[Interest, int] = {}
        self._index: InterestIndex[Interest] = InterestIndex()

    def publish(self, publication: Publication) -> None:
        self.published += 1
        if self._latest and self._latest[0].published_at != publication.published_at:
            self._latest.clear()
        self._latest.append(publication)
        holders = self._holders
        for interest in self._index.match(publication.topic, publication.attributes):
            self.expected += holders[interest]

    def accepted(self, interest: Interest, at: int) -> None:
        """A subscription with this interest expects what is published from `at` on, which is now.

        What was published before in this very instant counts, as it does for who reads the trace.
        """
        if self._latest and self._latest[0].published_at == at:
            self.expected += sum(interest.matches(publication) for publication in self._latest)
        if interest not in self._holders:
            self._holders[interest] = 0
            self._index.add(interest, interest.topics, interest.pattern)
        self._holders[interest] += 1

    def cancelled(self, interest: Interest) -> None:
        """The converse: what was published before is still expected."""
        self._holders[interest] -= 1
        if self._holders[interest] == 0:
            del self._holders[interest]
            self._index.remove(interest)
