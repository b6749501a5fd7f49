"""How a read is cut into tasks, and a batch limited: every offset once, whatever the sizes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.spark.format.ranges import ROWS_PER_TASK, cut, task_count
from tidings.spark.format.stream_reader import limited

OFFSETS = st.integers(0, 10_000)


@given(
    start=OFFSETS,
    rows=st.integers(1, 10_000),
    count=st.integers(1, 50),
    borders=st.lists(OFFSETS, unique=True),
)
def test_cuts_cover_the_range_once(start: int, rows: int, count: int, borders: list[int]) -> None:
    ranges = cut(start, start + rows, min(count, rows), sorted(borders))
    assert len(ranges) == min(count, rows)
    assert ranges[0][0] == start and ranges[-1][1] == start + rows
    assert all(low < high for low, high in ranges)
    assert all(one[1] == two[0] for one, two in itertools.pairwise(ranges))


def test_cuts_follow_the_borders_of_segments() -> None:
    assert cut(0, 1000, 4, [0, 240, 500, 790]) == [(0, 240), (240, 500), (500, 790), (790, 1000)]
    assert cut(0, 1000, 2, [0, 100, 900]) == [(0, 500), (500, 1000)]  # none is near


@pytest.mark.parametrize(
    ("rows", "asked", "expected"),
    [(0, None, 0), (1, None, 1), (10, 4, 4), (3, 100, 3), (10 * ROWS_PER_TASK, 4, 10), (0, 5, 0)],
)
def test_the_number_of_tasks(rows: int, asked: int | None, expected: int) -> None:
    assert task_count(rows, asked) == expected


@given(
    waiting=st.dictionaries(st.sampled_from("abcdef"), st.tuples(OFFSETS, st.integers(0, 1000)), min_size=1),
    limit=st.integers(1, 2000),
)
def test_a_limit_is_reached_and_not_passed(waiting: dict[str, tuple[int, int]], limit: int) -> None:
    start = {archive: offset for archive, (offset, _) in waiting.items()}
    ends = {archive: offset + count for archive, (offset, count) in waiting.items()}
    found = limited(start, ends, limit)
    assert list(found) == list(start)
    assert all(start[archive] <= offset <= ends[archive] for archive, offset in found.items())
    taken = sum(found[archive] - start[archive] for archive in found)
    assert taken == min(limit, sum(count for _, count in waiting.values()))


def test_a_limit_starves_no_archive() -> None:
    assert limited({"a": 0, "b": 5}, {"a": 900, "b": 105}, 100) == {"a": 90, "b": 15}
