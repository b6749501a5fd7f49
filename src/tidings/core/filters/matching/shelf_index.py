"""Keeps conjuncts on shelves: finds them by a value that they require with `=`, then checks them one by one.

A conjunct is on the *shelf* of the rarest value that it requires with `=`, or on the common shelf if it requires
none. Matching visits the shelves of the event's values and the common one. The choice of a shelf affects only speed.
This does not need numpy; `paged_index` adds bitmaps for shelves of many conjuncts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidings.core.filters.language.evaluate import compile_conjunct
from tidings.core.filters.language.predicates import Conjunct, Constraint, Scalar, ValueKind, is_plain
from tidings.core.filters.matching.shelf import TYPES_OF_KIND, Check, IndexedConjunct, Shelf, ShelfKey

NOWHERE = Shelf(None)
"""The shelf of members that are not in an index."""


class ShelfIndex:
    """An index in which every shelf is a list of its members, however many there are."""

    def __init__(self) -> None:
        self._common = Shelf(None)
        self._common.members = []
        self._shelves: dict[str, dict[type, dict[Any, Shelf]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def size_bytes(self) -> int:
        """Memory reserved for bitmaps."""
        return 0

    def __iter__(self) -> Iterator[IndexedConjunct]:
        yield from self._common.members or ()
        for by_type in self._shelves.values():
            for value_type, by_value in by_type.items():
                if value_type is not float:  # floats share the shelves of integers
                    for shelf in by_value.values():
                        yield from shelf.members or ()

    def add(self, member: IndexedConjunct) -> None:
        member.shelf = self._shelf_for(member.conjunct)
        member.shelf.size += 1
        self._size += 1
        self._put(member)

    def remove(self, member: IndexedConjunct) -> None:
        self._size -= 1
        shelf = member.shelf
        shelf.size -= 1
        self._take(member)
        if not shelf.size and shelf.key is not None:
            self._drop_shelf(shelf.key)
        member.shelf, member.check = NOWHERE, None

    def _put(self, member: IndexedConjunct) -> None:
        assert member.shelf.members is not None
        member.shelf.members.append(member)

    def _take(self, member: IndexedConjunct) -> None:
        assert member.shelf.members is not None
        member.shelf.members.remove(member)

    def match(self, attributes: Mapping[str, Scalar]) -> list[int]:
        """Return the labels of the conjuncts that hold, in no particular order; the values have exact types."""
        found = [member.label for member in self._common.members or () if self._holds(member, attributes)]
        paged = []
        for name, value in attributes.items():
            by_type = self._shelves.get(name)
            by_value = by_type.get(type(value)) if by_type else None
            shelf = by_value.get(value) if by_value else None
            if shelf is None:
                continue
            if shelf.members is None:
                paged.append(shelf)
            else:
                found += [member.label for member in shelf.members if self._holds(member, attributes)]
        self._scan(paged, attributes, found)
        return found

    def _scan(self, paged: list[Shelf], attributes: Mapping[str, Scalar], found: list[int]) -> None:
        """Add the labels of unlisted conjuncts that hold to `found`; here, all conjuncts are listed."""

    def _holds(self, member: IndexedConjunct, attributes: Mapping[str, Scalar]) -> bool:
        check = member.check or self._compile(member)
        return check(attributes)

    def _compile(self, member: IndexedConjunct) -> Check:
        check = member.check = compile_conjunct(member.conjunct)
        return check

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
        if best_key is None or self._common_is_cheaper(best_size):
            return self._common
        name, value_type, value = best_key
        by_value = self._shelves.setdefault(name, {}).setdefault(value_type, {})
        shelf = by_value.get(value)
        if shelf is None:
            shelf = by_value[value] = Shelf(best_key)
            if value_type is int:
                self._shelves[name][float] = by_value
        return shelf

    def _common_is_cheaper(self, shelf_size: int) -> bool:
        """Return True if the common shelf suits a conjunct better than a shelf of this size."""
        return False

    def _find_shelf(self, key: ShelfKey) -> Shelf | None:
        name, value_type, value = key
        return self._shelves.get(name, {}).get(value_type, {}).get(value)

    def _drop_shelf(self, key: ShelfKey) -> None:
        name, value_type, value = key
        by_type = self._shelves[name]
        del by_type[value_type][value]
        if not any(by_type.values()):
            del self._shelves[name]


def _access_key(constraint: Constraint) -> ShelfKey | None:
    """Return the key of the shelf for this constraint if it requires a single value other than a boolean."""
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
