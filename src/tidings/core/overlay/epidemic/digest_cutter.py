"""Digests that fit into a message: a part of a large set of ranges, a different one each time.

A cut goes on where the last one ended, also within the ranges of one key, and around to the beginning. What is
cut from may change between cuts: the cutter remembers a place (a key and a number), not an item.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from tidings.core.structures.range_set import RangeSet

RANGE_BYTES = 12
"""About what a range takes on the wire."""

Range = tuple[int, int]
"""First and last, both included."""


class Sortable(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


Key = TypeVar("Key", bound=Sortable)


class DigestCutter(Generic[Key]):
    """Cuts digests from entries of keys and their numbers, in the order of keys and numbers.

    If the entries stay the same and `limit_bytes` is the limit, everything has appeared after
    `total / (limit_bytes - waste)` cuts, rounded up. The waste is 12 and twice the bytes of the largest key: at
    the end of a cut what did not fit, at the beginning a key that is listed again.
    """

    def __init__(self) -> None:
        self._cursor: tuple[Key, int] | None = None
        """The key and the end of the range that was listed last. A range that grows or shrinks before its turn
        comes again does not begin beyond this end, so changes in one place cannot hold the cursor there."""

    def cut(
        self, entries: Mapping[Key, RangeSet], limit_bytes: int, key_bytes: Callable[[Key], int]
    ) -> list[tuple[Key, tuple[Range, ...]]]:
        """What is next, each key once, of at most `limit_bytes` by the estimate of `key_bytes` and 12 per range.

        A key that no digest of this limit can list is passed over.
        """
        listed: dict[Key, list[Range]] = {}
        left = limit_bytes
        for key, ranges in self._around(entries):
            cost = RANGE_BYTES if key in listed else RANGE_BYTES + key_bytes(key)
            if cost > limit_bytes:
                continue
            for start, stop in ranges:
                if cost > left:
                    return _digest(listed)
                listed.setdefault(key, []).append((start, stop - 1))
                self._cursor = key, stop
                left -= cost
                cost = RANGE_BYTES
        return _digest(listed)

    def _around(self, entries: Mapping[Key, RangeSet]) -> Iterator[tuple[Key, Iterable[Range]]]:
        """All entries once, from the cursor on; the ranges are half-open. The cursor's key is met at both ends."""
        keys = sorted(entries)
        if self._cursor is None:
            for key in keys:
                yield key, entries[key]
            return
        cursor_key, end = self._cursor
        position = bisect_left(keys, cursor_key)
        behind, ahead = keys[:position], keys[position:]
        inside = bool(ahead) and ahead[0] == cursor_key
        if inside:
            yield cursor_key, [each for each in entries[cursor_key] if each[0] >= end]
        for key in ahead[inside:] + behind:
            yield key, entries[key]
        if inside:
            yield cursor_key, [each for each in entries[cursor_key] if each[0] < end]


def _digest(listed: dict[Key, list[Range]]) -> list[tuple[Key, tuple[Range, ...]]]:
    """Sorted, since the ranges of the key where a cut begins may be its last ones and then its first ones."""
    return [(key, tuple(sorted(ranges))) for key, ranges in listed.items()]
