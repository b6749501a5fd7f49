"""An event service over an existing broker with the client of the overlay on top: total and causal order, streams that
change (paper ordering, section 3.3: the order is pluggable over any topic-based service).

Events on topics that have an order are numbered by the sequencers before the service gets them, and shown to ordered
subscriptions in one order for all. A service that loses nothing is trusted: an ordered subscription waits for the event
that it lacks, however long, names it in its status, and ends with an error before it shows anything out of order. With
any other service it has `Patience`: after a time it goes on without what did not come, and shows it, marked
`out_of_order`, if it comes after all.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from tidings.bus import stream
from tidings.bus.host import CLOSED, ApplicationHost
from tidings.bus.receipts import Batch, Receipt
from tidings.bus.sequencing import Sequencing
from tidings.bus.service import EventService, PublishedEvent, each
from tidings.core.client.beneath import END
from tidings.core.errors import NotConfirmed, TidingsError
from tidings.core.events.event import Event, EventId, make_publication, no_event
from tidings.core.events.run import Stretch, singles
from tidings.core.events.subscription import Subscription
from tidings.core.facts import (
    Delivered,
    EventsGivenUp,
    PublicationConfirmed,
    PublicationFailed,
    PublicationSent,
    SubscriptionAccepted,
    SubscriptionCancelled,
    SubscriptionFailed,
)
from tidings.core.filters.language.predicates import Scalar
from tidings.core.ordering.subscriber import MAX_BUFFERED, Patience


class _Taken:
    """An event of the service's reader, who has not said that he took it."""

    __slots__ = ("_is_taken", "_name", "_service")

    def __init__(self, service: EventService, name: str) -> None:
        self._service = service
        self._name = name
        self._is_taken = False

    def grant(self, first: int = 0, last: int = END) -> None:
        self.done()

    def done(self, first: int = 0, last: int = END) -> None:
        if not self._is_taken:
            self._is_taken = True
            self._service.taken(self._name)


