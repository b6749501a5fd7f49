"""Merges, source by source, what a share that has moved gets by its own subscription with what its former home sends.

The former home keeps its subscription, because events that were published before the new one was known everywhere come
only there. Each of the two gets a source's events in order and without gaps. So once our own subscription has brought
an event of a source that is not newer than what we have of it, it brings everything after that, and the source is
*complete*. Until then its newer events are held, and not acknowledged, so that they are not lost with this broker.

The former home gets what we hold, too: our subscription has a record of its own, which is newer than the former one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from tidings.core.client.arrivals import Notice
from tidings.core.events.run import Stretch
from tidings.core.structures.highest import Highest

SourceId = tuple[str, int]
"""Source, incarnation."""
MAX_HELD_EVENTS = 8_192
"""How many events are held at the most; beyond, the broker sends nothing more until some are released."""
MAX_COMPLETE = 65_536
"""How many complete sources are remembered. The former home remembers half as many, so it forgets first."""
Done = Callable[[], None]


class EventSink(Protocol):
    """Where the merged events go."""

    def highest(self, source: SourceId) -> int:
        """Return the last sequence taken."""

    def take(self, stretch: Stretch, done: Done) -> bool:
        """Take what is new; call `done` when this broker need not keep it for us. Return False if there is no room."""


class MergedSources:
    """`may_conclude` says whether the whole network has known our subscription for a while: a publisher that changes
    its broker may meet one that does not know it yet. `note` is told of each complete source, and which one is
    forgotten for it; it must be on disk before anything else leaves. It returns False if the disk is full."""

    def __init__(
        self,
        sink: EventSink,
        complete: Iterable[SourceId],
        may_conclude: Callable[[], bool],
        note: Callable[[SourceId, SourceId | None], bool],
    ) -> None:
        self.sink = sink
        self._may_conclude = may_conclude
        self._note = note
        self._complete: Highest[SourceId, int] = Highest(MAX_COMPLETE)
        for source in complete:
            self._complete.raise_to(source, 0)
        self._held: dict[SourceId, deque[tuple[Stretch, Notice]]] = {}
        self.held_count = 0
        self._alone = False
        self._forwarded: deque[tuple[Stretch, Done]] = deque()
        """What the former home sent, and there was no room for."""

    def is_complete(self, source: SourceId) -> bool:
        return self._alone or source in self._complete

    @property
    def is_over(self) -> bool:
        """True if there is nothing to merge any more."""
        return self._alone and self.is_idle

    @property
    def is_idle(self) -> bool:
        return not self._held and not self._forwarded

    @property
    def is_full(self) -> bool:
        return self.held_count >= MAX_HELD_EVENTS

    def arrived(self, stretch: Stretch, notice: Notice) -> None:
        """Take events of our own subscription, or hold them."""
        source = (stretch.source, stretch.incarnation)
        self._maybe_conclude(source, stretch)
        is_clear = self.is_complete(source) or stretch.last <= self.sink.highest(source)
        notice.hold(stretch.first, stretch.last)
        if (
            source not in self._held
            and is_clear
            and self.sink.take(stretch, partial(_release, notice, stretch))
        ):
            return
        self._held.setdefault(source, deque()).append((stretch, notice))
        self.held_count += stretch.count
        notice.grant(stretch.first, stretch.last)

    def _maybe_conclude(self, source: SourceId, stretch: Stretch) -> None:
        """Note that the source is complete, if nothing can be missing between what we have of it and these events."""
        if self._alone:
            return
        if source in self._complete:
            self._complete.raise_to(source, 0)
        elif self._may_conclude() and (stretch.first == 1 or stretch.first <= self.sink.highest(source)):
            full = len(self._complete) >= MAX_COMPLETE
            if self._note(source, next(iter(self._complete)) if full else None):
                self._complete.raise_to(source, 0)

    def forwarded(self, stretch: Stretch, done: Done) -> None:
        """Take events that the former home sent."""
        self._forwarded.append((stretch, done))
        self.go_on()

    def go_on(self) -> None:
        """Take what there was no room for, or what is no longer in doubt."""
        while self._forwarded:
            stretch, done = self._forwarded[0]
            if not self.sink.take(stretch, done):
                return
            self._forwarded.popleft()
        for source in list(self._held):
            self._maybe_conclude(source, self._held[source][0][0])
            self._release(source)

    def _release(self, source: SourceId) -> None:
        """Take what is held of a complete source, or is no longer new."""
        waiting = self._held[source]
        while waiting:
            stretch, notice = waiting[0]
            if not self.is_complete(source) and stretch.last > self.sink.highest(source):
                return
            if not self.sink.take(stretch, partial(_release, notice, stretch, granted=True)):
                return
            waiting.popleft()
            self.held_count -= stretch.count
        del self._held[source]

    def go_alone(self) -> None:
        """The former home sends nothing more: what is held is all there is."""
        self._alone = True
        self.go_on()


def _release(notice: Notice, stretch: Stretch, *, granted: bool = False) -> None:
    notice.release(stretch.first, stretch.last, granted=granted)
