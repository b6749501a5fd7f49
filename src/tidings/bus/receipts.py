"""The outcome of publications: a `Batch` counts those of one call, `PendingPublications` maps each to its batch."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Generator

from tidings.core.errors import NotConfirmed
from tidings.core.events.event import EventId


class Batch:
    """Counts the publications of one call: a future for each would cost more than sending it."""

    __slots__ = ("_settled", "_waiters", "failed", "first_error", "on_settled", "published")

    def __init__(self) -> None:
        self.published = 0
        self.failed = 0
        self.first_error: Exception | None = None
        self._settled = 0
        self._waiters: list[asyncio.Future[None]] = []
        self.on_settled: Callable[[], None] | None = None
        """Called once all are settled."""

    @property
    def done(self) -> bool:
        """True once every publication is confirmed or has failed."""
        return self._settled >= self.published

    def settle(self, count: int, error: Exception | None) -> None:
        """Count so many more as confirmed or, with an error, as failed."""
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
        """Wait until every publication is confirmed or has failed."""
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def confirmed(self) -> int:
        """Wait until all are confirmed and return how many; raises NotConfirmed if some failed."""
        await self.settled()
        if self.failed:
            raise NotConfirmed(
                f"{self.failed} of {self.published} publications were not confirmed: {self.first_error}"
            )
        return self.published


class Receipt(Batch):
    """The outcome of one publication: `await` it for the event's id once confirmed, or for NotConfirmed.

    It can be awaited several times, later, or never.
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
        assert self.id is not None, "a confirmed publication has an id"
        return self.id


class _Span:
    __slots__ = ("first", "last", "owner")

    def __init__(self, first: int, last: int, owner: Batch) -> None:
        self.first = first
        self.last = last
        self.owner = owner


class PendingPublications:
    """Maps a client's unconfirmed publications, as ranges of sequences, to their batches."""

    def __init__(self) -> None:
        self.under_way = 0
        self._spans: list[_Span] = []
        """Sorted by sequence, disjoint."""

    def add(self, first: int, last: int, owner: Batch) -> None:
        """Add a range; its sequences are above all earlier ones."""
        self.under_way += last - first + 1
        self._spans.append(_Span(first, last, owner))

    def settle(self, first: int, last: int, error: Exception | None = None) -> None:
        """Settle a range as confirmed or, with an error, as failed; sequences that are not pending are ignored."""
        spans = self._spans
        start = 0
        if spans and first > spans[0].last:  # they are mostly settled in order
            start = bisect_left(spans, first, key=lambda span: span.last)
        end = start
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
