"""Which interests a publication matches, found once per publication and process.

Every broker of a process shares one `Matcher`: a live broker process has one broker, the simulator and the
embedded network have many. The interests that match travel with the publication object as a `Selection`, so
a broker on the way only looks up where that selection goes.
"""

from __future__ import annotations

from tidings.model.event import Publication
from tidings.model.subscription import Interest
from tidings.structures.interest_index import InterestIndex

MAX_SELECTIONS = 65_536


class Selection:
    """A set of interests that some publications match; compared by identity, so brokers can cache routes by it."""

    __slots__ = ("interests",)

    def __init__(self, interests: tuple[Interest, ...]) -> None:
        self.interests = interests


class Matcher:
    def __init__(self) -> None:
        self._index: InterestIndex[Interest] = InterestIndex()
        self._held: dict[Interest, Interest] = {}
        self._references: dict[Interest, int] = {}
        self._selections: dict[tuple[Interest, ...], Selection] = {}
        self._by_topic: dict[str, tuple[tuple[Interest, ...], Selection]] = {}
        self.token = object()
        """Replaced on every change: the selection that a publication remembers with another token is void."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, interest: Interest) -> Interest:
        """The one object for this interest; each `hold` needs a `release`."""
        held = self._held.get(interest)
        if held is None:
            held = self._held[interest] = interest
            self._references[interest] = 0
            self._index.add(interest, interest.topics, interest.pattern)
            self._forget()
        self._references[held] += 1
        return held

    def release(self, interest: Interest) -> None:
        self._references[interest] -= 1
        if self._references[interest] == 0:
            del self._references[interest], self._held[interest]
            self._index.remove(interest)
            self._forget()

    def select(self, publication: Publication) -> Selection:
        """The selection of a publication; WireError if its attributes are needed and do not decode."""
        if publication.selection_token is not self.token:
            publication.selection = self._select(publication)
            publication.selection_token = self.token
        selection: Selection = publication.selection
        return selection

    def _select(self, publication: Publication) -> Selection:
        interests = self._index.match(publication.topic, publication.attributes)
        known = self._by_topic.get(publication.topic)
        if known is not None and known[0] is interests:  # no filter was asked: the index repeats itself
            return known[1]
        selection = self._selections.get(interests)
        if selection is None:
            if len(self._selections) >= MAX_SELECTIONS:
                self._selections.clear()
            selection = self._selections[interests] = Selection(interests)
        if len(self._by_topic) >= MAX_SELECTIONS:
            self._by_topic.clear()
        self._by_topic[publication.topic] = interests, selection
        return selection

    def _forget(self) -> None:
        self.token = object()
        self._selections.clear()
        self._by_topic.clear()
