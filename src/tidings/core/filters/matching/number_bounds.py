"""The lowest and the highest number that each slot accepts for each attribute, to settle doubts in bulk.

Regions of values leave slots in doubt that refer to a number close to the event's. Comparing the numbers themselves
takes a few vector operations for all attributes together, instead of one evaluation per slot.
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from tidings.core.filters.matching.bit_rows import ZERO, Flags, Slots

FEW_COLUMNS = 32
_UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class NumberBounds:
    """A line of bounds per slot: column `2 * a` is attribute `a`'s lower bound, `2 * a + 1` its negated upper bound.

    So every bound refutes a value in the same way, by being greater than it (or than its negative). The bounds of
    one slot are contiguous, because matching reads all bounds of a few slots that are far apart.
    """

    __slots__ = ("_bounds", "_free", "_size")

    def __init__(self) -> None:
        self._bounds: NDArray[np.float64] = np.full((0, 2), -inf)
        self._free: list[int] = []
        self._size = 0

    @property
    def size_bytes(self) -> int:
        return self._bounds.nbytes

    def new_attribute(self) -> int:
        if self._free:
            return self._free.pop()
        slots, columns = self._bounds.shape
        if 2 * self._size == columns:
            # Doubling keeps the width a power of two, which `admitted` relies on.
            wide = np.full((slots, 2 * columns), -inf)
            wide[:, :columns] = self._bounds
            self._bounds = wide
        self._size += 1
        return self._size - 1

    def release(self, attribute: int) -> None:
        """Release an attribute; all of its slots must have been cleared."""
        self._free.append(attribute)

    def widen(self, slots: int, middle: int) -> None:
        """Make room for `slots` slots; the new ones are inserted at `middle`."""
        more = np.full((slots - len(self._bounds), self._bounds.shape[1]), -inf)
        self._bounds = np.concatenate([self._bounds[:middle], more, self._bounds[middle:]])

    def set(self, attribute: int, slot: int, low: float, high: float) -> None:
        line = self._bounds[slot]
        line[2 * attribute] = low
        line[2 * attribute + 1] = -high

    def clear(self, attribute: int, slot: int) -> None:
        self.set(attribute, slot, -inf, inf)

    def admitted(self, values: list[tuple[int, float]], slots: Slots) -> Flags:
        """Return flags of the slots that reject none of the values, given as (attribute, value)."""
        columns = self._bounds.shape[1]
        if columns > FEW_COLUMNS:
            asked = [column for attribute, _ in values for column in (2 * attribute, 2 * attribute + 1)]
            limits = [limit for _, value in values for limit in (value, -value)]
            admitted: Flags = np.logical_and.reduce(
                self._bounds[slots[:, None], asked] <= np.array(limits), axis=1
            )
            return admitted
        limits = [inf] * columns  # bounds of other attributes refute nothing
        for attribute, value in values:
            limits[2 * attribute] = value
            limits[2 * attribute + 1] = -value
        exceeded = self._bounds.take(slots, 0) > np.array(limits)
        # Read the flags of a slot as one number, or a few: much quicker than reducing such short lines.
        packed = exceeded.view(_UNSIGNED[min(columns, 8)])
        flags: Flags = (packed.ravel() if columns <= 8 else np.bitwise_or.reduce(packed, axis=1)) == ZERO
        return flags
