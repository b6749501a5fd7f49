"""How far a recorder has come: what it keeps beside the events, and finds again when it starts anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from tidings.core.client.bookmark import Reached
from tidings.core.client.session import MAX_TRACKED_SOURCES
from tidings.core.errors import ArchiveError
from tidings.core.events.event import Event
from tidings.core.events.run import Arrival

ALIVE, BROKER, DISK, WHO = OWN_MARKS = ("~alive", "~broker", "~disk", "~who")
"""Marks beside those of the sources: when the recorder last ran, at which broker, with which disk of that, and under
which name for what."""

SUBSCRIBER, DONE, OPEN = "~subscriber", "~done", "~open"
"""Of a recorder with an order: the incarnation of its subscriber; per entry of the layout the number up to which all is
in the archive, and the no-ops among these whose events may come yet."""

Changes = dict[str, int | None]
"""What is to be written to the archive; None: the mark is forgotten."""


class Marks(OrderedDict[str, int]):
    """By name; those of the sources say up to which sequence the archive has their events."""

    def of_sources(self) -> dict[tuple[str, int], int]:
        """By source and incarnation; ArchiveError if they are not a recorder's."""
        return {_parsed(key): value for key, value in self.items() if not key.startswith("~")}

    def own(self) -> Changes:
        return {key: self[key] for key in OWN_MARKS if key in self}

    @property
    def reached(self) -> Reached | None:
        """How far an ordered recorder has come; None: there was none, or it could not resume."""
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
        """How far an ordered recorder has come now, in the place of what it had before."""
        now = {SUBSCRIBER: reached.incarnation}
        now |= {f"{DONE}:{rank}": number for rank, number in reached.done.items()}
        now |= {f"{OPEN}:{rank}:{number}": 1 for rank, of_one in reached.open.items() for number in of_one}
        gone = [key for key in self if key.partition(":")[0] in (DONE, OPEN) and key not in now]
        for key in gone:
            del self[key]
        self.update(now)
        return {**now, **dict.fromkeys(gone)}

    def advance(self, came: Iterable[Event | Arrival]) -> Changes:
        """The last sequence of each source, of the most recent sources alone."""
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
        raise ArchiveError(f"the archive's mark {key!r} is none of a recorder")
    return source, int(incarnation)
