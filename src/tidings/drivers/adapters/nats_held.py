"""Durable subscriptions and groups of JetStream: a durable consumer for each, with explicit acknowledgement.

Members of a group request messages of one consumer, and the server gives each message to one of them. A holder resets
the server's timer (`ack_wait`) of what it holds, so only what a dead holder held is delivered again. JetStream would
let two attach to one durable subscription; so a holder answers, on a subject of its own, who it is, and whoever wants
to attach asks there first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from nats import errors
from nats.aio.subscription import Subscription
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from tidings.core.errors import SubscriptionRefused
from tidings.drivers.adapters.held import HeldIncoming, Settlement, difference
from tidings.drivers.adapters.held_reader import HeldReader
from tidings.drivers.adapters.nats import disjoint_subjects
from tidings.drivers.adapters.nats_pull import BROKEN, MessageNumbers, PullRequests, describe
from tidings.drivers.adapters.nats_session import Headers
from tidings.drivers.adapters.session import SessionLost

if TYPE_CHECKING:
    from tidings.drivers.adapters.nats_jetstream import JetStreamSession

ACKNOWLEDGE, GIVE_BACK, IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"
RETRY_S = 0.2
DEFAULT_KEEP_S = 7 * 86_400.0
HOLDER_TIMEOUT_S = 1.0
"""How long a holder may take to say that it is there."""


def consumer_name(name: str) -> str:
    """Return the name of the consumer; JetStream allows no dots, and our names have no '%'."""
    return name.replace(".", "%2E")


class JetStreamHeldReader(HeldReader):
    """Requests messages of the durable consumer and acknowledges them."""

    def __init__(self, session: JetStreamSession, incoming: HeldIncoming) -> None:
        super().__init__(session, incoming, session.service.hold_s)
        self._session = session
        self._name = incoming.durability.name
        self._consumer = consumer_name(self._name)
        self._requests = PullRequests(session, self._on_message)
        self._answering: Subscription | None = None
        self._answers: set[asyncio.Task[None]] = set()

    # --- Attaching

    async def attach(self) -> None:
        try:
            if not self.incoming.durability.group:
                await self._claim()
            await self._find_consumer()
            await self._requests.begin(self._consumer)
        except APIError as error:
            raise SubscriptionRefused(
                f"{self._session.service.server} rejected the subscription: {describe(error)}"
            ) from None
        except (errors.Error, OSError) as error:
            raise SessionLost(describe(error)) from None

    async def _claim(self) -> None:
        """Be the only holder, as far as one that is there says so."""
        client, service = self._session.client, self._session.service
        subject = f"_INBOX.tidings-holder.{service.stream}.{self._consumer}"
        try:
            answer = await client.request(subject, timeout=min(HOLDER_TIMEOUT_S, service.timeout_s / 2))
        except (errors.NoRespondersError, errors.TimeoutError):
            pass
        else:
            holder = answer.data.decode("utf-8", "replace")
            raise SubscriptionRefused(f"{self._name!r} is held by {holder}; it must leave first")
        self._answering = await client.listen(subject, self._on_question)

    def _on_question(self, subject: str, reply: str, body: bytes, headers: Headers) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(reply))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, reply: str) -> None:
        try:
            await self._session.send(reply, self._session.service.name.encode())
        except SessionLost as lost:
            self._session.end(str(lost))

    async def _find_consumer(self) -> None:
        streams, service = self._session.streams, self._session.service
        config = self._config()
        try:
            info = await streams.consumer_info(service.stream, self._consumer)
        except NotFoundError:
            if self.incoming.accepted:  # it was there before this connection
                raise SubscriptionRefused(self._gone()) from None
            info = await streams.add_consumer(service.stream, config)
        found = info.config.metadata or {}
        if "tidings-kind" not in found:
            raise SubscriptionRefused(
                f"consumer {self._consumer} of {service.stream} is not of tidings: use another name"
            )
        for key, value in (config.metadata or {}).items():
            if found.get(key) != value:
                what = key.removeprefix("tidings-")
                raise SubscriptionRefused(difference(self._name, what, found.get(key), value))

    def _config(self) -> api.ConsumerConfig:
        durability, subscription = self.incoming.durability, self.incoming.subscription
        return api.ConsumerConfig(
            name=self._consumer,
            durable_name=self._consumer,
            deliver_policy=api.DeliverPolicy.NEW,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=self._hold_s,
            max_deliver=-1,
            # Of a group, each member bounds what it has itself.
            max_ack_pending=-1 if durability.group else durability.max_unacked,
            filter_subjects=disjoint_subjects(self._session.service.prefix, self.incoming.interest.topics),
            inactive_threshold=durability.keep_for_ns / 1e9 or DEFAULT_KEEP_S,
            metadata={
                "tidings-kind": "group" if durability.group else "durable subscription",
                "tidings-topics": " ".join(sorted(subscription.topics)),
                "tidings-filter": subscription.filter or "",
            },
        )

    def _gone(self) -> str:
        return f"{self._name!r} is gone: it was cancelled, or nobody was attached for too long"

    # --- Messages

    async def read(self) -> None:
        while True:
            room = await self.incoming.room()
            if await self._requests.ask(room) == BROKEN:
                await self._check_consumer()
                await asyncio.sleep(RETRY_S)

    async def _check_consumer(self) -> None:
        try:
            await self._session.streams.consumer_info(self._session.service.stream, self._consumer)
        except NotFoundError:
            self._session.service.detach_held(self.incoming, self._gone())
            await asyncio.Event().wait()  # until this reader is stopped
        except (errors.Error, OSError) as error:
            raise SessionLost(describe(error)) from None

    def _on_message(self, numbers: MessageNumbers, reply: str, body: bytes) -> bool:
        self._session.service.receive_held(body, self.incoming, reply, numbers.attempt)
        return True

    async def stop_reading(self) -> None:
        await self._requests.end()
        await self._session.barrier()

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Only the last one is answered: the server takes them in order."""
        *first, last = settlements
        for each in first:
            await self._session.send(each.handle, _body(each))
        await self._session.ask(last.handle, _body(last))

    async def renew(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            await self._session.send(handle, IN_PROGRESS)

    # --- The end

    async def detach(self) -> None:
        await self._stop_answering()

    async def stop(self) -> None:
        await super().stop()
        await self._requests.end()
        await self._stop_answering()

    async def _stop_answering(self) -> None:
        if self._answering is not None:
            await self._session.client.unlisten(self._answering)
            self._answering = None


def _body(settlement: Settlement) -> bytes:
    if settlement.done:
        return ACKNOWLEDGE
    if settlement.after_ns:
        return GIVE_BACK + b" " + msgspec.json.encode({"delay": settlement.after_ns})
    return GIVE_BACK
