"""A histogram of non-negative integers in bounded memory: exact until it has too many distinct values.

From then on it rounds values to about a thousandth. Count, mean, deviation and maximum stay exact.
"""

from __future__ import annotations

from math import ceil, sqrt

MAX_DISTINCT = 65_536
SIGNIFICANT_BITS = 11


def rounded(value: int) -> int:
    """Keep the eleven leading bits of `value`: the result is less than 0.1 % too low."""
    excess = value.bit_length() - SIGNIFICANT_BITS
    return value if excess <= 0 else value >> excess << excess


class Histogram:
    """Counts values; see the module for what it rounds."""

    def __init__(self, max_distinct: int = MAX_DISTINCT) -> None:
        self._max_distinct = max_distinct
        self._exact: dict[int, int] = {}
        self._rounded: dict[int, int] = {}
        self._folded_count = 0
        self._folded_total = 0
        self._folded_squares = 0
        self._folded_maximum = 0

    def add(self, value: int) -> None:
        exact = self._exact
        exact[value] = exact.get(value, 0) + 1
        if len(exact) > self._max_distinct:
            self._fold()

    def _fold(self) -> None:
        """Round the values counted so far, but keep their exact sums."""
        for value, count in self._exact.items():
            key = rounded(value)
            self._rounded[key] = self._rounded.get(key, 0) + count
        self._folded_maximum = self.maximum
        self._folded_count, self._folded_total, self._folded_squares = self._sums()
        self._exact = {}

    def _sums(self) -> tuple[int, int, int]:
        """Return the count, the sum and the sum of squares."""
        count, total, squares = self._folded_count, self._folded_total, self._folded_squares
        for value, times in self._exact.items():
            count += times
            total += value * times
            squares += value * value * times
        return count, total, squares

    @property
    def count(self) -> int:
        return self._sums()[0]

    @property
    def maximum(self) -> int:
        return max(self._folded_maximum, max(self._exact, default=0))

    @property
    def mean(self) -> float:
        count, total, _ = self._sums()
        return total / count if count else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the whole population, not an estimate from a sample."""
        count, total, squares = self._sums()
        return sqrt(max(squares * count - total * total, 0)) / count if count else 0.0

    def quantile(self, share: float) -> int:
        """Return the smallest value that at least `share` of all values do not exceed; 0 if there are none."""
        counts = dict(self._rounded)
        for value, times in self._exact.items():
            counts[value] = counts.get(value, 0) + times
        needed = max(1, ceil(share * sum(counts.values())))
        seen = 0
        for value, times in sorted(counts.items()):
            seen += times
            if seen >= needed:
                return value
        return 0
