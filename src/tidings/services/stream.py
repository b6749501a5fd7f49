"""What a subscriber iterates over: the events of one subscription, in a bounded buffer."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidings.model.errors import ConnectionFailed
from tidings.model.event import Event
from tidings.model.subscription import Subscription

if TYPE_CHECKING:
    from tidings.services.service import EventService

DEFAULT_BUFFER_EVENTS = 65_536

log = logging.getLogger("tidings")


class Stream:
    """`async with` subscribes and unsubscribes; inside, `async for` gives the events.

    At most `buffer_events` wait here. Beyond that the newest are left out, counted in `dropped` and reported
    once in the log: a slow reader loses its own events and holds up nobody.
    """

    def __init__(self, service: EventService, subscription: Subscription, buffer_events: int) -> None:
        if buffer_events < 1:
            raise ValueError("buffer_events must be at least 1")
        self.subscription = subscription
        self.dropped = 0
        self._service = service
        self._limit = buffer_events
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._entered = False
        self._closed = False

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._events)

    def push(self, event: Event) -> None:
        """Called by the service."""
        if len(self._events) >= self._limit:
            if not self.dropped:
                log.warning(
                    "subscription %s does not keep up: events beyond %d are left out (see Stream.dropped)",
                    self.subscription.id,
                    self._limit,
                )
            self.dropped += 1
            return
        self._events.append(event)
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more events will come; what waits is still given."""
        self._failure = error
        self._wake()

    async def get(self, timeout_s: float | None = None) -> Event:
        """The next event; TimeoutError if none comes in time, ConnectionFailed if none can come any more."""
        if self._events:
            return self._events.popleft()
        try:
            async with asyncio.timeout(timeout_s):
                return await self.__anext__()
        except StopAsyncIteration:
            raise ConnectionFailed("the stream was closed") from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.popleft()

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ValueError("a stream is used once: subscribe again for another")
        self._entered = True
        await self._service.add_subscription(self.subscription, self.push)
        self._service.streams[self.subscription.id] = self
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._wake()
        self._service.streams.pop(self.subscription.id, None)
        await self._service.remove_subscription(self.subscription.id)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
