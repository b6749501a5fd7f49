"""The client side of the overlay: one connection to one broker as an event service.

The connection belongs to a driver. It drives the session with the broker and passes its facts to `on_fact`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from tidings.bus.bus_shares import BusShares
from tidings.bus.durable_stream import Durability
from tidings.bus.expiry import Expiry, expiring
from tidings.bus.history_reader import HistoryReader, HistorySource
from tidings.bus.host import CLOSED, ApplicationHost
from tidings.bus.receipts import Batch, Receipt
from tidings.bus.sequencing import Sequencing
from tidings.bus.service import NO_SHARES, PublishedEvent, SetAside, each, iterate
from tidings.core.client.reliable_session import ReliableClient
from tidings.core.client.seam import Seam
from tidings.core.client.session import BestEffortClient
from tidings.core.client.session import ClientSession as ClientSession
from tidings.core.errors import ConnectionFailed, SubscriptionRefused
from tidings.core.events.event import EventId, no_event
from tidings.core.events.payload import Payload
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import Subscription
from tidings.core.facts import (
    Delivered,
    NobodySubscribed,
    NotificationsDropped,
    PublicationSent,
    StatusReceived,
)
from tidings.core.filters.language.predicates import Scalar
from tidings.core.ordering.subscriber import MAX_BUFFERED, Patience
from tidings.core.overlay.guaranteed.archive_fence import NEEDS_ARCHIVE
from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks
from tidings.core.structures.ranges import Ranges, merged
from tidings.storage.starts import Start

if TYPE_CHECKING:
    from tidings.bus.memory_archive import MemoryArchive

STATUS_TIMEOUT_S = 5.0

log = logging.getLogger("tidings")


class BusConnection(Protocol):
    """What a bus needs from its client's driver. Once `closed`, it does not reconnect."""

    closed: bool

    @property
    def client(self) -> BestEffortClient | ReliableClient: ...
    @property
    def now(self) -> int: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...


