"""What a client of a guaranteed broker has published and not heard to be safe.

It is stamped when it is first sent, sent again with the same stamp after every break of the connection, in order, and
kept until it is confirmed. What the broker has on disk but not yet delivered is kept a while longer, in case the broker
loses its disk. A window bounds what the broker has not taken.

    0 <= taken <= sent, both counted since the connection stands
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tidings.core.events.run import Run, Stretch
from tidings.core.overlay.guaranteed.messages import Stamped
from tidings.core.structures.range_map import Piece, RangeMap

MAX_KEPT = 10_000
"""Publications that are on the broker's disk only and kept here as well; the oldest are forgotten first."""


class Unconfirmed:
    def __init__(self) -> None:
        self._unsent: deque[Stretch] = deque()
        self._unconfirmed: RangeMap[Stamped] = RangeMap()
        """By sequence."""
        self._kept: RangeMap[Stamped] = RangeMap()
        self._kept_count = 0
        self.kept_all = True
        """False: some that are on the broker's disk only are not here any more."""
        self._sent = self._taken = 0
        self._window = 1

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
        """A new connection: nothing is known to be taken on it."""
        self._sent = self._taken = 0

    def attached(self, window: int, *, lost_its_disk: bool) -> list[Stamped]:
        """The broker takes publications: what goes again, in order."""
        self._window = max(window, 1)
        again = [*self._unconfirmed, *(self._kept if lost_its_disk else ())]
        messages = [_part(piece) for piece in sorted(again, key=lambda piece: piece[0])]
        self._sent += sum(message.stretch.count for message in messages)
        return messages

    def due(self, generation: int, position: int) -> Iterator[Stamped]:
        """What goes now, stamped so, while the window has room."""
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
        """The ranges that are safe from now on; `kept`: on the broker's disk, and somebody has not got them."""
        confirmed = self._unconfirmed.take(first, last)
        if kept:
            self._keep(confirmed)
        else:
            self._kept_count -= sum(high - low + 1 for low, high, _ in self._kept.take(first, last))
        return [(low, high) for low, high, _ in confirmed]

    def _keep(self, pieces: list[Piece[Stamped]]) -> None:
        for low, high, stamped in pieces:
            self._kept.add(low, high, stamped)
            self._kept_count += high - low + 1
        while self._kept_count > MAX_KEPT:
            first = self._kept.first
            assert first is not None
            low, high, _ = first
            self._kept.take(low, high)
            self._kept_count -= high - low + 1
            self.kept_all = False

    def fail(self, sequence: int) -> bool:
        """The broker refused it, and does not count it; False if it was not under way."""
        failed = bool(self._unconfirmed.take(sequence, sequence))
        self._sent -= failed
        return failed


def _part(piece: Piece[Stamped]) -> Stamped:
    """Of what was sent together, what is in the piece."""
    first, last, stamped = piece
    stretch = stamped.stretch
    if not isinstance(stretch, Run) or (stretch.first, stretch.last) == (first, last):
        return stamped
    return Stamped(stamped.generation, stamped.stamp, stretch.cut(first, last))
