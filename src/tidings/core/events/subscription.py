"""Subscriptions, which clients make, and interests, by which brokers route.

All equal subscriptions share one interest: a canonical set of topic patterns and a filter's pattern. Brokers forward
interests, not subscriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, Protocol

from tidings.core.events.topics import TopicPattern, canonical_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidings.core.events.event import Event
    from tidings.core.filters.language.filter import Pattern
    from tidings.core.filters.language.predicates import Scalar

MAX_INTEREST_BYTES = 48 * 1024
"""An interest fits into one datagram."""


OrderName = Literal["none", "fifo", "causal", "total"]


class Order(StrEnum):
    NONE = "none"
    FIFO = "fifo"
    CAUSAL = "causal"
    TOTAL = "total"


ORDERED = (Order.TOTAL, Order.CAUSAL)
"""The orders across publishers, which sequencers provide."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a client subscribes to. `id` is unique per subscriber; no topics means all topics; `filter` is SQL or None.

    With `headers`, events that no other subscription of the client selects come without their bodies
    (core/events/event.py). Protocols use this, applications do not. With `history`, the client reads from its broker's
    archive what came before (bus/history.py). With `group`, the client is a member of that group in a network without
    a guarantee.
    """

    id: str
    topics: tuple[str, ...] = ()
    filter: str | None = None
    order: Order = Order.NONE
    headers: bool = False
    history: bool = False
    group: str = ""
    group_by: str = ""

    def interest(self) -> Interest:
        """Return the interest behind this subscription; raise TopicError or FilterError if it is malformed."""
        return make_interest(self.topics, self.filter)


class Matchable(Protocol):
    """An event as filters see it."""

    @property
    def topic(self) -> str: ...
    def attributes(self) -> Mapping[str, Scalar]: ...


class Interest:
    """Topics and a filter pattern (None: no filter). Interests are equal if their canonical forms are."""

    __slots__ = ("__dict__", "_exact", "_wild", "pattern", "topics")

    def __init__(self, topics: tuple[TopicPattern, ...], pattern: Pattern | None) -> None:
        self.topics = topics
        self.pattern = pattern
        self._exact = frozenset(topic.text for topic in topics if topic.exact)
        self._wild = tuple(topic for topic in topics if not topic.exact)

    @cached_property
    def text(self) -> str:
        topics = "\n".join(topic.text for topic in self.topics)
        return topics if self.pattern is None else f"{topics}\n\n{self.pattern.text}"

    @cached_property
    def key(self) -> bytes:
        return blake2b(self.text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    @property
    def sql(self) -> str | None:
        return None if self.pattern is None else self.pattern.text

    def has_topic(self, topic: str) -> bool:
        if topic in self._exact:
            return True
        return bool(self._wild) and any(pattern.matches(topic) for pattern in self._wild)

    def matches(self, publication: Matchable) -> bool:
        if not self.has_topic(publication.topic):
            return False
        return self.pattern is None or self.pattern.matches(publication.attributes())

    def selects(self, event: Event) -> bool:
        """Return True if the decoded event matches."""
        if not self.has_topic(event.topic):
            return False
        return self.pattern is None or self.pattern.matches({**event.attributes, "topic": event.topic})

    def covers(self, other: Interest) -> bool:
        """Return True only if every event that `other` selects is selected here."""
        if not self._covers_topics(other):
            return False
        if self.pattern is None:
            return True
        return other.pattern is not None and self.pattern.covers(other.pattern)

    def _covers_topics(self, other: Interest) -> bool:
        if not self._wild:  # the common case, and frequent: one set operation
            return not other._wild and self._exact >= other._exact
        return all(
            theirs.text in self._exact or any(mine.covers(theirs) for mine in self._wild)
            for theirs in other.topics
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Interest) and self.key == other.key)

    @cached_property
    def _hash(self) -> int:
        return int.from_bytes(self.key[:8], "big") >> 4

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Interest({self.text!r})"


@lru_cache(maxsize=65_536)
def make_interest(topics: tuple[str, ...], sql: str | None) -> Interest:
    """Return the canonical interest; a filter that is always true counts as none.

    Cached, because all brokers of a process ask for the same interests.
    """
    canonical = canonical_topics(topics)
    if sql is None:
        return Interest(canonical, None)
    from tidings.core.filters.language.filter import (  # slow to import, and most interests have no filter
        Filter,
        Pattern,
    )

    pattern = Filter(sql).pattern
    return Interest(canonical, None if pattern == Pattern.TRUE else pattern)
