"""Finds an interest that covers another among those already sent to a neighbour.

Suppressing a covered interest saves traffic and memory but is never needed for correctness, so the search is bounded.
Interests are filed under each of their topic patterns. A lookup visits the patterns that cover the rarest topic of the
given interest, and compares filters with at most `max_candidates` interests found there, those without a filter
first. Adding and finding cost the same however many interests are held.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from tidings.core.events.subscription import Interest
from tidings.core.events.topics import TopicPattern


class CoverIndex:
    def __init__(self, max_candidates: int = 16) -> None:
        self._max_candidates = max_candidates
        self._unfiltered: dict[str, dict[Interest, None]] = {}
        self._filtered: dict[str, dict[Interest, None]] = {}

    def _shelves(self, interest: Interest) -> dict[str, dict[Interest, None]]:
        return self._unfiltered if interest.pattern is None else self._filtered

    def add(self, interest: Interest) -> None:
        shelves = self._shelves(interest)
        for topic in interest.topics:
            shelves.setdefault(topic.text, {})[interest] = None

    def remove(self, interest: Interest) -> None:
        shelves = self._shelves(interest)
        for topic in interest.topics:
            shelf = shelves[topic.text]
            del shelf[interest]
            if not shelf:
                del shelves[topic.text]

    def find(self, interest: Interest) -> Interest | None:
        """Return an interest that covers this one, which must not be held itself; None if none was found."""
        for held in islice(self._candidates(interest), self._max_candidates):
            if held.covers(interest):
                return held
        return None

    def _candidates(self, interest: Interest) -> Iterator[Interest]:
        """Yield interests filed under a pattern that covers this one's rarest topic: a cover must be among them."""
        for shelves in (self._unfiltered, self._filtered):
            if not shelves or (shelves is self._filtered and interest.pattern is None):
                continue
            rarest = interest.topics[0]
            if len(interest.topics) > 1:
                rarest = min(interest.topics, key=lambda topic: len(shelves.get(topic.text, ())))
            for text in covering_texts(rarest):
                shelf = shelves.get(text)
                if shelf:
                    yield from shelf


@lru_cache(maxsize=65_536)
def covering_texts(topic: TopicPattern) -> tuple[str, ...]:
    """Return texts of patterns that cover `topic`: itself, its last level as `*`, each subtree above."""
    texts = [topic.text]
    if not topic.subtree and topic.levels[-1] != "*":
        texts.append("/" + "/".join((*topic.levels[:-1], "*")))
    subtrees = ["/" + "/".join((*topic.levels[:depth], "**")) for depth in range(len(topic.levels), -1, -1)]
    return (*texts, *(text for text in subtrees if text != topic.text))
