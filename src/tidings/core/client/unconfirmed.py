"""The unconfirmed publications of a client of a guaranteed broker.

A publication is stamped when it is first sent, resent with the same stamp after every reconnect, in order, and kept
until it is confirmed. What the broker has on disk but has not delivered is kept a while longer, in case the broker
loses its disk. Then it is resent, too, until it is on the disk that the broker has now. At another broker everything is
resent, and the stamps do not count: two brokers may have disks of one generation. A window limits what the broker has
not taken.

    0 <= taken <= sent, both counted per connection
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from tidings.core.events.run import Run, Stretch
from tidings.core.overlay.guaranteed.messages import Stamped
from tidings.core.structures.range_map import Piece, RangeMap
from tidings.core.structures.ranges import merged

MAX_KEPT = 10_000
"""How many publications that are only on the broker's disk are kept here as well; the oldest are forgotten first."""


NO_DISK = 0
"""The generation of no disk: a broker takes a stamp of it as one of a lost log."""


class _Kept(NamedTuple):
    disk: int
    """The generation of the disk that it is on; `NO_DISK` if that is another broker's."""
    stamped: Stamped


class Unconfirmed:
    """Queues, stamps and keeps publications until they are confirmed."""

    def __init__(self) -> None:
        self._unsent: deque[Stretch] = deque()
        self._unconfirmed: RangeMap[Stamped] = RangeMap()
        """By sequence."""
        self._kept: RangeMap[_Kept] = RangeMap()
        self._kept_count = 0
        self.kept_all = True
        """False once some that are only on the broker's disk have been forgotten."""
        self._sent = self._taken = 0
        self._window = 1
        self._disk = NO_DISK
        """The generation of the broker's disk."""

    def __len__(self) -> int:
        unsent = sum(stretch.count for stretch in self._unsent)
        return unsent + sum(last - first + 1 for first, last, _ in self._unconfirmed)

    @property
    def has_kept(self) -> bool:
        return bool(self._kept)

    def add(self, stretch: Stretch) -> None:
        self._unsent.append(stretch)

    # --- The connection

    def connected(self) -> None:
        """Start counting for a new connection."""
        self._sent = self._taken = 0

    def moved(self) -> None:
        """The next connection is to another broker: neither disk nor log are those that we know."""
        for first, _, stamped in self._unconfirmed:
            self._unconfirmed.replace(first, _unstamped(stamped))
        for first, _, kept in self._kept:
            self._kept.replace(first, _Kept(NO_DISK, _unstamped(kept.stamped)))

    def attached(self, window: int, disk: int) -> list[Stamped]:
        """Return what to resend, in order: the broker, with a disk of that generation, now takes publications."""
        self._window = max(window, 1)
        self._disk = disk
        lost = [(first, last, kept.stamped) for first, last, kept in self._kept if kept.disk != disk]
        again = [*self._unconfirmed, *lost]
        messages = [_part(piece) for piece in sorted(again, key=lambda piece: piece[0])]
        self._sent += sum(message.stretch.count for message in messages)
        return messages

    def due(self, generation: int, position: int) -> Iterator[Stamped]:
        """Yield what to send now, stamped, while the window has room."""
        unsent = self._unsent
        while unsent and (room := self._window - (self._sent - self._taken)) > 0:
            stretch = unsent.popleft()
            if isinstance(stretch, Run) and stretch.count > room:
                unsent.appendleft(stretch.cut(stretch.first + room, stretch.last))
                stretch = stretch.cut(stretch.first, stretch.first + room - 1)
            stamped = Stamped(generation, position, stretch)
            self._unconfirmed.add(stretch.first, stretch.last, stamped)
            self._sent += stretch.count
            yield stamped

    # --- Answers of the broker

    def taken(self, count: int) -> None:
        self._taken = min(max(self._taken, count), self._sent)

    def confirm(self, first: int, last: int, *, kept: bool) -> list[tuple[int, int]]:
        """Return the newly confirmed ranges. `kept`: they are on the broker's disk, but not delivered to all."""
        confirmed = self._unconfirmed.take(first, last)
        kept_before = self._kept.take(first, last)
        self._kept_count -= sum(high - low + 1 for low, high, _ in kept_before)
        if kept:
            self._keep([*confirmed, *((low, high, known.stamped) for low, high, known in kept_before)])
        return list(merged((low, high) for low, high, _ in confirmed))

    def _keep(self, pieces: list[Piece[Stamped]]) -> None:
        for low, high, stamped in pieces:
            self._kept.add(low, high, _Kept(self._disk, stamped))
            self._kept_count += high - low + 1
        while self._kept_count > MAX_KEPT:
            first = self._kept.first
            assert first is not None
            low, high, _ = first
            self._kept.take(low, high)
            self._kept_count -= high - low + 1
            self.kept_all = False

    def fail(self, sequence: int) -> bool:
        """Drop a publication that the broker rejected and does not count; False if it was not pending."""
        failed = bool(self._unconfirmed.take(sequence, sequence))
        self._sent -= failed
        return failed


def _unstamped(stamped: Stamped) -> Stamped:
    return Stamped(NO_DISK, 0, stamped.stretch)


def _part(piece: Piece[Stamped]) -> Stamped:
    """Return the piece's part of what was sent together."""
    first, last, stamped = piece
    stretch = stamped.stretch
    if not isinstance(stretch, Run) or (stretch.first, stretch.last) == (first, last):
        return stamped
    return Stamped(stamped.generation, stamped.stamp, stretch.cut(first, last))
