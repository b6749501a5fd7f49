"""Digests cut from ranges: within the limit, in order, and all of it in few cuts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.overlay.epidemic import digest_cutter
from tidings.core.overlay.epidemic.digest_cutter import DigestCutter
from tidings.core.structures.range_set import RangeSet

Cut = list[tuple[str, tuple[tuple[int, int], ...]]]

range_sets = st.lists(st.integers(0, 40), max_size=30).map(
    lambda numbers: RangeSet((number, number + 1) for number in numbers)
)
entry_maps = st.dictionaries(st.text("abc", min_size=1, max_size=6), range_sets, max_size=8)


def key_bytes(key: str) -> int:
    return 10 + len(key)


def size_of(cut: Cut) -> int:
    return sum(key_bytes(key) + 12 * len(ranges) for key, ranges in cut)


def items(entries: Mapping[str, RangeSet]) -> list[tuple[str, int, int]]:
    return [(key, start, stop - 1) for key in sorted(entries) for start, stop in entries[key]]


def flat(cut: Cut) -> list[tuple[str, int, int]]:
    return [(key, first, last) for key, ranges in cut for first, last in ranges]


class CutterTwin:
    """All items in a gossip_partners, of which it takes as many as fit, beginning after the last one taken."""

    def __init__(self) -> None:
        self.taken: tuple[str, int] = ("", 0)

    def cut(self, entries: Mapping[str, RangeSet], limit: int) -> list[tuple[str, int, int]]:
        gossip_partners = [item for item in items(entries) if key_bytes(item[0]) + 12 <= limit]
        ahead = [item for item in gossip_partners if item[:2] > self.taken]
        chosen: list[tuple[str, int, int]] = []
        for item in ahead + [item for item in gossip_partners if item not in ahead]:
            size = sum(map(key_bytes, {key for key, *_ in [*chosen, item]})) + 12 * (len(chosen) + 1)
            if size > limit:
                break
            chosen.append(item)
            self.taken = item[0], item[2]
        return chosen


@given(st.lists(st.tuples(entry_maps, st.integers(0, 150)), max_size=6), st.integers(1, 4))
@settings(max_examples=examples(300))
def test_a_cut_is_the_next_part_of_the_circle(
    changes: list[tuple[dict[str, RangeSet], int]], repeated: int
) -> None:
    cutter, twin = DigestCutter[str](), CutterTwin()
    for entries, limit in changes:
        for _ in range(repeated):
            cut = cutter.cut(entries, limit, key_bytes)
            assert size_of(cut) <= limit
            expected = twin.cut(entries, limit)
            assert [key for key, _ in cut] == list(dict.fromkeys(key for key, *_ in expected))
            assert sorted(flat(cut)) == sorted(expected)
            assert all(list(ranges) == sorted(ranges) for _, ranges in cut)


def assert_all_appears(
    before: dict[str, RangeSet], entries: dict[str, RangeSet], cuts_before: int, limit: int
) -> None:
    """Whatever the cutter did before, everything appears within the promised number of cuts."""
    cutter = DigestCutter[str]()
    for _ in range(cuts_before):
        cutter.cut(before, limit, key_bytes)
    held = {key: ranges for key, ranges in entries.items() if ranges}
    total = sum(key_bytes(key) + 12 * ranges.range_count for key, ranges in held.items())
    useful = limit - 12 - 2 * max(map(key_bytes, held), default=0)
    missing = set(items(entries))
    for _ in range(-(-total // useful)):
        missing -= set(flat(cutter.cut(entries, limit, key_bytes)))
    assert not missing


@given(entry_maps, entry_maps, st.integers(0, 5), st.integers(45, 400))
@settings(max_examples=examples(300))
def test_everything_appears_within_few_cuts(
    before: dict[str, RangeSet], entries: dict[str, RangeSet], cuts_before: int, limit: int
) -> None:
    assert_all_appears(before, entries, cuts_before, limit)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=6), range_sets, min_size=1, max_size=30),
    st.integers(300, 1200),
)
@settings(max_examples=examples(100))
def test_with_small_keys_it_is_hardly_more_than_the_total_divided(
    entries: dict[str, RangeSet], limit: int
) -> None:
    total = sum(key_bytes(key) + 12 * ranges.range_count for key, ranges in entries.items())
    waste = 12 + 2 * max(map(key_bytes, entries))
    assume(total * waste <= limit * (limit - waste))  # what is wasted in all is less than one cut
    cutter, missing = DigestCutter[str](), set(items(entries))
    for _ in range(-(-total // limit) + 1):
        missing -= set(flat(cutter.cut(entries, limit, key_bytes)))
    assert not missing


def test_a_cutter_that_always_begins_at_the_start_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_the_start(self: DigestCutter[str], entries: Mapping[str, RangeSet]) -> object:
        return ((key, entries[key]) for key in sorted(entries))

    monkeypatch.setattr(digest_cutter.DigestCutter, "_around", from_the_start)
    entries = {key: RangeSet((number, number + 1) for number in range(0, 20, 2)) for key in "abc"}
    with pytest.raises(AssertionError):
        assert_all_appears({}, entries, 0, 60)


def test_the_cursor_rests_inside_a_key_and_each_key_is_listed_once() -> None:
    entries = {"a": RangeSet([(1, 3), (5, 6), (8, 10)]), "b": RangeSet([(1, 2)])}
    cutter = DigestCutter[str]()
    assert cutter.cut(entries, 11 + 24, key_bytes) == [("a", ((1, 2), (5, 5)))]
    assert cutter.cut(entries, 500, key_bytes) == [("a", ((1, 2), (5, 5), (8, 9))), ("b", ((1, 1),))]
    assert cutter.cut(entries, 2 * 11 + 24, key_bytes) == [("a", ((8, 9),)), ("b", ((1, 1),))]


def test_a_range_that_keeps_growing_does_not_keep_the_others_from_their_turn() -> None:
    cutter, seen = DigestCutter[str](), list[str]()
    for step in range(4):
        entries = {"a": RangeSet([(1 + step, 10 + step)]), "b": RangeSet([(1, 2)])}
        seen += [key for key, _ in cutter.cut(entries, 11 + 12, key_bytes)]
    assert seen == ["a", "b", "a", "b"]


def test_a_key_too_large_for_any_digest_is_passed_over() -> None:
    entries = {"a" * 100: RangeSet([(1, 2)]), "b": RangeSet([(1, 2)])}
    cutter = DigestCutter[str]()
    assert [cutter.cut(entries, 50, key_bytes) for _ in range(2)] == [[("b", ((1, 1),))]] * 2
    assert cutter.cut(entries, 0, key_bytes) == []
    assert cutter.cut({}, 50, key_bytes) == []
