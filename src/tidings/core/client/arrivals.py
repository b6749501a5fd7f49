"""Tracks a connection's notifications: how many more the broker may send, and which ones the client is done with.

A guaranteed broker learns two things. `granted`: that many notifications, from the first on, no longer take up room;
they are done, or an order buffers them within its limits. `done`: these are never needed again; sent as ranges, in the
order in which the application finishes them. The broker forgets only what is done; the rest is sent again on the next
connection.

    0 <= granted <= count; every done number <= count
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tidings.core.client.beneath import END
from tidings.core.structures.range_map import RangeMap
from tidings.core.structures.range_set import RangeSet
from tidings.core.structures.ranges import Ranges, merged


class Arrivals:
    """Tracks the notifications of one connection, numbered from 1; calls `on_news` when the broker should hear more."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.count = 0
        self._on_news = on_news
        self._granted = 0
        self._reported = 0
        self._settled: RangeSet | None = None
        """Granted or done numbers above `_granted` + 1; None if there are none."""
        self._done: list[tuple[int, int]] = []
        """Not reported to the broker yet."""

    def arrive(self, first: int, count: int) -> Notice:
        """Number the notifications of `count` consecutive events of a source, from that sequence on."""
        shift = self.count + 1 - first
        self.count += count
        return Notice(self, first, first + count - 1, shift)

    def news(self) -> tuple[int, Ranges] | None:
        """Return what the broker does not know yet: how many are granted, and which are done. None: nothing."""
        if self._granted == self._reported and not self._done:
            return None
        self._reported = self._granted
        done, self._done = self._done, []
        return self._granted, merged(done)

    def grant(self, first: int, last: int) -> None:
        self._settle(first, last)
        self._on_news()

    def finish(self, first: int, last: int) -> None:
        if first == self._granted + 1 and self._settled is None:  # in order, as mostly
            self._granted = last
        else:
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
        """End reporting: the connection is gone."""
        self._on_news = lambda: None


class _Shared:
    """Counts the holders of a number. 0 <= ungranted <= holders."""

    __slots__ = ("holders", "ungranted")

    def __init__(self) -> None:
        self.holders = self.ungranted = 2


class Notice(Struct, eq=False):
    """Notifications that arrived together, and their holders: streams of a client, or a part that keeps them early.
    The handler calls `close` after all holders have registered; until then nothing is reported.

    Methods take sequences; a sequence plus `_shift` is the notification's number.
    """

    _arrivals: Arrivals
    first: int
    last: int
    _shift: int
    _is_open: bool = True
    _holds: tuple[tuple[int, int], ...] = ()
    """Ranges that were ever held; mostly one."""
    _shared: dict[int, _Shared] | None = None
    """Sequences with several holders; None until there is one."""
    _unapplied: tuple[tuple[int, int, bool, bool], ...] = ()
    """What holders reported before `close`: first, last, whether they are done, whether they had granted it."""

    def hold(self, first: int, last: int, *, granted: bool = False) -> None:
        """Add a holder of these sequences."""
        if self._holds:
            self._share(first, last)
        self._holds += ((first, last),)
        if granted:
            self.grant(first, last)

    def ticket(self, table: dict[Source, Undone], source: Source, first: int, last: int) -> Ticket:
        """Return a ticket for a subscription's application, which holds these sequences."""
        if self._holds:
            self.hold(first, last)
        else:
            self._holds = ((first, last),)
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
        """Finish what nobody holds, and apply what the holders reported meanwhile."""
        self._is_open = False
        if self._holds != ((self.first, self.last),):
            held = RangeSet((first, last + 1) for first, last in self._holds)
            for start, stop in held.missing(self.first, self.last + 1):
                self._arrivals.finish(start + self._shift, stop - 1 + self._shift)
        for first, last, done, granted in self._unapplied:
            if done and not self._shared:
                self._arrivals.finish(first + self._shift, last + self._shift)
            elif done:
                self.release(first, last, granted=granted)
            else:
                self.grant(first, last)

    def grant(self, first: int, last: int) -> None:
        """Record that a holder buffers these: more may be sent."""
        if self._is_open:
            self._unapplied += ((first, last, False, True),)
        elif not self._shared:
            self._arrivals.grant(first + self._shift, last + self._shift)
        else:
            for low, high in self._with_one_holder(first, last):
                self._arrivals.grant(low + self._shift, high + self._shift)
            for sequence in self._with_several_holders(first, last):
                self._shared[sequence].ungranted -= 1
                if not self._shared[sequence].ungranted:
                    self._arrivals.grant(sequence + self._shift, sequence + self._shift)

    def release(self, first: int, last: int, *, granted: bool = False) -> None:
        """Record that a holder is done with these."""
        if self._is_open:
            self._unapplied += ((first, last, True, granted),)
        elif not self._shared:
            self._arrivals.finish(first + self._shift, last + self._shift)
        else:
            for low, high in self._with_one_holder(first, last):
                self._arrivals.finish(low + self._shift, high + self._shift)
            for sequence in self._with_several_holders(first, last):
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

    def _with_one_holder(self, first: int, last: int) -> Ranges:
        """Return those that have one holder."""
        shared = self._shared or {}
        return merged([(each, each) for each in range(first, last + 1) if each not in shared])

    def _with_several_holders(self, first: int, last: int) -> list[int]:
        shared = self._shared or {}
        return [each for each in range(first, last + 1) if each in shared]


