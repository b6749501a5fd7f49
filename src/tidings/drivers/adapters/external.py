"""What event services over existing brokers share: everything but the broker.

A service makes an `AdapterSession` for each connection, one after another (keeper.py). Between sessions it keeps the
unconfirmed publications (outgoing.py) and the subscriptions with their positions (incoming.py). A new session first
restores the subscriptions and then resends those publications.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any

from msgspec import Raw

from tidings.bus.durable_stream import DurableStream
from tidings.bus.expiry import Expiry, expiring
from tidings.bus.gaps import DELETED, EventsMissed, gap_of
from tidings.bus.receipts import Batch, Receipt
from tidings.bus.service import Notify, PublishedEvent, each
from tidings.core.errors import ConnectionFailed, SubscriptionRefused, WireError
from tidings.core.events.event import MAX_NAME_BYTES, EventId, check_publication, no_event
from tidings.core.events.payload import Payload
from tidings.core.events.run import Stretch, decode_stretch, singles
from tidings.core.events.subscription import Order, Subscription
from tidings.core.filters.language.predicates import Scalar
from tidings.drivers.adapters.held_service import HoldingService
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.adapters.keeper import Reconnector
from tidings.drivers.adapters.outgoing import Outgoing
from tidings.drivers.adapters.session import AdapterSession, SessionLost

DEFAULT_TIMEOUT_S = 5.0
DEFAULT_RETRY_S = 30.0
SUBSCRIBE_TIMEOUT_S = 30.0
POLL_S = 0.05
AVAILABLE_ORDERS = (Order.NONE, Order.FIFO)

log = logging.getLogger("tidings")


class ExternalService(HoldingService):
    """An event service over an existing broker."""

    def __init__(self, kind: str, server: str, name: str | None, *, timeout_s: float, retry_s: float) -> None:
        """`server` is shown to people, so it must not contain the password."""
        super().__init__()
        if timeout_s <= 0 or retry_s <= 0:
            raise ValueError(f"timeout_s and retry_s must be positive, not {timeout_s} and {retry_s}")
        self.kind = kind
        self.server = server
        self.timeout_s = timeout_s
        self.name = check_name(name) if name is not None else f"client-{secrets.token_hex(6)}"
        # A random name was never used before, so its incarnation can be 0.
        self.outgoing = Outgoing(self.name, 0 if name is None else time.time_ns(), retry_s)
        self.incoming: dict[str, Incoming] = {}
        self.received = 0
        self.garbage = 0
        self.keeper = Reconnector(
            server,
            timeout_s,
            start=self._start_session,
            restore=self._restore,
            use=self._write,
            give_up=self._end,
        )
        self._closed_because = "the bus is not open: use it inside 'async with'"

    @abstractmethod
    def _new_session(self) -> AdapterSession:
        """Return a new session, not yet connected."""

    async def _start_session(self) -> AdapterSession:
        """Connect; raises ConnectionFailed, or ConnectionRefused if a retry is useless."""
        session = self._new_session()
        try:
            await session.start()
        except BaseException:
            await session.close(forget=False)
            raise
        return session

    @property
    def reconnections(self) -> int:
        return self.keeper.reconnections

    # --- Opening and closing

    async def open(self) -> None:
        await self.keeper.open()
        self._closed_because = ""

    async def close(self) -> None:
        if not self._closed_because:
            self._end("the connection was closed")
        await self.keeper.close()

    def _end(self, reason: str) -> None:
        """End the service for good: fail everything that waits."""
        self._closed_because = reason
        self.outgoing.fail_all(reason)
        self.requests.fail(reason)
        for subscription_id in list(self.streams):
            self._fail_stream(subscription_id, ConnectionFailed(reason))

    async def _restore(self, session: AdapterSession) -> None:
        """Restore the subscriptions, then resend: they need the resent events, too."""
        restored = [each for each in self.incoming.values() if each.accepted]
        for incoming in restored:
            try:
                await self._ask(session, incoming)
            except SubscriptionRefused as refused:
                subscription_id = incoming.subscription.id
                log.error("subscription %s was refused after a reconnection: %s", subscription_id, refused)
                self.incoming.pop(subscription_id, None)
                self._fail_stream(subscription_id, refused)
        while removed := [each for each in restored if each.ended]:  # ended meanwhile
            restored.remove(removed[0])
            await session.unsubscribe(removed[0])
        self.outgoing.rewind()

    def _fail_stream(self, subscription_id: str, error: Exception) -> None:
        stream = self.streams.get(subscription_id)
        if isinstance(stream, DurableStream):
            stream.detached("")  # nobody answers its acknowledgements
        if stream is not None:
            stream.fail(error)

    def _check_open(self) -> None:
        if self._closed_because:
            raise ConnectionFailed(self._closed_because)

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
        payload = expiring(payload, expires, self.now)
        receipt = Receipt()
        publication = await self.outgoing.publish(topic, attributes or {}, payload, receipt)
        receipt.id = publication.id
        self._fail_if_ended()
        return await receipt if wait else receipt

    def reserve(self) -> EventId:
        self._check_open()
        return EventId(self.outgoing.source, self.outgoing.incarnation, self.outgoing.reserve())

    async def send(self, stretch: Stretch) -> Batch:
        """Publish events with reserved ids, one per message, because a message goes to one topic."""
        self._check_open()
        batch = Batch()
        batch.published = stretch.count
        await self.outgoing.send(singles(stretch), batch)
        self._fail_if_ended()
        return batch

    async def publish_many(self, events: Iterable[PublishedEvent] | AsyncIterable[PublishedEvent]) -> int:
        self._check_open()
        batch = Batch()
        async for event in each(events):
            if self._closed_because:
                break
            try:
                topic, attributes, payload = event
            except (TypeError, ValueError):
                raise no_event(event) from None
            await self.outgoing.publish(topic, attributes, payload, batch)
            batch.published += 1
        self._fail_if_ended()
        return await batch.confirmed()

    def _fail_if_ended(self) -> None:
        """Fail the publications if the service ended while one waited for the window."""
        if self._closed_because:
            self.outgoing.fail_all(self._closed_because)

    async def _write(self, session: AdapterSession) -> None:
        while True:
            batch = await self.outgoing.next_batch()
            try:
                await session.write(batch)
            except SessionLost as lost:
                session.end(str(lost))
                return
            except Exception as error:
                log.exception("%s: cannot send a batch of publications", self.server)
                session.end(f"{type(error).__name__}: {error}")
                return

    # --- Subscribing

    async def add_subscription(
        self, subscription: Subscription, notify: Notify, *, paced: bool = False
    ) -> None:
        self._check_open()
        if subscription.order not in AVAILABLE_ORDERS:
            available = ", ".join(AVAILABLE_ORDERS)
            raise SubscriptionRefused(
                f"order {subscription.order.value!r} is not available at {self.server}; available: {available}"
            )
        if subscription.id in self.incoming:
            raise ValueError(f"subscription {subscription.id!r} already exists")
        await self._add(Incoming(subscription, notify, paced=paced and self.lossless))

    async def _add(self, incoming: Incoming) -> None:
        subscription = incoming.subscription
        self.incoming[subscription.id] = incoming
        try:
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                await self._subscribe(incoming)
        except BaseException as error:
            await self.remove_subscription(subscription.id)
            if isinstance(error, TimeoutError):
                raise SubscriptionRefused(
                    f"{self.server} did not accept the subscription within {SUBSCRIBE_TIMEOUT_S:.0f} s"
                ) from None
            raise

    async def _subscribe(self, incoming: Incoming) -> None:
        """Subscribe, on the next connection if this one breaks meanwhile."""
        while not incoming.accepted:
            await self.keeper.ready.wait()
            self._check_open()
            session = self.keeper.live
            if session is None:  # lost, and about to be replaced
                await asyncio.sleep(POLL_S)
                continue
            try:
                await self._ask(session, incoming)
            except SessionLost as lost:
                session.end(str(lost))
            else:
                incoming.accepted = not session.ended.done()

    async def _ask(self, session: AdapterSession, incoming: Incoming) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                await session.subscribe(incoming)
        except TimeoutError:
            raise SessionLost(f"no answer to a subscription request within {self.timeout_s:g} s") from None

    async def remove_subscription(self, subscription_id: str) -> None:
        incoming = self.incoming.pop(subscription_id, None)
        if incoming is None:
            return
        incoming.ended = True
        session = self.keeper.live
        if session is None:
            return
        try:
            async with asyncio.timeout(self.timeout_s):
                await session.unsubscribe(incoming)
        except (SessionLost, TimeoutError) as error:
            session.end(f"no answer to an unsubscription: {error}")

    def taken(self, subscription_id: str, count: int = 1) -> None:
        incoming = self.incoming.get(subscription_id)
        if incoming is not None:
            for _ in range(count):
                incoming.pace.taken()

    def reply_name(self) -> str:
        return self.name

    # --- Reports from sessions

    def receive(self, raw: bytes, takers: Iterable[Incoming]) -> None:
        """Deliver a message from the broker. What is not an event (others may write there) is skipped."""
        self.received += 1
        try:
            publications = singles(decode_stretch(Raw(raw)))
            for publication in publications:
                check_publication(publication)
            for incoming in takers:
                for publication in publications:
                    incoming.offer(publication)
        except WireError as error:
            self.skip(str(error))

    def skip(self, problem: str) -> None:
        self.garbage += 1
        if self.garbage == 1:
            log.warning(
                "%s: skipped a message that is not an event; further ones are only counted (see status): %s",
                self.server,
                problem,
            )

    def missed(self, incoming: Incoming, store: str, first: int, last: int) -> None:
        """Report a gap: the broker's store no longer has the messages with these numbers, which were not read."""
        gap = gap_of(EventsMissed(store, 0, first, last), DELETED, self.now)
        reader = self.streams.get(incoming.subscription.id)
        if reader is None:
            log.warning("subscription %s %s", incoming.subscription.id, gap.text)
        else:
            reader.miss(gap)

    # --- Status

    async def status(self) -> dict[str, Any]:
        self._check_open()
        session = self.keeper.live
        return {
            "service": self.kind,
            "server": self.server,
            "client": self.name,
            "connected": session is not None,
            "reconnections": self.reconnections,
            "lossless": self.lossless,
            "published": self.outgoing.published,
            "confirmed": self.outgoing.confirmed,
            "unconfirmed": len(self.outgoing),
            "not_confirmed": self.outgoing.failed,
            "subscriptions": len(self.incoming),
            "received": self.received,
            "notified": sum(incoming.notified for incoming in self.incoming.values()),
            "duplicates": sum(incoming.duplicates for incoming in self.incoming.values()),
            "garbage": self.garbage,
            **(session.status() if session is not None else {}),
        }


def check_name(name: str) -> str:
    if not name or len(name) > MAX_NAME_BYTES or not name.isprintable():
        raise ConnectionFailed(
            f"{name[:40]!r} is not a client name: expected 1 to {MAX_NAME_BYTES} printable characters"
        )
    return name
