"""Cuts digests that fit into a message from a large set of ranges, a different part each time.

A cut continues where the last one ended, even within the ranges of one key, and wraps around. The set may change
between cuts: the cutter remembers a position (a key and a number), not an item.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from tidings.core.structures.range_set import RangeSet

RANGE_BYTES = 12
"""Roughly what a range takes on the wire."""

Range = tuple[int, int]
"""First and last, both included."""


class Sortable(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


Key = TypeVar("Key", bound=Sortable)


class DigestCutter(Generic[Key]):
    """Cuts digests from keys and their numbers, in the order of both.

    If the entries do not change, everything has appeared after `total / (limit_bytes - waste)` cuts, rounded up. The
    waste is 12 plus twice the bytes of the largest key: what did not fit at the end of a cut, and a key that is listed
    again at the beginning of the next.
    """

    def __init__(self) -> None:
        self._cursor: tuple[Key, int] | None = None
        """The key and the end of the range listed last. A range that grows or shrinks before its next turn does not
        start beyond this end, so repeated changes in one place cannot hold the cursor there."""

    def cut(
        self, entries: Mapping[Key, RangeSet], limit_bytes: int, key_bytes: Callable[[Key], int]
    ) -> list[tuple[Key, tuple[Range, ...]]]:
        """Return the next part, each key once, of at most `limit_bytes`, estimated by `key_bytes` plus 12 per range.

        Skips a key that alone exceeds the limit.
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
        """Yield all entries once from the cursor on, with half-open ranges. The cursor's key may come twice."""
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
    """Sort the ranges of each key: the key where a cut starts may list its last ranges before its first."""
    return [(key, tuple(sorted(ranges))) for key, ranges in listed.items()]