class _Beneath:
    """Forwards to the session that the connection has at the moment."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @property
    def _session(self) -> ClientSession:
        return self._bus.connection.client.session

    @property
    def bookmarks(self) -> LeftBookmarks | None:
        return self._session.bookmarks

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    @property
    def identity(self) -> tuple[str, int]:
        return self._session.identity

    @property
    def next_sequence(self) -> int:
        return self._session.next_sequence

    def reserve(self) -> int:
        return self._session.reserve()

    def publish_stretch(self, stretch: Stretch) -> None:
        self._session.publish_stretch(stretch)

    def publish_as(
        self, sequence: int, topic: str, attributes: Mapping[str, Scalar], payload: Payload, published_at: int
    ) -> None:
        full = self._session.add_as(sequence, topic, attributes, payload, published_at)
        self._bus.flush_soon(full=full)

    def subscribe(self, *subscriptions: Subscription) -> None:
        self._session.subscribe(*subscriptions)

    def shown(self, subscription_id: str) -> Mapping[tuple[str, int], int] | None:
        return self._session.shown(subscription_id)

    def unsubscribe(self, subscription_id: str, *, drain: bool = False) -> None:
        self._session.unsubscribe(subscription_id, drain=drain)


class Bus(ApplicationHost):
    """An event service over one connection to a broker."""

    asking_costs = True

    def __init__(
        self,
        find_order: Callable[[], Sequencing | None] = lambda: None,
        *,
        patience: Patience | None = None,
        max_buffered: int = MAX_BUFFERED,
    ) -> None:
        super().__init__(
            _Beneath(self), find_order, strips=True, hides=False, patience=patience, max_buffered=max_buffered
        )
        self.connection: BusConnection
        self._open = False
        self._ended = ""
        """Why the connection has ended for good; empty while it has not."""
        self._flush_due = False
        self._one_at_a_time = asyncio.Lock()
        """Held by one `publish_many` at a time: all its events leave before those of the next call."""
        self._status: asyncio.Future[dict[str, Any]] | None = None
        self._broker = ""
        self._connection_lost = False
        self._connections = 0
        self.archive: MemoryArchive | None = None
        """That of the broker, if the network is inside this process and keeps one."""
        self._shares = BusShares(lambda: self.connection.client.shares, self.streams, self._places_of)

    @property
    def lossless(self) -> bool:
        return self._open and self._session.lossless

    @property
    def _session(self) -> ClientSession:
        return self.connection.client.session

    @property
    def strips(self) -> bool:
        return True

    @property
    def resumes(self) -> bool:
        return self.lossless

    @property
    def now(self) -> int:
        return self.connection.now

    @property
    def broker(self) -> str:
        return self._session.broker if self._open else ""

    @property
    def generation(self) -> int:
        return self._session.generation

    # --- Life

    async def open(self) -> None:
        await self.connection.open()
        self._open, self._ended = True, ""
        self._session.takes_runs = True
        self._broker = self._session.broker
        try:
            await self._open_order()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._open:
            if self.keeps_subscriptions:
                self._session.stop_acknowledging()
            elif self.lossless and not self.connection.closed:
                for subscription_id in list(self._shown):  # otherwise the broker keeps events for nobody
                    await self.remove_subscription(subscription_id)
            await self._close_order()
            self._flush()
            self._open = False
            self._fail_everything(CLOSED)
            for subscription_id in list(self._shown):
                self._forget(subscription_id)
            await self.connection.close()

    @property
    def _is_open(self) -> bool:
        return self._open

    def _check_open(self) -> None:
        if not self._open:
            super()._check_open()
        if self._ended:
            raise ConnectionFailed(self._ended)

    def _check_may_publish(self) -> None:
        """Publications wait for a connection that will not come. Without a guarantee they fail by themselves."""
        if not self._open or (self._ended and self.lossless):
            self._check_open()

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
        self._check_may_publish()
        if self._is_full:
            await self._wait_for_room()
            self._check_may_publish()
        if expires is not None:
            payload = expiring(payload, expires, self.now)
        receipt, full = self._publish(topic, attributes or {}, payload)
        self.flush_soon(full=full)
        return await receipt if wait else receipt

    def publish_now(
        self, topic: str, attributes: Mapping[str, Scalar], payload: Payload, *, alone: bool
    ) -> Receipt | None:
        self._check_may_publish()
        if self._is_full:
            return None
        receipt, full = self._publish(topic, attributes, payload)
        if alone:
            self._flush()
        else:
            self.flush_soon(full=full)
        return receipt

    def _publish(
        self, topic: str, attributes: Mapping[str, Scalar], payload: Payload
    ) -> tuple[Receipt, bool]:
        """Publish, and return the receipt and whether a run is full; nothing has been sent."""
        session, now, full = self._session, self.connection.now, False
        if self._order is None:
            sequence = session.next_sequence
            full = session.add(topic, attributes, payload, now)
        else:
            sequence = self._application.publish(topic, attributes, payload, now)
        receipt = Receipt(EventId(*session.identity, sequence))
        self.ledger.add(sequence, sequence, receipt)
        return receipt, full

    def reserve(self) -> EventId:
        self._check_may_publish()
        return EventId(*self._session.identity, self._session.reserve())

    async def send(self, stretch: Stretch) -> Batch:
        self._check_may_publish()
        batch = Batch()
        batch.published = stretch.count
        self.ledger.add(stretch.first, stretch.last, batch)
        self._session.publish_stretch(stretch)
        return batch

    async def publish_many(self, events: Iterable[PublishedEvent] | AsyncIterable[PublishedEvent]) -> int:
        self._check_may_publish()
        batch = Batch()
        if isinstance(events, AsyncIterable):
            async for event in each(events):
                await self._publish_some(batch, iter((event,)))
                await self._wait_for_room()
        else:
            left = iterate(events)
            async with self._one_at_a_time:
                while await self._publish_some(batch, left):
                    pass
        return await batch.confirmed()

    async def _publish_some(self, batch: Batch, events: Iterator[PublishedEvent]) -> bool:
        """Publish as many events as fill a run or may be unconfirmed; return False if there are no more."""
        await self._wait_for_room()
        self._check_may_publish()
        first = self._session.next_sequence
        full = False
        try:
            full = self._add_some(islice(events, self._room_left()))
        finally:
            count = self._session.next_sequence - first
            if count:
                batch.published += count
                self.ledger.add(first, first + count - 1, batch)
        if full:
            await asyncio.sleep(0)  # let the run leave and confirmations come in
        return count > 0

    def _add_some(self, events: Iterable[PublishedEvent]) -> bool:
        """Add events until a run is full; return True if it was, and has been sent."""
        full = False
        if self._order is None:
            full = self._session.add_some(events)
        else:
            self._publish_in_order(events)
        self.flush_soon(full=full)
        return full

    def _publish_in_order(self, events: Iterable[PublishedEvent]) -> None:
        publish, connection = self._application.publish, self.connection
        for event in events:
            try:
                topic, attributes, payload = event
            except (TypeError, ValueError):
                raise no_event(event) from None
            publish(topic, attributes, payload, connection.now)

    def flush_soon(self, *, full: bool) -> None:
        """Send a full run now and the rest at the end of this turn of the event loop."""
        if full:
            self.connection.client.flush(full_only=True)
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_in_turn)

    def _flush_in_turn(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        if self._open:
            self.connection.client.flush()

    # --- Subscribing

    async def _give_up(self, subscription_id: str) -> None:
        if not self.keeps_subscriptions:  # otherwise the events wait until this client restarts
            await super()._give_up(subscription_id)

    # --- History

    def history(
        self, start: Start, subscription: Subscription, seam: Seam, archive: str | None = None
    ) -> HistorySource:
        self._check_open()
        if self.lossless and self.archive is not None and archive is None:
            return self.archive.history(start, subscription, seam)
        opener = getattr(self.connection, "archive_opener", None)  # networks inside a process have none
        if not self.lossless or opener is None:
            raise SubscriptionRefused(NEEDS_ARCHIVE.format(repr(start)))
        return HistoryReader(opener(archive), start, subscription, seam)

    @property
    def client_name(self) -> str:
        return self._session.identity[0]

    @property
    def connections(self) -> int:
        return self._connections

    # --- Durable subscriptions and groups

    async def attach_held(self, subscription: Subscription, durability: Durability) -> None:
        self._check_open()
        self._check_order(subscription)
        await self._shares.attach(subscription, durability)

    def finish_held(
        self, subscription_id: str, numbers: Ranges, *, at_once: bool = False, expired: bool = False
    ) -> None:
        if self._open:
            self._shares.finish(subscription_id, numbers, at_once=at_once, expired=expired)

    def give_back(self, subscription_id: str, number: int, after_ns: int, *, aside: bool = False) -> None:
        self._check_open()
        self._shares.give_back(subscription_id, number, after_ns, aside=aside)

    async def leave_held(self, subscription_id: str, unseen: Ranges = ()) -> None:
        if self._open and not self.connection.closed:
            await self._shares.leave(subscription_id, unseen)

    async def cancel_durable(self, name: str) -> None:
        self._check_open()
        await self._shares.cancel(name)

    async def durable_subscriptions(self) -> list[dict[str, Any]]:
        self._check_open()
        if not self.lossless:
            raise SubscriptionRefused(NO_SHARES)
        return await self._shares.listed()

    async def set_aside(self, name: str) -> list[SetAside]:
        self._check_open()
        return await self._shares.aside(name)

    async def release(self, name: str, numbers: Iterable[int]) -> int:
        self._check_open()
        return await self._shares.change_aside(name, release=_singles(numbers))

    async def drop_aside(self, name: str, numbers: Iterable[int]) -> int:
        self._check_open()
        return await self._shares.change_aside(name, drop=_singles(numbers))

    def uncovered(self, subscription_id: str) -> tuple[str, ...]:
        found = self._shares.uncovered.get(subscription_id)
        return super().uncovered(subscription_id) if found is None else found

    # --- Requests

    def ask_for_responders(
        self, number: int, topic: str, attributes: Mapping[str, Scalar], receipt: Receipt
    ) -> None:
        if self._open and not self.connection.closed:
            self._session.ask_for_responders(number, topic, attributes)

    def flush(self) -> None:
        self._flush()

    def reply_name(self) -> str:
        return self._session.identity[0]

    # --- Status

    async def status(self) -> dict[str, Any]:
        """Return the state of the broker that this client is connected to, and of the order."""
        self._check_open()
        if self._status is None:
            self._status = asyncio.get_running_loop().create_future()
            self.connection.client.request_status()
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                found = await asyncio.shield(self._status)
        except TimeoutError:
            self._status = None
            raise ConnectionFailed(
                f"the broker did not report its status within {STATUS_TIMEOUT_S:.0f} s"
            ) from None
        return {**found, **await self._order_status()}

    # --- Facts from the session

    def on_fact(self, fact: object) -> None:
        if fact.__class__ is Delivered or not self._shares.on_fact(fact):
            self._application.on_fact(fact)

    def _on_other_fact(self, fact: object) -> None:
        match fact:
            case PublicationSent():
                pass
            case NotificationsDropped(count=count):
                self.dropped += count
                log.warning("broker dropped %d notifications: client too slow", count)
            case StatusReceived(status=status):
                if self._status is not None and not self._status.done():
                    self._status.set_result(status)
                self._status = None
            case NobodySubscribed(number=number):
                self.requests.nobody(number)

    def on_connection(self, up: bool, reason: str) -> None:
        """Called by the driver when the connection is up or lost; the driver reconnects by itself.

        Unconfirmed publications fail, because nobody knows whether they arrived. On a guaranteed network they are
        published again instead.
        """
        self._connections += 1
        if up:
            if self._connection_lost:
                self._connection_lost = False
                log.info("reconnected to broker %s", self._session.broker)
            if self.lossless:
                self._on_broker(self._session.broker)
        else:
            self._report_loss(reason)
            self.on_break(reason)
            if not self.lossless:
                self._fail_unsure(reason)
            if self.connection.closed:  # refused, or another client took our name: no reconnection
                self._ended = reason or CLOSED
                self._shares.fail(reason)
                self._fail_everything(reason)

    def _report_loss(self, reason: str) -> None:
        """Log a lost connection once per outage, and not when we closed it."""
        if self._open and not self._connection_lost:
            self._connection_lost = True
            then = "" if self.connection.closed else "; reconnecting"
            log.info("lost the connection to broker %s: %s%s", self._session.broker, reason, then)

    def _fail_unsure(self, reason: str) -> None:
        """Fail what had been sent when the connection broke; what still waits for a number had not."""
        for sequence in self.ledger.sequences():
            self._application.fail_if_sent(sequence, reason)

    def _on_broker(self, broker: str) -> None:
        """After moving to another broker, wait anew until the network knows our subscriptions."""
        if broker != self._broker:
            self._broker = broker
            for shown in self._shown.values():
                shown.complete.clear()


def _singles(numbers: Iterable[int]) -> Ranges:
    return merged((number, number) for number in numbers)
