"""What an ordered subscription holds: notifications of the service, and the turns of their numbers in the order."""

from __future__ import annotations

from typing import Protocol

from tidings.core.client.beneath import END, Taking
from tidings.core.client.bookmark import Progress
from tidings.core.events.event import WHOLE
from tidings.core.events.run import Stretch, cut
from tidings.core.events.timestamp import Timestamp
from tidings.core.structures.range_set import RangeSet


class TurnOwner(Protocol):
    """The subscription that the turns belong to."""

    progress: Progress

    def on_done(self) -> None:
        """Called when the application is done with some of a turn."""


class HeldStretch:
    """A notification of the service, with the number of its first event (or no-op)."""

    __slots__ = ("left", "number", "recovered_by", "stretch", "ticket")

    def __init__(self, stretch: Stretch, number: int, ticket: Taking, recovered_by: str) -> None:
        self.stretch = stretch
        self.number = number
        self.left = stretch.numbers
        """How many numbers are not released."""
        self.ticket = ticket
        self.recovered_by = recovered_by

    @property
    def is_no_op(self) -> bool:
        return self.stretch.kind > WHOLE

    def sequence_of(self, number: int) -> int:
        return self.stretch.first + number - self.number

    def cut(self, number: int, count: int) -> Stretch:
        """Return the events of these numbers."""
        first = self.sequence_of(number)
        return cut(self.stretch, first, first + count - 1)

    def release(self, number: int, count: int) -> None:
        """Release these numbers. No-ops are one event of the service, which is done when all their numbers are."""
        self.left -= count
        if self.stretch.kind <= WHOLE:
            first = self.sequence_of(number)
            self.ticket.done(first, first + count - 1)
        elif not self.left:
            self.ticket.done()


class LostNumbers:
    """In place of a notification, for numbers that never arrived."""

    __slots__ = ()
    is_no_op = False

    def sequence_of(self, number: int) -> int:
        return number

    def release(self, number: int, count: int) -> None:
        pass


LOST = LostNumbers()


class Turn:
    """Numbers that had their turn in the order; the application's ticket, if they were shown."""

    __slots__ = ("_held", "_number", "_owner", "_undone", "count", "stamp", "waits")

    def __init__(
        self, owner: TurnOwner, held: HeldStretch | LostNumbers, stamp: Timestamp, count: int, *, waits: bool
    ) -> None:
        self._owner = owner
        self._held = held
        self._number = stamp.number
        """The first number that is not released."""
        self.stamp = stamp
        self.count = count
        """How many numbers are not released."""
        self.waits = waits
        """True while the application is not done."""
        self._undone: RangeSet | None = None
        """The sequences that the application is not done with, once it is done with some; None: all or none."""

    def ahead(self, progress: Progress, count: int) -> None:
        """Advance `progress` as if `count` of these numbers were done."""
        progress.pass_by(self.stamp.topic, self._number, count, no_op=self._held.is_no_op)

    def grant(self, first: int = 0, last: int = END) -> None:
        pass

    def done(self, first: int = 0, last: int = END) -> None:
        if not self.waits:
            return
        begin = self._held.sequence_of(self._number)
        end = begin + self.count
        if self._undone is not None or first > begin or last < end - 1:
            self._undone = self._undone or RangeSet([(begin, end)])
            self._undone.remove(first, last + 1)
        self.waits = bool(self._undone)
        self._owner.on_done()

    def release(self) -> int:
        """Release what can be released in order, and return how many numbers are left."""
        count = self.count
        if self.waits:
            undone = None if self._undone is None else self._undone.first
            count = 0 if undone is None else undone - self._held.sequence_of(self._number)
        if count:
            number = self._number
            # Progress first: the bookmark sent with this acknowledgement must cover it.
            self.ahead(self._owner.progress, count)
            self._held.release(number, count)
            self._number = number + count
            self.count -= count
        return self.count
