"""One subscription at an existing broker: the client does here what the overlay's brokers would do.

It evaluates the filter, drops duplicates, marks late events, and bounds what a slow reader holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from tidings.bus.service import Notify
from tidings.bus.stream import Stream
from tidings.core.client.session import MAX_TRACKED_SOURCES, RECENT_EVENTS
from tidings.core.events.event import WHOLE, Event, Publication
from tidings.core.events.subscription import Order, Subscription
from tidings.core.structures.highest import Highest
from tidings.core.structures.recent_ids import RecentIds

MAX_HELD_EVENTS = 1_024
MAX_HELD_BYTES = 16 * 1024 * 1024
"""The most that a slow reader holds; the rest waits at the broker."""
FETCH_EVENTS = 256
"""The most events to request from the broker at once."""

log = logging.getLogger("tidings")


class Pace:
    """Counts what the reader of a lossless subscription has been given and not yet taken."""

    def __init__(self, *, bounded: bool) -> None:
        self._bounded = bounded
        self._sizes: deque[int] = deque()
        self._held_bytes = 0
        self._usual_bytes = 1
        self._freed = asyncio.Event()
        self.on_freed: Callable[[], None] = self._freed.set

    def handed(self, size_bytes: int) -> None:
        self._usual_bytes = max(1, (7 * self._usual_bytes + size_bytes) // 8)
        if self._bounded:
            self._sizes.append(size_bytes)
            self._held_bytes += size_bytes

    def taken(self) -> None:
        if self._sizes:
            self._held_bytes -= self._sizes.popleft()
            if self.open:
                self.on_freed()

    def room(self) -> int:
        """Return how many events may be requested."""
        events = MAX_HELD_EVENTS - len(self._sizes)
        size_bytes = MAX_HELD_BYTES - self._held_bytes
        if events <= 0 or size_bytes <= 0:
            return 0
        return max(1, min(FETCH_EVENTS, events, size_bytes // self._usual_bytes))

    @property
    def open(self) -> bool:
        """False when full, until half is taken: requesting single events would cost too much."""
        return len(self._sizes) <= MAX_HELD_EVENTS // 2 and self._held_bytes <= MAX_HELD_BYTES // 2

    async def wait(self) -> int:
        """Wait for room and return how many events may be requested, at least one."""
        while not self.open:
            self._freed.clear()
            await self._freed.wait()
        return self.room()


class Incoming:
    """One subscription. With `headers` it gets whole events: the broker has already sent them, so stripping saves
    nothing."""

    def __init__(self, subscription: Subscription, notify: Notify, *, paced: bool) -> None:
        self.subscription = subscription
        self.interest = subscription.interest()
        self.pace = Pace(bounded=paced)
        self.accepted = False
        self.ended = False
        """Once True, nothing is delivered any more."""
        self.position: object = None
        """Where the next connection resumes, for a broker that keeps events."""
        self.notified = 0
        self.duplicates = 0
        self._notify = notify
        self._recent = RecentIds(RECENT_EVENTS)
        self._fifo = subscription.order is Order.FIFO
        self._highest: Highest[tuple[str, int], int] = Highest(MAX_TRACKED_SOURCES)

    def offer(self, publication: Publication) -> None:
        """Deliver the event if it matches this subscription and is new; WireError if it cannot be decoded."""
        if self.ended or not self.interest.matches(publication):
            return
        if not self._recent.first_time(publication.source, publication.incarnation, publication.sequence):
            self.duplicates += 1
            return
        if publication.kind != WHOLE and not self.subscription.headers:
            return
        self._deliver(publication)

    def _deliver(self, publication: Publication) -> None:
        event = publication.event()
        if not isinstance(self._notify, Stream):
            event.__dict__["carrier"] = publication
        if self._fifo and self._is_late(publication):
            event.__dict__["out_of_order"] = True
        self.notified += 1
        self.pace.handed(publication.size_bytes)
        self._show(event)

    def _show(self, event: Event) -> None:
        try:
            self._notify(event)
        except Exception:  # an application's error must not end the connection for all subscriptions
            log.exception(
                "subscription %s: the application failed on event %s", self.subscription.id, event.id
            )

    def _is_late(self, publication: Publication) -> bool:
        source = (publication.source, publication.incarnation)
        return publication.sequence < (self._highest.raise_to(source, publication.sequence) or 0)
