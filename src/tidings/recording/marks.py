"""How far a recorder has come: what it keeps beside the events, and finds again when it starts anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from tidings.model.errors import ArchiveError
from tidings.model.event import Event
from tidings.model.run import Arrival
from tidings.protocol.client import MAX_TRACKED_SOURCES

ALIVE, BROKER, DISK, WHO = OWN_MARKS = ("~alive", "~broker", "~disk", "~who")
"""Marks beside those of the sources: when the recorder last ran, at which broker, with which disk of that, and under
which name for what."""

Changes = dict[str, int | None]
"""What is to be written to the archive; None: the mark is forgotten."""


class Marks(OrderedDict[str, int]):
    """By name; those of the sources say up to which sequence the archive has their events."""

    def of_sources(self) -> dict[tuple[str, int], int]:
        """By source and incarnation; ArchiveError if they are not a recorder's."""
        return {_parsed(key): value for key, value in self.items() if not key.startswith("~")}

    def own(self) -> Changes:
        return {key: self[key] for key in OWN_MARKS if key in self}

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
