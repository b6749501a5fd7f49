"""What event services over existing brokers share: one connection after another, and what outlives them.

    connecting -> connected -> lost -> connecting ...      until it is closed, or the broker refuses us for good

A service makes a `Session` for each connection. Between sessions it keeps the publications that are not confirmed
(external_outgoing.py) and the subscriptions with their positions (external_incoming.py); the next session first brings
the subscriptions back and then sends those publications again. The client libraries' own reconnection is not used:
they send what was buffered before what was lost, which breaks the order of a source.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from tidings.model.errors import ConnectionFailed, NotConfirmed, SubscriptionRefused, WireError
from tidings.model.event import (
    MAX_NAME_BYTES,
    EventId,
    check_not_internal,
    check_publication,
    decode_publication,
)
from tidings.model.predicates import Scalar
from tidings.model.subscription import Order, Subscription
from tidings.services.external_incoming import Incoming
from tidings.services.external_outgoing import Outgoing, Receipt
from tidings.services.external_session import Loss, Refused, Session, SessionLost
from tidings.services.service import EventService, Notify
from tidings.services.stream import EventsMissed

DEFAULT_TIMEOUT_S = 5.0
DEFAULT_RETRY_S = 30.0
SUBSCRIBE_TIMEOUT_S = 30.0
FIRST_DELAY_S, LAST_DELAY_S = 0.05, 2.0
"""Between attempts to connect; doubled each time."""
AVAILABLE_ORDERS = (Order.NONE, Order.FIFO)

log = logging.getLogger("tidings")


class ExternalService(EventService):
    def __init__(self, kind: str, server: str, name: str | None, *, timeout_s: float, retry_s: float) -> None:
        """`server` is for people: it has no password."""
        super().__init__()
        if timeout_s <= 0 or retry_s <= 0:
            raise ValueError(f"timeout_s {timeout_s} and retry_s {retry_s} must be positive")
        self.kind = kind
        self.server = server
        self.timeout_s = timeout_s
        self.name = check_name(name) if name is not None else f"client-{secrets.token_hex(6)}"
        # A name that was never used before has no earlier life.
        self.outgoing = Outgoing(self.name, 0 if name is None else time.time_ns(), retry_s)
        self.incoming: dict[str, Incoming] = {}
        self.received = 0
        self.garbage = 0
        self.reconnections = 0
        self._session: Session | None = None
        self._ready = asyncio.Event()
        """A session is up, and the subscriptions are back."""
        self._closed_because = "the bus is not open: use it inside 'async with'"
        self._keeper: asyncio.Task[None] | None = None

    @abstractmethod
    async def _start_session(self, *, first: bool) -> Session:
        """Connect; ConnectionFailed says why not, Refused that trying again is no use."""

    # --- Opening and closing

    async def open(self) -> None:
        self._session = await self._connect(first=True)
        self._closed_because = ""
        self._ready.set()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(self._session))

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        self._end("the connection was closed")
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper
        await self._drop_session(forget=True)

    async def _keep(self, session: Session) -> None:
        try:
            await self._keep_connected(session)
        except Exception as error:  # a mistake of ours: whoever waits must not wait for ever
            log.exception("%s: the connection is given up", self.server)
            self._end(f"{type(error).__name__}: {error}")

    async def _keep_connected(self, first: Session) -> None:
        session: Session | None = first
        clock = asyncio.get_running_loop().time
        delay_s = FIRST_DELAY_S
        while session is not None:
            began_at = clock()
            loss = await self._use(session)
            log.info("%s: connection lost: %s", self.server, loss.reason)
            self._ready.clear()
            await self._drop_session()
            if loss.final:
                self._end(loss.reason)
                return
            # A broker that takes us and drops us again is not to be besieged.
            brief = clock() - began_at < LAST_DELAY_S
            delay_s = min(2 * delay_s, LAST_DELAY_S) if brief else FIRST_DELAY_S
            session = await self._reconnect(delay_s)

    async def _use(self, session: Session) -> Loss:
        """Until it is lost."""
        writer = asyncio.get_running_loop().create_task(self._write(session))
        try:
            return await asyncio.shield(session.ended)
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _reconnect(self, delay_s: float) -> Session | None:
        """None: the broker refuses us."""
        while True:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_DELAY_S)
            try:
                session = self._session = await self._connect(first=False)
                await self._bring_back(session)
            except Refused as refused:
                self._end(str(refused))
                return None
            except (ConnectionFailed, SessionLost) as error:
                log.debug("%s: no connection yet: %s", self.server, error)
                await self._drop_session()
            else:
                self.reconnections += 1
                self.outgoing.rewind()
                self._ready.set()
                return session

    async def _connect(self, *, first: bool) -> Session:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._start_session(first=first)
        except TimeoutError:
            raise ConnectionFailed(f"{self.server} did not answer within {self.timeout_s:g} s") from None

    async def _bring_back(self, session: Session) -> None:
        for incoming in [each for each in self.incoming.values() if each.accepted]:
            try:
                await self._ask(session, incoming)
            except SubscriptionRefused as refused:
                log.error(
                    "subscription %s was refused after a reconnection: %s", incoming.subscription.id, refused
                )
                self.incoming.pop(incoming.subscription.id, None)
                self._fail_stream(incoming.subscription.id, refused)
            if incoming.ended:  # it was removed meanwhile
                await session.unsubscribe(incoming)

    async def _drop_session(self, *, forget: bool = False) -> None:
        """`forget`: the broker need keep nothing for us."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timeout_s):
                    await session.close(forget=forget)

    def _end(self, reason: str) -> None:
        """There is no coming back: whoever waits is told."""
        self._closed_because = reason
        self._ready.set()  # who waits for a session looks again
        self.outgoing.fail_all(reason)
        for subscription_id in list(self.streams):
            self._fail_stream(subscription_id, ConnectionFailed(reason))

    def _fail_stream(self, subscription_id: str, error: Exception) -> None:
        if subscription_id in self.streams:
            self.streams[subscription_id].fail(error)

    def _check_open(self) -> None:
        if self._closed_because:
            raise ConnectionFailed(self._closed_because)

    # --- Publishing

    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: bytes = b"",
        *,
        internal: bool = False,
    ) -> EventId:
        self._check_open()
        if attributes and not internal:
            check_not_internal(attributes)
        receipt = Receipt()
        publication = await self.outgoing.publish(topic, attributes or {}, payload, receipt)
        self._fail_if_ended()
        await receipt.settled()
        if receipt.first_error is not None:
            raise receipt.first_error
        return publication.id

    async def publish_many(
        self, events: Iterable[tuple[str, Mapping[str, Scalar], bytes]], *, internal: bool = False
    ) -> int:
        self._check_open()
        receipt = Receipt()
        for topic, attributes, payload in events:
            if self._closed_because:
                break
            if not internal:
                check_not_internal(attributes)
            await self.outgoing.publish(topic, attributes, payload, receipt)
        self._fail_if_ended()
        await receipt.settled()
        if receipt.failed:
            raise NotConfirmed(
                f"{receipt.failed} of {receipt.published} publications were not confirmed: {receipt.first_error}"
            )
        return receipt.published

    def _fail_if_ended(self) -> None:
        """The end may have come while a publication waited for its place in the window."""
        if self._closed_because:
            self.outgoing.fail_all(self._closed_because)

    async def _write(self, session: Session) -> None:
        while True:
            batch = await self.outgoing.next_batch()
            try:
                await session.write(batch)
            except SessionLost as lost:
                session.end(str(lost))
                return
            except Exception as error:
                log.exception("%s: a batch of publications could not be sent", self.server)
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
                f"order {subscription.order!r} is not available at {self.server}; available: {available}"
            )
        if subscription.id in self.incoming:
            raise ValueError(f"subscription {subscription.id!r} exists")
        incoming = Incoming(subscription, notify, paced=paced)
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
        """On the next connection, if this one breaks meanwhile."""
        while True:
            await self._ready.wait()
            self._check_open()
            session = self._session
            if session is None or session.ended.done():
                await asyncio.sleep(FIRST_DELAY_S)
                continue
            try:
                await self._ask(session, incoming)
            except SessionLost as lost:
                session.end(str(lost))
            else:
                if not session.ended.done():
                    incoming.accepted = True
                    return

    async def _ask(self, session: Session, incoming: Incoming) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                await session.subscribe(incoming)
        except TimeoutError:
            raise SessionLost(
                f"no answer to a request for a subscription within {self.timeout_s:g} s"
            ) from None

    async def remove_subscription(self, subscription_id: str) -> None:
        incoming = self.incoming.pop(subscription_id, None)
        if incoming is None:
            return
        incoming.ended = True
        session = self._session
        if session is None or session.ended.done():
            return
        try:
            async with asyncio.timeout(self.timeout_s):
                await session.unsubscribe(incoming)
        except (SessionLost, TimeoutError) as error:
            session.end(f"no answer to the end of a subscription: {error}")

    def taken(self, subscription_id: str) -> None:
        incoming = self.incoming.get(subscription_id)
        if incoming is not None:
            incoming.pace.taken()

    # --- What sessions report

    def receive(self, raw: bytes, takers: Iterable[Incoming]) -> None:
        """A message from the broker. Whoever else writes there does us no harm: what is no event is skipped."""
        self.received += 1
        try:
            publication = decode_publication(raw)
            check_publication(publication)
            for incoming in takers:
                incoming.offer(publication)
        except WireError as error:
            self.skip(str(error))

    def skip(self, problem: str) -> None:
        self.garbage += 1
        if self.garbage == 1:
            log.warning(
                "%s: a message was skipped, further ones are only counted (see status): %s",
                self.server,
                problem,
            )

    def missed(self, incoming: Incoming, store: str, first: int, last: int) -> None:
        """The broker could not keep the messages with these numbers of its store until we read them."""
        log.warning(
            "subscription %s: messages %d to %d of %s are gone before they were read",
            incoming.subscription.id,
            first,
            last,
            store,
        )
        if incoming.subscription.id in self.streams:
            self.streams[incoming.subscription.id].miss(EventsMissed(store, 0, first, last))

    # --- Status

    async def status(self) -> dict[str, Any]:
        self._check_open()
        session = self._session
        connected = self._ready.is_set() and session is not None and not session.ended.done()
        return {
            "service": self.kind,
            "server": self.server,
            "client": self.name,
            "connected": connected,
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
            **(session.status() if session is not None and connected else {}),
        }


def check_name(name: str) -> str:
    if not name or len(name) > MAX_NAME_BYTES or not name.isprintable():
        raise ConnectionFailed(
            f"{name[:40]!r} is no name of a client: it has 1 to {MAX_NAME_BYTES} printable characters"
        )
    return name
