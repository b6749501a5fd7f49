"""The stream that a subscriber iterates over: the events of one subscription, in a bounded buffer."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidings.bus.gaps import EventsMissed as EventsMissed
from tidings.bus.gaps import Gap
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
    Condition = object  # the filter parser is imported only where a filter is given

DEFAULT_BUFFER_EVENTS = 65_536


class Unchanged(Enum):
    """The type of the default of `where` in `Stream.change`: the filter stays as it is."""

    KEEP = "keep"


KEEP = Unchanged.KEEP
MAX_GAPS = 1_000
"""How many gaps a stream remembers, the latest ones."""

log = logging.getLogger("tidings")


def _note(gap: Gap, certain: bool, noted: Callable[[], None]) -> None:
    noted()


def leave_out(error: WireError) -> None:
    log.warning("dropped an event: %s", error)


class Stream:
    """The events of one subscription. `async with` subscribes and unsubscribes; inside, `async for` yields events.

    At most `buffer_events` events wait here. Beyond that the newest are dropped, counted in `dropped` and logged once:
    a slow reader loses its own events and delays nobody else. On a guaranteed network nothing is dropped here: what a
    slow reader has not taken waits at its broker. If the broker can no longer keep it, or the client moves to another
    broker, `gaps` lists what is missing and `missed` counts it; the stream goes on, with an order, too.
    """

    def __init__(self, service: EventService, subscription: Subscription, buffer_events: int) -> None:
        if buffer_events < 1:
            raise ValueError("buffer_events must be at least 1")
        self.subscription = subscription
        self.dropped = 0
        """Events dropped because the reader was too slow."""
        self.expired = 0
        """Events that were not shown because they had expired."""
        self.gaps: deque[Gap] = deque(maxlen=MAX_GAPS)
        """The latest gaps, at most 1,000."""
        self.missed = 0
        """Events in all gaps so far, including those that `gaps` no longer holds."""
        self.on_gap: Callable[[Gap], None] = self._log_first
        """Called with each gap."""
        self.on_miss: Callable[[Gap, bool, Callable[[], None]], None] = _note
        """Called with each gap, whether it is certain, and a function to call once the gap is recorded: until then a
        broker that keeps events reports the gap again when this client restarts."""
        self.on_failure: Callable[[Exception], None] = lambda error: None
        """Called when no more events will come."""
        self.on_arrival: Callable[[], None] | None = None
        """Called when events have arrived, in place of waking a reader: for those who `take_next` them in that turn."""
        self._service = service
        self._limit = buffer_events
        self._lossless = service.lossless
        self._events: deque[Event | None] = deque()
        """The next events, decoded; None for one that could not be decoded."""
        self._later: deque[Event | Arrival] = deque()
        """What arrived after them."""
        self._waiting = 0
        """Events in `_events` and `_later` together."""
        self._taken = 0
        """Events that the application has taken and may still be working on."""
        self._finished = 0
        """Events that the application is done with, not yet reported to the service."""
        self._may_expire = False
        """True once an event had a payload that may say when it expires."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Readers that wait for an event, first come, first served."""
        self._changing = asyncio.Lock()
        self._failure: Exception | None = None
        self._entered = False
        self._closed = False

    def __len__(self) -> int:
        """Return how many events wait."""
        return self._waiting

    def push(self, event: Event) -> None:
        """Append the next event; called by the service."""
        if self._room() < 1:
            self._drop(1)
            return
        if event.expires_at is not None:
            self._may_expire = True
        (self._later or self._events).append(event)
        self._waiting += 1
        self._wake()

    __call__ = push

    def push_run(self, run: Run, *, late: bool = False, by: str = "", places: Places | None = None) -> None:
        """Append the events of a run; called by services that have runs."""
        room = self._room()
        taken: Stretch = run
        if run.count > room:
            self._drop(run.count - room)
            if not room:
                return
            taken = run.cut(run.first, run.first + room - 1)
        self._later.append(Arrival(taken.kept() if isinstance(taken, Run) else taken, late, places, by))
        self._waiting += taken.count
        self._wake_some(taken.count)

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

    def miss(self, gap: Gap, *, certain: bool = True, noted: Callable[[], None] = lambda: None) -> None:
        """Record that events will never arrive; called by the service.

        Not `certain`: they may have waited elsewhere, or none was for this subscription.
        """
        self.on_gap(gap)
        self.gaps.append(gap)
        self.missed += gap.count
        self.on_miss(gap, certain, noted)

    def _log_first(self, gap: Gap) -> None:
        if not self.missed:
            log.warning("subscription %s %s (see Stream.gaps)", self.subscription.id, gap.text)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """The brokers that do not know this subscription yet because they cannot be reached; empty once complete.

        What is published at those brokers does not reach this stream.
        """
        return self._service.uncovered(self.subscription.id)

    async def cancel(self) -> None:
        """End a durable subscription or a group for good, and drop what waits for it. Iteration ends.

        Raises:
            ValueError: It is neither.
            SubscriptionRefused: It does not exist any more, or somebody took it over.
        """
        raise ValueError(
            "only a durable subscription or a group is cancelled; leave the block of another stream"
        )

    async def completed(self) -> None:
        """Wait until the whole network knows this subscription.

        Raises:
            ConnectionFailed: The subscription ended before that.
        """
        await self._service.completed(self.subscription.id)

    def fail(self, error: Exception) -> None:
        """End the stream with an error, which readers get after the events that already wait."""
        self._failure = error
        self.on_failure(error)
        self._wake_all()

    async def get(self, timeout_s: float | None = None) -> Event:
        """Return the next event, waiting for it if necessary.

        Args:
            timeout_s: Seconds to wait; None waits without limit.

        Raises:
            TimeoutError: No event arrived in time.
            ConnectionFailed: The stream or its bus was closed.
            OrderError: The subscription has an order that cannot be continued.
        """
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
            if self._lossless:
                self._finish()  # events that had expired are done with
            await self._wait()
        return event

    async def batches(self, max_events: int = 1_000, max_wait_s: float = 0.0) -> AsyncIterator[list[Event]]:
        """Yield lists of the events that are there, never empty.

        Args:
            max_events: The most events in one list.
            max_wait_s: How long a list that is not full waits for more, in seconds from its first event on.
        """
        if max_events < 1 or max_wait_s < 0:
            raise ValueError(
                f"max_events must be at least 1, not {max_events}, and max_wait_s at least 0, not {max_wait_s}"
            )
        loop = asyncio.get_running_loop()
        async for first in self:
            batch = [first]
            until = loop.time() + max_wait_s
            while len(batch) < max_events and (event := await self._next_until(until)) is not None:
                batch.append(event)
            yield batch

    async def _next_until(self, until: float) -> Event | None:
        """Return the next event, or None if there is none by then or the stream has ended."""
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
            else:  # it was woken for an event: pass that on to another reader
                self._wake()
            raise

    def take_next(self) -> Event | None:
        """Return the next event if one waits; the ones taken before are done. If none is left, that is reported at
        once, and so leaves together with what the application publishes in this turn."""
        if self._lossless and self._taken:
            self._finish()
        event = self._next()
        if event is None:
            if self._lossless and self._taken:
                self._finish()  # events that had expired are done with
            self._report()
        return event

    def _next(self) -> Event | None:
        """Take the next event for the application; None if there is none."""
        events = self._events
        while True:
            while not events:
                if not self._later:
                    return None
                self._decode_next()
            self._waiting -= 1
            self._taken += 1
            event = events.popleft()
            if event is not None and not (
                self._may_expire and "typed" in event.__dict__ and self._has_expired(event)
            ):
                return event

    def _has_expired(self, event: Event) -> bool:
        """Return whether the event comes too late to be shown; then it is counted, and the reader is done with it."""
        expires_at = event.expires_at
        if expires_at is None or self._service.now <= expires_at:
            return False
        self.expired += 1
        self._skip(event)
        return True

    def _skip(self, event: Event) -> None:
        """The event is not shown. Nothing to add: it counts as taken."""

    def _finish(self) -> None:
        """Count the events taken so far as done with: the reader asks for the next one."""
        if self._taken:
            if not self._finished:  # one report per turn of the loop is enough: nothing leaves earlier
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
        if unread.stretch.has_typed_payload:
            self._may_expire = True

    # --- Changes

    async def add(self, *topics: str) -> None:
        """Select these topic patterns as well, from the moment this returns.

        The topics that were selected before see neither a gap nor a duplicate.

        Args:
            topics: Topic patterns such as "/news/**".

        Raises:
            SubscriptionRefused: The network rejected the change; the stream stays as it was.
        """
        async with self._changing:
            await self._change((*self._topics, *topics), self.subscription.filter)

    async def remove(self, *topics: str) -> None:
        """Stop selecting these topic patterns.

        Args:
            topics: Topic patterns, written as they were given to `subscribe` or `add`.

        Raises:
            ValueError: The stream does not have one of them, or none would be left.
            SubscriptionRefused: The network rejected the change; the stream stays as it was.
        """
        async with self._changing:
            unknown = [topic for topic in topics if topic not in self._topics]
            if unknown:
                raise ValueError(
                    f"cannot remove {', '.join(unknown)}: the stream's topics are {', '.join(self._topics)}"
                )
            left = tuple(topic for topic in self._topics if topic not in topics)
            if not left:
                raise ValueError("a stream needs at least one topic; leave its block to end it")
            await self._change(left, self.subscription.filter)

    async def change(self, *topics: str, where: Condition | Unchanged | None = KEEP) -> None:
        """Replace the topics, the filter, or both, in one step.

        Args:
            topics: The new topic patterns; without any, the topics stay.
            where: The new filter, as in `subscribe`; None removes it. Without this argument the filter stays.

        Raises:
            SubscriptionRefused: The network rejected the change; the stream stays as it was.
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
            raise ValueError("a stream can change only inside its 'async with' block")
        before = self.subscription
        changed = Subscription(before.id, tuple(dict.fromkeys(topics)), condition, before.order)
        changed.interest()  # reports mistakes here, not at the broker
        await self._service.change_subscription(changed)
        self.subscription = changed

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ValueError("a stream can be used only once: subscribe again")
        self._entered = True
        self._lossless = self._service.lossless
        self._service.streams[self.subscription.id] = self  # events may arrive before the answer
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
        """Wake one reader; each event wakes one."""
        if self.on_arrival is not None:
            self.on_arrival()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_some(self, events: int) -> None:
        for _ in range(min(events, len(self._waiters)) if self.on_arrival is None else 1):
            self._wake()

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake()
