"""Finds the interests that want an event: a broker's index of topics with or without a filter.

Interests without a filter are found by topic alone and cached per topic, so that forwarding on a busy topic costs one
dictionary lookup and never decodes the attributes. Filtered interests are grouped by (topic pattern, filter) and
found with one `MatchIndex` for all topics, in which the topic is one more indexed predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

from tidings.core.events.topics import TopicPattern
from tidings.core.filters.language.like import Like
from tidings.core.filters.language.predicates import Conjunct, Constraint, Scalar, ValueKind
from tidings.core.filters.matching.topic_trie import TopicTrie

if TYPE_CHECKING:
    from tidings.core.filters.language.filter import Pattern
    from tidings.core.filters.matching.match_index import MatchIndex

K = TypeVar("K", bound=Hashable)

MEMO_TOPICS = 4_096
"""Topics whose answer is cached between two changes."""

FEW_GROUPS = 32
"""Up to this many filters are tried one by one, which takes less time than the index."""

MAX_COMBINATIONS = 1_024
"""Combinations of matching filters that are cached for one topic."""

TOPIC = "topic"
"""The attribute by which a filter refers to the event's topic."""

ROUTE = "\0route"
"""A second name for the topic, to which topic patterns of interests refer; no filter can use it."""


class _Group(Generic[K]):
    """All interests with one topic pattern and one filter, by serial number."""

    __slots__ = ("members", "pattern", "topic")

    def __init__(self, topic: TopicPattern, pattern: Pattern) -> None:
        self.topic = topic
        self.pattern = pattern
        self.members: dict[int, K] = {}


class _Answer(Generic[K]):
    """The part of an answer that depends on the topic alone: keys without a filter, and the filters to try."""

    __slots__ = ("checks", "combinations", "groups", "keys", "members", "selected")

    def __init__(self, members: dict[int, K], filtered: dict[str, dict[Pattern, _Group[K]]]) -> None:
        self.members = members
        self.keys = _in_order(members)
        self.groups = [group for groups in filtered.values() for group in groups.values()]
        self.selected = frozenset(filtered)
        few = self.groups if len(self.groups) <= FEW_GROUPS else []
        self.checks = [(1 << place, group.pattern.matches) for place, group in enumerate(few)]
        """The filters with a bit each, if there are few."""
        self.combinations: dict[int, tuple[K, ...]] = {}
        """The keys that want an event, by the bits of the filters that it matches."""

    def combination(self, bits: int) -> tuple[K, ...]:
        keys = self.combinations.get(bits)
        if keys is None:
            if len(self.combinations) >= MAX_COMBINATIONS:
                self.combinations.clear()
            groups = [group for place, group in enumerate(self.groups) if bits >> place & 1]
            keys = self.combinations[bits] = self.with_groups(groups)
        return keys

    def with_groups(self, groups: list[_Group[K]]) -> tuple[K, ...]:
        return _in_order(dict(chain(self.members.items(), *(group.members.items() for group in groups))))


