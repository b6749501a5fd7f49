"""The client side of the overlay: one connection to one broker as an event service.

The connection (net/ or the simulator) drives a protocol Client and hands its facts to `on_fact`; this class
turns them into what coroutines wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from tidings.model.errors import ConnectionFailed, NotConfirmed, SubscriptionRefused, WireError
from tidings.model.event import EventId
from tidings.model.predicates import Scalar
from tidings.model.subscription import Subscription
from tidings.protocol.client import Client
from tidings.protocol.client import Session as ClientSession
from tidings.protocol.facts import (
    BrokerChanged,
    Delivered,
    EventsMissed,
    NotificationsDropped,
    PublicationConfirmed,
    PublicationFailed,
    RunDelivered,
    StatusReceived,
    SubscriptionAccepted,
    SubscriptionCancelled,
    SubscriptionFailed,
    SubscriptionProgress,
)
from tidings.protocol.reliable_client import ReliableClient
from tidings.services import stream
from tidings.services.pace import Pace
from tidings.services.receipts import Batch, Ledger, Receipt
from tidings.services.service import EventService, Notify, PublishedEvent, iterate, no_event
from tidings.services.stream import leave_out

MAX_UNCONFIRMED = 10_000
"""Publications under way at once from one client; further ones wait."""
SUBSCRIBE_TIMEOUT_S = 30.0
STATUS_TIMEOUT_S = 5.0

log = logging.getLogger("tidings")


class Connection(Protocol):
    """What a bus needs of the driver of its client; once `closed` it does not connect again."""

    closed: bool

    @property
    def client(self) -> Client | ReliableClient: ...
    @property
    def now(self) -> int: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...


class Bus(EventService):
    def __init__(self) -> None:
        super().__init__()
        self.connection: Connection
        self.dropped = 0
        """Notifications that the broker left out because this client did not keep up."""
        self.keeps_subscriptions = False
        """True: a guaranteed broker goes on keeping events for this client after `close`; it will come back."""
        self.on_break: Callable[[str], None] = lambda reason: None
        """Told when the connection is lost, for whoever must know that something may be missing."""
        self._open = False
        self._ledger = Ledger()
        self._flush_due = False
        self._room: asyncio.Future[None] | None = None
        self._notify: dict[str, Notify] = {}
        self._headers: set[str] = set()
        """Subscriptions that are shown what is for protocols alone."""
        self._pending: dict[str, asyncio.Future[None]] = {}
        self._status: asyncio.Future[dict[str, Any]] | None = None
        self._pace: Pace | None = None
        """Set where the broker is a guaranteed one."""
        self._broker = ""
        self._uncovered: dict[str, tuple[str, ...]] = {}
        self._complete: dict[str, asyncio.Event] = {}

    @property
    def lossless(self) -> bool:
        return self._pace is not None

    @property
    def generation(self) -> int:
        """Of a guaranteed broker's disk: with another one, what it kept for this client is gone. 0: not known."""
        client = self.connection.client
        return client.session.generation if isinstance(client, ReliableClient) else 0

    @property
    def strips(self) -> bool:
        return True

    async def open(self) -> None:
        await self.connection.open()
        self._open = True
        client = self.connection.client
        client.session.takes_runs = True
        if isinstance(client, ReliableClient):
            self._pace = Pace(client.session)
            self._broker = client.session.broker

    async def close(self) -> None:
        if self._open:
            if self.lossless and not self.connection.closed and not self.keeps_subscriptions:
                for subscription_id in list(self._notify):  # else the broker keeps events for nobody
                    await self.remove_subscription(subscription_id)
            self._flush()
            self._open = False
            if self._pace is not None and self.keeps_subscriptions:
                self._pace.stop()
            self._fail_everything("the connection was closed")
            await self.connection.close()

    # --- Publishing

    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: bytes = b"",
        *,
        internal: bool = False,
        wait: bool = True,
    ) -> Any:
        self._check_open()
        await self._wait_for_room()
        client = self.connection.client
        session = client.session
        receipt = Receipt(EventId(session.port.node, session.incarnation, session.next_sequence))
        if session.add(topic, attributes or {}, payload, session.port.now, internal=internal):
            client.flush(full_only=True)
        self._under_way(receipt, session.next_sequence - 1)
        return await receipt if wait else receipt

    async def publish_many(
        self, events: Iterable[PublishedEvent] | AsyncIterable[PublishedEvent], *, internal: bool = False
    ) -> int:
        self._check_open()
        batch = Batch()
        if isinstance(events, AsyncIterable):
            async for event in events:
                await self._publish_some(batch, iter((event,)), internal=internal)
                await self._wait_for_room()
        else:
            left = iterate(events)
            while await self._publish_some(batch, left, internal=internal):
                pass
        return await batch.confirmed()

    async def _publish_some(self, batch: Batch, events: Iterator[PublishedEvent], *, internal: bool) -> bool:
        """Publish the next events, as many as fill a run or may be under way; False if there are no more."""
        await self._wait_for_room()
        self._check_open()
        client = self.connection.client
        first = client.session.next_sequence
        try:
            full = self._add_some(
                client.session, islice(events, MAX_UNCONFIRMED - self._ledger.under_way), internal=internal
            )
        finally:
            count = client.session.next_sequence - first
            if count:
                batch.published += count
                self._under_way(batch, first)
        if full:
            client.flush(full_only=True)
            await asyncio.sleep(0)  # it leaves, and what was confirmed is heard of
        return count > 0

    @staticmethod
    def _add_some(session: ClientSession, events: Iterable[PublishedEvent], *, internal: bool) -> bool:
        """True if a run is full."""
        add, port = session.add, session.port
        for event in events:
            try:
                topic, attributes, payload = event
            except (TypeError, ValueError):
                raise no_event(event) from None
            if add(topic, attributes, payload, port.now, internal=internal):
                return True
        return False

    def _under_way(self, owner: Batch, first: int) -> None:
        """All from there on are; what makes no full run leaves at the end of this turn of the loop."""
        self._ledger.add(first, self.connection.client.session.next_sequence - 1, owner)
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._open:
            self.connection.client.flush()

    async def _wait_for_room(self) -> None:
        """Until not too many are under way."""
        while self._ledger.under_way >= MAX_UNCONFIRMED:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)
            self._check_open()

    def _make_room(self) -> None:
        if self._room is not None and self._ledger.under_way < MAX_UNCONFIRMED // 2:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)

    # --- Subscribing

    async def add_subscription(
        self, subscription: Subscription, notify: Notify, *, paced: bool = False
    ) -> None:
        """On a guaranteed network it returns, too, when those who do not know it yet cannot be reached."""
        self._check_open()
        self._notify[subscription.id] = notify
        if subscription.headers:
            self._headers.add(subscription.id)
        self._complete[subscription.id] = asyncio.Event()
        if paced and self._pace is not None:
            self._pace.begin(subscription.id)
        try:
            await self._ask(subscription.id, lambda: self.connection.client.subscribe(subscription))
        except BaseException:
            if not self.keeps_subscriptions:  # else what came waits for a later life of this client
                self._notify.pop(subscription.id, None)
                self._forget(subscription.id)
            raise

    def _forget(self, subscription_id: str) -> None:
        self._headers.discard(subscription_id)
        self._uncovered.pop(subscription_id, None)
        complete = self._complete.pop(subscription_id, None)
        if complete is not None:
            complete.set()
        if self._pace is not None:
            self._pace.end(subscription_id)

    def taken(self, subscription_id: str) -> None:
        if self._pace is not None:
            self._pace.taken(subscription_id)

    def hold(self) -> Callable[[], None]:
        """What is shown just now, and what comes after it, is not acknowledged until the answer is called."""
        return (lambda: None) if self._pace is None else self._pace.hold()

    def uncovered(self, subscription_id: str) -> tuple[str, ...]:
        return self._uncovered.get(subscription_id, ())

    async def completed(self, subscription_id: str) -> None:
        complete = self._complete.get(subscription_id)
        if complete is not None:
            await complete.wait()
        if subscription_id not in self._complete:
            raise ConnectionFailed("the subscription has ended")

    def _progress(self, subscription_id: str, uncovered: tuple[str, ...]) -> None:
        """Who does not know it yet; once everybody did, what a broker that restarted does not know is no news."""
        complete = self._complete.get(subscription_id)
        if complete is not None and not complete.is_set():
            self._uncovered[subscription_id] = uncovered
            if not uncovered:
                complete.set()
        if subscription_id in self._pending:
            self._settle(self._pending[subscription_id], None)

    async def remove_subscription(self, subscription_id: str) -> None:
        self._forget(subscription_id)
        if self._notify.pop(subscription_id, None) is None or not self._open:
            return
        # Nothing is shown any more from here on; the broker hears of it when it can.
        self.connection.client.unsubscribe(subscription_id)

    async def _ask(self, subscription_id: str, ask: Any) -> None:
        answered = self._pending[subscription_id] = asyncio.get_running_loop().create_future()
        try:
            ask()
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                await answered
        except TimeoutError:
            self._give_up(subscription_id)
            raise SubscriptionRefused(
                f"the network did not accept the subscription within {SUBSCRIBE_TIMEOUT_S:.0f} s"
            ) from None
        except asyncio.CancelledError:
            self._give_up(subscription_id)
            raise
        finally:
            self._pending.pop(subscription_id, None)

    def _give_up(self, subscription_id: str) -> None:
        """Nobody waits for the answer any more."""
        if self._open and not self.keeps_subscriptions:
            self.connection.client.unsubscribe(subscription_id)

    # --- Status

    async def status(self) -> dict[str, Any]:
        """The state of the broker that this client is connected to."""
        self._check_open()
        if self._status is None:
            self._status = asyncio.get_running_loop().create_future()
            self.connection.client.request_status()
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                return await asyncio.shield(self._status)
        except TimeoutError:
            self._status = None
            raise ConnectionFailed("the broker did not answer the request for its status") from None

    # --- What the protocol says

    def on_fact(self, fact: object) -> None:
        if fact.__class__ is Delivered:
            self._on_delivered(fact)
            return
        match fact:
            case RunDelivered():
                self._on_run(fact)
            case PublicationConfirmed(first=first, last=last):
                self._ledger.settle(first, last)
                self._make_room()
            case PublicationFailed(sequence=sequence, reason=reason):
                error = NotConfirmed(f"publication {sequence}: {reason}")
                self._ledger.settle(sequence, sequence, error)
                self._make_room()
            case SubscriptionAccepted(subscription=name):
                self._progress(name, ())
            case SubscriptionProgress(subscription=name, uncovered=uncovered):
                self._progress(name, uncovered)
            case EventsMissed(subscription=name) if name in self.streams:
                gap = stream.EventsMissed(fact.source, fact.incarnation, fact.first, fact.last)
                self.streams[name].miss(gap, certain=fact.certain)
            case BrokerChanged():
                for held in self.streams.values():
                    held.on_doubt("the client moved to another broker")
            case SubscriptionFailed(subscription=name, reason=reason) if name in self._pending:
                self._settle(self._pending[name], SubscriptionRefused(reason))
            case SubscriptionFailed(subscription=name, reason=reason):
                log.error("subscription %s was refused after a reconnection: %s", name, reason)
            case SubscriptionCancelled():
                pass
            case NotificationsDropped(count=count):
                self.dropped += count
                log.warning("the broker left out %d notifications: this client does not keep up", count)
            case StatusReceived(status=status):
                if self._status is not None and not self._status.done():
                    self._status.set_result(status)
                self._status = None

    def _on_delivered(self, fact: Delivered) -> None:
        notify = self._notify.get(fact.subscription)
        if notify is None:
            return
        try:
            event = fact.publication.event()
        except WireError as error:
            leave_out(error)
            return
        if fact.publication.hidden and fact.subscription not in self._headers:
            return
        if fact.out_of_order:
            event.__dict__["out_of_order"] = True
        if fact.recovered_by:
            event.__dict__["recovered_by"] = fact.recovered_by
        if self._pace is not None:
            self._pace.shown(fact.subscription)
        notify(event)

    def _on_run(self, fact: RunDelivered) -> None:
        """A stream takes it whole, and decodes its events when they are taken."""
        run, notify = fact.run, self._notify.get(fact.subscription)
        if isinstance(notify, stream.Stream) and not run.may_hide():
            notify.push_run(run, late=fact.out_of_order)
            return
        try:
            publications = run.publications()
        except WireError as error:
            leave_out(error)
            return
        for publication in publications:
            self._on_delivered(Delivered(fact.subscription, publication, fact.out_of_order))

    def on_connection(self, up: bool, reason: str) -> None:
        """The driver's connection came or went. It comes back by itself; what is unconfirmed then is unsure, or,
        on a guaranteed network, published again."""
        if up and self._pace is not None:
            self._pace.begin_connection()
            self._on_broker(self.connection.client.session.broker)
        if not up:
            log.info("connection lost: %s", reason)
            self.on_break(reason)
            if not self.lossless:
                self._fail_publications(reason)
            if self.connection.closed:  # refused, or another took our name: it does not come back
                self._fail_everything(reason)

    def _on_broker(self, broker: str) -> None:
        """Another broker makes our subscriptions known anew."""
        if broker != self._broker:
            self._broker = broker
            for complete in self._complete.values():
                complete.clear()

    def _fail_publications(self, reason: str) -> None:
        self._ledger.fail_all(reason)
        self._make_room()

    def _fail_everything(self, reason: str) -> None:
        self._fail_publications(reason)
        for answered in list(self._pending.values()):
            self._settle(answered, ConnectionFailed(reason))
        for subscription_id in list(self._complete):
            self._forget(subscription_id)
        for reader in list(self.streams.values()):
            reader.fail(ConnectionFailed(reason))

    def _check_open(self) -> None:
        if not self._open:
            raise ConnectionFailed("the bus is not open: use it inside 'async with'")

    @staticmethod
    def _settle(answered: asyncio.Future[None], error: Exception | None) -> None:
        if answered.done():
            return
        if error is None:
            answered.set_result(None)
        else:
            answered.set_exception(error)
