"""Which of many filters an event matches (the content-based matching of papers epidemic and partitions).

`MatchIndex` keeps keys, patterns and order; finding the conjuncts that hold is left to `ConjunctIndex`. Equal
patterns are one entry, whoever asks for them. Keys have positions that rise in order of insertion. A conjunct
reports the position of its key if that is the only one concerned, and otherwise its entry.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidings.core.filters.language.predicates import Scalar
from tidings.core.filters.matching.conjunct_index import ConjunctIndex, Indexed

if TYPE_CHECKING:
    from tidings.core.filters.language.filter import Filter, Pattern

K = TypeVar("K", bound=Hashable)

_GONE: Any = object()
COMPACT_FROM = 64


class _Entry:
    """One pattern: the conjuncts that stand for it, and the positions of the keys that want it."""

    __slots__ = ("members", "number", "pattern", "positions")

    def __init__(self, pattern: Pattern, number: int) -> None:
        self.pattern = pattern
        self.number = number
        self.members: list[Indexed] = []
        self.positions: dict[int, None] = {}

    def label(self) -> int:
        """What its conjuncts report: a position, or below zero the entry's number."""
        if len(self.pattern.conjuncts) == 1 and len(self.positions) == 1:
            return next(iter(self.positions))
        return -1 - self.number


class MatchIndex(Generic[K]):
    """Keys with a filter each; `match` gives, in order of insertion, the keys whose filter an event satisfies.

    Adding and removing cost tens of microseconds, amortised, and matching hardly more than its answer.
    """

    def __init__(self) -> None:
        self._conjuncts = ConjunctIndex()
        self._by_pattern: dict[Pattern, _Entry] = {}
        self._entries: list[_Entry | None] = []
        self._free_numbers: list[int] = []
        self._position: dict[K, int] = {}
        self._keys: NDArray[np.object_] = np.empty(0, np.object_)
        """By position; longer than needed. An array, as keys are far apart in memory and it asks for all at once."""
        self._entry_at: list[_Entry | None] = []

    def __len__(self) -> int:
        return len(self._position)

    def __contains__(self, key: object) -> bool:
        return key in self._position

    def __iter__(self) -> Iterator[K]:
        """The keys in order of insertion."""
        return iter(self._position)

    @property
    def size_bytes(self) -> int:
        """Memory that the bitmaps reserve; patterns and keys come on top."""
        return self._conjuncts.size_bytes

    def add(self, key: K, filter: Filter | Pattern | str) -> None:  # noqa: A002 - the public name
        """Add a key; ValueError if it is present, FilterError if `filter` is text that is no filter."""
        if key in self._position:
            raise ValueError(f"key {key!r} is in the index already")
        pattern = _pattern_of(filter)
        position = len(self._entry_at)
        entry = self._by_pattern.get(pattern)
        if entry is None:
            entry = self._new_entry(pattern)
            entry.positions[position] = None
            self._insert(entry)
        else:
            entry.positions[position] = None
            self._relabel(entry)
        self._append(key, entry)

    def _append(self, key: K, entry: _Entry) -> None:
        position = len(self._entry_at)
        if position == len(self._keys):
            self._keys = np.concatenate([self._keys, np.full(position + 64, _GONE)])
        self._keys[position] = key
        self._position[key] = position
        self._entry_at.append(entry)

    def remove(self, key: K) -> None:
        """Remove a key; KeyError if it is absent."""
        position = self._position.pop(key)
        entry = self._entry_at[position]
        assert entry is not None
        self._keys[position] = _GONE
        self._entry_at[position] = None
        del entry.positions[position]
        if entry.positions:
            self._relabel(entry)
        else:
            self._drop_entry(entry)
        if len(self._entry_at) > 2 * len(self._position) + COMPACT_FROM:
            self._compact()

    def match(self, attributes: Mapping[str, Scalar]) -> list[K]:
        """The keys whose filter holds, each once; a value of an unknown type counts as NULL."""
        labels = self._conjuncts.match(attributes)
        if not len(labels):
            return []
        labels.sort()
        found: list[K] = self._keys[labels if labels[0] >= 0 else self._expand(labels.tolist())].tolist()
        return found

    def _expand(self, labels: list[int]) -> list[int]:
        """Positions in order, for labels some of which name entries (perhaps twice)."""
        positions: dict[int, None] = {}
        for label in dict.fromkeys(labels):
            if label >= 0:
                positions[label] = None
            else:
                entry = self._entries[-1 - label]
                assert entry is not None
                positions.update(entry.positions)
        return sorted(positions)

    def _new_entry(self, pattern: Pattern) -> _Entry:
        if self._free_numbers:
            entry = _Entry(pattern, self._free_numbers.pop())
            self._entries[entry.number] = entry
        else:
            entry = _Entry(pattern, len(self._entries))
            self._entries.append(entry)
        self._by_pattern[pattern] = entry
        return entry

    def _insert(self, entry: _Entry) -> None:
        label = entry.label()
        entry.members = [self._conjuncts.add(conjunct, label) for conjunct in entry.pattern.conjuncts]

    def _relabel(self, entry: _Entry) -> None:
        label = entry.label()
        for member in entry.members:
            if member.label != label:
                self._conjuncts.relabel(member, label)

    def _drop_entry(self, entry: _Entry) -> None:
        for member in entry.members:
            self._conjuncts.remove(member)
        del self._by_pattern[entry.pattern]
        self._entries[entry.number] = None
        self._free_numbers.append(entry.number)

    def _compact(self) -> None:
        """Number the positions anew without the gaps that removals left."""
        kept = [
            (key, entry) for key, entry in zip(self._keys, self._entry_at, strict=False) if entry is not None
        ]
        for entry in self._by_pattern.values():
            entry.positions = {}
        self._keys, self._entry_at, self._position = np.empty(0, np.object_), [], {}
        for position, (key, entry) in enumerate(kept):
            entry.positions[position] = None
            self._append(key, entry)
        for entry in self._by_pattern.values():
            self._relabel(entry)


def _pattern_of(filter: Filter | Pattern | str) -> Pattern:  # noqa: A002
    from tidings.core.filters.language.filter import Filter, Pattern  # the parser is slow to import

    if isinstance(filter, Pattern):
        return filter
    return filter.pattern if isinstance(filter, Filter) else Filter(filter).pattern
