"""What a client has been notified of on one connection: what it may be sent more for, and what it is done with.

A guaranteed broker is told two things. `granted`: the client has room for as many more as the first so many were; they
are done, or buffered by an order within its bounds. `done`: these are never needed again, as ranges, in the order in
which the application finishes. Only what is done does the broker forget; the rest comes again on the next connection.

    0 <= granted <= count; every number that is done is at most count
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from tidings.core.client.beneath import END
from tidings.core.structures.range_map import RangeMap
from tidings.core.structures.range_set import RangeSet

Ranges = tuple[tuple[int, int], ...]
"""(first, last), ascending, apart."""


class Arrivals:
    """The notifications of one connection, numbered from 1; `on_news` is told when there is something to say."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.count = 0
        self._on_news = on_news
        self._granted = 0
        self._told = 0
        self._settled: RangeSet | None = None
        """Numbers above `_granted`, and not next to it, that are granted or done; None: there are none."""
        self._done: list[tuple[int, int]] = []
        """Since the broker was last told."""

    def arrive(self, first: int, count: int) -> Notice:
        """So many consecutive events of a source, from that sequence on, came together."""
        shift = self.count + 1 - first
        self.count += count
        return Notice(self, first, first + count - 1, shift)

    def news(self) -> tuple[int, Ranges] | None:
        """What the broker has not been told: how many are granted, and which are done. None: nothing."""
        if self._granted == self._told and not self._done:
            return None
        self._told = self._granted
        done, self._done = self._done, []
        return self._granted, merged(done)

    def grant(self, first: int, last: int) -> None:
        self._settle(first, last)
        self._on_news()

    def finish(self, first: int, last: int) -> None:
        self._settle(first, last)
        self._done.append((first, last))
        self._on_news()

    def _settle(self, first: int, last: int) -> None:
        if first > self._granted + 1:
            self._settled = self._settled or RangeSet()
            self._settled.add_range(first, last + 1)
            return
        if last > self._granted:
            self._granted = last
        if self._settled is not None:
            self._granted = self._settled.contiguous_end(self._granted + 1) - 1
            self._settled.trim_below(self._granted + 1)
            self._settled = self._settled or None

    def end(self) -> None:
        """The connection is gone: nobody is told any more."""
        self._on_news = lambda: None


class _Shared:
    """How many have a number. 0 <= ungranted <= holders."""

    __slots__ = ("holders", "ungranted")

    def __init__(self) -> None:
        self.holders = self.ungranted = 2


class Notice(Struct, eq=False):
    """Notifications that came together, for as many as hold them: the streams of a client, or a part that waits for
    something. Whoever handles them says `close` when everybody has been asked; until then nothing counts as settled.

    They are spoken of by their sequences; `shift` is what to add to one for its number.
    """

    _arrivals: Arrivals
    first: int
    last: int
    _shift: int
    _is_open: bool = True
    _holds: tuple[tuple[int, int], ...] = ()
    """Ranges that somebody holds, or held; mostly it is one."""
    _shared: dict[int, _Shared] | None = None
    """Those that several hold, once there were any."""
    _unsaid: tuple[tuple[int, int, bool, bool], ...] = ()
    """What the holders said before `close`: of which, whether they are done with it, and had granted it."""

    def hold(self, first: int, last: int, *, granted: bool = False) -> None:
        """One more has these."""
        if self._holds:
            self._share(first, last)
        self._holds += ((first, last),)
        if granted:
            self.grant(first, last)

    def ticket(self, table: dict[Source, Undone], source: Source, first: int, last: int) -> Ticket:
        """For a subscription's application, which holds these."""
        self.hold(first, last)
        return Ticket(table, source, self, first, last)

    def _share(self, first: int, last: int) -> None:
        shared = self._shared = self._shared or {}
        for sequence in range(first, last + 1):
            if sequence in shared:
                shared[sequence].holders += 1
                shared[sequence].ungranted += 1
            elif any(low <= sequence <= high for low, high in self._holds):
                shared[sequence] = _Shared()

    def close(self) -> None:
        """What nobody holds is done with."""
        self._is_open = False
        if self._holds != ((self.first, self.last),):
            held = RangeSet((first, last + 1) for first, last in self._holds)
            for start, stop in held.missing(self.first, self.last + 1):
                self._arrivals.finish(start + self._shift, stop - 1 + self._shift)
        for first, last, done, granted in self._unsaid:
            if done and not self._shared:
                self._arrivals.finish(first + self._shift, last + self._shift)
            elif done:
                self.release(first, last, granted=granted)
            else:
                self.grant(first, last)

    def grant(self, first: int, last: int) -> None:
        """One of the holders buffers these: more may come."""
        if self._is_open:
            self._unsaid += ((first, last, False, True),)
        elif not self._shared:
            self._arrivals.grant(first + self._shift, last + self._shift)
        else:
            for low, high in self._alone(first, last):
                self._arrivals.grant(low + self._shift, high + self._shift)
            for sequence in self._together(first, last):
                self._shared[sequence].ungranted -= 1
                if not self._shared[sequence].ungranted:
                    self._arrivals.grant(sequence + self._shift, sequence + self._shift)

    def release(self, first: int, last: int, *, granted: bool = False) -> None:
        """One of the holders is done with these."""
        if self._is_open:
            self._unsaid += ((first, last, True, granted),)
        elif not self._shared:
            self._arrivals.finish(first + self._shift, last + self._shift)
        else:
            for low, high in self._alone(first, last):
                self._arrivals.finish(low + self._shift, high + self._shift)
            for sequence in self._together(first, last):
                self._release_shared(sequence, self._shared, granted=granted)

    def _release_shared(self, sequence: int, shared: dict[int, _Shared], *, granted: bool) -> None:
        of = shared[sequence]
        of.holders -= 1
        of.ungranted -= not granted
        if not of.holders:
            del shared[sequence]
            self._arrivals.finish(sequence + self._shift, sequence + self._shift)
        elif not of.ungranted:
            self._arrivals.grant(sequence + self._shift, sequence + self._shift)

    def _alone(self, first: int, last: int) -> Ranges:
        """Of these, what has one holder."""
        shared = self._shared or {}
        return merged([(each, each) for each in range(first, last + 1) if each not in shared])

    def _together(self, first: int, last: int) -> list[int]:
        shared = self._shared or {}
        return [each for each in range(first, last + 1) if each in shared]


