"""Ranges of integers as messages and calls carry them: pairs (first, last), both included."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable

Ranges = tuple[tuple[int, int], ...]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort ranges, and join those that overlap or are adjacent. Ranges that end before they begin are empty."""
    ascending = sorted(each for each in ranges if each[0] <= each[1])
    if len(ascending) < 2:
        return tuple(ascending)
    found = ascending[:1]
    for first, last in ascending[1:]:
        if first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def within(numbers: Collection[int], ranges: Ranges) -> list[int]:
    """Return which numbers are in these merged ranges, ascending. The cost does not grow with the length of a range."""
    if sum(last - first + 1 for first, last in ranges) <= len(numbers):
        return [number for first, last in ranges for number in range(first, last + 1) if number in numbers]
    ascending = sorted(numbers) if ranges else []
    return [
        number
        for first, last in ranges
        for number in ascending[bisect_left(ascending, first) : bisect_right(ascending, last)]
    ]
