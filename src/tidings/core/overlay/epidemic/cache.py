"""The events that a broker keeps to answer others, bounded in number and in bytes.

Paper epidemic, sections 4 and 5: a digest names cached events by their identifiers or by a pattern's numbers, so the
cache finds them by either. The policy chooses what leaves a full cache:

* fifo: the oldest;
* foreign-first: the oldest of those for which this broker is neither source nor subscriber, then the oldest;
* random: any of the oldest quarter, so that an event does not leave all caches at about the same time.

Requests may name absurd ranges: their cost depends on what the cache holds, never on what they name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from tidings.core.events.run import Stretch, cut
from tidings.core.kernel import RandomSource
from tidings.core.overlay.epidemic.messages import PatternNumbers, later
from tidings.core.overlay.epidemic.settings import CachePolicy
from tidings.core.structures.range_map import RangeMap
from tidings.core.structures.range_set import RangeSet

Source = tuple[str, int]
"""(source, incarnation)"""
Identity = tuple[str, int, int]
"""(source, incarnation, sequence)"""
Stream = tuple[str, bytes, int]
"""(origin, pattern, epoch)"""
Ids = dict[Source, RangeSet]


class Cached(NamedTuple):
    """Consecutive events with what recovery knows of them."""

    stretch: Stretch
    origin: str
    numbers: PatternNumbers
    """The numbers of its first event."""
    route: tuple[str, ...]
    own: bool
    """This broker is its source or a subscriber."""

    @property
    def source(self) -> Source:
        return self.stretch.source, self.stretch.incarnation

    @property
    def identity(self) -> Identity:
        """The identity of its first event."""
        stretch = self.stretch
        return stretch.source, stretch.incarnation, stretch.first

    def cut(self, first: int, last: int) -> Cached:
        """Return the events with sequences `first` to `last`."""
        stretch = cut(self.stretch, first, last)
        if stretch is self.stretch:
            return self
        return self._replace(stretch=stretch, numbers=later(self.numbers, stretch.first - self.stretch.first))


class _Departure(Protocol):
    """Decides the order in which events leave; nothing else removes an event from the cache."""

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
    """Foreign events leave before own ones: in a full cache of own events, a new foreign one leaves at once."""

    def __init__(self) -> None:
        self._foreign: deque[Cached] = deque()
        self._own: deque[Cached] = deque()

    def add(self, entry: Cached) -> None:
        (self._own if entry.own else self._foreign).append(entry)

    def next(self) -> Cached:
        return (self._foreign or self._own).popleft()


class _OldestQuarter:
    """Picks at random from the oldest quarter; the others wait by age.

    Events leave only from the quarter, and one departure lowers its proper size by at most one, so it never has too
    many.
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
    raise ValueError(f"unknown cache policy {policy!r}; use fifo, foreign-first or random")


