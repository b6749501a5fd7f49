"""The cells of a box index: by a pair of keys, the boxes that an event with both keys may match.

A cell has a record of each of its boxes: the slot, and a code for each bound, one byte that is coarse but never refutes
wrongly. Records lie side by side, while the lines of exact bounds are far apart in memory: nearly all boxes
of a cell are refuted by their codes, and only the lines of the others are looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

CODED = 16
"""Bounds that have a code in the records: those of further columns are left to the lines."""

RECORD_BYTES = CODED + 8
"""The codes, the slot, and four bytes of nothing, so that the flags of a record are whole words."""

FINEST = 238
"""Cuts of numbers that only codes have, besides those of the regions; a byte has room for 254 in all."""

HIGHEST = 255
NO_CODES = bytes(CODED)
UNSLOTTED = bytes([HIGHEST] * 8)
"""Stands in an event's limits where records have slots: no slot exceeds it."""

_WORDS = RECORD_BYTES // 8
_INTEGERS = RECORD_BYTES // 4
_ZERO = np.array(np.uint64(0))

Keys = tuple[int, ...]
Cells = tuple[Keys, Keys]
Slots = NDArray[np.int32]


class Ruler:
    """The cuts of an attribute's numbers: few, between which regions are, and more of them for codes.

    A bound's code is 1 or more and does not exceed that of any number that the bound admits; where there is no bound,
    it is 0, and so is that of a number that is not there. Bounds from above are negated, and their codes, too.
    """

    __slots__ = ("_fine", "_regions", "cuts")

    def __init__(self, cuts: list[float], more: list[float]) -> None:
        self.cuts = cuts
        self._fine = sorted({*cuts, *more})
        assert len(self._fine) < HIGHEST
        self._regions = [bisect_right(cuts, cut) for cut in [float("-inf"), *self._fine]]

    def region_of(self, number: float) -> int:
        return self._regions[bisect_right(self._fine, number)]

    def place_of(self, number: float) -> tuple[int, int]:
        """The region of a number and its code, from below."""
        place = bisect_right(self._fine, number)
        return self._regions[place], place + 1


NO_RULER = Ruler([], [])


def code_of_key(key: int) -> int:
    """The code of a string, by its key."""
    return 1 + key % HIGHEST


class BoxCells:
    def __init__(self) -> None:
        self._cells: dict[int, dict[int, bytearray]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._cells.values()))

    @property
    def size_bytes(self) -> int:
        return sum(len(cell) for cells in self._cells.values() for cell in cells.values())

    def add(self, cells: Cells, slot: int, codes: bytes) -> None:
        record = codes + slot.to_bytes(8, "little")
        for first in cells[0]:
            by_second = self._cells.setdefault(first, {})
            for second in cells[1]:
                by_second.setdefault(second, bytearray()).extend(record)

    def remove(self, cells: Cells, slot: int) -> None:
        for first in cells[0]:
            by_second = self._cells[first]
            for second in cells[1]:
                cell = by_second[second]
                if len(cell) > RECORD_BYTES:
                    _remove_record(cell, slot)
                else:
                    del by_second[second]
            if not by_second:
                del self._cells[first]

    def candidates(self, keys: list[int], limits: bytes) -> Slots:
        """The boxes in the cells of all pairs of keys, in order, whose codes do not exceed the limits."""
        found: list[Any] = []
        cells = self._cells
        for place, key in enumerate(keys, 1):
            by_second = cells.get(key)
            if by_second is not None:
                found += map(by_second.get, keys[place:])
        records = b"".join(filter(None, found))
        # Limits as long as the records: numpy is slow to repeat a short line for each of many.
        repeated = np.frombuffer(limits * (len(records) // RECORD_BYTES), np.uint8)
        exceeded = (np.frombuffer(records, np.uint8) > repeated).view(np.uint64)
        refuted = exceeded[::_WORDS] | exceeded[1::_WORDS]
        slots: Slots = np.frombuffer(records, np.int32)[CODED // 4 :: _INTEGERS][refuted == _ZERO]
        return slots


def _remove_record(cell: bytearray, slot: int) -> None:
    """The last record takes the place of that of the slot."""
    slots = np.frombuffer(cell, np.int32)[CODED // 4 :: _INTEGERS]
    place = RECORD_BYTES * int((slots == slot).argmax())
    del slots  # a buffer in use cannot shrink
    cell[place : place + RECORD_BYTES] = cell[-RECORD_BYTES:]
    del cell[-RECORD_BYTES:]