Source = tuple[str, str, int]
"""Subscription, source, incarnation."""


class Undone(RangeMap[tuple[Notice, bool]]):
    """What the application holds of one source for one subscription: by sequence, the notice that brought it last, and
    whether it is granted. It is in the session's table while there is anything."""

    __slots__ = ("_source", "_table")

    def __init__(self, table: dict[Source, Undone], source: Source) -> None:
        super().__init__()
        self._table = table
        self._source = source

    def hold(self, first: int, last: int, notice: Notice, *, granted: bool) -> None:
        self._table[self._source] = self
        self.add(first, last, (notice, granted))

    def grant(self, first: int, last: int) -> None:
        for low, high, (notice, granted) in self.overlapping(first, last):
            if not granted:
                self.take(low, high)
                self.add(low, high, (notice, True))
                notice.grant(low, high)

    def finish(self, first: int, last: int) -> None:
        """What is done with already does not matter."""
        pieces = self.take(first, last)
        if not self._ranges and self._table.get(self._source) is self:
            del self._table[self._source]
        for low, high, (notice, granted) in pieces:
            notice.release(low, high, granted=granted)

    def move(self, notice: Notice, first: int, last: int) -> None:
        """These came again: that is what will be done with."""
        for low, high, (before, granted) in self.take(first, last):
            self.add(low, high, (notice, granted))
            notice.hold(low, high, granted=granted)
            before.release(low, high, granted=granted)


class Ticket(Struct, eq=False):
    """Consecutive events of a source that a subscription's application holds, whichever connection brought each last.

    Mostly the application is done with all of them before the handler of their notice ends: then nobody else hears of
    the ticket. Otherwise they are among the undone from `keep` on.
    """

    _table: dict[Source, Undone]
    _source: Source
    _notice: Notice
    _first: int
    _last: int
    _is_done: bool = False
    _undone: Undone | None = None

    def keep(self, *, granted: bool = False) -> Undone | None:
        """They may come again from now on; None: the application was done with them at once."""
        if self._undone is None and not self._is_done:
            self._undone = self._table.get(self._source) or Undone(self._table, self._source)
            self._undone.hold(self._first, self._last, self._notice, granted=granted)
        return self._undone

    def grant(self, first: int = 0, last: int = END) -> None:
        """These sequences, or all, are buffered."""
        if self._undone is None and first <= self._first and last >= self._last:
            if not self._is_done:
                self.keep(granted=True)
                self._notice.grant(self._first, self._last)
            return
        undone = self.keep()
        if undone is not None:
            undone.grant(max(first, self._first), min(last, self._last))

    def done(self, first: int = 0, last: int = END) -> None:
        """These sequences, or all; what is done with already does not matter."""
        if self._undone is None and first <= self._first and last >= self._last:
            if not self._is_done:
                self._is_done = True
                self._notice.release(self._first, self._last)
            return
        undone = self.keep()
        if undone is not None:
            undone.finish(max(first, self._first), min(last, self._last))


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """In order, and joined where they meet."""
    ascending = sorted(ranges)
    if len(ascending) < 2:
        return tuple(ascending)
    found = ascending[:1]
    for first, last in ascending[1:]:
        if first == found[-1][1] + 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return tuple(found)
