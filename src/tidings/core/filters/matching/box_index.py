"""Indexes conjuncts as boxes: those that consist only of intervals of numbers, strings, and prefixes of strings.

A box is filed under two of its constraints, the pair that the fewest events are expected to satisfy. The values of an
attribute have keys: for a string one of its own and one per known prefix, for a number the region between two cuts of
a ruler. A cell is a pair of keys with the boxes that an event with these keys may match. Matching looks up the cells
of all pairs of the event's keys and compares the boxes there with its values, all at once: by codes first, then the
remaining ones by the exact bounds. A box whose range spans several regions is in several cells, but an event has one
region per attribute and so finds no box twice.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidings.core.filters.language.number import as_double
from tidings.core.filters.language.predicates import Conjunct, Constraint, Scalar, ValueKind
from tidings.core.filters.matching.box_cells import (
    CODED,
    HIGHEST,
    NO_CODES,
    NO_RULER,
    UNLIMITED,
    BoxCells,
    Cells,
    Keys,
    Labels,
    Ruler,
    Slots,
)
from tidings.core.filters.matching.shapes import Shape, shape_of
from tidings.core.filters.matching.shelf import IndexedConjunct, Shelf

REGIONS = 16
"""Regions of numbers per attribute. More regions put a box in more cells; fewer put more boxes in a cell."""

MAX_CELLS = 32
"""The most cells that a box may be in."""

WORST_SHARE = 1 / 16
"""A box is poor if a larger share of events is expected to find it."""

POOR_MEETINGS = 256
"""Poor boxes are left to bitmaps once an event is expected to find this many; fewer cost less than a scan."""

MAX_ATTRIBUTES = 16
"""Attributes with a column; limited because lines of bounds are compared as a whole."""

MIN_REFERENCES = 64
"""An attribute with fewer references to numbers has no ruler."""

_ZERO = np.array(np.uint64(0))

Side = tuple[float, bool, Keys]
"""For a constraint: the share of events expected to satisfy it, whether only its keys decide it, and the keys."""

Flags = NDArray[np.bool_]


class _Attribute:
    """An attribute's columns in the lines of bounds, and the keys of its values, unique across attributes.

    Numbers and strings have separate columns, so that a value of one kind refutes boxes that require the other.
    """

    __slots__ = ("number_column", "prefixes", "regions", "ruler", "string_column", "strings", "uses")

    def __init__(self, first_key: int, ruler: Ruler) -> None:
        self.number_column = self.string_column = -1
        self.ruler = ruler
        self.regions = tuple(range(first_key, first_key + len(ruler.cuts) + 1))
        """The keys of the regions of numbers. Dictionaries find these objects by identity, which is faster."""
        self.strings: dict[str, int] = {}
        self.prefixes: dict[int, dict[str, int]] = {}
        """By length, then prefix."""
        self.uses = 0
        """The number of boxes that constrain it."""

    @property
    def is_blank(self) -> bool:
        """True if nothing is lost when it is deleted."""
        return not (self.uses or self.ruler.cuts or self.strings or self.prefixes)

    @property
    def columns(self) -> list[int]:
        return [column for column in (self.number_column, self.string_column) if column >= 0]


class Box(IndexedConjunct):
    """A member that has cells and a slot while it is in a `BoxIndex`."""

    __slots__ = ("cells", "share")

    def __init__(self, conjunct: Conjunct, label: int, shelf: Shelf) -> None:
        super().__init__(conjunct, label, shelf)
        self.cells: Cells | None = None
        self.share = 0.0
        """The share of events that are expected to find it."""


class BoxIndex:
    """Members whose conjuncts are boxes. The cuts of numbers are chosen once, from the conjuncts given here."""

    def __init__(self, conjuncts: list[Conjunct]) -> None:
        references: dict[str, list[float]] = {}
        for conjunct in conjuncts:
            for constraint in conjunct.constraints:
                if constraint.kind is ValueKind.NUMBER:
                    found = references.setdefault(constraint.attribute, [])
                    found += map(float, shape_of(constraint).references())
        self._attributes: dict[str, _Attribute] = {}
        self._next_key = 0
        self._cells = BoxCells()
        self._slots = 0
        self._lines: NDArray[np.float64] = np.full((0, 8), -inf)
        self._columns = 0
        self._free_columns: list[int] = []
        self._uses: Counter[int] = Counter()
        """The number of boxes that require a string or prefix, by its key."""
        self._free: list[int] = []
        self._members: list[Box | None] = []
        self._poor_meetings = 0.0
        for name, values in references.items():
            if len(values) >= MIN_REFERENCES:
                self._attribute(name, _ruler_for(values))
        for conjunct in conjuncts:
            self._sides(conjunct)  # creates keys; their number determines how rare each is

    def __len__(self) -> int:
        return self._slots - len(self._free)

    def __iter__(self) -> Iterator[Box]:
        return (member for member in self._members if member is not None)

    @property
    def size_bytes(self) -> int:
        return self._cells.size_bytes + self._lines.nbytes

    def add(self, member: Box) -> bool:
        """Add a member if it is a box that few events find; return whether it was added."""
        sides = self._sides(member.conjunct)
        cells, share = self._cells_for(sides) if sides is not None else (None, 1.0)
        if cells is None:
            self._forget_unused(member.conjunct)
            return False
        if share > WORST_SHARE:
            self._poor_meetings += share
        for texts, text in self._texts(member.conjunct):
            self._uses[texts[text]] += 1
        slot = self._free.pop() if self._free else self._new_slot()
        self._members[slot] = member
        member.slot, member.cells, member.share = slot, cells, share
        codes = bytearray(NO_CODES)
        for constraint in member.conjunct.constraints:
            self._attributes[constraint.attribute].uses += 1
            self._set_bounds(slot, codes, constraint)
        self._cells.add(cells, bytes(codes), slot, member.label)
        return True

    def remove(self, member: Box) -> None:
        slot, cells = member.slot, member.cells
        assert slot is not None and cells is not None
        self._cells.remove(cells, slot)
        for texts, text in self._texts(member.conjunct):
            self._uses[texts[text]] -= 1
        for constraint in member.conjunct.constraints:
            self._attributes[constraint.attribute].uses -= 1
        self._forget_unused(member.conjunct)
        self._lines[slot] = -inf
        self._free.append(slot)
        self._members[slot] = None
        if member.share > WORST_SHARE:
            self._poor_meetings -= member.share
        member.slot = member.cells = None

    def relabel(self, member: Box) -> None:
        assert member.cells is not None and member.slot is not None
        self._cells.relabel(member.cells, member.slot, member.label)

    def match(self, attributes: Mapping[str, Scalar]) -> Labels:
        """Return the labels of the boxes that hold."""
        keys, codes, limits = self._read(attributes)
        slots, labels = self._cells.candidates(keys, codes)
        return labels[self._admitted(slots, limits)] if len(slots) else labels

    def _read(self, attributes: Mapping[str, Scalar]) -> tuple[list[int], bytes, list[float]]:
        """Return the keys of an event's values, and the limits for each column, as codes and as exact numbers."""
        keys: list[int] = []
        codes = bytearray(self._columns + CODED)
        limits = [-inf] * self._lines.shape[1]  # a missing value refutes every bound
        for name, attribute in self._attributes.items():  # this order decides which key of a pair comes first
            value: Any = attributes.get(name)
            kind = type(value)
            if kind is str:
                key = attribute.strings.get(value)
                if key is not None and attribute.string_column >= 0:
                    keys.append(key)
                    column = attribute.string_column
                    codes[column] = code = 1 + key % HIGHEST
                    codes[column + 1] = HIGHEST + 1 - code
                    limits[column] = key
                    limits[column + 1] = -key
                for length, prefixes in attribute.prefixes.items():
                    key = prefixes.get(value[:length])
                    if key is not None:
                        keys.append(key)
            elif kind is int or kind is float:
                double = value if kind is float else as_double(value)
                if double != double:
                    double = inf  # NaN is above all numbers
                ruler = attribute.ruler
                place = bisect_right(ruler.fine, double)
                keys.append(attribute.regions[ruler.regions[place]])
                column = attribute.number_column
                if column >= 0:
                    codes[column] = place + 1
                    codes[column + 1] = HIGHEST - place
                    limits[column] = double
                    limits[column + 1] = -double
        return keys, bytes(codes[:CODED]) + UNLIMITED, limits

    def _admitted(self, slots: Slots, limits: list[float]) -> Flags:
        """Return flags of the slots none of whose bounds exceeds its limit."""
        # Repeat the limits for every line: numpy is slow to broadcast a short line over many.
        repeated = np.frombuffer(array("d", limits).tobytes() * len(slots), np.float64)
        exceeded = (self._lines.take(slots, 0).ravel() > repeated).view(np.uint64)
        groups = len(limits) // 8
        refuted = exceeded[::groups]
        for group in range(1, groups):
            refuted = refuted | exceeded[group::groups]
        admitted: Flags = refuted == _ZERO
        return admitted

    def _new_slot(self) -> int:
        slot = self._slots
        self._slots += 1
        self._members.append(None)
        if slot == len(self._lines):
            more = slot + 64
            self._lines = np.concatenate([self._lines, np.full((more, self._lines.shape[1]), -inf)])
        return slot

    def _cells_for(self, sides: list[Side]) -> tuple[Cells | None, float]:
        cells, share = _best_cells(sides, WORST_SHARE)
        if cells is None and self._poor_meetings < POOR_MEETINGS:
            cells, share = _best_cells(sides, 1.0)
        return cells, share

    def _attribute(self, name: str, ruler: Ruler) -> _Attribute | None:
        attribute = self._attributes.get(name)
        if attribute is None and len(self._attributes) < MAX_ATTRIBUTES:
            attribute = _Attribute(self._next_key, ruler)
            self._next_key += len(ruler.cuts) + 1
            self._attributes[name] = attribute
        return attribute

    def _new_column(self) -> int:
        """Make room for two more bounds in every line; the width stays eight times a power of two."""
        if self._free_columns:
            return self._free_columns.pop()
        if self._columns == self._lines.shape[1]:
            self._lines = np.concatenate([self._lines, np.full_like(self._lines, -inf)], axis=1)
        self._columns += 2
        return self._columns - 2

    def _key_in(self, keys: dict[str, int], text: str) -> int:
        key = keys.get(text)
        if key is None:
            key = keys[text] = self._next_key
            self._next_key += 1
        return key

    def _set_bounds(self, slot: int, codes: bytearray, constraint: Constraint) -> None:
        attribute = self._attributes[constraint.attribute]
        if constraint.kind is ValueKind.NUMBER:
            if attribute.number_column < 0:
                attribute.number_column = self._new_column()
            column = attribute.number_column
            low, high = shape_of(constraint).number_bounds()
            low_code = 0 if low == -inf else attribute.ruler.low_code(low)
            high_code = 0 if high == inf else attribute.ruler.high_code(high)
        elif constraint.values is not None:
            if attribute.string_column < 0:
                attribute.string_column = self._new_column()
            column = attribute.string_column
            low = high = attribute.strings[constraint.values[0]]  # type: ignore[index]
            low_code = 1 + int(low) % HIGHEST
            high_code = HIGHEST + 1 - low_code
        else:
            return
        self._lines[slot, column : column + 2] = low, -high
        if column < CODED:
            codes[column], codes[column + 1] = low_code, high_code

    def _texts(self, conjunct: Conjunct) -> Iterator[tuple[dict[str, int], str]]:
        """Yield the strings and prefixes that a box requires, each with the dictionary that has its key."""
        for constraint in conjunct.constraints:
            attribute = self._attributes.get(constraint.attribute)
            if attribute is None or constraint.kind is not ValueKind.STRING:
                continue
            if constraint.values is not None:
                yield attribute.strings, constraint.values[0]  # type: ignore[misc]
            elif constraint.likes:
                prefix = constraint.likes[0].prefix
                yield attribute.prefixes.get(len(prefix), {}), prefix

    def _forget_unused(self, conjunct: Conjunct) -> None:
        """Delete keys that no box requires any more, and attributes that have become blank."""
        for keys, text in self._texts(conjunct):
            key = keys.get(text)
            if key is not None and not self._uses[key]:
                del keys[text], self._uses[key]
        for constraint in conjunct.constraints:
            attribute = self._attributes.get(constraint.attribute)
            if attribute is None:
                continue
            for length in {len(like.prefix) for like in constraint.likes}:
                if not attribute.prefixes.get(length, True):
                    del attribute.prefixes[length]  # otherwise every event would look there
            if attribute.is_blank:
                self._free_columns += attribute.columns
                del self._attributes[constraint.attribute]

    def _sides(self, conjunct: Conjunct) -> list[Side] | None:
        """Return the sides of a box, in the order of the attributes; None if the conjunct is not a box."""
        if conjunct.comparisons or len(conjunct.constraints) < 2:
            return None
        names = {constraint.attribute for constraint in conjunct.constraints}
        if len(names) < len(conjunct.constraints):
            return None
        sides = []
        for constraint in conjunct.constraints:
            shape = shape_of(constraint) if constraint.kind in (ValueKind.NUMBER, ValueKind.STRING) else None
            if shape is None or not shape.exact:
                return None
            attribute = self._attribute(constraint.attribute, NO_RULER)
            if attribute is None:
                return None
            side = self._side(attribute, constraint, shape)
            if side is None:
                return None
            sides.append((attribute.regions[0], *side))
        return [side[1:] for side in sorted(sides)]

    def _side(self, attribute: _Attribute, constraint: Constraint, shape: Shape) -> Side | None:
        if constraint.kind is ValueKind.NUMBER:
            low, high = shape.number_bounds()
            if not shape.is_interval or low > high or (low == -inf and high == inf):
                return None  # low > high: no number lies between two neighbouring doubles
            ruler = attribute.ruler
            first, last = ruler.region_of(low), ruler.region_of(high)
            keys = attribute.regions[first : last + 1]
            return len(keys) / (len(ruler.cuts) + 1), False, keys
        if shape.values is not None and len(shape.values) == 1:
            key = self._key_in(attribute.strings, shape.values[0])
            return 1 / len(attribute.strings), False, (key,)
        if len(constraint.likes) == 1 and constraint.likes[0].prefix and _is_prefix(constraint):
            prefix = constraint.likes[0].prefix
            prefixes = attribute.prefixes.setdefault(len(prefix), {})
            key = self._key_in(prefixes, prefix)
            return 1 / len(prefixes), True, (key,)
        return None


def _is_prefix(constraint: Constraint) -> bool:
    """Return True if the constraint consists only of LIKE; the caller knows that the pattern is a prefix."""
    return constraint == Constraint(constraint.attribute, constraint.kind, likes=constraint.likes)


def _ruler_for(values: list[float]) -> Ruler:
    values.sort()
    return Ruler(_quantiles(values, REGIONS), _quantiles(values, HIGHEST - REGIONS))


def _quantiles(values: list[float], parts: int) -> list[float]:
    """Return the distinct quantiles of sorted values."""
    return sorted({values[place * len(values) // parts] for place in range(1, parts)})


def _best_cells(sides: list[Side], worst_share: float) -> tuple[Cells | None, float]:
    """Return the pair of sides that fewest events satisfy, and that includes every side that only keys decide."""
    best, best_share = None, worst_share
    for place, (share, _, keys) in enumerate(sides):
        for other_share, _, other_keys in sides[:place]:
            if share * other_share <= best_share and len(keys) * len(other_keys) <= MAX_CELLS:
                chosen = (other_keys, keys)
                if all(k in chosen for _, by_keys, k in sides if by_keys):
                    best, best_share = chosen, share * other_share
    return best, best_share
