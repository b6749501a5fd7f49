"""Conjuncts on shelves: access predicates where equality is selective, bitmaps elsewhere.

A conjunct hangs on the rarest value that it asks for with `=`, on the *shelf* of that value, or on the common
shelf if it asks for none. A shelf of few conjuncts is a list, checked one by one; a larger one has pages of
slots in the bitmaps of a `SlotStore`. Matching visits the shelves of the event's values and the common one, and
evaluates only the conjuncts that the bitmaps leave in doubt. Which shelf a conjunct hangs on affects only speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tidings.core.filters.language.evaluate import compile_conjunct
from tidings.core.filters.language.predicates import Conjunct, Constraint, Scalar, ValueKind, is_plain
from tidings.core.filters.matching.attribute_table import TYPES_OF_KIND
from tidings.core.filters.matching.bit_rows import Slots
from tidings.core.filters.matching.shelf import IndexedConjunct, Shelf, ShelfKey
from tidings.core.filters.matching.slot_store import SlotStore

SHELF_LIST_LIMIT = 8
"""Conjuncts that a shelf holds as a list, checked one by one; a page of bits costs less than checking more."""

SHELF_LIST_AGAIN = 3
SHELF_FEW = 6
COMMON_CHEAP = 8_192
"""Up to this size, scanning the common shelf costs less than checking more than a few conjuncts one by one."""

POPULAR_SHARE = 16
"""A value that more than one in so many conjuncts asks for is no help: the scan of all costs less."""

REPACK_LIMIT = 1_024
"""A larger shelf keeps its pages when it empties, so that no single removal takes long."""

PAGE_RUN = 8
"""Pages that a large shelf reserves at once: a cache line of every row."""

COMPILED_LIMIT = 65_536

NOWHERE = Shelf(None)
"""The shelf of members that are in no index."""


class ShelfIndex:
    def __init__(self) -> None:
        self._store = SlotStore()
        self._common = Shelf(None)
        self._common.members = []
        self._shelves: dict[str, dict[type, dict[Any, Shelf]]] = {}
        self._compiled: dict[IndexedConjunct, None] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def size_bytes(self) -> int:
        return self._store.size_bytes

    def __iter__(self) -> Iterator[IndexedConjunct]:
        yield from self._common.members or ()
        for by_type in self._shelves.values():
            for value_type, by_value in by_type.items():
                if value_type is not float:  # the same as those of integers
                    for shelf in by_value.values():
                        yield from shelf.members or ()
        yield from filter(None, self._store.members)

    def add(self, member: IndexedConjunct) -> None:
        member.shelf = self._shelf_for(member.conjunct)
        self._size += 1
        self._put(member)

    def remove(self, member: IndexedConjunct) -> None:
        self._size -= 1
        shelf = member.shelf
        shelf.size -= 1
        if shelf.members is not None:
            shelf.members.remove(member)
        else:
            self._clear_slot(shelf, member)
            if _is_wasteful(shelf):
                self._repack(shelf)
        if not shelf.size and shelf.key is not None:
            self._drop_shelf(shelf.key)
        self._compiled.pop(member, None)
        member.shelf, member.check = NOWHERE, None

    def relabel(self, member: IndexedConjunct) -> None:
        if member.slot is not None:
            self._store.labels[member.slot] = member.label

    def match(self, attributes: Mapping[str, Scalar]) -> list[int]:
        """The labels of the conjuncts that hold, in no particular order; the values are of exact types."""
        found = [member.label for member in self._common.members or () if self._holds(member, attributes)]
        pages = []
        for name, value in attributes.items():
            by_type = self._shelves.get(name)
            by_value = by_type.get(type(value)) if by_type else None
            shelf = by_value.get(value) if by_value else None
            if shelf is None:
                continue
            if shelf.members is None:
                pages.append(shelf.pages)
            else:
                found += [member.label for member in shelf.members if self._holds(member, attributes)]
        if self._store.occupied:
            self._match_pages(attributes, pages, found)
        return found

    def _match_pages(self, attributes: Mapping[str, Scalar], pages: list[Slots], found: list[int]) -> None:
        sure, doubtful = self._store.scan(attributes, pages)
        found += self._store.labels[sure].tolist()
        if len(doubtful):
            members = [self._store.members[slot] for slot in doubtful.tolist()]
            found += [member.label for member in members if self._holds(member, attributes)]

    def _holds(self, member: IndexedConjunct, attributes: Mapping[str, Scalar]) -> bool:
        check = member.check
        if check is None:
            if len(self._compiled) >= COMPILED_LIMIT:  # compiled conjuncts are larger than their bits
                for other in self._compiled:
                    other.check = None
                self._compiled.clear()
            check = member.check = compile_conjunct(member.conjunct)
            self._compiled[member] = None
        return check(attributes)

    def _shelf_for(self, conjunct: Conjunct) -> Shelf:
        best_key, best_size = None, 0
        for constraint in conjunct.constraints:
            key = _access_key(constraint)
            if key is None:
                continue
            shelf = self._find_shelf(key)
            size = shelf.size if shelf is not None else 0
            if best_key is None or size < best_size:
                best_key, best_size = key, size
        if best_key is None:
            return self._common
        if best_size >= SHELF_FEW and self._common.size < COMMON_CHEAP:
            return self._common
        if best_size >= SHELF_LIST_LIMIT and POPULAR_SHARE * best_size > self._size:
            return self._common
        name, value_type, value = best_key
        by_value = self._shelves.setdefault(name, {}).setdefault(value_type, {})
        shelf = by_value.get(value)
        if shelf is None:
            shelf = by_value[value] = Shelf(best_key)
            if value_type is int:
                self._shelves[name][float] = by_value
        return shelf

    def _find_shelf(self, key: ShelfKey) -> Shelf | None:
        name, value_type, value = key
        return self._shelves.get(name, {}).get(value_type, {}).get(value)

    def _drop_shelf(self, key: ShelfKey) -> None:
        name, value_type, value = key
        by_type = self._shelves[name]
        del by_type[value_type][value]
        if not any(by_type.values()):
            del self._shelves[name]

    def _put(self, member: IndexedConjunct) -> None:
        shelf = member.shelf
        shelf.size += 1
        if shelf.members is not None:
            shelf.members.append(member)
            if shelf.size > SHELF_LIST_LIMIT:
                self._move_to_pages(shelf)
        else:
            self._fill_slot(member)

    def _move_to_pages(self, shelf: Shelf) -> None:
        members, shelf.members = shelf.members or [], None
        for member in members:
            self._fill_slot(member)

    def _repack(self, shelf: Shelf) -> None:
        """Give back pages that have become nearly empty: to a list, or to as few pages as will do."""
        slots = [slot for page in shelf.pages.tolist() for slot in range(64 * page, 64 * page + 64)]
        members = [member for member in map(self._store.members.__getitem__, slots) if member is not None]
        for member in members:
            self._clear_slot(shelf, member)
        for page in shelf.pages.tolist() + shelf.spare_pages:
            self._store.release_page(page)
        shelf.pages = shelf.pages[:0]
        shelf.spare_pages = []
        shelf.free_slots.clear()
        if len(members) <= SHELF_LIST_AGAIN:
            shelf.members = members
        else:
            for member in members:
                self._fill_slot(member)

    def _fill_slot(self, member: IndexedConjunct) -> None:
        shelf = member.shelf
        if not shelf.free_slots:
            page = self._new_page(shelf)
            shelf.pages = np.append(shelf.pages, page)
            shelf.free_slots = list(range(64 * page + 63, 64 * page - 1, -1))
        self._store.occupy(shelf.free_slots.pop(), member)

    def _new_page(self, shelf: Shelf) -> int:
        if shelf.key is None:
            return self._store.new_common_page()
        if not shelf.spare_pages:
            # Pages that are scanned together share cache lines if they are neighbours.
            shelf.spare_pages = self._store.new_pages(min(len(shelf.pages) + 1, PAGE_RUN))
        return shelf.spare_pages.pop()

    def _clear_slot(self, shelf: Shelf, member: IndexedConjunct) -> None:
        shelf.free_slots.append(self._store.vacate(member))


def _is_wasteful(shelf: Shelf) -> bool:
    if shelf.size <= SHELF_LIST_AGAIN:
        return True
    return 64 * len(shelf.pages) > 4 * shelf.size + 128 and shelf.size <= REPACK_LIMIT


def _access_key(constraint: Constraint) -> ShelfKey | None:
    """What a conjunct with this constraint can hang on: one value, and not just true or false."""
    values, kind = constraint.values, constraint.kind
    if (
        values is None
        or len(values) != 1
        or kind is None
        or kind is ValueKind.BOOLEAN
        or not is_plain(values[0])
    ):
        return None
    return (constraint.attribute, TYPES_OF_KIND[kind][0], values[0])
