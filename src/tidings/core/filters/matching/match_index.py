"""Which of many filters an event matches (the content-based matching of papers epidemic and partitions).

`MatchIndex` keeps keys, patterns and order; finding the conjuncts that hold is left to `ConjunctIndex`, or without
numpy to `ListedConjuncts`. Equal patterns are one entry, whoever asks for them. Keys have positions that rise in
order of insertion. A conjunct reports the position of its key if that is the only one concerned, and otherwise its
entry.
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
    """One pattern: the conjuncts that stand for it, and the positions of the keys that want it."""

    __slots__ = ("members", "number", "pattern", "positions")

    def __init__(self, pattern: Pattern, number: int) -> None:
        self.pattern = pattern
        self.number = number
        self.members: list[Any] = []
        self.positions: dict[int, None] = {}

    def label(self) -> int:
        """What its conjuncts report: a position, or below zero the entry's number."""
        if len(self.pattern.conjuncts) == 1 and len(self.positions) == 1:
            return next(iter(self.positions))
        return -1 - self.number


class MatchIndex(Generic[K]):
    """Keys with a filter each; `match` gives, in order of insertion, the keys whose filter an event satisfies.

    Adding and removing cost tens of microseconds, amortised, and matching hardly more than its answer. Without numpy
    it costs half a microsecond for each filter that the event's values do not rule out by an `=`.
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
        """The keys whose filter holds, each once; a value of an unknown type counts as NULL."""
        labels = self._conjuncts.match(attributes)
        if not len(labels):
            return []
        labels.sort()
        if labels[0] < 0:
            labels = self._expand(labels if isinstance(labels, list) else labels.tolist())
        return self._keys.at(labels)

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
