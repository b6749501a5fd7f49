"""Conjuncts as columns of bits: each takes a slot, and each attribute's table says in which rows the slot fails.

Slots come in pages of 64, one word of every row, so that whoever groups conjuncts by page can scan a few words
instead of all. A conjunct that does not mention an attribute has no bit in its table, and so costs nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tidings.model.number import as_double
from tidings.model.predicates import Conjunct, Constraint, Kind, Scalar
from tidings.structures.attribute_table import UNASKED_ROW, AttributeTable
from tidings.structures.bit_rows import (
    ALL_ONES,
    Flags,
    Slots,
    Words,
    bit_of,
    bits_at,
    decode,
    not_bit_of,
    widened,
)
from tidings.structures.number_bounds import NumberBounds
from tidings.structures.value_domain import Shape, shape_of

ABSENCE_ROWS = 64
"""Attributes share these rows, which say who needs a value; up to 64 attributes each has its own."""

NARROW_FROM_WORDS = 2_048
"""Scans of fewer words gain nothing from dropping decided words on the way: a numpy call costs more."""

FEW_SLOTS = 256

GROWTH_PAD_WORDS = 8
"""Keeps the distance between rows from being a power of two, which would send a column to one cache set."""

ROWS_BEFORE_NARROWING = 3
Check = Callable[[Mapping[str, Scalar]], bool]
ShelfKey = tuple[str, type, Any]
NO_SLOTS: Slots = np.zeros(0, np.int64)


class Attribute:
    """The table of one attribute, and how many slots constrain it."""

    __slots__ = ("absence", "absence_bit", "bounds", "table", "uses")

    def __init__(self, table: AttributeTable, absence: int) -> None:
        self.table = table
        self.absence = absence
        self.absence_bit = 1 << absence
        self.bounds: int | None = None
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


class _Selection:
    """What an event selects: rows of failing slots, of slots in doubt, and of doubts that bounds may settle."""

    __slots__ = ("bounded", "doubts", "fails", "numbers")

    def __init__(self) -> None:
        self.fails: list[Words] = []
        self.doubts: list[Words] = []
        self.bounded: list[Words] = []
        self.numbers: list[tuple[int, float]] = []


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
        self._absence_mask = 0
        self._shared_mask = 0
        self.labels = np.zeros(0, np.int64)
        self._vacant: Words = np.zeros(0, np.uint64)
        self._unasked: Words = np.zeros(0, np.uint64)
        """As `_vacant`, with all bits set in pages that are not the common shelf's."""
        self._is_common: Flags = np.zeros(0, np.bool_)
        self._unclear_slots = 0
        """Slots with a bit in `_residual` or `_scattered`, or more of them."""
        self._residual: Words = np.zeros(0, np.uint64)
        self._scattered: Words = np.zeros(0, np.uint64)
        self._bounds = NumberBounds()
        self._absences: Words = np.zeros((ABSENCE_ROWS, 0), np.uint64)

    @property
    def size_bytes(self) -> int:
        """Memory of the bitmaps, as reserved; rows never written to are not resident."""
        tables = sum(attribute.table.rows.size_bytes for attribute in self._attributes.values())
        tables += self._bounds.size_bytes
        return tables + self._absences.nbytes + self._vacant.nbytes * 2 + self.labels.nbytes

    def new_page(self, *, common: bool) -> int:
        """A page of free slots; pages of the common shelf are scanned for every event."""
        if self._free_pages:
            page = self._free_pages.pop()
        else:
            if self.page_count == self._capacity:
                self._grow(2 * self._capacity + GROWTH_PAD_WORDS)
            self.members.extend([None] * 64)
            page = self.page_count
            self.page_count += 1
        self._is_common[page] = common
        return page

    def release_page(self, page: int) -> None:
        """Take back a page whose slots are all free."""
        self._free_pages.append(page)

    def _grow(self, words: int) -> None:
        for attribute in self._attributes.values():
            attribute.table.rows.widen(words)
        self._bounds.widen(64 * words)
        self._absences = widened(self._absences, words)
        self._residual = widened(self._residual, words)
        self._scattered = widened(self._scattered, words)
        vacant = np.full(words, ALL_ONES)
        vacant[: self._capacity] = self._vacant
        self._vacant = vacant
        unasked = np.full(words, ALL_ONES)
        unasked[: self._capacity] = self._unasked
        self._unasked = unasked
        self._is_common = np.concatenate([self._is_common, np.zeros(words - self._capacity, np.bool_)])
        self.labels = np.concatenate([self.labels, np.zeros(64 * words - len(self.labels), np.int64)])
        self._capacity = words

    def occupy(self, slot: int, member: Member) -> None:
        member.slot = slot
        self.members[slot] = member
        self.labels[slot] = member.label
        self.occupied += 1
        word, bit = slot >> 6, bit_of(slot)
        exact = not member.conjunct.comparisons
        for name, parts in _indexed_parts(member).items():
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
                if parts[0].kind is Kind.NUMBER:
                    self._set_bounds(attribute, slot, shape)
        if not exact:
            self._residual[word] |= bit
            self._unclear_slots += 1
        self._set_vacant(word, self._vacant[word] & not_bit_of(slot))

    def _set_vacant(self, word: int, bits: np.uint64) -> None:
        self._vacant[word] = bits
        if self._is_common[word]:
            self._unasked[word] = bits

    def _set_bounds(self, attribute: Attribute, slot: int, shape: Shape) -> None:
        if attribute.bounds is None:
            attribute.bounds = self._bounds.new_attribute()
        self._bounds.set(attribute.bounds, slot, *shape.number_bounds())
        if not shape.is_interval:
            self._scattered[slot >> 6] |= bit_of(slot)
            self._unclear_slots += 1

    def vacate(self, member: Member) -> None:
        slot, member.slot = member.slot, -1
        word, bit, not_bit = slot >> 6, bit_of(slot), not_bit_of(slot)
        self._set_vacant(word, self._vacant[word] | bit)
        self.members[slot] = None
        self.occupied -= 1
        for unclear in (self._residual, self._scattered):
            self._unclear_slots -= bool(unclear[word] & bit)
            unclear[word] &= not_bit
        for name in _indexed_parts(member):
            attribute = self._attributes[name]
            attribute.table.rows.clear_column(slot)
            if attribute.bounds is not None:
                self._bounds.clear(attribute.bounds, slot)
            self._absences[attribute.absence, word] &= not_bit
            self._release(name, attribute)

    def _attribute(self, name: str) -> Attribute:
        attribute = self._attributes.get(name)
        if attribute is None:
            absence = min(range(ABSENCE_ROWS), key=self._absence_uses.__getitem__)
            self._update_absence(absence, 1)
            table = AttributeTable(self._capacity, partial(self._shape_at, name))
            attribute = self._attributes[name] = Attribute(table, absence)
        return attribute

    def _release(self, name: str, attribute: Attribute) -> None:
        attribute.uses -= 1
        if not attribute.uses:
            self._update_absence(attribute.absence, -1)
            if attribute.bounds is not None:
                self._bounds.release(attribute.bounds)
            del self._attributes[name]

    def _update_absence(self, absence: int, change: int) -> None:
        uses = self._absence_uses[absence] = self._absence_uses[absence] + change
        bit = 1 << absence
        self._absence_mask = self._absence_mask | bit if uses else self._absence_mask & ~bit
        self._shared_mask = self._shared_mask | bit if uses > 1 else self._shared_mask & ~bit

    def _shape_at(self, name: str, slot: int) -> Shape:
        member = self.members[slot]
        assert member is not None
        return _main_shape([part for part in member.conjunct.constraints if part.attribute == name])

    def scan(
        self, attributes: Mapping[str, Scalar], common: Slots, pages: list[Slots]
    ) -> tuple[Slots, Slots]:
        """Of the slots of the common shelf and of `pages`, those that hold, and those only evaluation can tell."""
        selected = self._select(attributes)
        words, survivors = self._survivors(selected.fails, common, pages)
        if not len(words):
            return NO_SLOTS, NO_SLOTS
        places = decode(survivors)
        at, offsets = places >> 6, places & 63
        slots = (words[at] << 6) | offsets
        if len(slots) <= FEW_SLOTS:
            return self._settle_few(selected, slots, words, at, offsets)
        unclear, doubtful = self._doubts(selected, words)
        in_doubt = bits_at(doubtful, at, offsets).nonzero()[0]
        if not len(in_doubt):
            return slots, NO_SLOTS
        return self._settle(selected, slots, in_doubt, bits_at(unclear, at[in_doubt], offsets[in_doubt]))

    def _settle_few(
        self, selected: _Selection, slots: Slots, words: Slots, at: Slots, offsets: Slots
    ) -> tuple[Slots, Slots]:
        """What `_doubts` and `_settle` do, with fewer steps, each over all slots instead of those in doubt."""
        refuted = self._bounds.refuted(selected.numbers, slots) if selected.numbers else None
        if not self._unclear_slots and not selected.doubts:
            return (slots if refuted is None else slots[~refuted]), NO_SLOTS
        unclear = self._residual[words]
        unclear |= self._scattered[words]
        for row in selected.doubts:
            unclear |= row[words]
        if not unclear.any():
            return (slots if refuted is None else slots[~refuted]), NO_SLOTS
        undecided = bits_at(unclear, at, offsets)
        if refuted is None:
            return slots[~undecided], slots[undecided]
        return slots[~(undecided | refuted)], slots[undecided & ~refuted]

    def _doubts(self, selected: _Selection, words: Slots) -> tuple[Words, Words]:
        """Bits of the slots that only evaluation can decide, and of these and those that bounds can."""
        unclear = self._residual[words]
        for row in selected.doubts:
            unclear |= row[words]
        if not selected.bounded:
            return unclear, unclear
        bounded = selected.bounded[0][words]
        for row in selected.bounded[1:]:
            bounded |= row[words]
        unclear |= bounded & self._scattered[words]
        bounded |= unclear
        return unclear, bounded

    def _settle(
        self, selected: _Selection, slots: Slots, in_doubt: Slots, unclear: Flags
    ) -> tuple[Slots, Slots]:
        """Split off the slots in doubt that the bounds of numbers refute or leave unclear."""
        keep = np.ones(len(slots), np.bool_)
        if selected.numbers:
            refuted = self._bounds.refuted(selected.numbers, slots[in_doubt])
            unclear &= ~refuted
            keep[in_doubt] = ~(refuted | unclear)
        else:
            keep[in_doubt] = ~unclear
        return slots[keep], slots[in_doubt[unclear]]

    def _select(self, attributes: Mapping[str, Scalar]) -> _Selection:
        """The rows that stand for an event's values; in a large store, those where most slots fail first."""
        selected = _Selection()
        weights = []
        absences = []
        present = 0
        for name, value in attributes.items():
            attribute = self._attributes.get(name)
            if attribute is None or value is None:
                continue
            present |= attribute.absence_bit
            absences.append(attribute.absence)
            kind = type(value)
            domain = attribute.table.domains.get(kind)
            row = UNASKED_ROW if domain is None else domain.row_of(value)
            fails, weight, doubts = attribute.table.rows.view(row)
            weights.append(weight)
            selected.fails.append(fails)
            if doubts is None:
                continue
            if attribute.bounds is not None and (kind is int or kind is float) and value == value:
                selected.bounded.append(doubts)
                selected.numbers.append((attribute.bounds, as_double(value)))
            else:
                selected.doubts.append(doubts)
        if self.page_count >= NARROW_FROM_WORDS:
            order = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
            selected.fails = [selected.fails[place] for place in order]
        self._select_absences(selected, absences, present)
        return selected

    def _select_absences(self, selected: _Selection, absences: list[int], present: int) -> None:
        """Who needs an attribute that is not there fails; where attributes share a row, it may be in doubt."""
        absent = self._absence_mask & ~present
        while absent:
            absence = absent.bit_length() - 1
            absent ^= 1 << absence
            selected.fails.append(self._absences[absence])
        if self._shared_mask & present:
            for absence in dict.fromkeys(absences):
                if absences.count(absence) < self._absence_uses[absence]:
                    selected.doubts.append(self._absences[absence])

    def _survivors(
        self, fails: list[Words], common: Slots, pages: list[Slots]
    ) -> tuple[Slots, Words]:
        """The words of these pages with a slot that no row fails, and their bits."""
        asked = len(common) + sum(map(len, pages))
        if 4 * asked < self.page_count:
            return self._survivors_of(fails, np.concatenate([common, *pages]))
        # To run over all words is quicker than to pick them; in those not asked for everybody fails at once.
        failed = self._unasked[: self.page_count].copy()
        for some in pages:
            failed[some] = self._vacant.take(some)
        narrow = len(failed) >= NARROW_FROM_WORDS
        for place, row in enumerate(fails):
            if narrow and place == ROWS_BEFORE_NARROWING:
                alive = (failed != ALL_ONES).nonzero()[0]
                return self._narrowed(fails[place:], alive, failed.take(alive))
            np.bitwise_or(failed, row[: len(failed)], out=failed)
        alive = (failed != ALL_ONES).nonzero()[0]
        return alive, ~failed.take(alive)

    def _survivors_of(self, fails: list[Words], pages: Slots) -> tuple[Slots, Words]:
        failed = self._vacant.take(pages)
        if len(failed) < NARROW_FROM_WORDS:
            return self._narrowed(fails, pages, failed)
        for row in fails[:ROWS_BEFORE_NARROWING]:
            np.bitwise_or(failed, row.take(pages), out=failed)
        alive = (failed != ALL_ONES).nonzero()[0]
        return self._narrowed(fails[ROWS_BEFORE_NARROWING:], pages.take(alive), failed.take(alive))

    @staticmethod
    def _narrowed(fails: list[Words], words: Slots, failed: Words) -> tuple[Slots, Words]:
        """Of few words, those with a slot that no row fails, and their bits."""
        for row in fails:
            np.bitwise_or(failed, row.take(words), out=failed)
        alive = (failed != ALL_ONES).nonzero()[0]
        return words.take(alive), ~failed.take(alive)


def _indexed_parts(member: Member) -> dict[str, list[Constraint]]:
    """The constraints by attribute, but not the one by which the member's shelf is found."""
    parts = _by_attribute(member.conjunct)
    if member.shelf.key is not None and len(parts[member.shelf.key[0]]) == 1:
        del parts[member.shelf.key[0]]
    return parts


def _by_attribute(conjunct: Conjunct) -> dict[str, list[Constraint]]:
    parts: dict[str, list[Constraint]] = {}
    for constraint in conjunct.constraints:
        parts.setdefault(constraint.attribute, []).append(constraint)
    return parts


def _main_shape(parts: list[Constraint]) -> Shape:
    """The shape of one of the constraints on an attribute, of the plain one if there is one."""
    shapes = [shape_of(part) for part in parts]
    return next((shape for shape in shapes if shape.exact), shapes[0])
