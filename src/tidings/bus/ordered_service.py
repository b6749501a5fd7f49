"""Runs the overlay's client over any event service: total and causal order, streams that change (paper ordering,
section 3.3: the order is pluggable over any topic-based service).

The sequencers number the events of ordered topics before the service gets them, and all ordered subscriptions see them
in one order. A service that loses nothing is trusted: an ordered subscription waits for a missing event however long it
takes, names it in its status, and ends with an error rather than deliver out of order. With any other service it has
`Patience`: after a time it goes on without the missing event, and marks it `out_of_order` if it still arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from tidings.bus import stream
from tidings.bus.durable_stream import Durability
from tidings.bus.expiry import Expiry, expiring
from tidings.bus.gaps import Gap
from tidings.bus.host import CLOSED, ApplicationHost
from tidings.bus.receipts import Batch, Receipt
from tidings.bus.sequencing import Sequencing
from tidings.bus.service import EventService, PublishedEvent, each
from tidings.core.client.arrivals import Ranges
from tidings.core.client.beneath import END
from tidings.core.errors import NotConfirmed, TidingsError
from tidings.core.events.event import Event, EventId, make_publication, no_event
from tidings.core.events.payload import Payload
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
    """The ticket of one event: reports it to the service as taken, once."""

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
    """Adapts an asyncio service to what a client needs beneath it. Its answers arrive as facts, in later turns."""

    bookmarks = None
    is_connected = True
    """As far as it is known: such a service reconnects by itself."""

    def __init__(self, service: EventService, on_fact: Callable[[object], None]) -> None:
        self._service = service
        self._on_fact = on_fact
        self._reserved: EventId | None = None
        """An id that the service has given and no event has used yet."""
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
        self, sequence: int, topic: str, attributes: Mapping[str, Scalar], payload: Payload, published_at: int
    ) -> None:
        source, incarnation = self.identity
        self.publish_stretch(
            make_publication(source, incarnation, sequence, topic, attributes, payload, published_at)
        )

    def publish_stretch(self, stretch: Stretch) -> None:
        self._to_publish.extend(singles(stretch))  # such a service confirms events one by one
        if self._publisher is None:
            self._publisher = self._start(self._publish())

    async def _publish(self) -> None:
        """Send one after the other into the service's window; each one's outcome arrives separately."""
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
        self._service.streams[name] = reader  # the service reports gaps and failures to it
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

    def _missed(self, name: str, gap: Gap, certain: bool, noted: Callable[[], None]) -> None:
        noted()
        for missed in gap.missed:
            self._on_fact(EventsGivenUp(name, *missed, certain))

    def shown(self, subscription_id: str) -> None:
        """Return None: here two subscriptions may be two independent readers."""

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
    """Adds total and causal order to any event service.

    `tidings.connect` makes one for every adapter.

    Args:
        inner: The service beneath; opened and closed with this one.
        find_order: Returns the access to the sequencers, once the service is open; None if there are none.
        patience: How long to wait for a missing event. None: for ever if the service is `lossless`, otherwise 5 s or
            4,096 events.
        max_buffered: How many events an ordered subscription may hold back.
    """

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
        inner.requests = self.requests  # the inner service knows when nobody is subscribed to a request

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
        """End all streams, disconnect from the sequencers and close the service beneath."""
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

    @property
    def now(self) -> int:
        return self.inner.now

    # --- Publishing

    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: Payload = b"",
        *,
        expires: Expiry | None = None,
        wait: bool = True,
    ) -> Any:
        self._check_open()
        if self._order is None:
            publish: Any = self.inner.publish
            return await publish(topic, attributes, payload, expires=expires, wait=wait)
        await self._wait_for_room()
        now = self.now
        payload = expiring(payload, expires, now)
        receipt = Receipt(self._beneath.next_id)
        sequence = self._application.publish(topic, attributes or {}, payload, now)
        self.ledger.add(sequence, sequence, receipt)
        return await receipt if wait else receipt

    def reserve(self) -> EventId:
        return self.inner.reserve()

    async def send(self, stretch: Stretch) -> Batch:
        """Publish past this client's order: for no-ops, which have a client of their own."""
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
            sequence = self._application.publish(topic, attributes, payload, self.now)
            batch.published += 1
            self.ledger.add(sequence, sequence, batch)
        return await batch.confirmed()

    def ask_for_responders(
        self, number: int, topic: str, attributes: Mapping[str, Scalar], receipt: Receipt
    ) -> None:
        self.inner.ask_for_responders(number, topic, attributes, receipt)

    def flush(self) -> None:
        self.inner.flush()

    def reply_name(self) -> str:
        return self.inner.reply_name()

    # --- Durable subscriptions and groups, of the service beneath: they have no order

    async def attach_held(self, subscription: Subscription, durability: Durability) -> None:
        self._check_open()
        self.inner.streams[subscription.id] = self.streams[subscription.id]
        try:
            await self.inner.attach_held(subscription, durability)
        except BaseException:
            self.inner.streams.pop(subscription.id, None)
            raise

    def finish_held(
        self, subscription_id: str, numbers: Ranges, *, at_once: bool = False, expired: bool = False
    ) -> None:
        self.inner.finish_held(subscription_id, numbers, at_once=at_once, expired=expired)

    def give_back(self, subscription_id: str, number: int, after_ns: int, *, aside: bool = False) -> None:
        self.inner.give_back(subscription_id, number, after_ns, aside=aside)

    async def leave_held(self, subscription_id: str, unseen: Ranges = ()) -> None:
        try:
            await self.inner.leave_held(subscription_id, unseen)
        finally:
            self.inner.streams.pop(subscription_id, None)

    async def cancel_durable(self, name: str) -> None:
        self._check_open()
        await self.inner.cancel_durable(name)

    async def status(self) -> dict[str, Any]:
        """Return the status of the service, of the sequencers, and what ordered subscriptions wait for."""
        return {**await self.inner.status(), **await self._order_status()}

    def _not_confirmed(self, sequence: int, reason: str) -> NotConfirmed:
        return NotConfirmed(reason)  # the reason already names the publication

    def _on_other_fact(self, fact: object) -> None:
        if not isinstance(fact, PublicationSent):
            super()._on_other_fact(fact)
