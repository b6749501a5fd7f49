"""A histogram of non-negative integers in bounded memory: exact until it has too many distinct values.

From then on values are rounded to about a thousandth. Count, mean and deviation stay exact, and so does the
maximum.
"""

from __future__ import annotations

from math import ceil, sqrt

MAX_DISTINCT = 65_536
SIGNIFICANT_BITS = 11


def rounded(value: int) -> int:
    """`value` with its eleven leading bits kept: at most 0.05 % too low."""
    excess = value.bit_length() - SIGNIFICANT_BITS
    return value if excess <= 0 else value >> excess << excess


class Histogram:
    def __init__(self, max_distinct: int = MAX_DISTINCT) -> None:
        self._max_distinct = max_distinct
        self._counts: dict[int, int] = {}
        self._rounding = False
        self._total = 0
        self._squares = 0
        self.count = 0
        self.maximum = 0

    def add(self, value: int) -> None:
        self.count += 1
        self._total += value
        self._squares += value * value
        if value > self.maximum:
            self.maximum = value
        counts = self._counts
        if self._rounding:
            value = rounded(value)
        counts[value] = counts.get(value, 0) + 1
        if len(counts) > self._max_distinct and not self._rounding:
            self._round()

    def _round(self) -> None:
        self._rounding = True
        exact, self._counts = self._counts, {}
        for value, count in exact.items():
            key = rounded(value)
            self._counts[key] = self._counts.get(key, 0) + count

    @property
    def mean(self) -> float:
        return self._total / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the values themselves (not an estimate from a sample)."""
        if not self.count:
            return 0.0
        return sqrt(max(self._squares * self.count - self._total * self._total, 0)) / self.count

    def quantile(self, share: float) -> int:
        """The smallest value that at least `share` of all values do not exceed; 0 if there are none."""
        needed = max(1, ceil(share * self.count))
        seen = 0
        for value, count in sorted(self._counts.items()):
            seen += count
            if seen >= needed:
                return value
        return 0
