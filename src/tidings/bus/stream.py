"""What a subscriber iterates over: the events of one subscription, in a bounded buffer."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from tidings.bus.positions import Places
from tidings.core.errors import ConnectionFailed, WireError
from tidings.core.events.event import Event
from tidings.core.events.run import Arrival, Run, Stretch
from tidings.core.events.subscription import Subscription

if TYPE_CHECKING:
    from tidings.bus.service import EventService
    from tidings.core.filters.language.expression import Expression
    from tidings.core.filters.language.filter import Filter

    Condition = str | Filter | Expression
    """SQL, a `Filter`, or an expression made with `col`."""
else:
    Condition = object  # the parser of filters is imported by whoever has one

DEFAULT_BUFFER_EVENTS = 65_536


class Unchanged(Enum):
    """The default of `where` in `Stream.change`: the filter stays as it is."""

    KEEP = "keep"


KEEP = Unchanged.KEEP
MAX_GAPS = 1_000
"""Gaps that a stream remembers, the last ones."""

log = logging.getLogger("tidings")


def _note(gap: EventsMissed, certain: bool, noted: Callable[[], None]) -> None:
    noted()


def leave_out(error: WireError) -> None:
    log.warning("dropped an event: %s", error)


class EventsMissed(NamedTuple):
    """The network could not keep these events of a source any longer; not all of them need have been for us."""

    source: str
    incarnation: int
    first: int
    last: int


class Stream:
    """`async with` subscribes and unsubscribes; inside, `async for` gives the events.

    At most `buffer_events` wait here. Beyond that the newest are left out, counted in `dropped` and reported
    once in the log: a slow reader loses its own events and holds up nobody. Where the network is guaranteed
    nothing is left out here: what a slow reader has not taken waits at its broker. If that cannot keep it any
    longer, `gaps` has what is missing, and `missed` counts it.
    """

    def __init__(self, service: EventService, subscription: Subscription, buffer_events: int) -> None:
        if buffer_events < 1:
            raise ValueError("buffer_events must be at least 1")
        self.subscription = subscription
        self.dropped = 0
        self.gaps: deque[EventsMissed] = deque(maxlen=MAX_GAPS)
        self.missed = 0
        """Events in all gaps there ever were."""
        self.on_miss: Callable[[EventsMissed, bool, Callable[[], None]], None] = _note
        """Called with each gap, whether it is one for certain, and what to call once that is noted: until then a
        broker that keeps events says it again to a later life of this client."""
        self.on_failure: Callable[[Exception], None] = lambda error: None
        """Called when no more events will come."""
        self._service = service
        self._limit = buffer_events
        self._lossless = service.lossless
        self._events: deque[Event | None] = deque()
        """The next ones, decoded; None for one that does not decode."""
        self._later: deque[Event | Arrival] = deque()
        """What came after them."""
        self._waiting = 0
        """Events in both."""
        self._taken = 0
        """Events that the application has and is not known to be done with."""
        self._finished = 0
        """Events that it is done with, and the service does not know."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Whoever waits for an event, first come, first served."""
        self._changing = asyncio.Lock()
        self._failure: Exception | None = None
        self._entered = False
        self._closed = False

    def __len__(self) -> int:
        """How many events wait."""
        return self._waiting

    def push(self, event: Event) -> None:
        """Called by the service: the next event."""
        if self._room() < 1:
            self._drop(1)
            return
        (self._later or self._events).append(event)
        self._waiting += 1
        self._wake()

    __call__ = push

    def push_run(self, run: Run, *, late: bool = False, by: str = "", places: Places | None = None) -> None:
        """Called by a service that has runs: the next events."""
        room = self._room()
        taken: Stretch = run
        if run.count > room:
            self._drop(run.count - room)
            if not room:
                return
            taken = run.cut(run.first, run.first + room - 1)
        self._later.append(Arrival(taken.kept() if isinstance(taken, Run) else taken, late, places, by))
        self._waiting += taken.count
        for _ in range(min(taken.count, len(self._waiters))):
            self._wake()

    def _room(self) -> int:
        return sys.maxsize if self._lossless else self._limit - self._waiting

    def _drop(self, count: int) -> None:
        if not self.dropped:
            log.warning(
                "subscription %s: reader too slow; events beyond %d are dropped (see Stream.dropped)",
                self.subscription.id,
                self._limit,
            )
        self.dropped += count

    def miss(
        self, gap: EventsMissed, *, certain: bool = True, noted: Callable[[], None] = lambda: None
    ) -> None:
        """Called by the service: these events will never come. Not certain: they need not have been for us."""
        if not self.missed:
            log.warning(
                "subscription %s lost events of %s: the network could not keep them (see Stream.gaps)",
                self.subscription.id,
                gap.source,
            )
        self.gaps.append(gap)
        self.missed += gap.last - gap.first + 1
        self.on_miss(gap, certain, noted)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Who does not know this subscription yet because it cannot be reached; empty: it is complete."""
        return self._service.uncovered(self.subscription.id)

    async def completed(self) -> None:
        """Returns once the whole network knows this subscription; ConnectionFailed if that cannot be any more."""
        await self._service.completed(self.subscription.id)

    def fail(self, error: Exception) -> None:
        """No more events will come; what waits is still given."""
        self._failure = error
        self.on_failure(error)
        self._wake_all()

    async def get(self, timeout_s: float | None = None) -> Event:
        """The next event; TimeoutError if none comes in time, ConnectionFailed if none can come any more."""
        if self._lossless:
            self._finish()
        event = self._next()
        if event is not None:
            return event
        if not isinstance(timeout_s, int | float | None):
            raise ValueError(f"timeout_s must be a number of seconds or None, not {timeout_s!r}")
        try:
            async with asyncio.timeout(timeout_s):
                return await self.__anext__()
        except StopAsyncIteration:
            raise ConnectionFailed("the stream was closed") from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._lossless:
            self._finish()
        while (event := self._next()) is None:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise StopAsyncIteration
            await self._wait()
        return event

    async def batches(self, max_events: int = 1_000, max_wait_s: float = 0.0) -> AsyncIterator[list[Event]]:
        """Lists of events, each of what is there, up to `max_events`; none is empty.

        A list that is not full waits `max_wait_s` for more, from its first event on.
        """
        if max_events < 1 or max_wait_s < 0:
            raise ValueError(f"max_events {max_events} and max_wait_s {max_wait_s} must be positive")
        loop = asyncio.get_running_loop()
        async for first in self:
            batch = [first]
            until = loop.time() + max_wait_s
            while len(batch) < max_events and (event := await self._next_until(until)) is not None:
                batch.append(event)
            yield batch

    async def _next_until(self, until: float) -> Event | None:
        """None if there is none by then, or can be none any more."""
        event = self._next()
        if event is not None or until <= asyncio.get_running_loop().time():
            return event
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while event is None and self._failure is None and not self._closed:
                    await self._wait()
                    event = self._next()
        return event

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            waiter.cancel()
            if waiter.cancelled():
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            else:  # it was its turn: somebody else's now
                self._wake()
            raise

    def _next(self) -> Event | None:
        """The application takes an event, if there is one."""
        events = self._events
        while True:
            while not events:
                if not self._later:
                    return None
                self._decode_next()
            self._waiting -= 1
            self._taken += 1
            if (event := events.popleft()) is not None:
                return event

    def _finish(self) -> None:
        """Whoever asks for the next event is done with those before."""
        if self._taken:
            if not self._finished:  # said once in a turn of the loop, for that is when it leaves
                asyncio.get_running_loop().call_soon(self._report)
            self._finished += self._taken
            self._taken = 0

    def _report(self) -> None:
        """Tell the service what the application is done with."""
        if self._finished:
            finished, self._finished = self._finished, 0
            self._service.taken(self.subscription.id, finished)

    def _decode_next(self) -> None:
        unread = self._later.popleft()
        if isinstance(unread, Event):
            self._events.append(unread)
            return
        self._events.extend(unread.events(leave_out))

    # --- Changes

    async def add(self, *topics: str) -> None:
        """Select these topic patterns as well, from when it returns on; what was selected before has no gap and no
        repetition."""
        async with self._changing:
            await self._change((*self._topics, *topics), self.subscription.filter)

    async def remove(self, *topics: str) -> None:
        """Drop these topic patterns; ValueError if one is not among the stream's, or none would be left."""
        async with self._changing:
            unknown = [topic for topic in topics if topic not in self._topics]
            if unknown:
                raise ValueError(
                    f"{', '.join(unknown)}: not among the stream's topics {', '.join(self._topics)}"
                )
            left = tuple(topic for topic in self._topics if topic not in topics)
            if not left:
                raise ValueError("a stream keeps at least one topic; leave its block to end it")
            await self._change(left, self.subscription.filter)

    async def change(self, *topics: str, where: Condition | Unchanged | None = KEEP) -> None:
        """Other topics (none given: the same), another filter (None: none), or both, in one step.

        SubscriptionRefused: the network did not take it, and the stream stays as it was.
        """
        from tidings.bus.service import filter_sql

        async with self._changing:
            condition = self.subscription.filter if where is KEEP else filter_sql(where)
            await self._change(topics or self.subscription.topics, condition)

    @property
    def _topics(self) -> tuple[str, ...]:
        return self.subscription.topics or ("/**",)

    async def _change(self, topics: tuple[str, ...], condition: str | None) -> None:
        if not self._entered or self._closed:
            raise ValueError("a stream can only change inside its block")
        before = self.subscription
        changed = Subscription(before.id, tuple(dict.fromkeys(topics)), condition, before.order)
        changed.interest()  # a mistake shows here
        await self._service.change_subscription(changed)
        self.subscription = changed

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ValueError("a stream is used once: subscribe again for another")
        self._entered = True
        self._lossless = self._service.lossless
        self._service.streams[self.subscription.id] = self  # events may come before the answer
        try:
            await self._service.add_subscription(self.subscription, self, paced=True)
        except BaseException:
            self._service.streams.pop(self.subscription.id, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._wake_all()
        self._report()
        self._service.streams.pop(self.subscription.id, None)
        await self._service.remove_subscription(self.subscription.id)

    def _wake(self) -> None:
        """One of those who wait; each event wakes one."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake()