class EventCache:
    """Holds at most `max_events` events of at most `max_bytes` in total; `evicted` counts those that had to leave.

    Events that came together stay and leave together, but a lookup returns only those it names. Returned iterators and
    mappings show the cache itself: do not change it while using them.
    """

    def __init__(self, max_events: int, max_bytes: int, policy: CachePolicy, random: RandomSource) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._departure = _departure(policy, random)
        self._entries: dict[Source, RangeMap[Cached]] = {}
        """Source -> sequences -> entry"""
        self._ids: Ids = {}
        self._ids_of: dict[bytes, Ids] = {}
        self._numbered: dict[Stream, RangeMap[tuple[Cached, int]]] = {}
        """Stream -> numbers -> (entry, number of its first event)"""
        self._count = 0
        self.size_bytes = 0
        self.evicted = 0

    def __len__(self) -> int:
        """Return the number of events, not of entries."""
        return self._count

    def add(self, entry: Cached) -> None:
        """Add the events that are not here yet, except an event larger than the whole cache."""
        held = self._entries.get(entry.source)
        if held is None:
            self._add(entry)
            return
        for first, last in held.free(entry.stretch.first, entry.stretch.last):
            self._add(entry.cut(first, last))

    def _add(self, entry: Cached) -> None:
        stretch = entry.stretch
        count, size_bytes = stretch.count, stretch.size_bytes
        if size_bytes > self._max_bytes or 1 < count > self._max_events:
            for sequence in range(stretch.first, stretch.last + 1) if count > 1 else ():
                self._add(entry.cut(sequence, sequence))  # keep as many as there is room for
            return
        self._count += count
        self.size_bytes += size_bytes
        self._index(entry)
        self._departure.add(entry)
        while self._count > self._max_events or self.size_bytes > self._max_bytes:
            self._evict(self._departure.next())

    def get(self, source: str, incarnation: int, sequence: int) -> Cached | None:
        return next(self.id_range(source, incarnation, sequence, sequence), None)

    def find(self, origin: str, pattern: bytes, epoch: int, number: int) -> Cached | None:
        return next(self.find_range(origin, pattern, epoch, number, number), None)

    def find_range(self, origin: str, pattern: bytes, epoch: int, first: int, last: int) -> Iterator[Cached]:
        """Yield the events numbered `first` to `last`, in order."""
        numbered = self._numbered.get((origin, pattern, epoch))
        if numbered is not None:
            for low, high, (entry, number) in numbered.overlapping(first, last):
                shift = entry.stretch.first - number
                yield entry.cut(low + shift, high + shift)

    def ids(self, pattern: bytes | None = None) -> Mapping[Source, RangeSet]:
        """Return the sequences by source, of all events or of those numbered for the pattern."""
        return self._ids if pattern is None else self._ids_of.get(pattern, {})

    def id_range(self, source: str, incarnation: int, first: int, last: int) -> Iterator[Cached]:
        """Yield the events with sequences `first` to `last`, in order."""
        held = self._entries.get((source, incarnation))
        if held is not None:
            for low, high, entry in held.overlapping(first, last):
                yield entry.cut(low, high)

    def patterns(self) -> Iterable[bytes]:
        """Return the patterns of the cached events, in the order in which they first appeared."""
        return self._ids_of.keys()

    def _evict(self, entry: Cached) -> None:
        self._count -= entry.stretch.count
        self.size_bytes -= entry.stretch.size_bytes
        self._unindex(entry)
        self.evicted += entry.stretch.count

    def _index(self, entry: Cached) -> None:
        source, stretch = entry.source, entry.stretch
        first, last = stretch.first, stretch.last
        held = self._entries.get(source)
        if held is None:
            held = self._entries[source] = RangeMap()
        held.add(first, last, entry)
        _add_ids(self._ids, source, first, last)
        for pattern, epoch, number in entry.numbers:
            _add_ids(self._ids_of.setdefault(pattern, {}), source, first, last)
            stream = entry.origin, pattern, epoch
            numbered = self._numbered.get(stream)
            if numbered is None:
                numbered = self._numbered[stream] = RangeMap()
            # If two events claim the same number, which only a broken origin can cause, the first keeps it.
            for low, high in numbered.free(number, number + last - first):
                numbered.add(low, high, (entry, number))

    def _unindex(self, entry: Cached) -> None:
        source, stretch = entry.source, entry.stretch
        first, last = stretch.first, stretch.last
        held = self._entries[source]
        held.take(first, last)
        if not held:
            del self._entries[source]
        _remove_ids(self._ids, source, first, last)
        for pattern, epoch, number in entry.numbers:
            ids = self._ids_of.get(pattern, {})  # already gone if the event lists the pattern twice
            _remove_ids(ids, source, first, last)
            if not ids:
                self._ids_of.pop(pattern, None)
            self._unnumber((entry.origin, pattern, epoch), number, entry)

    def _unnumber(self, stream: Stream, number: int, entry: Cached) -> None:
        numbered = self._numbered.get(stream)
        if numbered is None:
            return
        for low, high, held in numbered.take(number, number + entry.stretch.count - 1):
            if held[0] is not entry:  # another one had the number first
                numbered.add(low, high, held)
        if not numbered:
            del self._numbered[stream]


def _add_ids(ids: Ids, source: Source, first: int, last: int) -> None:
    sequences = ids.get(source)
    if sequences is None:
        sequences = ids[source] = RangeSet()
    sequences.add_range(first, last + 1)


def _remove_ids(ids: Ids, source: Source, first: int, last: int) -> None:
    sequences = ids.get(source)
    if sequences is not None:
        sequences.remove(first, last + 1)
        if not sequences:
            del ids[source]
