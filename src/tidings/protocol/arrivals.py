"""What a client has been notified of on one connection: what it may be sent more for, and what it is done with.

A guaranteed broker is told two things. `granted`: the client has room for as many more as the first so many were; they
are done, or buffered by an order within its bounds. `done`: these are never needed again, as ranges, in the order in
which the application finishes. Only what is done does the broker forget; the rest comes again on the next connection.

    0 <= granted <= count; every number that is done is at most count
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Ranges = tuple[tuple[int, int], ...]
"""(first, last), ascending, apart."""


class Arrivals:
    """The notifications of one connection, counted from 1; `on_news` is told when there is something to say."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.count = 0
        self._on_news = on_news
        self._granted = 0
        self._told = 0
        self._blocking: set[int] = set()
        """Numbers that are neither granted nor done."""
        self._done: list[int] = []
        """Since the broker was last told."""

    def arrive(self) -> Notice:
        self.count += 1
        self._blocking.add(self.count)
        return Notice(self, self.count)

    def news(self) -> tuple[int, Ranges] | None:
        """What the broker has not been told: how many are granted, and which are done. None: nothing."""
        while self._granted < self.count and self._granted + 1 not in self._blocking:
            self._granted += 1
        if self._granted == self._told and not self._done:
            return None
        self._told = self._granted
        done, self._done = self._done, []
        return self._granted, ranges_of(done)

    def grant(self, number: int) -> None:
        self._blocking.discard(number)
        self._on_news()

    def end(self) -> None:
        """The connection is gone: nobody is told any more."""
        self._on_news = lambda: None

    def finish(self, number: int) -> None:
        self._blocking.discard(number)
        self._done.append(number)
        self._on_news()


class Notice:
    """One notification, for as many as hold it: the streams of a client, or a part that waits for something."""

    __slots__ = ("_arrivals", "_holders", "_number", "_ungranted")

    def __init__(self, arrivals: Arrivals, number: int) -> None:
        self._arrivals = arrivals
        self._number = number
        self._holders = self._ungranted = 1
        """Whoever handles the notification holds it meanwhile. 0 <= ungranted <= holders."""

    def hold(self, *, granted: bool = False) -> None:
        self._holders += 1
        self._ungranted += not granted

    def grant(self) -> None:
        """One of the holders buffers it: more may come."""
        self._ungranted -= 1
        if not self._ungranted:
            self._arrivals.grant(self._number)

    def release(self, *, granted: bool = False) -> None:
        """One of the holders is done with it."""
        self._holders -= 1
        self._ungranted -= not granted
        if not self._holders:
            self._arrivals.finish(self._number)
        elif not self._ungranted:
            self._arrivals.grant(self._number)


class Ticket:
    """One event that a subscription's application holds, whichever connection brought it last."""

    __slots__ = ("_granted", "_notice", "_on_done")

    def __init__(self, notice: Notice, on_done: Callable[[], object] = lambda: None) -> None:
        notice.hold()
        self._notice: Notice | None = notice
        self._on_done = on_done
        self._granted = False

    def grant(self) -> None:
        if not self._granted and self._notice is not None:
            self._granted = True
            self._notice.grant()

    def done(self) -> None:
        notice, self._notice = self._notice, None
        if notice is not None:
            self._on_done()
            notice.release(granted=self._granted)

    def move(self, notice: Notice) -> None:
        """The same event came again: that is what will be done with."""
        before, self._notice = self._notice, notice
        notice.hold(granted=self._granted)
        if before is not None:
            before.release(granted=self._granted)


def ranges_of(numbers: Iterable[int]) -> Ranges:
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)
