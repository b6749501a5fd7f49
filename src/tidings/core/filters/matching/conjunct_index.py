"""Finds which of many conjuncts hold for an event: by boxes where they are selective, else by shelves and bitmaps.

A small index has shelves only. When it grows, it sets up boxes with rulers that fit the conjuncts present, and does so
again when it has grown much larger. A few conjuncts move with each addition, so that no addition takes long; until all
have moved, events are also matched in the old store. Where a conjunct is kept affects only speed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidings.core.filters.language.predicates import Conjunct, Scalar
from tidings.core.filters.matching.box_cells import Labels
from tidings.core.filters.matching.box_index import Box, BoxIndex
from tidings.core.filters.matching.event_values import exact_attributes
from tidings.core.filters.matching.listed_conjuncts import GONE
from tidings.core.filters.matching.paged_index import PagedIndex
from tidings.core.filters.matching.shelf_index import NOWHERE

K = TypeVar("K", bound=Hashable)

BOXES_FROM = 2_048
"""An index of fewer conjuncts has no boxes."""

REBUILD_FACTOR = 8
"""New rulers are chosen when the index has grown by this factor."""

MOVED_AT_ONCE = 3
"""How many conjuncts move with each addition."""

SAMPLE = 2_048
"""How many conjuncts, roughly, are examined to choose the rulers."""


class Indexed(Box):
    """A conjunct of the index and its store."""

    __slots__ = ("store",)

    def __init__(self, conjunct: Conjunct, label: int) -> None:
        super().__init__(conjunct, label, NOWHERE)
        self.store: ConjunctStore | None = None


class ConjunctStore:
    """Boxes, once there are any, and shelves for all other conjuncts."""

    __slots__ = ("boxes", "shelves")

    def __init__(self, boxes: BoxIndex | None = None) -> None:
        self.boxes = boxes
        self.shelves = PagedIndex()

    def __len__(self) -> int:
        return len(self.shelves) + (0 if self.boxes is None else len(self.boxes))

    def __iter__(self) -> Iterator[Indexed]:
        for member in self.shelves:
            assert isinstance(member, Indexed)
            yield member
        for box in self.boxes or ():
            assert isinstance(box, Indexed)
            yield box

    @property
    def size_bytes(self) -> int:
        return self.shelves.size_bytes + (0 if self.boxes is None else self.boxes.size_bytes)

    def add(self, member: Indexed) -> None:
        member.store = self
        if self.boxes is None or not self.boxes.add(member):
            self.shelves.add(member)

    def remove(self, member: Indexed) -> None:
        member.store = None
        if member.cells is None:
            self.shelves.remove(member)
        else:
            assert self.boxes is not None
            self.boxes.remove(member)

    def relabel(self, member: Indexed) -> None:
        if member.cells is None:
            self.shelves.relabel(member)
        else:
            assert self.boxes is not None
            self.boxes.relabel(member)

    def match(self, attributes: Mapping[str, Scalar]) -> Labels:
        if self.boxes is None:
            return np.array(self.shelves.match(attributes), np.int32)
        found = self.boxes.match(attributes)
        if len(self.shelves):
            found = np.append(found, np.array(self.shelves.match(attributes), np.int32))
        return found


class ConjunctIndex:
    def __init__(self) -> None:
        self.store = ConjunctStore()
        self.old_store: ConjunctStore | None = None
        self._to_move: list[Indexed] = []
        self._rebuild_above = BOXES_FROM
        """New rulers are chosen above this number of conjuncts."""

    def __len__(self) -> int:
        return len(self.store) + (0 if self.old_store is None else len(self.old_store))

    @property
    def size_bytes(self) -> int:
        return self.store.size_bytes + (0 if self.old_store is None else self.old_store.size_bytes)

    def add(self, conjunct: Conjunct, label: int) -> Indexed:
        member = Indexed(conjunct, label)
        self.store.add(member)
        if len(self.store) > self._rebuild_above and self.old_store is None:
            self._begin_moving()
        for _ in range(MOVED_AT_ONCE):
            if self._to_move:
                self._move(self._to_move.pop())
        return member

    def remove(self, member: Indexed) -> None:
        assert member.store is not None
        member.store.remove(member)
        self._maybe_end_moving()
        if self.store.boxes is not None and not len(self):
            # the next conjuncts may need other rulers
            self.store, self._rebuild_above = ConjunctStore(), BOXES_FROM

    def relabel(self, member: Indexed, label: int) -> None:
        assert member.store is not None
        member.label = label
        member.store.relabel(member)

    def match(self, attributes: Mapping[str, Scalar]) -> Labels:
        """Return the labels of the conjuncts that hold, in no particular order."""
        attributes = exact_attributes(attributes)
        found = self.store.match(attributes)
        if self.old_store is not None:
            found = np.append(found, self.old_store.match(attributes))
        return found

    def _begin_moving(self) -> None:
        self._to_move = list(self.store)
        self._rebuild_above = REBUILD_FACTOR * len(self._to_move)
        sample = self._to_move[:: max(1, len(self._to_move) // SAMPLE)]
        self.old_store = self.store
        self.store = ConjunctStore(BoxIndex([member.conjunct for member in sample]))

    def _move(self, member: Indexed) -> None:
        if member.store is not self.old_store or self.old_store is None:  # removed in the meantime
            return
        self.old_store.remove(member)
        self.store.add(member)
        self._maybe_end_moving()

    def _maybe_end_moving(self) -> None:
        """Release the old store once it is empty, and with it all members that were removed before they moved."""
        if self.old_store is not None and not len(self.old_store):
            self._to_move, self.old_store = [], None


class KeyArray(Generic[K]):
    """Keys by position. An array reads many keys at once, which are far apart in memory."""

    def __init__(self) -> None:
        self._size = 0
        self._keys: NDArray[np.object_] = np.empty(0, np.object_)
        """Longer than `_size`."""

    def __len__(self) -> int:
        return len(self._keys)

    def append(self, key: K) -> None:
        if self._size == len(self._keys):
            self._keys = np.concatenate([self._keys, np.full(self._size + 64, GONE)])
        self._keys[self._size] = key
        self._size += 1

    def forget(self, position: int) -> None:
        self._keys[position] = GONE

    def at(self, positions: Labels | Sequence[int]) -> list[K]:
        found: list[K] = self._keys[positions].tolist()
        return found
