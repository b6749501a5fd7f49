"""Which items are out, and with whom: by member, so that one that leaves costs what it has, whatever others have."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from tidings.core.structures.range_map import Piece, RangeMap
from tidings.core.structures.ranges import Ranges

_NOTHING: RangeMap[int] = RangeMap()


class Out:
    """Numbers of items -> the member that has them, and which attempt it is."""

    def __init__(self) -> None:
        self._of: dict[str, RangeMap[int]] = {}

    def __iter__(self) -> Iterator[Piece[tuple[str, int]]]:
        """Iterate over the ranges, ascending."""
        return iter(
            sorted(
                (first, last, (member, attempt))
                for member, items in self._of.items()
                for first, last, attempt in items
            )
        )

    def get(self, number: int) -> tuple[str, int] | None:
        """Return the member that has the item, and the attempt; None if nobody has."""
        for member, items in self._of.items():
            attempt = items.get(number)
            if attempt is not None:
                return member, attempt
        return None

    def of(self, member: str) -> RangeMap[int]:
        """Return what the member has, with the attempts. Nobody else may change it."""
        return self._of.get(member, _NOTHING)

    def within(self, ranges: Ranges) -> list[Piece[tuple[str, int]]]:
        """Return what is out within these merged ranges, clipped."""
        return [
            (first, last, (member, attempt))
            for member, items in self._of.items()
            for first, last, attempt in _within(items, ranges)
        ]

    def add(self, member: str, first: int, last: int, attempt: int) -> None:
        self._of.setdefault(member, RangeMap()).add(first, last, attempt)

    def take(self, member: str, first: int, last: int) -> list[Piece[int]]:
        """Remove and return what the member has of these."""
        items = self._of.get(member, _NOTHING)
        found = items.take(first, last)
        if found and not len(items):
            del self._of[member]
        return found

    def take_all(self, member: str) -> list[Piece[int]]:
        """Remove and return what the member has."""
        return [*self._of.pop(member, _NOTHING)]


def _within(items: RangeMap[int], ranges: Ranges) -> Iterator[Piece[int]]:
    """Go through whatever is fewer."""
    if len(ranges) <= len(items):
        for first, last in ranges:
            yield from items.overlapping(first, last)
        return
    for first, last, attempt in items:
        place = bisect_left(ranges, first, key=lambda each: each[1])
        while place < len(ranges) and ranges[place][0] <= last:
            low, high = ranges[place]
            yield max(first, low), min(last, high), attempt
            place += 1
