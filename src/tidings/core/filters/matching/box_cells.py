"""The cells of a box index: for each pair of keys, the boxes that an event with both keys may match.

A cell has a record for each of its boxes: the slot, the label, and for each bound a code of one byte, which is coarse
but never refutes wrongly. Records are contiguous, while lines of exact bounds are far apart in memory. The codes
refute nearly all boxes of a cell, and only the lines of the others are read.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

CODED = 16
"""Bounds that have a code in the records; further columns are compared by their lines only."""

RECORD_BYTES = CODED + 8
"""The codes, the slot, the label."""

HIGHEST = 255
LARGE_BYTES = 4_096
"""A cell up to this size is `bytes`: quicker to join, but copied whenever a box is added."""

NO_CODES = bytes(CODED)
UNLIMITED = bytes([HIGHEST] * 8)
"""The part of an event's limits beside a record's slot and label: nothing exceeds it."""

_WORDS = RECORD_BYTES // 8
_INTEGERS = RECORD_BYTES // 4
_SLOT, _LABEL = CODED // 4, CODED // 4 + 1
_ZERO = np.array(np.uint64(0))

Keys = tuple[int, ...]
Cells = tuple[Keys, Keys]
Slots = NDArray[np.int32]
Labels = NDArray[np.int32]

_slot_and_label = Struct("=ii").pack


class Ruler:
    """The cuts of an attribute's numbers: a few that separate regions, and more for codes.

    A bound's code is at least 1 and does not exceed the code of any number that the bound admits. A missing bound and
    a missing number have code 0. Upper bounds are negated, and so are their codes.
    """

    __slots__ = ("cuts", "fine", "regions")

    def __init__(self, cuts: list[float], more: list[float]) -> None:
        """Take at most 254 cuts in all, which fit into a byte."""
        self.cuts = cuts
        self.fine = sorted({*cuts, *more})
        """A number's place among these, plus one, is its code."""
        assert len(self.fine) < HIGHEST
        self.regions = [bisect_right(cuts, cut) for cut in [float("-inf"), *self.fine]]
        """The region for each place in `fine`."""

    def region_of(self, number: float) -> int:
        return self.regions[bisect_right(self.fine, number)]

    def low_code(self, bound: float) -> int:
        return 1 + bisect_right(self.fine, bound)

    def high_code(self, bound: float) -> int:
        return HIGHEST - bisect_right(self.fine, bound)


NO_RULER = Ruler([], [])


class BoxCells:
    def __init__(self) -> None:
        self._cells: dict[int, dict[int, bytes | bytearray]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._cells.values()))

    @property
    def size_bytes(self) -> int:
        return sum(len(cell) for cells in self._cells.values() for cell in cells.values())

    def add(self, cells: Cells, codes: bytes, slot: int, label: int) -> None:
        record = codes + _slot_and_label(slot, label)
        for first in cells[0]:
            by_second = self._cells.setdefault(first, {})
            for second in cells[1]:
                cell = by_second.get(second, b"")
                if isinstance(cell, bytearray):
                    cell.extend(record)
                else:
                    cell += record
                    by_second[second] = cell if len(cell) <= LARGE_BYTES else bytearray(cell)

    def remove(self, cells: Cells, slot: int) -> None:
        for first in cells[0]:
            by_second = self._cells[first]
            for second in cells[1]:
                cell = by_second[second]
                if len(cell) == RECORD_BYTES:
                    del by_second[second]
                    continue
                place = _place_of(cell, slot)
                if isinstance(cell, bytearray):
                    cell[place : place + RECORD_BYTES] = cell[-RECORD_BYTES:]  # put the last one here
                    del cell[-RECORD_BYTES:]
                else:
                    by_second[second] = cell[:place] + cell[place + RECORD_BYTES :]
            if not by_second:
                del self._cells[first]

    def relabel(self, cells: Cells, slot: int, label: int) -> None:
        for first in cells[0]:
            by_second = self._cells[first]
            for second in cells[1]:
                cell = by_second[second]
                end = _place_of(cell, slot) + RECORD_BYTES
                by_second[second] = cell[: end - 8] + _slot_and_label(slot, label) + cell[end:]

    def candidates(self, keys: list[int], limits: bytes) -> tuple[Slots, Labels]:
        """Return the boxes in the cells of all pairs of keys, in order, whose codes do not exceed the limits."""
        found: list[Any] = []
        cells = self._cells
        for place, key in enumerate(keys, 1):
            by_second = cells.get(key)
            if by_second is not None:
                found += map(by_second.get, keys[place:])
        records = b"".join(filter(None, found))
        # Repeat the limits for every record: numpy is slow to broadcast a short line over many.
        repeated = np.frombuffer(limits * (len(records) // RECORD_BYTES), np.uint8)
        exceeded = (np.frombuffer(records, np.uint8) > repeated).view(np.uint64)
        refuted = exceeded[::_WORDS] | exceeded[1::_WORDS]
        admitted = refuted == _ZERO
        integers = np.frombuffer(records, np.int32)
        return integers[_SLOT::_INTEGERS][admitted], integers[_LABEL::_INTEGERS][admitted]


def _place_of(cell: bytes | bytearray, slot: int) -> int:
    slots = np.frombuffer(cell, np.int32)[_SLOT::_INTEGERS]
    return RECORD_BYTES * int((slots == slot).argmax())
