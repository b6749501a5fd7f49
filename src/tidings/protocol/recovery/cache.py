"""The events that a broker keeps to serve others, bounded in number and in bytes.

Paper epidemic, sections 4 and 5: a digest names cached events by their identifiers or by the numbers of a pattern;
who is asked looks them up by either. What leaves a full cache is the policy's choice:

* fifo: the oldest;
* foreign-first: the oldest of those for which this broker is neither source nor subscriber, then the oldest;
* random: any of the oldest quarter, so that an event does not leave all caches at about the same time.

Requests come from others and may name absurd ranges: they cost what the cache holds, never what they name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from tidings.model.event import Publication
from tidings.model.recovery_messages import PatternNumbers
from tidings.protocol.kernel import RandomSource
from tidings.protocol.recovery.settings import CachePolicy
from tidings.structures.range_set import RangeSet

Source = tuple[str, int]
"""(source, incarnation)"""
Identity = tuple[str, int, int]
"""(source, incarnation, sequence)"""
Ids = dict[Source, RangeSet]


class Cached(NamedTuple):
    publication: Publication
    origin: str
    numbers: PatternNumbers
    route: tuple[str, ...]
    own: bool
    """This broker is its source or a subscriber."""

    @property
    def identity(self) -> Identity:
        publication = self.publication
        return publication.source, publication.incarnation, publication.sequence


class _Departure(Protocol):
    """In which order events leave; nothing else takes an event out of the cache."""

    def add(self, entry: Cached) -> None: ...
    def next(self) -> Cached: ...


class _Fifo:
    def __init__(self) -> None:
        self._entries: deque[Cached] = deque()

    def add(self, entry: Cached) -> None:
        self._entries.append(entry)

    def next(self) -> Cached:
        return self._entries.popleft()


class _ForeignFirst:
    """Where only own events are left, a foreign one that comes is the first to leave: it does not stay."""

    def __init__(self) -> None:
        self._foreign: deque[Cached] = deque()
        self._own: deque[Cached] = deque()

    def add(self, entry: Cached) -> None:
        (self._own if entry.own else self._foreign).append(entry)

    def next(self) -> Cached:
        return (self._foreign or self._own).popleft()


class _OldestQuarter:
    """The oldest quarter in any order, the others by age.

    All leave from the quarter, and one departure lowers its due size by one at most: it never has one too many.
    """

    def __init__(self, random: RandomSource) -> None:
        self._random = random
        self._oldest: list[Cached] = []
        self._others: deque[Cached] = deque()

    def add(self, entry: Cached) -> None:
        self._others.append(entry)

    def next(self) -> Cached:
        oldest = self._oldest
        quarter = max(1, (len(oldest) + len(self._others)) // 4)
        while len(oldest) < quarter:
            oldest.append(self._others.popleft())
        chosen = self._random.randrange(len(oldest))
        oldest[chosen], oldest[-1] = oldest[-1], oldest[chosen]
        return oldest.pop()


def _departure(policy: CachePolicy, random: RandomSource) -> _Departure:
    if policy == "fifo":
        return _Fifo()
    if policy == "foreign-first":
        return _ForeignFirst()
    if policy == "random":
        return _OldestQuarter(random)
    raise ValueError(f"cache policy {policy!r} is none of fifo, foreign-first, random")


class _Numbered:
    """The cached events of one (origin, pattern, epoch), by number."""

    __slots__ = ("entries", "numbers")

    def __init__(self) -> None:
        self.entries: dict[int, Cached] = {}
        self.numbers = RangeSet()


class EventCache:
    """At most `max_events` events of at most `max_bytes` together; `evicted` counts those that had to leave.

    An iterator or a mapping that is handed out shows the cache itself: it must not change meanwhile.
    """

    def __init__(self, max_events: int, max_bytes: int, policy: CachePolicy, random: RandomSource) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._departure = _departure(policy, random)
        self._entries: dict[Identity, Cached] = {}
        self._ids: Ids = {}
        self._ids_of: dict[bytes, Ids] = {}
        self._numbered: dict[tuple[str, bytes, int], _Numbered] = {}
        self.size_bytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Cached) -> None:
        """Keep an event, unless it is here already or larger than the whole cache."""
        size_bytes = entry.publication.size_bytes
        if size_bytes > self._max_bytes or entry.identity in self._entries:
            return
        self._entries[entry.identity] = entry
        self.size_bytes += size_bytes
        self._index(entry)
        self._departure.add(entry)
        while len(self._entries) > self._max_events or self.size_bytes > self._max_bytes:
            self._evict(self._departure.next())

    def get(self, source: str, incarnation: int, sequence: int) -> Cached | None:
        return self._entries.get((source, incarnation, sequence))

    def find(self, origin: str, pattern: bytes, epoch: int, number: int) -> Cached | None:
        numbered = self._numbered.get((origin, pattern, epoch))
        return None if numbered is None else numbered.entries.get(number)

    def find_range(self, origin: str, pattern: bytes, epoch: int, first: int, last: int) -> Iterator[Cached]:
        """Those numbered `first` to `last`, in order."""
        numbered = self._numbered.get((origin, pattern, epoch))
        if numbered is not None:
            for number in _present(numbered.numbers, first, last):
                yield numbered.entries[number]

    def ids(self, pattern: bytes | None = None) -> Mapping[Source, RangeSet]:
        """The sequences of all events, or of those numbered for the pattern, by source."""
        return self._ids if pattern is None else self._ids_of.get(pattern, {})

    def id_range(self, source: str, incarnation: int, first: int, last: int) -> Iterator[Cached]:
        """Those with the sequences `first` to `last`, in order."""
        sequences = self._ids.get((source, incarnation))
        if sequences is not None:
            for sequence in _present(sequences, first, last):
                yield self._entries[source, incarnation, sequence]

    def patterns(self) -> Iterable[bytes]:
        """The patterns of the cached events, in the order in which they came to be here."""
        return self._ids_of.keys()

    def _evict(self, entry: Cached) -> None:
        del self._entries[entry.identity]
        self.size_bytes -= entry.publication.size_bytes
        self._unindex(entry)
        self.evicted += 1

    def _index(self, entry: Cached) -> None:
        _add_id(self._ids, entry)
        for pattern, epoch, number in entry.numbers:
            _add_id(self._ids_of.setdefault(pattern, {}), entry)
            stream = entry.origin, pattern, epoch
            numbered = self._numbered.get(stream)
            if numbered is None:
                numbered = self._numbered[stream] = _Numbered()
            # Should two events claim the same number, which only a broken origin brings about, the first has it.
            if numbered.entries.setdefault(number, entry) is entry:
                numbered.numbers.add(number)

    def _unindex(self, entry: Cached) -> None:
        _remove_id(self._ids, entry)
        for pattern, epoch, number in entry.numbers:
            ids = self._ids_of.get(pattern, {})  # nothing is left for a pattern that the event lists twice
            _remove_id(ids, entry)
            if not ids:
                self._ids_of.pop(pattern, None)
            self._unnumber((entry.origin, pattern, epoch), number, entry)

    def _unnumber(self, stream: tuple[str, bytes, int], number: int, entry: Cached) -> None:
        numbered = self._numbered.get(stream)
        if numbered is None or numbered.entries.get(number) is not entry:
            return
        del numbered.entries[number]
        numbered.numbers.remove(number, number + 1)
        if not numbered.entries:
            del self._numbered[stream]


def _add_id(ids: Ids, entry: Cached) -> None:
    source, incarnation, sequence = entry.identity
    sequences = ids.get((source, incarnation))
    if sequences is None:
        sequences = ids[source, incarnation] = RangeSet()
    sequences.add(sequence)


def _remove_id(ids: Ids, entry: Cached) -> None:
    source, incarnation, sequence = entry.identity
    sequences = ids.get((source, incarnation))
    if sequences is not None:
        sequences.remove(sequence, sequence + 1)
        if not sequences:
            del ids[source, incarnation]


def _present(numbers: RangeSet, first: int, last: int) -> Iterator[int]:
    """The numbers of the set from `first` to `last`: what lies between the holes, of which there are few."""
    for start, stop in numbers.missing(first, last + 1):
        yield from range(first, start)
        first = stop
    yield from range(first, last + 1)
