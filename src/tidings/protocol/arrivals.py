"""What a client has been notified of on one connection: what it may be sent more for, and what it is done with.

A guaranteed broker is told two things. `granted`: the client has room for as many more as the first so many were; they
are done, or buffered by an order within its bounds. `done`: these are never needed again, as ranges, in the order in
which the application finishes. Only what is done does the broker forget; the rest comes again on the next connection.

    0 <= granted <= count; every number that is done is at most count
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidings.protocol.application.beneath import END
from tidings.structures.range_map import RangeMap
from tidings.structures.range_set import RangeSet

Ranges = tuple[tuple[int, int], ...]
"""(first, last), ascending, apart."""


class Arrivals:
    """The notifications of one connection, numbered from 1; `on_news` is told when there is something to say."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.count = 0
        self._on_news = on_news
        self._granted = 0
        self._told = 0
        self._settled = RangeSet()
        """Numbers above `_granted` that are granted or done."""
        self._done: list[tuple[int, int]] = []
        """Since the broker was last told."""

    def arrive(self, count: int = 1) -> Notice:
        """So many notifications came together."""
        self.count += count
        return Notice(self, self.count - count + 1, self.count)

    def news(self) -> tuple[int, Ranges] | None:
        """What the broker has not been told: how many are granted, and which are done. None: nothing."""
        granted = self._settled.contiguous_end(self._granted + 1) - 1
        if granted > self._granted:
            self._granted = granted
            self._settled.trim_below(granted + 1)
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
        self._settled.add_range(max(first, self._granted + 1), last + 1)

    def end(self) -> None:
        """The connection is gone: nobody is told any more."""
        self._on_news = lambda: None


class _Shared:
    """How many have a number. 0 <= ungranted <= holders."""

    __slots__ = ("holders", "ungranted")

    def __init__(self) -> None:
        self.holders = self.ungranted = 2


class Notice:
    """Notifications that came together, for as many as hold them: the streams of a client, or a part that waits for
    something. Whoever handles them says `close` when everybody has been asked; until then nothing counts as settled.
    """

    __slots__ = ("_arrivals", "_holds", "_shared", "_unsaid", "first", "last")

    def __init__(self, arrivals: Arrivals, first: int, last: int) -> None:
        self._arrivals = arrivals
        self.first = first
        self.last = last
        self._holds: list[tuple[int, int]] = []
        """Ranges that somebody holds, or held; mostly it is one."""
        self._shared: dict[int, _Shared] = {}
        """Numbers that several hold."""
        self._unsaid: list[Callable[[], None]] | None = []
        """What the holders said before `close`; None afterwards."""

    def hold(self, first: int, last: int, *, granted: bool = False) -> None:
        """One more has these numbers."""
        for number in range(first, last + 1) if self._holds else ():
            shared = self._shared.get(number)
            if shared is not None:
                shared.holders += 1
                shared.ungranted += 1
            elif any(low <= number <= high for low, high in self._holds):
                self._shared[number] = _Shared()
        self._holds.append((first, last))
        if granted:
            self.grant(first, last)

    def close(self) -> None:
        """What nobody holds is done with."""
        if self._holds != [(self.first, self.last)]:
            held = RangeSet((first, last + 1) for first, last in self._holds)
            for start, stop in held.missing(self.first, self.last + 1):
                self._arrivals.finish(start, stop - 1)
        unsaid, self._unsaid = self._unsaid or (), None
        for say in unsaid:
            say()

    def grant(self, first: int, last: int) -> None:
        """One of the holders buffers these: more may come."""
        if self._unsaid is not None:
            self._unsaid.append(lambda: self.grant(first, last))
            return
        for low, high in self._alone(first, last):
            self._arrivals.grant(low, high)
        for number in self._together(first, last):
            shared = self._shared[number]
            shared.ungranted -= 1
            if not shared.ungranted:
                self._arrivals.grant(number, number)

    def release(self, first: int, last: int, *, granted: bool = False) -> None:
        """One of the holders is done with these."""
        if self._unsaid is not None:
            self._unsaid.append(lambda: self.release(first, last, granted=granted))
            return
        for low, high in self._alone(first, last):
            self._arrivals.finish(low, high)
        for number in self._together(first, last):
            shared = self._shared[number]
            shared.holders -= 1
            shared.ungranted -= not granted
            if not shared.holders:
                del self._shared[number]
                self._arrivals.finish(number, number)
            elif not shared.ungranted:
                self._arrivals.grant(number, number)

    def _alone(self, first: int, last: int) -> list[tuple[int, int]]:
        """Of these, what has one holder."""
        if not self._shared:
            return [(first, last)]
        return list(
            merged((number, number) for number in range(first, last + 1) if number not in self._shared)
        )

    def _together(self, first: int, last: int) -> list[int]:
        if not self._shared:
            return []
        return [number for number in range(first, last + 1) if number in self._shared]


class _Place(NamedTuple):
    """Where events are: their notice, what to add to a sequence for its number there, and whether they are granted."""

    notice: Notice
    shift: int
    granted: bool

    def release(self, first: int, last: int) -> None:
        self.notice.release(first + self.shift, last + self.shift, granted=self.granted)


class Ticket:
    """Consecutive events of a source that a subscription's application holds, whichever connection brought each last.

    `on_done` is told which sequences are done with.
    """

    __slots__ = ("_on_done", "_places")

    def __init__(
        self, notice: Notice, number: int, first: int, last: int, on_done: Callable[[int, int], object]
    ) -> None:
        shift = number - first
        notice.hold(number, last + shift)
        self._places: RangeMap[_Place] = RangeMap()
        """By sequence."""
        self._places.add(first, last, _Place(notice, shift, granted=False))
        self._on_done = on_done

    def grant(self, first: int = 0, last: int = END) -> None:
        """These sequences, or all, are buffered."""
        for low, high, place in self._places.overlapping(first, last):
            if not place.granted:
                self._places.take(low, high)
                self._places.add(low, high, place._replace(granted=True))
                place.notice.grant(low + place.shift, high + place.shift)

    def done(self, first: int = 0, last: int = END) -> None:
        """These sequences, or all; what is done with already does not matter."""
        for low, high, place in self._places.take(first, last):
            self._on_done(low, high)
            place.release(low, high)

    def move(self, notice: Notice, number: int, first: int, last: int) -> None:
        """These came again: that is what will be done with."""
        shift = number - first
        for low, high, before in self._places.take(first, last):
            self._places.add(low, high, _Place(notice, shift, before.granted))
            notice.hold(low + shift, high + shift, granted=before.granted)
            before.release(low, high)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """In order, and joined where they meet."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first == found[-1][1] + 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return tuple(found)
