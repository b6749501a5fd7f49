"""The lowest and the highest number that each slot accepts of each attribute, to settle doubts in bulk.

Regions of values leave the slots in doubt that refer to a number near the event's. Comparing these with the
numbers themselves takes a few vector operations for all attributes together, instead of an evaluation each.
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from tidings.structures.bit_rows import Flags, Slots

FEW_ROWS = 32


class NumberBounds:
    """A row per bound: for attribute `a`, row `2 * a` holds the lower bounds and `2 * a + 1` the upper, negated.

    So every bound refutes a value in the same way, by being greater than it (or than its negative).
    """

    __slots__ = ("_bounds", "_free", "_size")

    def __init__(self) -> None:
        self._bounds: NDArray[np.float64] = np.full((0, 0), -inf)
        self._free: list[int] = []
        self._size = 0

    @property
    def size_bytes(self) -> int:
        return self._bounds.nbytes

    def new_attribute(self) -> int:
        if self._free:
            return self._free.pop()
        if 2 * self._size == len(self._bounds):
            more = np.full((2 * self._size + 2, self._bounds.shape[1]), -inf)
            self._bounds = np.concatenate([self._bounds, more])
        self._size += 1
        return self._size - 1

    def release(self, attribute: int) -> None:
        """Take back an attribute all of whose slots were cleared."""
        self._free.append(attribute)

    def widen(self, slots: int) -> None:
        more = np.full((len(self._bounds), slots - self._bounds.shape[1]), -inf)
        self._bounds = np.concatenate([self._bounds, more], axis=1)

    def set(self, attribute: int, slot: int, low: float, high: float) -> None:
        self._bounds[2 * attribute, slot] = low
        self._bounds[2 * attribute + 1, slot] = -high

    def clear(self, attribute: int, slot: int) -> None:
        self.set(attribute, slot, -inf, inf)

    def refuted(self, values: list[tuple[int, float]], slots: Slots) -> Flags:
        """Which of the slots reject one of the values, given as (attribute, value)."""
        if len(self._bounds) <= FEW_ROWS:  # all rows at once, where those not asked for refute nothing
            limits = [inf] * len(self._bounds)
            for attribute, value in values:
                limits[2 * attribute : 2 * attribute + 2] = value, -value
            bounds = self._bounds.take(slots, axis=1)
        else:
            rows = [row for attribute, _ in values for row in (2 * attribute, 2 * attribute + 1)]
            limits = [limit for _, value in values for limit in (value, -value)]
            bounds = self._bounds[np.array(rows)[:, None], slots]
        flags: Flags = np.logical_or.reduce(bounds > np.array(limits)[:, None], axis=0)
        return flags