class InterestIndex(Generic[K]):
    """Keys with topics and perhaps a filter; `match` returns, in order of insertion, those that want an event."""

    def __init__(self) -> None:
        self.version = 0
        """Rises with every change."""
        self._serial = 0
        self._interests: dict[K, tuple[int, tuple[TopicPattern, ...], Pattern | None]] = {}
        self._plain: dict[str, dict[int, K]] = {}
        self._filtered: dict[str, dict[Pattern, _Group[K]]] = {}
        self._topics = TopicTrie()
        self._index: MatchIndex[_Group[K]] | None = None
        self._answers: dict[str, _Answer[K]] = {}

    def __len__(self) -> int:
        return len(self._interests)

    def __contains__(self, key: object) -> bool:
        return key in self._interests

    def add(self, key: K, topics: tuple[TopicPattern, ...], pattern: Pattern | None = None) -> None:
        """Add a key; ValueError if it is present."""
        if key in self._interests:
            raise ValueError(f"key {key!r} is already in the index")
        if pattern is not None and pattern.conjuncts == (Conjunct(),):
            pattern = None
        self._serial += 1
        topics = tuple(dict.fromkeys(topics))
        self._interests[key] = (self._serial, topics, pattern)
        for topic in topics:
            if pattern is None:
                self._plain.setdefault(topic.text, {})[self._serial] = key
                self._topics.add(topic)
            elif pattern.conjuncts:
                self._group(topic, pattern).members[self._serial] = key
                self._topics.add(topic)
        self._changed()

    def remove(self, key: K) -> None:
        """Remove a key; KeyError if it is absent."""
        serial, topics, pattern = self._interests.pop(key)
        for topic in topics:
            if pattern is None:
                members = self._plain[topic.text]
                del members[serial]
                if not members:
                    del self._plain[topic.text]
            elif pattern.conjuncts:
                self._leave_group(topic, pattern, serial)
            if topic.text not in self._plain and topic.text not in self._filtered:
                self._topics.remove(topic)
        self._changed()

    def match(self, topic: str, attributes: Callable[[], Mapping[str, Scalar]]) -> tuple[K, ...]:
        """Return the keys interested in this event; `attributes` is called only if a filter needs them."""
        answer = self._answers.get(topic)
        if answer is None:
            answer = self._answer(topic)
        if not answer.groups:
            return answer.keys
        event = attributes()
        if event.get(TOPIC) != topic:
            event = {**event, TOPIC: topic}
        if answer.checks:
            bits = 0
            for bit, matches in answer.checks:
                if matches(event):
                    bits |= bit
            return answer.combination(bits) if bits else answer.keys
        assert self._index is not None
        found = self._index.match({**event, ROUTE: topic})
        groups = [group for group in found if group.topic.text in answer.selected]
        return answer.with_groups(groups) if groups else answer.keys

    def _answer(self, topic: str) -> _Answer[K]:
        members: dict[int, K] = {}
        filtered = {}
        for pattern in self._topics.matching(topic):
            members.update(self._plain.get(pattern.text, {}))
            groups = self._filtered.get(pattern.text)
            if groups:
                filtered[pattern.text] = groups
        if len(self._answers) >= MEMO_TOPICS:
            self._answers.clear()
        answer = self._answers[topic] = _Answer(members, filtered)
        return answer

    def _group(self, topic: TopicPattern, pattern: Pattern) -> _Group[K]:
        groups = self._filtered.setdefault(topic.text, {})
        group = groups.get(pattern)
        if group is None:
            group = groups[pattern] = _Group(topic, pattern)
            if self._index is None:
                # imports numpy, which not every broker needs
                from tidings.core.filters.matching.match_index import MatchIndex

                self._index = MatchIndex()
            self._index.add(group, _routed(topic, pattern))
        return group

    def _leave_group(self, topic: TopicPattern, pattern: Pattern, serial: int) -> None:
        groups = self._filtered[topic.text]
        group = groups[pattern]
        del group.members[serial]
        if group.members:
            return
        assert self._index is not None
        self._index.remove(group)
        del groups[pattern]
        if not groups:
            del self._filtered[topic.text]

    def _changed(self) -> None:
        self.version += 1
        self._answers.clear()


def _in_order(members: dict[int, K]) -> tuple[K, ...]:
    return tuple([members[serial] for serial in sorted(members)])


def _routed(topic: TopicPattern, pattern: Pattern) -> Pattern:
    """Add to the pattern that the topic equals an exact topic pattern, or starts with the prefix of another one."""
    if topic.exact:
        route = Constraint(ROUTE, ValueKind.STRING, values=(topic.text,))
    elif topic.prefix:
        route = Constraint(ROUTE, ValueKind.STRING, likes=(Like(_escaped(topic.prefix) + "%"),))
    else:
        return pattern
    conjuncts = (Conjunct((route, *part.constraints), part.comparisons) for part in pattern.conjuncts)
    return type(pattern)(tuple(conjuncts))


def _escaped(text: str) -> str:
    for special in "\\%_":
        text = text.replace(special, "\\" + special)
    return text
