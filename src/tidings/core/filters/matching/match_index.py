"""Finds which of many filters an event matches (the content-based matching of papers epidemic and partitions).

`MatchIndex` keeps keys, patterns and order; `ConjunctIndex`, or `ListedConjuncts` without numpy, finds the conjuncts
that hold. Equal patterns share one entry. Keys have positions that rise in order of insertion. A matching conjunct
reports the position of its key if its entry has only that key and no other conjunct, and otherwise its entry.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidings.core.filters.language.predicates import Scalar
from tidings.core.filters.matching.listed_conjuncts import KeyList, ListedConjuncts

if TYPE_CHECKING:
    from tidings.core.filters.language.filter import Filter, Pattern
    from tidings.core.filters.matching.conjunct_index import ConjunctIndex, KeyArray

K = TypeVar("K", bound=Hashable)

COMPACT_FROM = 64


class _Entry:
    """One pattern: its indexed conjuncts, and the positions of the keys that have it."""

    __slots__ = ("members", "number", "pattern", "positions")

    def __init__(self, pattern: Pattern, number: int) -> None:
        self.pattern = pattern
        self.number = number
        self.members: list[Any] = []
        self.positions: dict[int, None] = {}

    def label(self) -> int:
        """Return what its conjuncts report: a position, or `-1 - number` for the entry."""
        if len(self.pattern.conjuncts) == 1 and len(self.positions) == 1:
            return next(iter(self.positions))
        return -1 - self.number


class MatchIndex(Generic[K]):
    """Keys with one filter each; `match` returns, in order of insertion, the keys whose filter an event satisfies.

    Adding and removing take tens of microseconds, amortised; matching hardly costs more than returning its answer.
    Without numpy it takes half a microsecond for each filter that no `=` rules out.
    """

    def __init__(self) -> None:
        self._conjuncts: ConjunctIndex | ListedConjuncts
        self._keys: KeyArray[K] | KeyList[K]
        self._conjuncts, self._keys = _parts()
        self._by_pattern: dict[Pattern, _Entry] = {}
        self._entries: list[_Entry | None] = []
        self._free_numbers: list[int] = []
        self._position: dict[K, int] = {}
        self._entry_at: list[_Entry | None] = []

    def __len__(self) -> int:
        return len(self._position)

    def __contains__(self, key: object) -> bool:
        return key in self._position

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys in order of insertion."""
        return iter(self._position)

    @property
    def size_bytes(self) -> int:
        """Memory reserved for bitmaps; patterns and keys are not included."""
        return self._conjuncts.size_bytes

    def add(self, key: K, filter: Filter | Pattern | str) -> None:  # noqa: A002 - the public name
        """Add a key; ValueError if it is present, FilterError if `filter` is text but not a valid filter."""
        if key in self._position:
            raise ValueError(f"key {key!r} is already in the index")
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
        self._position[key] = len(self._entry_at)
        self._keys.append(key)
        self._entry_at.append(entry)

    def remove(self, key: K) -> None:
        """Remove a key; KeyError if it is absent."""
        position = self._position.pop(key)
        entry = self._entry_at[position]
        assert entry is not None
        self._keys.forget(position)
        self._entry_at[position] = None
        del entry.positions[position]
        if entry.positions:
            self._relabel(entry)
        else:
            self._drop_entry(entry)
        if len(self._entry_at) > 2 * len(self._position) + COMPACT_FROM:
            self._compact()

    def match(self, attributes: Mapping[str, Scalar]) -> list[K]:
        """Return the keys whose filter holds, each once; a value of an unknown type counts as NULL."""
        labels = self._conjuncts.match(attributes)
        if not len(labels):
            return []
        labels.sort()
        if labels[0] < 0:
            labels = self._expand(labels if isinstance(labels, list) else labels.tolist())
        return self._keys.at(labels)

    def _expand(self, labels: list[int]) -> list[int]:
        """Return sorted positions for labels of which some denote entries (perhaps twice)."""
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
        """Renumber the positions to close the gaps that removals left."""
        kept = [(key, self._entry_at[position]) for key, position in self._position.items()]
        for entry in self._by_pattern.values():
            entry.positions = {}
        self._keys, self._entry_at, self._position = type(self._keys)(), [], {}
        for position, (key, wanted) in enumerate(kept):
            assert wanted is not None
            wanted.positions[position] = None
            self._append(key, wanted)
        for entry in self._by_pattern.values():
            self._relabel(entry)


def _parts() -> tuple[ConjunctIndex, KeyArray[Any]] | tuple[ListedConjuncts, KeyList[Any]]:
    try:
        from tidings.core.filters.matching.conjunct_index import ConjunctIndex, KeyArray
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return ListedConjuncts(), KeyList()
    return ConjunctIndex(), KeyArray()


def _pattern_of(filter: Filter | Pattern | str) -> Pattern:  # noqa: A002
    from tidings.core.filters.language.filter import Filter, Pattern  # the parser is slow to import

    if isinstance(filter, Pattern):
        return filter
    return filter.pattern if isinstance(filter, Filter) else Filter(filter).pattern
