"""Which of many conjuncts hold for an event: boxes where that is selective, shelves and bitmaps elsewhere.

A small index has shelves only. When it grows, boxes are set up with rulers that fit the conjuncts present, and
these move over, a few with each that is added, so that no addition takes long. Until all have moved, events are
matched in the old shelves too. Where a conjunct is kept affects only speed.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidings.model.predicates import Conjunct, Scalar
from tidings.structures.box_index import Box, BoxIndex
from tidings.structures.event_values import exact_attributes
from tidings.structures.shelf_index import NOWHERE, ShelfIndex

BOXES_FROM = 16_384
"""Fewer conjuncts are matched by shelves and bitmaps."""

MOVED_AT_ONCE = 3
"""Conjuncts that move with each one added."""

SAMPLED = 8
"""One in so many conjuncts is looked at to choose the rulers."""


class Indexed(Box):
    """A conjunct of the index, in boxes or on shelves."""

    __slots__ = ("is_old",)

    def __init__(self, conjunct: Conjunct, label: int) -> None:
        super().__init__(conjunct, label, NOWHERE)
        self.is_old = False


class ConjunctIndex:
    def __init__(self) -> None:
        self._shelves = ShelfIndex()
        self._boxes: BoxIndex | None = None
        self._old_shelves = ShelfIndex()
        self._to_move: list[Indexed] = []

    def __len__(self) -> int:
        boxes = 0 if self._boxes is None else len(self._boxes)
        return len(self._shelves) + len(self._old_shelves) + boxes

    @property
    def size_bytes(self) -> int:
        boxes = 0 if self._boxes is None else self._boxes.size_bytes
        return self._shelves.size_bytes + self._old_shelves.size_bytes + boxes

    def add(self, conjunct: Conjunct, label: int) -> Indexed:
        member = Indexed(conjunct, label)
        self._put(member)
        if self._boxes is None and len(self._shelves) > BOXES_FROM:
            self._set_up_boxes()
        for _ in range(MOVED_AT_ONCE):
            if self._to_move:
                self._move(self._to_move.pop())
        return member

    def remove(self, member: Indexed) -> None:
        if member.cells is not None:
            assert self._boxes is not None
            self._boxes.remove(member)
        else:
            self._shelves_of(member).remove(member)
            if member.is_old:
                self._maybe_end_moving()
        if self._boxes is not None and not len(self):
            self._boxes, self._shelves = None, ShelfIndex()  # whoever comes next may need other rulers

    def relabel(self, member: Indexed, label: int) -> None:
        member.label = label
        if member.cells is not None:
            assert self._boxes is not None
            self._boxes.relabel(member)
        else:
            self._shelves_of(member).relabel(member)

    def match(self, attributes: Mapping[str, Scalar]) -> list[int]:
        """The labels of the conjuncts that hold, in no particular order."""
        attributes = exact_attributes(attributes)
        if self._boxes is None:
            return self._shelves.match(attributes)
        found = self._boxes.match(attributes)
        if len(self._shelves):
            found += self._shelves.match(attributes)
        if len(self._old_shelves):
            found += self._old_shelves.match(attributes)
        return found

    def _put(self, member: Indexed) -> None:
        if self._boxes is None or not self._boxes.add(member):
            self._shelves.add(member)

    def _set_up_boxes(self) -> None:
        self._to_move = [member for member in self._shelves if isinstance(member, Indexed)]
        self._boxes = BoxIndex([member.conjunct for member in self._to_move[::SAMPLED]])
        self._shelves, self._old_shelves = ShelfIndex(), self._shelves
        for member in self._to_move:
            member.is_old = True

    def _move(self, member: Indexed) -> None:
        if member.shelf is NOWHERE:  # removed meanwhile
            return
        self._old_shelves.remove(member)
        member.is_old = False
        self._put(member)
        self._maybe_end_moving()

    def _maybe_end_moving(self) -> None:
        """Give back the old shelves once they are empty, and with them whoever was removed before its move."""
        if not len(self._old_shelves):
            self._to_move, self._old_shelves = [], ShelfIndex()

    def _shelves_of(self, member: Indexed) -> ShelfIndex:
        return self._old_shelves if member.is_old else self._shelves
