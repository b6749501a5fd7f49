"""A stream whose events are acknowledged when the reader says so, not when it takes them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tidings.bus.service import EventService
from tidings.bus.stream import Stream
from tidings.core.events.event import Event
from tidings.core.events.run import Arrival
from tidings.core.events.subscription import Subscription


class Intake(Stream):
    """A stream read in batches with `take`; `settle` acknowledges events once they are safe.

    On a lossless service, the broker keeps events that are not settled, and sends them again after this subscriber
    restarts.
    """

    def __init__(self, service: EventService, subscription: Subscription, buffer_events: int) -> None:
        super().__init__(service, subscription, buffer_events)
        self.failure: Exception | None = None

    async def wait(self, timeout_s: float) -> None:
        """Wait until there is an event, no more will come, or the timeout is over."""
        if len(self) or self._failure is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wait()

    def nudge(self) -> None:
        """End a `wait`."""
        self._wake()

    def take(self, limit: int) -> list[Event | Arrival]:
        """Return at most `limit` events as they came; an archive does not need them decoded."""
        taken: list[Event | Arrival] = []
        while limit and self._waiting:
            came = self._events.popleft() if self._events else self._later.popleft()
            assert came is not None  # only decoding leaves None
            if isinstance(came, Arrival) and came.count > limit:
                came, rest = came.split(limit)
                self._later.appendleft(rest)
            taken.append(came)
            limit -= came.count
            self._waiting -= came.count
            self._taken += came.count
        return taken

    def settle(self, count: int) -> None:
        self._taken -= count
        self._service.taken(self.subscription.id, count)

    def fail(self, error: Exception) -> None:
        self.failure = error
        super().fail(error)

    def leave(self) -> None:
        """End the stream without unsubscribing: the broker keeps events for us."""
        self._closed = True
        self._service.streams.pop(self.subscription.id, None)
