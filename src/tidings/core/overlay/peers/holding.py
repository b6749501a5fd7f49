"""What a process has of one stream, and what it knows that others have.

    0 <= collected <= everything below it has reached every member

Above `collected` are events that some member may lack: these are kept, to be passed on.
"""

from __future__ import annotations

from tidings.core.events.run import Stretch, cut
from tidings.core.overlay.peers.messages import Cast, Stream
from tidings.core.structures.range_map import RangeMap
from tidings.core.structures.range_set import RangeSet


class Holding:
    """One stream at one process."""

    __slots__ = ("_kept", "collected", "hole_since", "kept_bytes", "others", "received", "stream", "supplier")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.collected = 0
        """Every member has everything up to this number, or will never get it."""
        self.received = RangeSet()
        """What this process has, or had before it joined."""
        self.others: dict[str, RangeSet] = {}
        """Process -> what it is known to have, above `collected`."""
        self.supplier = ""
        """Who sent the last events, and hears what those behind us have."""
        self.kept_bytes = 0
        self.hole_since = 0
        """When the lowest hole was first looked at; 0 if there is none."""
        self._kept: RangeMap[tuple[int, Stretch]] = RangeMap()
        """Numbers -> the number of the stretch's first event, and the stretch."""

    # --- What is here

    @property
    def is_settled(self) -> bool:
        """Nothing is kept: every member has everything that this process knows of."""
        return not len(self._kept)

    def take(self, message: Cast) -> list[Cast]:
        """Keep what is new; return it, in stretches."""
        fresh: list[Cast] = []
        for start, stop in self.received.missing(max(message.first, self.collected + 1), message.last + 1):
            part = part_of(message, start, stop - 1)
            self.received.add_range(start, stop)
            self._kept.add(start, stop - 1, (start, part.stretch))
            self.kept_bytes += part.stretch.size_bytes
            fresh.append(part)
        return fresh

    def lacks_of(self, other: str, limit_bytes: int) -> list[Cast]:
        """Return what is kept that the other one is not known to have, up to so many bytes."""
        theirs = self.others.get(other)
        found: list[Cast] = []
        for first, last, (start, stretch) in self._kept:
            gaps = [(first, last + 1)] if theirs is None else theirs.missing(first, last + 1)
            for low, stop in gaps:
                piece = cut(stretch, low - start + stretch.first, stop - 1 - start + stretch.first)
                found.append(Cast(*self.stream, low, self.collected, piece))
                limit_bytes -= piece.size_bytes
            if limit_bytes <= 0:
                break
        return found

    @property
    def hole(self) -> int:
        """Up to which number above `collected` nobody has anything, as far as this process knows, although there is
        more after it; 0 if somebody has."""
        lowest = [self._above(known) for known in (self.received, *self.others.values())]
        first = min((each for each in lowest if each is not None), default=0)
        return 0 if first <= self.collected + 1 else first - 1

    def _above(self, known: RangeSet) -> int | None:
        """Return the lowest number above `collected` in the set."""
        return next(
            (max(start, self.collected + 1) for start, stop in known if stop - 1 > self.collected), None
        )

    # --- What others have

    def note(self, other: str, first: int, last: int) -> bool:
        """The other one has these. Return whether that is news."""
        known = self.others.get(other)
        if known is None:
            known = self.others[other] = RangeSet()
        low = max(first, self.collected + 1)
        if low > last or not known.missing(low, last + 1):
            return False
        known.add_range(low, last + 1)
        return True

    def has(self, other: str, first: int, last: int) -> bool:
        """Return whether the other one is known to have all of these."""
        known = self.others.get(other)
        low = max(first, self.collected + 1)
        return low > last or (known is not None and not known.missing(low, last + 1))

    def reached_by(self, process: str) -> int:
        """Return up to which number the process is known to have everything."""
        known = self.others.get(process)
        gap = None if known is None else next(iter(known.missing(self.collected + 1, 2**62)), None)
        return self.collected if gap is None else gap[0] - 1

    def collect(self, number: int) -> bool:
        """Everybody has everything up to this number: keep it no longer. Return whether that is news."""
        if number <= self.collected:
            return False
        for _, _, (_, stretch) in self._kept.take(self.collected + 1, number):
            self.kept_bytes -= stretch.size_bytes
        if self.is_settled:
            self.kept_bytes = 0
        self.collected = number
        for known in self.others.values():
            known.trim_below(number + 1)
        return True


def part_of(message: Cast, first: int, last: int) -> Cast:
    """Return its events with these numbers."""
    if (first, last) == (message.first, message.last):
        return message
    shift = message.stretch.first - message.first
    piece = cut(message.stretch, first + shift, last + shift)
    return Cast(*message.stream, first, message.collected, piece)
