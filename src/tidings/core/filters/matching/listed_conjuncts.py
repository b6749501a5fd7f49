"""The parts of a match index without numpy: the same shelves, all of them lists.

An event then costs one check for each conjunct that no `=` rules out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from tidings.core.filters.language.predicates import Conjunct, Scalar
from tidings.core.filters.matching.event_values import exact_attributes
from tidings.core.filters.matching.shelf import IndexedConjunct
from tidings.core.filters.matching.shelf_index import NOWHERE, ShelfIndex

K = TypeVar("K", bound=Hashable)

GONE: Any = object()
"""Replaces a key that was removed."""


class ListedConjuncts:
    """Does the same as `ConjunctIndex`, without numpy."""

    def __init__(self) -> None:
        self._shelves = ShelfIndex()

    @property
    def size_bytes(self) -> int:
        return self._shelves.size_bytes

    def add(self, conjunct: Conjunct, label: int) -> IndexedConjunct:
        member = IndexedConjunct(conjunct, label, NOWHERE)
        self._shelves.add(member)
        return member

    def remove(self, member: IndexedConjunct) -> None:
        self._shelves.remove(member)

    def relabel(self, member: IndexedConjunct, label: int) -> None:
        member.label = label

    def match(self, attributes: Mapping[str, Scalar]) -> list[int]:
        """Return the labels of the conjuncts that hold, in no particular order."""
        return self._shelves.match(exact_attributes(attributes))


class KeyList(Generic[K]):
    """Keys by position."""

    def __init__(self) -> None:
        self._keys: list[K] = []

    def __len__(self) -> int:
        return len(self._keys)

    def append(self, key: K) -> None:
        self._keys.append(key)

    def forget(self, position: int) -> None:
        self._keys[position] = GONE

    def at(self, positions: Iterable[int]) -> list[K]:
        keys = self._keys
        return [keys[position] for position in positions]
