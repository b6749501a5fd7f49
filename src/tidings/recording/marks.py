"""A recorder's progress, which it stores beside the events and reads when it restarts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from tidings.core.client.bookmark import Reached
from tidings.core.client.session import MAX_TRACKED_SOURCES
from tidings.core.errors import ArchiveError
from tidings.core.events.event import Event
from tidings.core.events.run import Arrival

ALIVE, BROKER, DISK, WHO = OWN_MARKS = ("~alive", "~broker", "~disk", "~who")
"""Marks that are not of sources: when the recorder last ran, at which broker, with which of the broker's disks, and a
hash of its name and selection."""

SUBSCRIBER, DONE, OPEN = "~subscriber", "~done", "~open"
"""For a recorder with an order: the incarnation of its subscriber; for each entry of the layout, the number up to which
everything is in the archive, and the no-ops up to there whose events may still come."""

Changes = dict[str, int | None]
"""Marks to write to the archive; None deletes a mark."""


class Marks(OrderedDict[str, int]):
    """Marks by name; that of a source is the sequence up to which the archive has its events."""

    def of_sources(self) -> dict[tuple[str, int], int]:
        """Return the marks by source and incarnation; ArchiveError if they are not a recorder's."""
        return {_parsed(key): value for key, value in self.items() if not key.startswith("~")}

    def own(self) -> Changes:
        return {key: self[key] for key in OWN_MARKS if key in self}

    @property
    def reached(self) -> Reached | None:
        """The progress of an ordered recorder; None if there was none, or it could not resume."""
        incarnation = self.get(SUBSCRIBER)
        if incarnation is None:
            return None
        done: dict[int, int] = {}
        open_: dict[int, list[int]] = {}
        for key, value in self.items():
            what, _, numbers = key.partition(":")
            if what == DONE:
                done[int(numbers)] = value
            elif what == OPEN:
                rank, _, number = numbers.partition(":")
                open_.setdefault(int(rank), []).append(int(number))
        return Reached(incarnation, done, {rank: tuple(numbers) for rank, numbers in open_.items()})

    def reach(self, reached: Reached) -> Changes:
        """Replace the progress of an ordered recorder; return the changes."""
        now = {SUBSCRIBER: reached.incarnation}
        now |= {f"{DONE}:{rank}": number for rank, number in reached.done.items()}
        now |= {f"{OPEN}:{rank}:{number}": 1 for rank, of_one in reached.open.items() for number in of_one}
        gone = [key for key in self if key.partition(":")[0] in (DONE, OPEN) and key not in now]
        for key in gone:
            del self[key]
        self.update(now)
        return {**now, **dict.fromkeys(gone)}

    def advance(self, came: Iterable[Event | Arrival]) -> Changes:
        """Set the last sequence of each source, for the most recent sources only; return the changes."""
        changes: Changes = {}
        for one in came:
            stretch = one if isinstance(one, Event) else one.stretch
            key = f"{stretch.incarnation}:{stretch.source}"
            changes[key] = self[key] = max(stretch.last, self.pop(key, 0))
        while len(self) > MAX_TRACKED_SOURCES + len(OWN_MARKS):
            oldest = next(iter(self))
            if oldest in OWN_MARKS:
                self.move_to_end(oldest)
            else:
                del self[oldest]
                changes[oldest] = None
        return changes


def _parsed(key: str) -> tuple[str, int]:
    incarnation, _, source = key.partition(":")
    if not incarnation.isdigit():
        raise ArchiveError(f"the archive's mark {key!r} was not written by a recorder; use another archive")
    return source, int(incarnation)
