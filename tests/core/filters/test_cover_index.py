"""The index of covers, against asking every interest that is held."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.events.topics import TopicPattern
from tidings.core.filters.matching.cover_index import CoverIndex, covering_texts

patterns = st.sampled_from(
    [
        "/**",
        "/a",
        "/a/*",
        "/a/**",
        "/a/b",
        "/a/b/*",
        "/a/b/**",
        "/a/b/c",
        "/*",
        "/*/b",
        "/*/**",
        "/c",
        "/c/**",
    ]
)
filters = st.sampled_from([None, None, "x > 1", "x > 2", "x = 5", "x > 1 AND y = 2", "y = 2"])
interests = st.builds(
    lambda topics, sql: make_interest(tuple(topics), sql), st.lists(patterns, max_size=3), filters
)
steps = st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "find"]), interests), max_size=40)


def found_by_shelves(held: list[Interest], wanted: Interest) -> bool:
    """True if a cover is held that has, for each topic asked for, one of the patterns that the index looks for."""
    return any(
        cover.covers(wanted)
        and all(
            any(pattern.text in covering_texts(topic) for pattern in cover.topics) for topic in wanted.topics
        )
        for cover in held
    )


@given(steps)
@settings(max_examples=examples(300))
def test_what_is_found_covers_and_what_can_be_found_is(steps: list[tuple[str, Interest]]) -> None:
    index, held = CoverIndex(max_candidates=1_000), list[Interest]()
    for kind, interest in steps:
        if kind == "add" and interest not in held:
            index.add(interest)
            held.append(interest)
        elif kind == "remove" and interest in held:
            index.remove(interest)
            held.remove(interest)
        elif kind == "find" and interest not in held:
            cover = index.find(interest)
            if cover is None:
                assert not found_by_shelves(held, interest)
            else:
                assert cover in held
                assert cover.covers(interest)


@given(st.lists(interests, unique=True, max_size=15))
@settings(max_examples=examples(100))
def test_nothing_is_left_when_all_are_removed(held: list[Interest]) -> None:
    index = CoverIndex()
    for interest in held:
        index.add(interest)
    for interest in reversed(held):
        index.remove(interest)
    assert index._unfiltered == index._filtered == {}
    assert index.find(make_interest((), None)) is None


@given(patterns)
def test_every_text_that_is_looked_for_is_a_pattern_that_covers(text: str) -> None:
    topic = TopicPattern(text)
    texts = covering_texts(topic)
    assert texts[0] == text
    assert len(texts) == len(set(texts))
    assert all(TopicPattern(candidate).covers(topic) for candidate in texts)


def test_removing_what_is_not_held_is_an_error() -> None:
    with pytest.raises(KeyError):
        CoverIndex().remove(make_interest(("/a",), None))


def test_the_search_is_bounded_and_unfiltered_interests_come_first() -> None:
    index = CoverIndex(max_candidates=2)
    wanted = make_interest(("/a",), "x = 1 AND y = 2")
    for number in range(5):
        index.add(make_interest(("/a",), f"x > {number + 1}"))
    index.add(make_interest(("/a",), "y = 2"))
    assert index.find(wanted) is None, "the cover is the sixth candidate"
    wide = make_interest(("/**",), None)
    index.add(wide)
    assert index.find(wanted) == wide


def test_a_filtered_interest_never_covers_one_without_filter() -> None:
    index = CoverIndex()
    index.add(make_interest(("/a",), "x > 1"))
    assert index.find(make_interest(("/a", "/b"), None)) is None
    assert index.find(make_interest(("/a",), "x > 2")) is not None