Source = tuple[str, str, int]
"""Subscription, source, incarnation."""


class Undone(RangeMap[tuple[Notice, bool]]):
    """Maps sequences of one source and subscription that the application holds to the latest notice and whether they
    are granted. It is in the session's table while it is not empty."""

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
        """Release these sequences; those already released are ignored."""
        pieces = self.take(first, last)
        if not self._ranges and self._table.get(self._source) is self:
            del self._table[self._source]
        for low, high, (notice, granted) in pieces:
            notice.release(low, high, granted=granted)

    def move(self, notice: Notice, first: int, last: int) -> None:
        """Attach these sequences to a newer notice, which brought them again."""
        for low, high, (before, granted) in self.take(first, last):
            self.add(low, high, (notice, granted))
            notice.hold(low, high, granted=granted)
            before.release(low, high, granted=granted)


class Ticket(Struct, eq=False):
    """Consecutive events of a source that a subscription's application holds, whichever connection brought each last.

    Mostly the application is done with all of them before the handler of their notice returns; then the ticket is not
    recorded anywhere. Otherwise `keep` adds them to the undone ones.
    """

    _table: dict[Source, Undone]
    _source: Source
    _notice: Notice
    _first: int
    _last: int
    _is_done: bool = False
    _undone: Undone | None = None

    def keep(self, *, granted: bool = False) -> Undone | None:
        """Record the events as undone, because they may be sent again; None if the application is already done."""
        if self._undone is None and not self._is_done:
            self._undone = self._table.get(self._source) or Undone(self._table, self._source)
            self._undone.hold(self._first, self._last, self._notice, granted=granted)
        return self._undone

    def grant(self, first: int = 0, last: int = END) -> None:
        """Record that these sequences, or all, are buffered."""
        if self._undone is None and first <= self._first and last >= self._last:
            if not self._is_done:
                self.keep(granted=True)
                self._notice.grant(self._first, self._last)
            return
        undone = self.keep()
        if undone is not None:
            undone.grant(max(first, self._first), min(last, self._last))

    def done(self, first: int = 0, last: int = END) -> None:
        """Finish these sequences, or all; those already finished are ignored."""
        if self._undone is None and first <= self._first and last >= self._last:
            if not self._is_done:
                self._is_done = True
                self._notice.release(self._first, self._last)
            return
        undone = self.keep()
        if undone is not None:
            undone.finish(max(first, self._first), min(last, self._last))
