"""The patterns by which events are numbered: one topic pattern with one filter, shared by all interests that have them.

An interest may have many topics, and hardly two are equal; numbered by whole interests, an event on a popular topic
would carry a number for nearly every subscriber. Numbered by single topics it carries one for all who want the topic
unfiltered, and one for each filter beside. Whoever has an interest watches all of its patterns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tidings.model.event import Publication
from tidings.model.recovery_messages import PatternNumbers
from tidings.model.subscription import Interest
from tidings.protocol.kernel import Port
from tidings.protocol.matching import Selection
from tidings.protocol.recovery.numbering import Numbering
from tidings.protocol.routing import RoutingTable

MAX_REMEMBERED = 4_096


@lru_cache(maxsize=65_536)
def patterns_of(interest: Interest) -> tuple[Interest, ...]:
    """The interest, one topic pattern at a time."""
    if len(interest.topics) == 1:
        return (interest,)
    return tuple(Interest((topic,), interest.pattern) for topic in interest.topics)


class Patterns:
    """Follows the routing table: which patterns are in it, towards whom, and which are our own clients'."""

    def __init__(self, port: Port, table: RoutingTable, numbering: Numbering) -> None:
        self._port = port
        self._table = table
        self._numbering = numbering
        self._interests: dict[Interest, dict[Interest, None]] = {}
        """Pattern -> the interests in the table that have it"""
        self._local: dict[Interest, int] = {}
        """Pattern -> how many of our clients' interests have it"""
        self._matching: dict[tuple[Selection, str], tuple[Interest, ...]] = {}
        self.on_installed: Callable[[bytes], None] = lambda pattern: None
        self.on_removed: Callable[[bytes], None] = lambda pattern: None
        self.on_local: Callable[[], None] = lambda: None
        """Told when the clients' patterns have changed."""
        self.on_unsubscribed: Callable[[bytes], None] = lambda pattern: None
        self.on_renamed: Callable[[bytes, bytes], None] = lambda before, after: None
        """Told of a pattern of our clients that has another name now."""
        table.on_held = self._on_held
        table.on_local = self._on_local
        numbering.on_renamed = self._on_renamed

    def ids(self, interest: Interest) -> tuple[bytes, ...]:
        found = (self._numbering.pattern_id(pattern) for pattern in patterns_of(interest))
        return tuple(pattern for pattern in found if pattern is not None)

    def local_ids(self) -> list[bytes]:
        found = (self._numbering.pattern_id(pattern) for pattern in self._local)
        return [pattern for pattern in found if pattern is not None]

    def hops(self, pattern: bytes) -> tuple[str, ...]:
        """The neighbours behind whom somebody subscribes to the pattern."""
        known = self._numbering.interest(pattern)
        interests = () if known is None else self._interests[known]
        return tuple(sorted({hop for interest in interests for hop in self._table.neighbours(interest)}))

    def subscribed(self, pattern: bytes) -> bool:
        """Does a client of ours?"""
        known = self._numbering.interest(pattern)
        return known is not None and known in self._local

    def current(self, pattern: bytes) -> tuple[int, int] | None:
        """How far we have counted it ourselves: (epoch, number)."""
        known = self._numbering.interest(pattern)
        return None if known is None else self._numbering.current(known)

    def number(self, publication: Publication, selection: Selection) -> PatternNumbers:
        """Counts an event that is published here."""
        key = selection, publication.topic
        matching = self._matching.get(key)
        if matching is None:
            if len(self._matching) >= MAX_REMEMBERED:
                self._matching.clear()
            matching = self._matching[key] = tuple(
                pattern
                for interest in selection.interests
                for pattern in patterns_of(interest)
                if pattern.topics[0].matches(publication.topic)
            )
        return self._numbering.count(matching)

    def _on_held(self, interest: Interest, held: bool) -> None:
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
        self._numbering.installed(pattern, self._port.now)
        name = self._numbering.pattern_id(pattern)
        assert name is not None
        self.on_installed(name)

    def _on_renamed(self, pattern: Interest, before: bytes) -> None:
        after = self._numbering.pattern_id(pattern)
        assert after is not None
        self.on_removed(before)
        self.on_installed(after)
        if pattern in self._local:
            self.on_renamed(before, after)
            self.on_local()

    def _remove(self, pattern: Interest) -> None:
        name = self._numbering.pattern_id(pattern)
        self._numbering.removed(pattern)
        if name is not None:
            self.on_removed(name)

    def _on_local(self, interest: Interest, held: bool) -> None:
        for pattern in patterns_of(interest):
            count = self._local.get(pattern, 0) + (1 if held else -1)
            if count:
                self._local[pattern] = count
                continue
            del self._local[pattern]
            name = self._numbering.pattern_id(pattern)
            if name is not None:
                self.on_unsubscribed(name)
        self.on_local()
