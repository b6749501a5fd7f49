"""The interest index against trying every interest, while they come and go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from breadth import examples
from tidings.core.events.topics import TopicPattern
from tidings.core.filters.language.filter import Filter, Pattern
from tidings.core.filters.matching.interest_index import InterestIndex

PATTERNS = ("/a", "/a/b", "/a/*", "/a/**", "/*/b", "/**", "/a_b", "/a%/**", "/b/*/c", "/ab/**")
TOPICS = ("/a", "/a/b", "/a/b/c", "/b", "/c/b", "/a_b", "/axb", "/a%", "/a%/x", "/b/x/c", "/ab", "/ab/c")
FILTERS = (
    *(f"size > {limit}" for limit in range(12)),
    *("TRUE", "FALSE", "topic LIKE '/a%'", "topic = '/a/b' OR size = 3", "place = 'x' AND size < 5"),
)
topics = st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3).map(
    lambda texts: tuple(map(TopicPattern, texts))
)
patterns = st.one_of(st.none(), st.sampled_from(FILTERS).map(lambda sql: Filter(sql).pattern))
events = st.fixed_dictionaries({}, optional={"size": st.integers(0, 12), "place": st.sampled_from("xy")})


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some topics have few filters, others many."""
    monkeypatch.setattr("tidings.core.filters.matching.interest_index.FEW_GROUPS", 4)
    monkeypatch.setattr("tidings.core.filters.matching.interest_index.MAX_COMBINATIONS", 3)


class Interests(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index: InterestIndex[int] = InterestIndex()
        self.twin: dict[int, tuple[tuple[TopicPattern, ...], Pattern | None]] = {}
        self.changes = 0

    @rule(asked=st.lists(st.tuples(topics, patterns), min_size=1, max_size=8))
    def add(self, asked: list[tuple[tuple[TopicPattern, ...], Pattern | None]]) -> None:
        for where, pattern in asked:
            self.index.add(self.changes, where, pattern)
            self.twin[self.changes] = (where, pattern)
            self.changes += 1
        assert self.index.version == self.changes

    @precondition(lambda self: self.twin)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.twin)))
        self.index.remove(key)
        del self.twin[key]
        self.changes += 1
        assert self.index.version == self.changes
        assert key not in self.index
        assert len(self.index) == len(self.twin)

    @rule(topic=st.sampled_from(TOPICS), attributes=events)
    def match(self, topic: str, attributes: dict[str, Any]) -> None:
        event = {**attributes, "topic": topic}
        on_topic = {
            key: pattern
            for key, (where, pattern) in self.twin.items()
            if any(p.matches(topic) for p in where)
        }
        expected = [key for key, pattern in on_topic.items() if pattern is None or pattern.matches(event)]
        calls: list[int] = []

        def read() -> dict[str, Any]:
            calls.append(1)
            return attributes

        assert self.index.match(topic, read) == tuple(expected)
        needed = any(p is not None and p not in (Pattern.TRUE, Pattern.FALSE) for p in on_topic.values())
        assert len(calls) == needed


TestInterests = Interests.TestCase
TestInterests.settings = settings(max_examples=examples(50), stateful_step_count=30)


def test_a_key_is_added_once_and_removed_once() -> None:
    index: InterestIndex[str] = InterestIndex()
    index.add("k", (TopicPattern("/a"),))
    with pytest.raises(ValueError, match="'k'"):
        index.add("k", (TopicPattern("/b"),))
    index.remove("k")
    with pytest.raises(KeyError):
        index.remove("k")


def test_remembered_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.core.filters.matching.interest_index.MEMO_TOPICS", 10)
    index: InterestIndex[str] = InterestIndex()
    index.add("k", (TopicPattern("/**"),))
    for number in range(25):
        assert index.match(f"/t{number}", dict) == ("k",)
    assert len(index._answers) <= 10
