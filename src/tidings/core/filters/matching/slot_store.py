"""Stores conjuncts as columns of bits: each has a slot, and each attribute's table has the rows in which a slot fails.

A page is 64 slots, one word of every row, so conjuncts grouped by page need a scan of a few words instead of all. Pages
of the common shelf, which every event scans, are counted from the start of the rows. The others have negative numbers
and are counted from the end. So the common ones are one slice, and no page is renumbered when the rows grow. A
conjunct that does not mention an attribute has no bit in its table and costs nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from tidings.core.filters.language.number import as_double
from tidings.core.filters.language.predicates import Scalar, ValueKind
from tidings.core.filters.matching.attribute_table import UNASKED_ROW, AttributeTable
from tidings.core.filters.matching.bit_rows import (
    ALL_ONES,
    OFFSET_MASK,
    ONES,
    WORD_SHIFT,
    Flags,
    RowView,
    Slots,
    Words,
    bit_of,
    bits_at,
    decode,
    is_bit_set,
    not_bit_of,
    widened,
)
from tidings.core.filters.matching.number_bounds import NumberBounds
from tidings.core.filters.matching.shapes import Shape
from tidings.core.filters.matching.shelf import IndexedConjunct, main_shape

ABSENCE_ROWS = 64
"""Rows of the slots that need a value. Up to 64 attributes have a row each; more attributes share them."""

NARROW_FROM_WORDS = 2_048
"""In scans of fewer words, dropping decided words midway saves less than the numpy call costs."""

FEW_SLOTS = 256

GROWTH_PAD_WORDS = 8
"""Keeps the distance between rows from being a power of two, which would map a column to one cache set."""

ROWS_BEFORE_NARROWING = 3
NO_SLOTS: Slots = np.zeros(0, np.int64)


class Attribute:
    """The table of one attribute, and the number of slots that constrain it."""

    __slots__ = ("absence", "absence_bit", "bounds", "table", "uses")

    def __init__(self, table: AttributeTable, absence: int) -> None:
        self.table = table
        self.absence = absence
        self.absence_bit = 1 << absence
        self.bounds: int | None = None
        self.uses = 0


class _Selection:
    """The rows that an event selects: of failing slots, of slots in doubt, and of doubts that bounds may settle."""

    __slots__ = ("bounded", "doubts", "fails", "numbers")

    def __init__(self) -> None:
        self.fails: list[RowView] = []
        self.doubts: list[Words] = []
        self.bounded: list[Words] = []
        self.numbers: list[tuple[int, float]] = []


class SlotStore:
    """Members by slot. A slot is free or has one member."""

    def __init__(self) -> None:
        self.members: list[IndexedConjunct | None] = []
        self.occupied = 0
        self._capacity = 0
        self._common_pages = 0
        self._other_pages = 0
        self._free_common_pages: list[int] = []
        self._free_pages: list[int] = []
        self._page_numbers: Slots = np.zeros(0, np.int64)
        self._attributes: dict[str, Attribute] = {}
        self._absence_uses = [0] * ABSENCE_ROWS
        self._absence_mask = 0
        self._shared_mask = 0
        self.labels = np.zeros(0, np.int64)
        self._vacant: Words = np.zeros(0, np.uint64)
        self._unclear_slots = 0
        """At least the number of slots with a bit in `_residual` or `_scattered`."""
        self._residual: Words = np.zeros(0, np.uint64)
        self._scattered: Words = np.zeros(0, np.uint64)
        self._bounds = NumberBounds()
        self._absences: Words = np.zeros((ABSENCE_ROWS, 0), np.uint64)

    @property
    def size_bytes(self) -> int:
        """Memory reserved for the bitmaps; rows never written to are not resident."""
        tables = sum(attribute.table.rows.size_bytes for attribute in self._attributes.values())
        tables += self._bounds.size_bytes
        return tables + self._absences.nbytes + self._vacant.nbytes + self.labels.nbytes

    @property
    def page_count(self) -> int:
        return self._common_pages + self._other_pages

    def new_common_page(self) -> int:
        """Return a page of free slots that is scanned for every event."""
        if self._free_common_pages:
            return self._free_common_pages.pop()
        self._reserve(1)
        self._common_pages += 1
        for attribute in self._attributes.values():
            attribute.table.rows.changed()
        return self._common_pages - 1

    def new_pages(self, count: int) -> list[int]:
        """Return pages of free slots for one shelf: a released page if there is one, else `count` neighbours."""
        if self._free_pages:
            return [self._free_pages.pop()]
        self._reserve(count)
        self._other_pages += count
        return list(range(-self._other_pages, count - self._other_pages))

    def release_page(self, page: int) -> None:
        """Take back a page whose slots are all free."""
        (self._free_common_pages if page >= 0 else self._free_pages).append(page)

    def _reserve(self, pages: int) -> None:
        if self.page_count + pages > self._capacity:
            self._grow(2 * self._capacity + GROWTH_PAD_WORDS)

    def _grow(self, words: int) -> None:
        """Make room between the pages counted from the start and those counted from the end."""
        middle, more = self._common_pages, words - self._capacity
        for attribute in self._attributes.values():
            attribute.table.rows.widen(words, middle)
        self._bounds.widen(64 * words, 64 * middle)
        self._absences = widened(self._absences, words, middle)
        self._residual = widened(self._residual, words, middle)
        self._scattered = widened(self._scattered, words, middle)
        self._vacant = widened(self._vacant, words, middle)
        self._vacant[middle : middle + more] = ALL_ONES
        new_labels = np.zeros(64 * more, np.int64)
        self.labels = np.concatenate([self.labels[: 64 * middle], new_labels, self.labels[64 * middle :]])
        self.members[64 * middle : 64 * middle] = [None] * (64 * more)
        self._page_numbers = np.arange(words)
        self._capacity = words

    def occupy(self, slot: int, member: IndexedConjunct) -> None:
        member.slot = slot
        self.members[slot] = member
        self.labels[slot] = member.label
        self.occupied += 1
        word, bit = slot >> 6, bit_of(slot)
        exact = not member.conjunct.comparisons
        for name, parts in member.indexed_parts().items():
            attribute = self._attribute(name)
            attribute.uses += 1
            if parts[0].null:
                attribute.table.add_null(slot)
                continue
            if parts[0].null is False:
                self._absences[attribute.absence, word] |= bit
            if parts[0].kind is None:
                exact = exact and not parts[0].excluded
            else:
                shape = main_shape(parts)
                exact = exact and shape.exact and len(parts) == 1
                attribute.table.add(slot, parts[0].kind, shape)
                if parts[0].kind is ValueKind.NUMBER:
                    self._set_bounds(attribute, slot, shape)
        if not exact:
            self._residual[word] |= bit
            self._unclear_slots += 1
        self._vacant[word] &= not_bit_of(slot)

    def _set_bounds(self, attribute: Attribute, slot: int, shape: Shape) -> None:
        if attribute.bounds is None:
            attribute.bounds = self._bounds.new_attribute()
        self._bounds.set(attribute.bounds, slot, *shape.number_bounds())
        if not shape.is_interval:
            self._scattered[slot >> 6] |= bit_of(slot)
            self._unclear_slots += 1

    def vacate(self, member: IndexedConjunct) -> int:
        """Remove a member; return the slot that is now free."""
        slot, member.slot = member.slot, None
        assert slot is not None
        word, bit, not_bit = slot >> 6, bit_of(slot), not_bit_of(slot)
        self._vacant[word] |= bit
        self.members[slot] = None
        self.occupied -= 1
        for unclear in (self._residual, self._scattered):
            self._unclear_slots -= bool(unclear[word] & bit)
            unclear[word] &= not_bit
        for name in member.indexed_parts():
            attribute = self._attributes[name]
            attribute.table.rows.clear_column(slot)
            if attribute.bounds is not None:
                self._bounds.clear(attribute.bounds, slot)
            self._absences[attribute.absence, word] &= not_bit
            self._release(name, attribute)
        return slot

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
        return member.shape_on(name)

    def scan(self, attributes: Mapping[str, Scalar], pages: list[Slots]) -> tuple[Slots, Slots]:
        """Return the slots of the common shelf and of `pages` that hold, and those that must be evaluated."""
        selected = self._select(attributes)
        words, survivors = self._survivors(selected.fails, pages)
        if not len(words):
            return NO_SLOTS, NO_SLOTS
        places = decode(survivors)
        at, offsets = places >> WORD_SHIFT, places & OFFSET_MASK
        slots = (words[at] << WORD_SHIFT) | offsets
        if len(slots) <= FEW_SLOTS:
            return self._settle_few(selected, slots)
        unclear, doubtful = self._doubts(selected, words)
        in_doubt = bits_at(doubtful, at, offsets).nonzero()[0]
        if not len(in_doubt):
            return slots, NO_SLOTS
        return self._settle(selected, slots, in_doubt, bits_at(unclear, at[in_doubt], offsets[in_doubt]))

    def _settle_few(self, selected: _Selection, slots: Slots) -> tuple[Slots, Slots]:
        """Do what `_doubts` and `_settle` do in fewer calls: compare the bounds of all slots, in doubt or not."""
        if selected.numbers:
            slots = slots[self._bounds.admitted(selected.numbers, slots)]
        rows = selected.doubts
        if self._unclear_slots:
            rows = [*rows, self._residual, self._scattered]
        if not rows:
            return slots, NO_SLOTS
        words = slots >> WORD_SHIFT
        unclear = rows[0][words]
        for row in rows[1:]:
            unclear |= row[words]
        undecided = is_bit_set(unclear, slots & OFFSET_MASK)
        return slots[~undecided], slots[undecided]

    def _doubts(self, selected: _Selection, words: Slots) -> tuple[Words, Words]:
        """Return the bits of the slots that only evaluation can decide, and of all slots in doubt."""
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
        """Use the bounds of numbers to settle doubts; return the slots that hold and those still unclear."""
        keep = np.ones(len(slots), np.bool_)
        if selected.numbers:
            admitted = self._bounds.admitted(selected.numbers, slots[in_doubt])
            unclear &= admitted
            keep[in_doubt] = admitted & ~unclear
        else:
            keep[in_doubt] = ~unclear
        return slots[keep], slots[in_doubt[unclear]]

    def _select(self, attributes: Mapping[str, Scalar]) -> _Selection:
        """Return the rows that belong to an event's values."""
        selected = _Selection()
        present, common = 0, self._common_pages
        for name, value in attributes.items():
            attribute = self._attributes.get(name)
            if attribute is None or value is None:
                continue
            present |= attribute.absence_bit
            table = attribute.table
            domain = table.domains.get(type(value))
            row = UNASKED_ROW if domain is None else domain.row_of(value)
            view = table.rows.views.get(row) or table.rows.view(row, common)
            if view[0]:
                selected.fails.append(view)
            doubts = view[3]
            if doubts is None:
                continue
            if domain is None or domain.nan_row is None or row == domain.nan_row:
                selected.doubts.append(doubts)
            else:
                assert attribute.bounds is not None
                selected.bounded.append(doubts)
                selected.numbers.append((attribute.bounds, as_double(value)))  # type: ignore[arg-type]
        absent = self._absence_mask & ~present
        if absent or self._shared_mask & present:
            self._select_absences(selected, attributes, absent)
        return selected

    def _select_absences(self, selected: _Selection, attributes: Mapping[str, Scalar], absent: int) -> None:
        """Let slots that need an absent attribute fail; where attributes share a row, they may be in doubt."""
        while absent:
            absence = absent.bit_length() - 1
            absent ^= 1 << absence
            row = self._absences[absence]
            selected.fails.append((0, row[: self._common_pages], row, None))
        known = [self._attributes.get(name) for name, value in attributes.items() if value is not None]
        present = [attribute.absence for attribute in known if attribute is not None]
        for absence in dict.fromkeys(present):
            if present.count(absence) < self._absence_uses[absence]:
                selected.doubts.append(self._absences[absence])

    def _survivors(self, fails: list[RowView], pages: list[Slots]) -> tuple[Slots, Words]:
        """Return the words of the common shelf and of `pages` with a slot that fails in no row, and their bits."""
        common = self._common_pages
        words = np.concatenate([self._page_numbers[:common], *pages])
        failed = self._vacant[words]
        of_common, of_pages, picked = failed[:common], failed[common:], words[common:]
        narrow = len(words) >= NARROW_FROM_WORDS
        if narrow:  # few words remain after the rows in which most slots fail
            fails = sorted(fails, key=_weight, reverse=True)
        for _, head, row, _ in fails[:ROWS_BEFORE_NARROWING] if narrow else fails:
            np.bitwise_or(of_common, head, of_common)
            if pages:
                np.bitwise_or(of_pages, row[picked], of_pages)
        alive = (failed != ONES).nonzero()[0]
        words, failed = words[alive], failed[alive]
        if narrow:
            for _, _, row, _ in fails[ROWS_BEFORE_NARROWING:]:
                np.bitwise_or(failed, row[words], failed)
            alive = (failed != ONES).nonzero()[0]
            words, failed = words[alive], failed[alive]
        return words, ~failed


def _weight(row: RowView) -> int:
    return row[0]
