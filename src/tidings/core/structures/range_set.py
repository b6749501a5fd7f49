"""A set of integers stored as sorted, disjoint, half-open ranges: received sequences, acknowledged offsets.

Sequences arrive nearly in order, so a stream of a million numbers with three losses is four ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """Stores integers as ranges `[start, stop)`, no two of which overlap or touch.

    With `max_ranges`, an addition that exceeds the limit closes the lowest gaps until the limit holds again: their
    numbers then count as present. `assumed` counts these numbers, and the addition returns how many it assumed, so that
    the caller can report them as given up.
    """

    __slots__ = ("_max_ranges", "_starts", "_stops", "assumed")

    def __init__(self, ranges: Iterable[tuple[int, int]] = (), *, max_ranges: int | None = None) -> None:
        if max_ranges is not None and max_ranges < 1:
            raise ValueError(f"max_ranges {max_ranges} must be positive")
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._max_ranges = max_ranges
        self.assumed = 0
        for start, stop in ranges:
            self.add_range(start, stop)

    def add(self, value: int) -> int:
        """Add one integer; return how many others were assumed present (see `max_ranges`)."""
        stops = self._stops
        if stops and value == stops[-1]:  # the next number in sequence: by far the most frequent case
            stops[-1] = value + 1
            return 0
        return self.add_range(value, value + 1)

    def add_range(self, start: int, stop: int) -> int:
        """Add `[start, stop)`; return how many other integers were assumed present (see `max_ranges`)."""
        if start >= stop:
            return 0
        stops = self._stops
        if stops and start == stops[-1]:  # as above
            stops[-1] = stop
            return 0
        first = bisect_left(stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        return self._close_lowest_gaps()

    def remove(self, start: int, stop: int) -> None:
        """Remove `[start, stop)`. Splitting a range may exceed `max_ranges` until the next addition."""
        if start >= stop:
            return
        if (
            self._starts and start == self._starts[0] and stop < self._stops[0]
        ):  # the frequent case: first in, first out
            self._starts[0] = stop
            return
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        if first >= last:
            return
        left, right = self._starts[first], self._stops[last - 1]
        kept = [(low, high) for low, high in ((left, start), (stop, right)) if low < high]
        self._starts[first:last] = [low for low, _ in kept]
        self._stops[first:last] = [high for _, high in kept]

    def trim_below(self, bound: int) -> None:
        """Forget every integer below `bound`."""
        if self._starts and self._starts[0] < bound:
            self.remove(self._starts[0], bound)

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the gaps within `[start, stop)`, lowest first."""
        gaps = []
        position = bisect_right(self._stops, start)
        while start < stop:
            if position == len(self._starts) or self._starts[position] >= stop:
                gaps.append((start, stop))
                break
            if start < self._starts[position]:
                gaps.append((start, self._starts[position]))
            start = self._stops[position]
            position += 1
        return gaps

    def __contains__(self, value: int) -> bool:
        position = bisect_right(self._starts, value) - 1
        return position >= 0 and value < self._stops[position]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over the ranges `(start, stop)`, lowest first."""
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        """Return the number of integers in the set."""
        return sum(self._stops) - sum(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"RangeSet({list(self)!r})"

    @property
    def range_count(self) -> int:
        return len(self._starts)

    @property
    def first(self) -> int | None:
        """The lowest integer; None if the set is empty."""
        return self._starts[0] if self._starts else None

    @property
    def last(self) -> int | None:
        """The highest integer; None if the set is empty."""
        return self._stops[-1] - 1 if self._stops else None

    def contiguous_end(self, start: int) -> int:
        """Return the lowest integer from `start` on that is not in the set: the end of what has no gap."""
        position = bisect_right(self._starts, start) - 1
        return max(start, self._stops[position]) if position >= 0 else start

    def _close_lowest_gaps(self) -> int:
        if self._max_ranges is None:
            return 0
        surplus = len(self._starts) - self._max_ranges
        if surplus <= 0:
            return 0
        closed = sum(self._starts[1 : surplus + 1]) - sum(self._stops[:surplus])
        del self._starts[1 : surplus + 1]
        del self._stops[:surplus]
        self.assumed += closed
        return closed
