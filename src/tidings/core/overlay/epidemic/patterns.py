"""The patterns by which events are numbered: a topic pattern with a filter, shared by all interests that have them.

An interest may have many topics, and few interests are equal: numbered by whole interests, an event on a popular topic
would carry a number for nearly every subscriber. Numbered by single topics, it carries one number for all subscribers
without a filter, and one per filter. A broker with an interest watches all of the interest's patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import groupby

from tidings.core.events.run import Stretch, cut, look
from tidings.core.events.subscription import Interest
from tidings.core.kernel import Port
from tidings.core.overlay.epidemic.directory import Directory
from tidings.core.overlay.epidemic.messages import PatternNumbers
from tidings.core.overlay.epidemic.numbering import PatternNumbering, Renamed
from tidings.core.overlay.epidemic.pattern_counter import Count, PatternCounter
from tidings.core.overlay.matching import Selection
from tidings.core.overlay.members import is_member
from tidings.core.overlay.routing import RoutingListener, RoutingTable

MAX_REMEMBERED = 4_096


@lru_cache(maxsize=65_536)
def patterns_of(interest: Interest) -> tuple[Interest, ...]:
    """Split the interest into one per topic pattern."""
    if len(interest.topics) == 1:
        return (interest,)
    return tuple(Interest((topic,), interest.pattern) for topic in interest.topics)


class PatternListener:
    """Hears of changes in our clients' patterns."""

    def unsubscribed(self, pattern: bytes) -> None: ...

    def renamed(self, before: bytes, after: bytes) -> None:
        """Called when the pattern's name has changed."""


class Patterns(RoutingListener):
    """Follows the routing table: which patterns it has, towards which neighbours, and which are our clients'."""

    def __init__(
        self,
        port: Port,
        table: RoutingTable,
        numbering: PatternNumbering,
        counted: PatternCounter,
        directory: Directory,
    ) -> None:
        """`counted` records the counts of all patterns; `directory` announces our clients' patterns."""
        self._port = port
        self._table = table
        table.listeners.append(self)
        self._numbering = numbering
        self._counted = counted
        self._directory = directory
        self.listeners: list[PatternListener] = []
        self._interests: dict[Interest, dict[Interest, None]] = {}
        """Pattern -> the interests in the table that have it."""
        self._local: dict[Interest, int] = {}
        """Pattern -> how many of our clients' interests have it."""
        self._matching: dict[tuple[Selection, str], tuple[Interest, ...]] = {}

    def ids(self, interest: Interest) -> tuple[bytes, ...]:
        found = (self._numbering.pattern_id(pattern) for pattern in patterns_of(interest))
        return tuple(pattern for pattern in found if pattern is not None)

    def local_ids(self) -> list[bytes]:
        found = (self._numbering.pattern_id(pattern) for pattern in self._local)
        return [pattern for pattern in found if pattern is not None]

    def hops(self, pattern: bytes) -> tuple[str, ...]:
        """Return the neighbours on the way to subscribers of the pattern."""
        known = self._numbering.interest(pattern)
        interests = () if known is None else self._interests[known]
        return tuple(sorted({hop for interest in interests for hop in self._table.neighbours(interest)}))

    def subscribed(self, pattern: bytes) -> bool:
        """Return True if one of our clients subscribes to the pattern."""
        known = self._numbering.interest(pattern)
        return known is not None and known in self._local

    def current(self, pattern: bytes) -> tuple[int, int] | None:
        """Return how far we have counted the pattern ourselves: (epoch, number)."""
        known = self._numbering.interest(pattern)
        return None if known is None else self._numbering.current(known)

    def counts(self, pattern: bytes) -> tuple[Count, ...]:
        """Return how far all origins, including ourselves, have counted the pattern."""
        mine = self.current(pattern)
        counted = self._counted.counts(pattern)
        return counted if mine is None or mine[1] == 0 else ((self._port.node, *mine), *counted)

    def number(self, stretch: Stretch) -> Iterator[tuple[Stretch, PatternNumbers]]:
        """Number events of one selection that are published here: yield stretches that match the same patterns, each
        with the numbers of its first event."""
        if stretch.topic:
            yield stretch, self._numbering.count(self._match(stretch.selection, stretch.topic), stretch.count)
            return
        first = stretch.first
        topics = (event.topic for event in look(stretch))
        for matching, alike in groupby(topics, key=partial(self._match, stretch.selection)):
            count = len(list(alike))
            yield cut(stretch, first, first + count - 1), self._numbering.count(matching, count)
            first += count

    def _match(self, selection: Selection, topic: str) -> tuple[Interest, ...]:
        key = selection, topic
        matching = self._matching.get(key)
        if matching is None:
            if len(self._matching) >= MAX_REMEMBERED:
                self._matching.clear()
            matching = self._matching[key] = tuple(
                pattern
                for interest in selection.interests
                for pattern in patterns_of(interest)
                if pattern.topics[0].matches(topic)
            )
        return matching

    def held_here(self, interest: Interest, held: bool) -> None:
        if is_member(interest):
            return  # there are no events to number
        for pattern in patterns_of(interest):
            interests = self._interests.setdefault(pattern, {})
            if held:
                interests[interest] = None
                if len(interests) == 1:
                    self._install(pattern)
                continue
            del interests[interest]
            if not interests:
                del self._interests[pattern]
                self._remove(pattern)

    def _install(self, pattern: Interest) -> None:
        self._rename(self._numbering.installed(pattern, self._port.now))
        self._counted.open(self._name(pattern))

    def _remove(self, pattern: Interest) -> None:
        name = self._name(pattern)
        self._rename(self._numbering.removed(pattern))
        self._counted.close(name)

    def _rename(self, renamed: Renamed) -> None:
        for pattern, before in renamed:
            after = self._name(pattern)
            self._counted.close(before)
            self._counted.open(after)
            if pattern in self._local:
                for listener in self.listeners:
                    listener.renamed(before, after)
                self._directory.set_patterns(self.local_ids())

    def _name(self, installed: Interest) -> bytes:
        name = self._numbering.pattern_id(installed)
        assert name is not None
        return name

    def held_by_clients(self, interest: Interest, held: bool) -> None:
        if is_member(interest):
            return
        for pattern in patterns_of(interest):
            count = self._local.get(pattern, 0) + (1 if held else -1)
            if count:
                self._local[pattern] = count
                continue
            del self._local[pattern]
            for listener in self.listeners:
                listener.unsubscribed(self._name(pattern))
        self._directory.set_patterns(self.local_ids())