class ServiceBeneath:
    """An asyncio service as what a client needs beneath it; its answers come as facts, in later turns."""

    bookmarks = None

    def __init__(self, service: EventService, on_fact: Callable[[object], None]) -> None:
        self._service = service
        self._on_fact = on_fact
        self._reserved: EventId | None = None
        """What the service gave and nobody has taken."""
        self._to_publish: deque[Stretch] = deque()
        self._publisher: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def next_id(self) -> EventId:
        if self._reserved is None:
            self._reserved = self._service.reserve()
        return self._reserved

    @property
    def identity(self) -> tuple[str, int]:
        return self.next_id[:2]

    @property
    def next_sequence(self) -> int:
        return self.next_id.sequence

    def reserve(self) -> int:
        sequence = self.next_sequence
        self._reserved = None
        return sequence

    def publish_as(
        self, sequence: int, topic: str, attributes: Mapping[str, Scalar], payload: bytes, published_at: int
    ) -> None:
        source, incarnation = self.identity
        self.publish_stretch(
            make_publication(source, incarnation, sequence, topic, attributes, payload, published_at)
        )

    def publish_stretch(self, stretch: Stretch) -> None:
        self._to_publish.extend(singles(stretch))  # such a service says of each what became of it
        if self._publisher is None:
            self._publisher = self._start(self._publish())

    async def _publish(self) -> None:
        """One after the other into the service's window; what becomes of each is heard of apart."""
        while self._to_publish:
            stretch = self._to_publish.popleft()
            try:
                batch = await self._service.send(stretch)
            except TidingsError as error:
                self._on_fact(PublicationFailed(stretch.first, str(error)))
            else:
                if batch.done:
                    self._settled(stretch.first, batch)
                else:
                    batch.on_settled = partial(self._settled, stretch.first, batch)
        self._publisher = None

    def _settled(self, sequence: int, batch: Batch) -> None:
        if batch.first_error is not None:
            self._on_fact(PublicationFailed(sequence, str(batch.first_error)))
        else:
            self._on_fact(PublicationConfirmed(sequence, sequence))

    def subscribe(self, *subscriptions: Subscription) -> None:
        for subscription in subscriptions:
            self._start(self._subscribe(subscription))

    async def _subscribe(self, subscription: Subscription) -> None:
        name = subscription.id
        reader = stream.Stream(self._service, subscription, stream.DEFAULT_BUFFER_EVENTS)
        reader.on_miss = lambda gap, certain, noted: self._missed(name, gap, certain, noted)
        reader.on_failure = lambda error: self._on_fact(SubscriptionFailed(name, str(error)))
        self._service.streams[name] = reader  # the service tells it of gaps, and that it is over
        try:
            await self._service.add_subscription(
                subscription, lambda event: self._notified(name, event), paced=True
            )
            await self._service.completed(name)
        except TidingsError as error:
            self._service.streams.pop(name, None)
            self._on_fact(SubscriptionFailed(name, str(error)))
        else:
            self._on_fact(SubscriptionAccepted(name))

    def _notified(self, name: str, event: Event) -> None:
        how = (event.out_of_order, event.recovered_by or "", _Taken(self._service, name))
        self._on_fact(Delivered(name, event.carrier, *how))

    def _missed(self, name: str, gap: stream.EventsMissed, certain: bool, noted: Callable[[], None]) -> None:
        noted()
        self._on_fact(EventsGivenUp(name, gap.source, gap.incarnation, gap.first, gap.last, certain))

    def shown(self, subscription_id: str) -> None:
        """Two subscriptions may be two readers."""

    def unsubscribe(self, subscription_id: str, *, drain: bool = False) -> None:
        self._service.streams.pop(subscription_id, None)
        self._start(self._service.remove_subscription(subscription_id))
        if drain:
            self._on_fact(SubscriptionCancelled(subscription_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class OrderedService(ApplicationHost):
    """`find_order` finds the sequencers once the service is open; None: there are none, and no order."""

    def __init__(
        self,
        inner: EventService,
        find_order: Callable[[], Sequencing | None] = lambda: None,
        *,
        patience: Patience | None = None,
        max_buffered: int = MAX_BUFFERED,
    ) -> None:
        self.inner = inner
        self._beneath = ServiceBeneath(inner, self._on_fact)
        super().__init__(
            self._beneath,
            find_order,
            strips=inner.strips,
            hides=True,
            patience=patience,
            max_buffered=max_buffered,
        )
        self._open = False

    def _on_fact(self, fact: object) -> None:
        self._application.on_fact(fact)

    # --- Life

    async def open(self) -> None:
        """Open the service beneath, then find the sequencers."""
        await self.inner.open()
        self._open = True
        try:
            await self._open_order()
        except BaseException:
            await self.inner.close()
            raise

    async def close(self) -> None:
        """End all streams, give up the order, and close the service beneath."""
        try:
            for subscription_id in list(self._shown):
                await self.remove_subscription(subscription_id)
            self._open = False
            await asyncio.sleep(0)
            await self._close_order()
            await self._beneath.close()
            self._fail_everything(CLOSED)
        finally:
            await self.inner.close()

    @property
    def _is_open(self) -> bool:
        return self._open

    @property
    def lossless(self) -> bool:
        return self.inner.lossless

    @property
    def reconnections(self) -> int:
        return self.inner.reconnections

    # --- Publishing

    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: bytes = b"",
        *,
        wait: bool = True,
    ) -> Any:
        self._check_open()
        if self._order is None:
            publish: Any = self.inner.publish
            return await publish(topic, attributes, payload, wait=wait)
        await self._wait_for_room()
        receipt = Receipt(self._beneath.next_id)
        sequence = self._application.publish(topic, attributes or {}, payload, time.time_ns())
        self.ledger.add(sequence, sequence, receipt)
        return await receipt if wait else receipt

    def reserve(self) -> EventId:
        return self.inner.reserve()

    async def send(self, stretch: Stretch) -> Batch:
        """Past the order of this client: for no-ops, which have a client of their own."""
        return await self.inner.send(stretch)

    async def publish_many(self, events: Iterable[PublishedEvent] | AsyncIterable[PublishedEvent]) -> int:
        self._check_open()
        if self._order is None:
            return await self.inner.publish_many(events)
        batch = Batch()
        async for event in each(events):
            try:
                topic, attributes, payload = event
            except (TypeError, ValueError):
                raise no_event(event) from None
            await self._wait_for_room()
            self._check_open()
            sequence = self._application.publish(topic, attributes, payload, time.time_ns())
            batch.published += 1
            self.ledger.add(sequence, sequence, batch)
        return await batch.confirmed()

    async def status(self) -> dict[str, Any]:
        """That of the service; beside it, what the sequencers say and what ordered subscriptions wait for."""
        return {**await self.inner.status(), **await self._order_status()}

    def _not_confirmed(self, sequence: int, reason: str) -> NotConfirmed:
        return NotConfirmed(reason)  # the service has said which, by its own count

    def _on_other_fact(self, fact: object) -> None:
        if not isinstance(fact, PublicationSent):
            super()._on_other_fact(fact)
