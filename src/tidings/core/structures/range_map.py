"""Values by disjoint ranges of integers: who has which sequences, which counts were sent.

Most ranges are added at the end, taken from the front and looked up by their start; all that is fast. Anything else
costs a binary search, and taking from the middle moves everything after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")
Piece = tuple[int, int, Value]
"""First, last, value."""

COMPACT_FROM = 64
SORTED_FROM = 8


class RangeMap(Generic[Value]):
    """Maps ranges from `first` to `last`, both included, to values. Ranges never overlap."""

    __slots__ = ("_head", "_ranges", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        """Ascending from `_head` on; entries before `_head` are removed ranges."""
        self._head = 0
        self._ranges: dict[int, tuple[int, Value]] = {}
        """First -> last, value."""

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._ranges)

    def __iter__(self) -> Iterator[Piece[Value]]:
        """Iterate over the ranges, ascending."""
        return iter([(first, *self._ranges[first]) for first in self._starts[self._head :]])

    @property
    def first(self) -> Piece[Value] | None:
        """The lowest range; None if there is none."""
        if not self._ranges:
            return None
        first = self._starts[self._head]
        return (first, *self._ranges[first])

    def add(self, first: int, last: int, value: Value) -> None:
        """Add a range, which must not overlap another."""
        starts = self._starts
        if not self._ranges or first > starts[-1]:
            starts.append(first)
        else:
            insort(starts, first, lo=self._head)
        self._ranges[first] = (last, value)

    def add_all(self, pieces: Sequence[Piece[Value]]) -> None:
        """Add ranges, which must not overlap others: many together cost little more than one in the middle."""
        if len(pieces) < SORTED_FROM:
            for piece in pieces:
                self.add(*piece)
            return
        self._ranges.update((first, (last, value)) for first, last, value in pieces)
        self._starts = sorted((*self._starts[self._head :], *(first for first, _, _ in pieces)))
        self._head = 0

    def get(self, number: int) -> Value | None:
        """Return the value of the range that contains the number; None if no range does."""
        found = self._ranges.get(number)
        if found is None:
            place = self._place(number)
            if place == len(self._starts) or self._starts[place] > number:
                return None
            found = self._ranges[self._starts[place]]
        return found[1]

    def overlapping(self, first: int, last: int) -> list[Piece[Value]]:
        """Return all ranges within `first` to `last`, ascending; ranges that extend beyond are clipped."""
        if last < first:
            return []
        found = self._ranges.get(first)
        if found is not None and found[0] >= last:
            return [(first, last, found[1])]
        pieces: list[Piece[Value]] = []
        for place in range(self._place(first), len(self._starts)):
            start = self._starts[place]
            if start > last:
                break
            end, value = self._ranges[start]
            pieces.append((max(start, first), min(end, last), value))
        return pieces

    def from_on(self, number: int) -> tuple[int, int] | None:
        """Return the first and last of the lowest range from `number` on, clipped; None if there is none."""
        place = self._place(number)
        if place == len(self._starts):
            return None
        first = self._starts[place]
        return max(first, number), self._ranges[first][0]

    def free(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of `first` to `last` that no range contains, ascending."""
        if first <= last and (not self._ranges or self._ranges[self._starts[-1]][0] < first):
            return [(first, last)]
        found: list[tuple[int, int]] = []
        start = first
        for begin, end, _ in self.overlapping(first, last):
            if start < begin:
                found.append((start, begin - 1))
            start = end + 1
        if start <= last:
            found.append((start, last))
        return found

    def take(self, first: int, last: int) -> list[Piece[Value]]:
        """Remove and return all ranges within `first` to `last`; the rest of a clipped range keeps its value."""
        found = self._ranges.get(first)
        if found is not None and found[0] == last:
            self._remove(first)
            return [(first, last, found[1])]
        if found is not None and found[0] > last >= first:  # the front of one range
            del self._ranges[first]
            self._starts[bisect_left(self._starts, first, lo=self._head)] = last + 1
            self._ranges[last + 1] = found
            return [(first, last, found[1])]
        pieces = self.overlapping(first, last)
        if pieces:
            self.cut(pieces[0][0])
            self.cut(last + 1)
            for start, _, _ in pieces:
                self._remove(start)
        return pieces

    def pop(self, first: int, last: int) -> Value | None:
        """Remove exactly this range and return its value; None if there is no such range."""
        found = self._ranges.get(first)
        if found is None or found[0] != last:
            return None
        head = self._head
        if head < COMPACT_FROM and self._starts[head] == first:  # the lowest, and nothing to tidy up
            del self._ranges[first]
            self._head = head + 1
        else:
            self._remove(first)
        return found[1]

    def cut(self, at: int) -> None:
        """Split the range that contains both `at` and the number before it, if there is one."""
        place = self._place(at)
        if place == len(self._starts) or self._starts[place] >= at:
            return
        start = self._starts[place]
        last, value = self._ranges[start]
        self._ranges[start] = (at - 1, value)
        self._ranges[at] = (last, value)
        self._starts.insert(place + 1, at)

    def replace(self, first: int, value: Value) -> None:
        """Replace the value of the range that starts at `first`."""
        self._ranges[first] = (self._ranges[first][0], value)

    def clear(self) -> None:
        self._starts.clear()
        self._ranges.clear()
        self._head = 0

    def _place(self, number: int) -> int:
        """Return the index of the range that contains the number, or of the next one."""
        place = bisect_right(self._starts, number, lo=self._head) - 1
        if place >= self._head and self._ranges[self._starts[place]][0] >= number:
            return place
        return place + 1

    def _remove(self, first: int) -> None:
        starts, head = self._starts, self._head
        del self._ranges[first]
        if starts[head] != first:
            del starts[bisect_left(starts, first, lo=head)]
            return
        self._head = head + 1
        if head >= COMPACT_FROM and 2 * head >= len(starts):
            del starts[: head + 1]
            self._head = 0
