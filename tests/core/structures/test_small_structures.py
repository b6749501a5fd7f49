"""Range sets, recent ids and the topic trie against their dumb twins."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.events.topics import TopicPattern
from tidings.core.filters.matching.topic_trie import TopicTrie
from tidings.core.structures.highest import Highest
from tidings.core.structures.range_set import RangeSet
from tidings.core.structures.recent_ids import RecentIds

numbers = st.integers(-5, 40)
range_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), numbers, st.just(0)),
        st.tuples(st.just("add_range"), numbers, numbers),
        st.tuples(st.just("remove"), numbers, numbers),
        st.tuples(st.just("trim_below"), numbers, st.just(0)),
    ),
    max_size=30,
)


def ranges_of(values: set[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for value in sorted(values):
        if ranges and ranges[-1][1] == value:
            ranges[-1] = (ranges[-1][0], value + 1)
        else:
            ranges.append((value, value + 1))
    return ranges


@given(range_steps)
@settings(max_examples=examples(150))
def test_range_set_is_a_set_of_integers(steps: list[tuple[str, int, int]]) -> None:
    ranges, twin = RangeSet(), set[int]()
    for step, low, high in steps:
        if step == "add":
            ranges.add(low)
            twin.add(low)
        elif step == "add_range":
            ranges.add_range(low, high)
            twin |= set(range(low, high))
        elif step == "remove":
            ranges.remove(low, high)
            twin -= set(range(low, high))
        else:
            ranges.trim_below(low)
            twin = {value for value in twin if value >= low}
        assert list(ranges) == ranges_of(twin)
        assert (len(ranges), bool(ranges)) == (len(twin), bool(twin))
        assert (ranges.first, ranges.last) == (min(twin, default=None), max(twin, default=None))
        assert [value for value in range(-6, 42) if value in ranges] == sorted(twin)
        assert ranges.missing(low, high) == ranges_of(set(range(low, high)) - twin)
        assert ranges.contiguous_end(low) == next(n for n in range(low, 99) if n not in twin)


@given(st.lists(numbers, max_size=40), st.integers(1, 4))
@settings(max_examples=examples(100))
def test_a_bounded_range_set_closes_its_lowest_holes(values: list[int], limit: int) -> None:
    ranges, twin, assumed = RangeSet(max_ranges=limit), set[int](), 0
    for value in values:
        twin.add(value)
        expected = 0
        while len(holes := ranges_of(twin)) > limit:
            hole = set(range(holes[0][1], holes[1][0]))
            twin |= hole
            expected += len(hole)
        assert ranges.add(value) == expected
        assumed += expected
        assert list(ranges) == ranges_of(twin)
    assert ranges.assumed == assumed


class RecentIdsTwin:
    """Remembers everything, and forgets by the rules of `RecentIds`."""

    def __init__(self, window: int, max_sources: int) -> None:
        self.window, self.max_sources = window, max_sources
        self.seen: dict[tuple[str, int], set[int]] = {}
        self.stale = 0

    def first_time(self, source: str, incarnation: int, sequence: int) -> bool:
        key = (source, incarnation)
        if key not in self.seen:
            if len(self.seen) == self.max_sources:
                del self.seen[next(iter(self.seen))]
            self.seen[key] = {sequence}
            return True
        seen = self.seen[key]
        if sequence <= max(seen) - self.window:
            self.stale += 1
            return False
        if sequence in seen:
            return False
        seen.add(sequence)
        return True


@given(
    st.sampled_from([1, 2, 5, 64]),
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 2), st.integers(-3, 90)), max_size=80),
)
@settings(max_examples=examples(200))
def test_recent_ids_are_a_set_per_source_with_a_window(
    window: int, max_sources: int, messages: list[tuple[str, int, int]]
) -> None:
    recent, twin = RecentIds(window, max_sources), RecentIdsTwin(window, max_sources)
    for message in messages:
        assert recent.first_time(*message) == twin.first_time(*message), message
        assert (len(recent), recent.stale) == (len(twin.seen), twin.stale)


def test_the_source_that_appeared_first_is_forgotten_first() -> None:
    recent = RecentIds(max_sources=3)
    for source in "abcd":
        recent.first_time(source, 1, 7)
    assert not recent.first_time("b", 1, 7)
    assert recent.first_time("a", 1, 7)
    assert recent.evicted == 2


def test_a_forgotten_source_starts_anew() -> None:
    recent = RecentIds()
    assert recent.first_time("a", 1, 1)
    recent.forget("a", 1)
    assert recent.first_time("a", 1, 1)


levels = st.lists(st.sampled_from("ab*"), min_size=1, max_size=4)
topic_patterns = st.builds(
    lambda parts, end: TopicPattern("/" + "/".join([*parts, *end])), levels, st.sampled_from([[], [], ["**"]])
)
topics = st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))


@given(st.lists(st.tuples(st.booleans(), topic_patterns), max_size=25), st.lists(topics, max_size=6))
@settings(max_examples=examples(150))
def test_the_trie_finds_what_trying_each_pattern_finds(
    steps: list[tuple[bool, TopicPattern]], asked: list[str]
) -> None:
    trie, twin = TopicTrie(), set[TopicPattern]()
    for adding, pattern in steps:
        (trie.add if adding else trie.remove)(pattern)
        (twin.add if adding else twin.discard)(pattern)
        assert len(trie) == len(twin)
    for topic in asked:
        expected = sorted((p for p in twin if p.matches(topic)), key=lambda p: p.text)
        assert trie.matching(topic) == expected


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)), max_size=60), st.integers(1, 5))
def test_the_highest_numbers_are_those_of_a_list(heard: list[tuple[str, int]], most: int) -> None:
    highest: Highest[str, int] = Highest(most)
    twin: list[tuple[str, int]] = []
    for source, number in heard:
        before = next((known for name, known in twin if name == source), None)
        assert highest.raise_to(source, number) == before
        twin = [entry for entry in twin if entry[0] != source]
        twin.append((source, number if before is None else max(before, number)))
        twin = twin[-most:]
        assert list(highest.items()) == twin
