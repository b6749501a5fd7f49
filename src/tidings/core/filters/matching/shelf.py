"""The data that the parts of a match index share: its conjuncts (members) and their shelves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidings.core.filters.language.predicates import Conjunct, Constraint, Scalar, ValueKind
from tidings.core.filters.matching.shapes import Shape, shape_of

if TYPE_CHECKING:
    from tidings.core.filters.matching.bit_rows import Slots

Check = Callable[[Mapping[str, Scalar]], bool]
ShelfKey = tuple[str, type, Any]

TYPES_OF_KIND: dict[ValueKind, tuple[type, ...]] = {
    ValueKind.NUMBER: (int, float),
    ValueKind.STRING: (str,),
    ValueKind.BOOLEAN: (bool,),
    ValueKind.BYTES: (bytes,),
}


class Shelf:
    """Members that share one required value (`key`, None for the common shelf), in a list or in pages of slots."""

    __slots__ = ("free_slots", "key", "members", "pages", "size", "spare_pages")

    def __init__(self, key: ShelfKey | None) -> None:
        self.key = key
        self.size = 0
        self.members: list[IndexedConjunct] | None = None if key is None else []
        self.pages: Slots
        """Set only if `members` is None."""
        self.spare_pages: list[int] = []
        """Reserved next to the last page, and not yet in `pages`."""
        self.free_slots: list[int] = []


class IndexedConjunct:
    """One conjunct of an index, with the label that matching reports; `slot` is None outside a store."""

    __slots__ = ("check", "conjunct", "label", "shelf", "slot")

    def __init__(self, conjunct: Conjunct, label: int, shelf: Shelf) -> None:
        self.conjunct = conjunct
        self.label = label
        self.shelf = shelf
        self.slot: int | None = None
        self.check: Check | None = None

    def indexed_parts(self) -> dict[str, list[Constraint]]:
        """Return the constraints by attribute, except the one by which the shelf is found."""
        parts: dict[str, list[Constraint]] = {}
        for constraint in self.conjunct.constraints:
            parts.setdefault(constraint.attribute, []).append(constraint)
        if self.shelf.key is not None and len(parts[self.shelf.key[0]]) == 1:
            del parts[self.shelf.key[0]]
        return parts

    def shape_on(self, name: str) -> Shape:
        """Return the shape of its constraint on the attribute, which must have one."""
        return main_shape([part for part in self.conjunct.constraints if part.attribute == name])


def main_shape(parts: list[Constraint]) -> Shape:
    """Return the shape of one of the constraints on an attribute, preferably an exact one."""
    shapes = [shape_of(part) for part in parts]
    return next((shape for shape in shapes if shape.exact), shapes[0])
