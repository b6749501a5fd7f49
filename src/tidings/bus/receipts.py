"""What becomes of publications: a `Batch` counts those of one call, `PendingPublications` knows whose each one is."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Generator

from tidings.core.errors import NotConfirmed
from tidings.core.events.event import EventId


class Batch:
    """The publications of one call, counted: a future for each would cost more than sending it."""

    __slots__ = ("_settled", "_waiters", "failed", "first_error", "on_settled", "published")

    def __init__(self) -> None:
        self.published = 0
        self.failed = 0
        self.first_error: Exception | None = None
        self._settled = 0
        self._waiters: list[asyncio.Future[None]] = []
        self.on_settled: Callable[[], None] | None = None
        """Called once all are settled, if nobody awaits that."""

    @property
    def done(self) -> bool:
        """True once each of them is confirmed or has failed."""
        return self._settled >= self.published

    def settle(self, count: int, error: Exception | None) -> None:
        """So many more are confirmed, or have failed."""
        self._settled += count
        if error is not None:
            self.failed += count
            self.first_error = self.first_error or error
        if self.done and self.on_settled is not None:
            self.on_settled()
        if self._waiters and self.done:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def settled(self) -> None:
        """Once each of them is confirmed or has failed."""
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def confirmed(self) -> int:
        """How many, once all are confirmed; NotConfirmed if some are not."""
        await self.settled()
        if self.failed:
            raise NotConfirmed(
                f"{self.failed} of {self.published} publications were not confirmed: {self.first_error}"
            )
        return self.published


class Receipt(Batch):
    """One publication: await it for the event's id, once it is confirmed, or for NotConfirmed.

    It may be awaited again, later, or never.
    """

    __slots__ = ("id",)

    def __init__(self, event_id: EventId | None = None) -> None:
        super().__init__()
        self.published = 1
        self.id = event_id

    def __await__(self) -> Generator[object, None, EventId]:
        yield from self.settled().__await__()
        if self.first_error is not None:
            raise self.first_error
        assert self.id is not None, "whoever confirms it knows it"
        return self.id


class _Span:
    __slots__ = ("first", "last", "owner")

    def __init__(self, first: int, last: int, owner: Batch) -> None:
        self.first = first
        self.last = last
        self.owner = owner


class PendingPublications:
    """The publications of a client that are under way, as ranges: whose they are."""

    def __init__(self) -> None:
        self.under_way = 0
        self._spans: list[_Span] = []
        """By sequence."""

    def add(self, first: int, last: int, owner: Batch) -> None:
        """Sequences above all others."""
        self.under_way += last - first + 1
        self._spans.append(_Span(first, last, owner))

    def settle(self, first: int, last: int, error: Exception | None = None) -> None:
        """These are confirmed, or have failed; those that are not under way are ignored."""
        spans = self._spans
        start = end = bisect_left(spans, first, key=lambda span: span.last)
        rest: list[_Span] = []
        while end < len(spans) and spans[end].first <= last:
            span = spans[end]
            if span.first < first:
                rest.append(_Span(span.first, first - 1, span.owner))
            if last < span.last:
                rest.append(_Span(last + 1, span.last, span.owner))
            end += 1
        settled = spans[start:end]
        spans[start:end] = rest
        for span in settled:
            count = min(last, span.last) - max(first, span.first) + 1
            self.under_way -= count
            span.owner.settle(count, error)

    def sequences(self) -> list[int]:
        return [sequence for span in self._spans for sequence in range(span.first, span.last + 1)]

    def fail_all(self, reason: str) -> None:
        while self._spans:
            first = self._spans[0].first
            self.settle(first, first, NotConfirmed(f"publication {first}: {reason}"))
