"""Keeps large shelves of conjuncts in bitmaps.

A shelf of few conjuncts is a list, checked one by one; a larger one has pages of slots in the bitmaps of a
`SlotStore`. Matching evaluates only the conjuncts that the bitmaps leave in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tidings.core.filters.language.predicates import Scalar
from tidings.core.filters.matching.bit_rows import Slots
from tidings.core.filters.matching.shelf import Check, IndexedConjunct, Shelf
from tidings.core.filters.matching.shelf_index import ShelfIndex
from tidings.core.filters.matching.slot_store import SlotStore

SHELF_LIST_LIMIT = 8
"""The most conjuncts in the list of a shelf; a page of bits costs less than checking more one by one."""

SHELF_LIST_AGAIN = 3
SHELF_FEW = 6
COMMON_CHEAP = 8_192
"""Up to this size, scanning the common shelf costs less than checking more than a few conjuncts one by one."""

POPULAR_SHARE = 16
"""If more than one in this many conjuncts requires a value, its shelf does not pay: scanning all costs less."""

REPACK_LIMIT = 1_024
"""A larger shelf keeps pages that become empty, so that no single removal takes long."""

PAGE_RUN = 8
"""Pages that a large shelf reserves at once: one cache line in every row."""

COMPILED_LIMIT = 65_536

NO_PAGES: Slots = np.zeros(0, np.int64)


class PagedIndex(ShelfIndex):
    def __init__(self) -> None:
        super().__init__()
        self._store = SlotStore()
        self._compiled: dict[IndexedConjunct, None] = {}

    @property
    def size_bytes(self) -> int:
        return self._store.size_bytes

    def __iter__(self) -> Iterator[IndexedConjunct]:
        yield from super().__iter__()
        yield from filter(None, self._store.members)

    def relabel(self, member: IndexedConjunct) -> None:
        if member.slot is not None:
            self._store.labels[member.slot] = member.label

    def _scan(self, paged: list[Shelf], attributes: Mapping[str, Scalar], found: list[int]) -> None:
        if not self._store.occupied:
            return
        sure, doubtful = self._store.scan(attributes, [shelf.pages for shelf in paged])
        found += self._store.labels[sure].tolist()
        if len(doubtful):
            members = [self._store.members[slot] for slot in doubtful.tolist()]
            found += [member.label for member in members if self._holds(member, attributes)]

    def _compile(self, member: IndexedConjunct) -> Check:
        if len(self._compiled) >= COMPILED_LIMIT:  # compiled conjuncts are larger than their bits
            for other in self._compiled:
                other.check = None
            self._compiled.clear()
        self._compiled[member] = None
        return super()._compile(member)

    def _common_is_cheaper(self, shelf_size: int) -> bool:
        """Return True if one more on the common shelf costs less than one more on a shelf of this size."""
        if shelf_size >= SHELF_FEW and self._common.size < COMMON_CHEAP:
            return True
        return shelf_size >= SHELF_LIST_LIMIT and POPULAR_SHARE * shelf_size > self._size

    def _put(self, member: IndexedConjunct) -> None:
        shelf = member.shelf
        if shelf.members is None:
            self._fill_slot(member)
            return
        super()._put(member)
        if shelf.size > SHELF_LIST_LIMIT:
            self._move_to_pages(shelf, shelf.members)

    def _take(self, member: IndexedConjunct) -> None:
        shelf = member.shelf
        self._compiled.pop(member, None)
        if shelf.members is not None:
            super()._take(member)
            return
        self._clear_slot(shelf, member)
        if _is_wasteful(shelf):
            self._repack(shelf)

    def _move_to_pages(self, shelf: Shelf, members: list[IndexedConjunct]) -> None:
        shelf.members, shelf.pages = None, NO_PAGES
        for member in members:
            self._fill_slot(member)

    def _repack(self, shelf: Shelf) -> None:
        """Release pages that are nearly empty: move their members to a list, or to as few pages as possible."""
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
            # Neighbouring pages share cache lines, and these are scanned together.
            shelf.spare_pages = self._store.new_pages(min(len(shelf.pages) + 1, PAGE_RUN))
        return shelf.spare_pages.pop()

    def _clear_slot(self, shelf: Shelf, member: IndexedConjunct) -> None:
        shelf.free_slots.append(self._store.vacate(member))


def _is_wasteful(shelf: Shelf) -> bool:
    if shelf.size <= SHELF_LIST_AGAIN:
        return True
    return 64 * len(shelf.pages) > 4 * shelf.size + 128 and shelf.size <= REPACK_LIMIT
