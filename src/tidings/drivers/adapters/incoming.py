"""One subscription at an existing broker: what the client does where the overlay's brokers would.

It evaluates the filter, drops repetitions, marks what is late, and bounds what a slow reader holds.
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
"""What a reader that takes its time holds; the rest waits at the broker."""
FETCH_EVENTS = 256
"""Asked of the broker at once."""

log = logging.getLogger("tidings")


class Pace:
    """What the reader of a lossless subscription holds and has not taken."""

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
        """How many events may be asked for. Once full, it opens when half is taken: single events cost too much."""
        events = MAX_HELD_EVENTS - len(self._sizes)
        size_bytes = MAX_HELD_BYTES - self._held_bytes
        if events <= 0 or size_bytes <= 0:
            return 0
        return max(1, min(FETCH_EVENTS, events, size_bytes // self._usual_bytes))

    @property
    def open(self) -> bool:
        return len(self._sizes) <= MAX_HELD_EVENTS // 2 and self._held_bytes <= MAX_HELD_BYTES // 2

    async def wait(self) -> int:
        """How many events may be asked for, at least one."""
        while not self.open:
            self._freed.clear()
            await self._freed.wait()
        return self.room()


class Incoming:
    """One with `headers` gets whole events: the broker has sent them by now, so nothing is saved by stripping them."""

    def __init__(self, subscription: Subscription, notify: Notify, *, paced: bool) -> None:
        self.subscription = subscription
        self.interest = subscription.interest()
        self.pace = Pace(bounded=paced)
        self.accepted = False
        self.ended = False
        """Nothing is shown any more."""
        self.position: object = None
        """Where the connections of a broker that keeps events go on."""
        self.notified = 0
        self.duplicates = 0
        self._notify = notify
        self._recent = RecentIds(RECENT_EVENTS)
        self._fifo = subscription.order is Order.FIFO
        self._highest: Highest[tuple[str, int], int] = Highest(MAX_TRACKED_SOURCES)

    def offer(self, publication: Publication) -> None:
        """Notify of the event if it is for this subscription and new; WireError if it does not decode."""
        if self.ended or not self.interest.matches(publication):
            return
        if not self._recent.first_time(publication.source, publication.incarnation, publication.sequence):
            self.duplicates += 1
            return
        if publication.kind != WHOLE and not self.subscription.headers:
            return
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
        except Exception:  # what an application raises must not end the connection of all its subscriptions
            log.exception(
                "subscription %s: the application failed on event %s", self.subscription.id, event.id
            )

    def _is_late(self, publication: Publication) -> bool:
        source = (publication.source, publication.incarnation)
        return publication.sequence < (self._highest.raise_to(source, publication.sequence) or 0)
