"""A stream that starts in the past: events from the broker's archive, then live ones.

The stream subscribes live first, and asks its broker where its archive has everything that does not come live (see
core/overlay/guaranteed/archive_fence.py). The history ends there. Until it has been shown, live events are not taken:
the broker's window bounds how many wait here, and the rest waits at the broker. Then live events follow, without those
that the history had (core/client/seam.py).

A thread reads the archive over a connection of its own (bus/history_reader.py). If that breaks, the stream goes on
where it was as soon as the broker is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidings.bus.history_reader import HistoryGap, HistorySource, seam_key
from tidings.bus.stream import Stream
from tidings.core.client.seam import Seam
from tidings.core.errors import BrokerAway, ConnectionFailed, TidingsError
from tidings.core.events.event import INT_MAX, Event
from tidings.core.events.subscription import Subscription
from tidings.storage.starts import Start

if TYPE_CHECKING:
    from tidings.bus.service import EventService

LOW_EVENTS = 1_024
"""The next events of the archive are read when fewer than this wait for the reader."""
RETRY_S = (0.05, 2.0)
"""How long to wait before the archive is tried again: at first, and at most."""

log = logging.getLogger("tidings")


def check_start(start: object) -> Start:
    """Return the start, or raise ValueError."""
    found: Start
    match start:
        case "new" | "earliest" | "last":
            found = start
        case bool():
            raise _no_start(start)
        case int() if 0 <= start <= INT_MAX:
            found = start
        case int():
            raise ValueError(f"start: offset {start} is not one of an archive: they start at 0")
        case datetime(tzinfo=None):
            raise ValueError("start: a datetime needs a time zone, such as datetime.now(UTC)")
        case datetime():
            found = start
        case _:
            raise _no_start(start)
    return found


def _no_start(start: object) -> ValueError:
    return ValueError(f"start must be 'new', 'earliest', 'last', an offset or a datetime, not {start!r}")


class HistoryStream(Stream):
    """A `Stream` that first yields what the archive has since `start`, then live events."""

    def __init__(
        self,
        service: EventService,
        subscription: Subscription,
        buffer_events: int,
        start: Start,
        archive: str | None = None,
    ) -> None:
        super().__init__(service, subscription, buffer_events)
        self.start = start
        self.live = False
        """True once the archive has been read: what comes from now on is live."""
        self.history_gaps: list[HistoryGap] = []
        """Where the archive says that events may be missing, among those that this stream shows."""
        self._history: deque[Event] = deque()
        self._archive = archive
        self._seam = Seam()
        self._key = seam_key(subscription)
        self._wanted = asyncio.Event()
        self._reader: HistorySource | None = None
        self._filling: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._history) + (self._waiting if self.live else 0)

    # --- Life

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ValueError("a stream can be used only once: subscribe again")
        reader = self._service.history(self.start, self.subscription, self._seam, self._archive)
        try:
            await reader.open()
            await self._begin(reader)
        except BaseException:
            reader.close()
            raise
        self._reader = reader
        self._filling = asyncio.create_task(self._fill(reader))
        return self

    async def _begin(self, reader: HistorySource) -> None:
        """Subscribe live, and find where the history ends."""
        service = self._service
        connections = service.connections
        await super().__aenter__()
        try:
            name = self.subscription.id
            reached = service.reached(name, 0)
            self.history_gaps = await reader.settle(service.client_name, name, reached)
            if service.connections != connections:
                # What waited for the archive may arrive there again, after its end as we know it.
                raise ConnectionFailed("lost the connection while the subscription began: subscribe again")
        except BaseException:
            await super().__aexit__(None, None, None)
            raise
        for gap in self.history_gaps:
            count = "events" if gap.missing is None else f"{gap.missing} events"
            log.warning(
                "subscription %s: the archive may miss %s before offset %d: %s",
                self.subscription.id,
                count,
                gap.offset,
                gap.reason,
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        if self._reader is not None:
            self._reader.close()
        await super().__aexit__(kind, error, trace)

    def fail(self, error: Exception) -> None:
        super().fail(error)
        filling = self._filling
        if filling is not None and filling is not asyncio.current_task():
            filling.cancel()  # nobody will read what is left
            if self._reader is not None:  # the task may not have begun
                self._reader.close()

    async def _change(self, topics: tuple[str, ...], condition: str | None) -> None:
        if self._entered and not self.live:
            raise ValueError("a stream can change once its history has been read (see HistoryStream.live)")
        await super()._change(topics, condition)

    # --- Reading

    async def _fill(self, reader: HistorySource) -> None:
        """Read the archive ahead of the application, to its end."""
        home = self._home
        try:
            while (events := await self._read(reader, home)) is not None:
                self._history.extend(events)
                self._wake_all()
                while len(self._history) > LOW_EVENTS:
                    self._wanted.clear()
                    await self._wanted.wait()
            self._check_home(home)
            self.live = True
            self._wake_all()
        except TidingsError as error:
            self.fail(error)
        finally:
            reader.close()

    async def _read(self, reader: HistorySource, home: tuple[str, int]) -> list[Event] | None:
        """Read on; wait for the broker while it is away."""
        delay_s, longest_s = RETRY_S
        while True:
            try:
                return await reader.read()
            except BrokerAway as error:
                self._check_home(home)
                if delay_s == RETRY_S[0]:
                    log.warning("subscription %s: the history waits: %s", self.subscription.id, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, longest_s)

    @property
    def _home(self) -> tuple[str, int]:
        """The broker, and the generation of its disk."""
        return self._service.broker, self._service.generation

    def _check_home(self, home: tuple[str, int]) -> None:
        """Raise ConnectionFailed if what waited for this stream at its broker is gone."""
        if self._home != home:
            here = self._service.broker
            what = f"moved from {home[0]} to {here}" if here != home[0] else f"{here} lost its disk"
            raise ConnectionFailed(f"{what} before the history was read: subscribe again")

    def _next(self) -> Event | None:
        if self._history:
            event = self._history.popleft()
            if len(self._history) <= LOW_EVENTS:
                self._wanted.set()
            return event
        return self._next_live() if self.live else None

    def _next_live(self) -> Event | None:
        held = self._taken
        while (event := super()._next()) is not None:
            if self._seam.admits(*self._key(event)):
                return event
            if not held:  # else earlier events would count as done
                self._finish()
        return None
