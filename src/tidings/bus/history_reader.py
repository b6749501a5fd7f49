"""Reads a subscription's history from the archive of its broker, in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tidings.core.client.bookmark import Reached
from tidings.core.client.seam import Seam
from tidings.core.errors import (
    ArchiveError,
    BrokerAway,
    SubscriptionRefused,
)
from tidings.core.events.event import Event
from tidings.core.events.subscription import ORDERED, Subscription
from tidings.storage.starts import Start, first_offset

if TYPE_CHECKING:
    from tidings.drivers.sockets.archive_client import RemoteArchive

SETTLE_TIMEOUT_S = 30.0

Result = TypeVar("Result")
log = logging.getLogger("tidings")


class HistoryGap(NamedTuple):
    """Where the archive says that events may be missing: before `offset`. `missing` is their number, if known."""

    offset: int
    missing: int | None
    reason: str


class HistorySource(Protocol):
    """Where a stream's history comes from: `open`, `settle` once subscribed, then `read` until it returns None."""

    async def open(self) -> None:
        """Connect, and check that the archive has the start; SubscriptionRefused, ArchiveError."""

    async def settle(self, client: str, subscription: str, reached: Reached | None) -> list[HistoryGap]:
        """Wait until the archive has everything that does not come live; return the gaps among what is shown."""

    async def read(self) -> list[Event] | None:
        """Return the next events, maybe none; None at the end; BrokerAway if it is worth another try."""

    def close(self) -> None:
        """End at once."""


class HistoryReader:
    """Reads an archive in a thread, from `start` to where it has settled. `opened` connects to it."""

    def __init__(
        self,
        opened: Callable[[], RemoteArchive],
        start: Start,
        subscription: Subscription,
        seam: Seam,
    ) -> None:
        self._opened = opened
        self._start = start
        self._interest = subscription.interest()
        self._order = subscription.order
        self._key = seam_key(subscription)
        self._seam = seam
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._archive: RemoteArchive | None = None
        self._id = ""
        self._overlap = 0
        """The archive's end before the subscription was made: live events are not among what is before it."""
        self._next = self._stop = 0
        """The next offset to read, and the first that is not history."""
        self._batches: Iterator[Any] | None = None
        """None: not asked for, or the connection was lost."""
        self._closed = False

    # --- Calls from the event loop

    async def open(self) -> None:
        await self._in_thread(self._begin)

    async def settle(self, client: str, subscription: str, reached: Reached | None) -> list[HistoryGap]:
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                return await self._in_thread(lambda: self._settle(client, subscription, reached))
        except TimeoutError:
            raise SubscriptionRefused(
                f"the archive did not catch up within {SETTLE_TIMEOUT_S:.0f} s"
            ) from None

    async def read(self) -> list[Event] | None:
        """Return the next events of the archive, maybe none; None at the end.

        Raises:
            BrokerAway: The broker is away; call it again.
        """
        return await self._in_thread(self._read)

    def close(self) -> None:
        """End at once, even if the thread waits for an answer."""
        if not self._closed:
            self._closed = True
            if self._archive is not None:
                self._archive.abort()
            self._thread.submit(self._leave)
            self._thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # --- In the thread

    def _begin(self) -> None:
        archive = self._archive = self._opened()
        self._id = archive.id
        self._overlap = archive.bounds().end
        self._next = first_offset(archive, self._start)

    def _settle(self, client: str, subscription: str, reached: Reached | None) -> list[HistoryGap]:
        assert self._archive is not None
        if reached is None:
            self._stop = self._archive.settle(client, subscription)
        else:
            self._stop = self._archive.reach(self._interest, self._order, reached.done)
        gaps = self._archive.gaps()
        # What is missing before an offset was not asked for; before the first event since a time, it may have been.
        first = self._next + isinstance(self._start, int)
        return [
            HistoryGap(gap.offset, gap.missing, gap.reason)
            for gap in gaps
            if first <= gap.offset <= self._stop
        ]

    def _read(self) -> list[Event] | None:
        if self._next >= self._stop:
            return None
        try:
            if self._batches is None:
                self._batches = self._ask()
            batch = next(self._batches, None)
        except BrokerAway:
            self._leave()
            raise
        if batch is None:
            self._next = self._stop
            return None
        return self._shown(batch)

    def _ask(self) -> Iterator[Any]:
        """Ask for all that is left, after connecting again if the connection was lost."""
        if self._archive is None:
            self._archive = self._opened()
            if self._archive.id != self._id:
                raise ArchiveError(
                    f"the archive at {self._archive.url} was replaced by another one: subscribe again"
                )
        if self._start != "last":
            return self._archive.read(self._next, self._stop)
        self._pass_by_overlap(self._archive)
        return self._archive.newest(self._interest, self._stop)

    def _pass_by_overlap(self, archive: RemoteArchive) -> None:
        from tidings.storage.archive import events_of

        for batch in archive.read(self._overlap, self._stop):
            for event in events_of(batch):
                self._seam.pass_by(*self._key(event))

    def _shown(self, batch: Any) -> list[Event]:
        """Return the events of the batch that are selected and were not shown before."""
        from tidings.storage.archive import events_of

        offsets, selects, pass_by = (
            batch.column("offset").to_pylist(),
            self._interest.selects,
            self._seam.pass_by,
        )
        events: list[Event] = []
        for offset, event in zip(offsets, events_of(batch), strict=True):
            pass_by(*self._key(event))
            if offset >= self._next and selects(event):
                events.append(event)
        self._next = offsets[-1] + 1
        return events

    def _leave(self) -> None:
        archive, self._archive = self._archive, None
        self._batches = None
        if archive is not None:
            archive.close()


def seam_key(subscription: Subscription) -> Callable[[Event], tuple[str, int, int]]:
    """Return the function that tells what of an event the seam compares: its place in its source, or in the order."""
    return _place_in_order if subscription.order in ORDERED else _place_in_source


def _place_in_source(event: Event) -> tuple[str, int, int]:
    return event.source, event.incarnation, event.sequence


def _place_in_order(event: Event) -> tuple[str, int, int]:
    if event.order is None:
        raise ArchiveError(
            f"event {event.id} was archived without an order: start later, or use order 'fifo'"
        )
    return event.order.topic, 0, event.order.number
