"""What a broker matches events with: interests in topics, with or without a filter (DESIGN.md, 'Subscription').

Interests without a filter are found by topic alone and remembered per topic, so that forwarding on a busy topic
costs one dictionary lookup and never decodes the attributes. Filtered interests are grouped by (topic pattern,
filter) and found with one `MatchIndex` for all topics, in which the topic is one more indexed predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidings.model.filter import Pattern
from tidings.model.predicates import Scalar
from tidings.model.topics import TopicPattern
from tidings.structures.topic_trie import TopicTrie

K = TypeVar("K", bound=Hashable)

MEMO_TOPICS = 4_096
"""Topics whose answer is remembered between two changes."""

TOPIC = "topic"


@dataclass(slots=True, eq=False)
class _Group(Generic[K]):
    """All interests with one topic pattern and one filter (None: no filter), by serial."""

    topic: TopicPattern
    pattern: Pattern | None
    members: dict[int, K] = field(default_factory=dict)


@dataclass(slots=True)
class _Answer(Generic[K]):
    """What is known of a topic before its event's attributes are: who gets it anyway, whom to ask."""

    members: dict[int, K]
    keys: tuple[K, ...]
    filtered: list[_Group[K]]


class InterestIndex(Generic[K]):
    """Keys with topics and perhaps a filter; `match` gives, in order of insertion, those who want an event."""

    def __init__(self) -> None:
        self.version = 0
        self._interests: dict[K, tuple[int, tuple[_Group[K], ...]]] = {}
        self._serial = 0
        self._groups: dict[TopicPattern, dict[Pattern | None, _Group[K]]] = {}
        self._topics = TopicTrie()
        self._answers: dict[str, _Answer[K]] = {}

    def __len__(self) -> int:
        return len(self._interests)

    def __contains__(self, key: object) -> bool:
        return key in self._interests

    def add(self, key: K, topics: tuple[TopicPattern, ...], pattern: Pattern | None = None) -> None:
        if key in self._interests:
            raise ValueError(f"key {key!r} is in the index already")
        if pattern == Pattern.TRUE:
            pattern = None
        self._serial += 1
        groups = tuple(self._group(topic, pattern) for topic in dict.fromkeys(topics))
        for group in groups:
            group.members[self._serial] = key
        self._interests[key] = (self._serial, groups)
        self._changed()

    def remove(self, key: K) -> None:
        serial, groups = self._interests.pop(key)
        for group in groups:
            del group.members[serial]
            if not group.members:
                self._drop(group)
        self._changed()

    def match(self, topic: str, attributes: Callable[[], Mapping[str, Scalar]]) -> tuple[K, ...]:
        """The keys interested in this event; `attributes` is called only if a filter has to see them."""
        answer = self._answers.get(topic)
        if answer is None:
            answer = self._answer(topic)
        if not answer.filtered:
            return answer.keys
        event = {**attributes(), TOPIC: topic}
        members = dict(answer.members)
        for group in answer.filtered:
            if group.pattern is None or group.pattern.matches(event):
                members.update(group.members)
        return tuple([members[serial] for serial in sorted(members)])

    def _answer(self, topic: str) -> _Answer[K]:
        members: dict[int, K] = {}
        filtered = []
        for topic_pattern in self._topics.matching(topic):
            for pattern, group in self._groups[topic_pattern].items():
                if pattern is None:
                    members.update(group.members)
                else:
                    filtered.append(group)
        keys = tuple([members[serial] for serial in sorted(members)])
        if len(self._answers) >= MEMO_TOPICS:
            self._answers.clear()
        answer = self._answers[topic] = _Answer(members, keys, filtered)
        return answer

    def _group(self, topic: TopicPattern, pattern: Pattern | None) -> _Group[K]:
        groups = self._groups.get(topic)
        if groups is None:
            groups = self._groups[topic] = {}
            self._topics.add(topic)
        group = groups.get(pattern)
        if group is None:
            group = groups[pattern] = _Group(topic, pattern)
        return group

    def _drop(self, group: _Group[K]) -> None:
        groups = self._groups[group.topic]
        del groups[group.pattern]
        if not groups:
            del self._groups[group.topic]
            self._topics.remove(group.topic)

    def _changed(self) -> None:
        self.version += 1
        self._answers.clear()
