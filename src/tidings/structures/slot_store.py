"""Conjuncts as columns of bits: each takes a slot, and each attribute's table says in which rows the slot fails.

Slots come in pages of 64, one word of every row, so that whoever groups conjuncts by page can scan a few words
instead of all. A conjunct that does not mention an attribute has no bit in its table, and so costs nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tidings.model.predicates import Conjunct, Constraint, Scalar
from tidings.structures.attribute_table import UNASKED_ROW, AttributeTable
from tidings.structures.bit_rows import ALL_ONES, Slots, Words, bit_of, decode, not_bit_of, widened
from tidings.structures.value_domain import Shape, shape_of

ABSENCE_ROWS = 64
"""Attributes share these rows, which say who needs a value; up to 64 attributes each has its own."""

NARROW_FROM_WORDS = 2_048
"""Scans of fewer words gain nothing from dropping decided words on the way: a numpy call costs more."""

ROWS_BEFORE_NARROWING = 3
Check = Callable[[Mapping[str, Scalar]], bool]
ShelfKey = tuple[str, type, Any]


class Attribute:
    """The table of one attribute, and how many slots constrain it."""

    __slots__ = ("absence", "table", "uses")

    def __init__(self, table: AttributeTable, absence: int) -> None:
        self.table = table
        self.absence = absence
        self.uses = 0


class Shelf:
    """Members with one access predicate (`key`, None for the common shelf): as a list, or in pages of slots."""

    __slots__ = ("free_slots", "key", "members", "pages", "size")

    def __init__(self, key: ShelfKey | None) -> None:
        self.key = key
        self.size = 0
        self.members: list[Member] | None = None if key is None else []
        self.pages: Slots = np.zeros(0, np.int64)
        self.free_slots: list[int] = []


class Member:
    """One conjunct of an index, with the number that matching reports for it; `slot` is -1 outside a store."""

    __slots__ = ("check", "conjunct", "label", "shelf", "slot")

    def __init__(self, conjunct: Conjunct, label: int, shelf: Shelf) -> None:
        self.conjunct = conjunct
        self.label = label
        self.shelf = shelf
        self.slot = -1
        self.check: Check | None = None


class SlotStore:
    """Members by slot. A slot is free, or has one member."""

    def __init__(self) -> None:
        self.members: list[Member | None] = []
        self.occupied = 0
        self.page_count = 0
        self._capacity = 0
        self._free_pages: list[int] = []
        self._attributes: dict[str, Attribute] = {}
        self._absence_uses = [0] * ABSENCE_ROWS
        self.labels = np.zeros(0, np.int64)
        self._vacant: Words = np.zeros(0, np.uint64)
        self._residual: Words = np.zeros(0, np.uint64)
        self._absences: Words = np.zeros((ABSENCE_ROWS, 0), np.uint64)

    @property
    def size_bytes(self) -> int:
        """Memory of the bitmaps, as reserved; rows never written to are not resident."""
        tables = sum(attribute.table.rows.size_bytes for attribute in self._attributes.values())
        return tables + self._absences.nbytes + self._vacant.nbytes * 2 + self.labels.nbytes

    def new_page(self) -> int:
        if self._free_pages:
            return self._free_pages.pop()
        if self.page_count == self._capacity:
            self._grow(max(4, 2 * self._capacity))
        self.members.extend([None] * 64)
        self.page_count += 1
        return self.page_count - 1

    def release_page(self, page: int) -> None:
        """Take back a page whose slots are all free."""
        self._free_pages.append(page)

    def _grow(self, words: int) -> None:
        for attribute in self._attributes.values():
            attribute.table.rows.widen(words)
        self._absences = widened(self._absences, words)
        self._residual = widened(self._residual, words)
        vacant = np.full(words, ALL_ONES)
        vacant[: self._capacity] = self._vacant
        self._vacant = vacant
        self.labels = np.concatenate([self.labels, np.zeros(64 * words - len(self.labels), np.int64)])
        self._capacity = words

    def occupy(self, slot: int, member: Member) -> None:
        conjunct = member.conjunct
        member.slot = slot
        self.members[slot] = member
        self.labels[slot] = member.label
        self.occupied += 1
        word, bit = slot >> 6, bit_of(slot)
        exact = not conjunct.comparisons
        for name, parts in _by_attribute(conjunct).items():
            attribute = self._attribute(name)
            attribute.uses += 1
            if parts[0].null:
                attribute.table.add_null(slot)
                continue
            self._absences[attribute.absence, word] |= bit
            if parts[0].kind is not None:
                shape = _main_shape(parts)
                exact = exact and shape.exact and len(parts) == 1
                attribute.table.add(slot, parts[0].kind, shape)
        if not exact:
            self._residual[word] |= bit
        self._vacant[word] &= not_bit_of(slot)

    def vacate(self, member: Member) -> None:
        slot, member.slot = member.slot, -1
        word, bit, not_bit = slot >> 6, bit_of(slot), not_bit_of(slot)
        self._vacant[word] |= bit
        self.members[slot] = None
        self.occupied -= 1
        self._residual[word] &= not_bit
        for name in _by_attribute(member.conjunct):
            attribute = self._attributes[name]
            attribute.table.rows.clear_column(slot)
            self._absences[attribute.absence, word] &= not_bit
            self._release(name, attribute)

    def _attribute(self, name: str) -> Attribute:
        attribute = self._attributes.get(name)
        if attribute is None:
            absence = min(range(ABSENCE_ROWS), key=self._absence_uses.__getitem__)
            self._absence_uses[absence] += 1
            table = AttributeTable(self._capacity, partial(self._shape_at, name))
            attribute = self._attributes[name] = Attribute(table, absence)
        return attribute

    def _release(self, name: str, attribute: Attribute) -> None:
        attribute.uses -= 1
        if not attribute.uses:
            self._absence_uses[attribute.absence] -= 1
            del self._attributes[name]

    def _shape_at(self, name: str, slot: int) -> Shape:
        member = self.members[slot]
        assert member is not None
        return _main_shape([part for part in member.conjunct.constraints if part.attribute == name])

    def scan(self, attributes: Mapping[str, Scalar], pages: Slots | None) -> tuple[Slots, Slots]:
        """Of the slots of `pages` (None: all), those that hold, and those that only evaluation can tell."""
        fails, doubts = self._rows(attributes)
        numbers, survivors = self._survivors(fails, pages)
        if not len(numbers):
            return numbers, numbers
        doubtful = self._residual[numbers]
        for row in doubts:
            doubtful |= row[numbers]
        doubtful &= survivors
        if not doubtful.any():
            return decode(survivors, numbers), doubtful[:0].astype(np.int64)
        return decode(survivors ^ doubtful, numbers), decode(doubtful, numbers)

    def _rows(self, attributes: Mapping[str, Scalar]) -> tuple[list[Words], list[Words]]:
        """The rows that an event selects: of failing slots, the longest first, and of slots in doubt."""
        fails: list[tuple[int, int, Words]] = []
        doubts = []
        present = 0
        for name, value in attributes.items():
            attribute = self._attributes.get(name)
            if attribute is None or value is None:
                continue
            present |= 1 << attribute.absence
            rows = attribute.table.rows
            domain = attribute.table.domains.get(type(value))
            row = UNASKED_ROW if domain is None else domain.row_of(value)
            count = int(rows.fail_counts[row])
            if count:
                fails.append((-count, len(fails), rows.fails[row]))
            if rows.doubt_counts[row]:
                doubts.append(rows.doubts[row])
        for absence, uses in enumerate(self._absence_uses):
            if uses and not present >> absence & 1:
                fails.append((-self.occupied, len(fails), self._absences[absence]))
        fails.sort()
        return [row for _, _, row in fails], doubts

    def _survivors(self, fails: list[Words], pages: Slots | None) -> tuple[Slots, Words]:
        """The words with a slot that no row fails, and their bits."""
        if pages is None:
            failed = self._vacant[: self.page_count].copy()
        else:
            failed = self._vacant[pages]
        for place, row in enumerate(fails):
            if place == ROWS_BEFORE_NARROWING and len(failed) >= NARROW_FROM_WORDS:
                alive = (failed != ALL_ONES).nonzero()[0]
                failed = failed[alive]
                pages = alive if pages is None else pages[alive]
            if pages is None:
                np.bitwise_or(failed, row[: len(failed)], out=failed)
            else:
                np.bitwise_or(failed, row[pages], out=failed)
        alive = (failed != ALL_ONES).nonzero()[0]
        return (alive if pages is None else pages[alive]), ~failed[alive]


def _by_attribute(conjunct: Conjunct) -> dict[str, list[Constraint]]:
    parts: dict[str, list[Constraint]] = {}
    for constraint in conjunct.constraints:
        parts.setdefault(constraint.attribute, []).append(constraint)
    return parts


def _main_shape(parts: list[Constraint]) -> Shape:
    """The shape of one of the constraints on an attribute, of the plain one if there is one."""
    shapes = [shape_of(part) for part in parts]
    return next((shape for shape in shapes if shape.exact), shapes[0])
