"""What a subscriber keeps until it is its turn: events and no-ops by topic, and who learns what became of them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.resuming import Fence
from tidings.core.structures.range_map import RangeMap
from tidings.core.structures.range_set import RangeSet

MAX_SKIPPED = 1024
"""Ranges of numbers per topic that may be shown late; beyond, the lowest are forgotten, and their events dropped."""


class NoOp:
    """Takes the numbers of events whose publisher died, or that are not for this subscriber; it is never shown.
    `token` is passed on to `Releases`."""

    __slots__ = ("token",)

    def __init__(self, token: object = None) -> None:
        self.token = token


NO_OP = NoOp()


class Releases(Protocol):
    """Learns the fate of all numbers that a subscriber received and does not show, so that nothing is held for ever."""

    def pass_over(self, stamp: Timestamp, token: object, count: int) -> None:
        """Called when it is the turn of no-ops with this token, `count` from the stamp's number on."""

    def drop(self, event: object, number: int, count: int) -> None:
        """Called when the event, or the token, is not needed for these numbers."""

    def skip(self, topic: int, number: int, count: int) -> None:
        """Called when it is the turn of numbers that never arrived: the subscriber goes on without them."""


class _NoReleases:
    def pass_over(self, stamp: Timestamp, token: object, count: int) -> None:
        pass

    def drop(self, event: object, number: int, count: int) -> None:
        pass

    def skip(self, topic: int, number: int, count: int) -> None:
        pass


NO_RELEASES: Releases = _NoReleases()


class Waiting(Struct, frozen=True):
    """An event or no-op that waits. The stamps of all its numbers differ from `stamp` in the number only."""

    stamp: Timestamp
    event: object


class TopicQueue:
    """What waits on one topic."""

    __slots__ = ("events", "fence", "index", "position", "scanned", "skipped", "values")

    def __init__(self) -> None:
        self.events: RangeMap[Waiting] = RangeMap()
        self.fence: Fence | None = None
        """What the first event waits for, regardless of its stamp (rule 3)."""
        self.skipped = RangeSet()
        """Numbers up to the clock that were not shown."""
        self.scanned = 0
        """The number of the head whose `index` and `values` are met up to `position`."""
        self.index: tuple[int, ...] = ()
        self.values: tuple[int, ...] = ()
        self.position = 0

    @property
    def count(self) -> int:
        """The quantity of waiting numbers."""
        return sum(last - first + 1 for first, last, _ in self.events)

    def begin(self, number: int, stamp: Timestamp) -> None:
        """Start to scan a new head."""
        self.scanned = number
        self.position = 0
        self.index, self.values = stamp.index, stamp.values
        if self.fence is not None:
            index, values = self.fence
            self.index, self.values = index + self.index, values + self.values

    def skip(self, first: int, last: int) -> None:
        self.skipped.add_range(first, last + 1)
        if self.skipped.range_count > MAX_SKIPPED:
            _, stop = next(iter(self.skipped))
            self.skipped.trim_below(stop)
