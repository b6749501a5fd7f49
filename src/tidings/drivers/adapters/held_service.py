"""The part of every event service over an existing broker that offers durable subscriptions and groups."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from msgspec import Raw

from tidings.bus.durable_stream import Durability, DurableStream
from tidings.bus.service import EventService, SetAside
from tidings.core.errors import SubscriptionRefused, WireError
from tidings.core.events.event import check_publication
from tidings.core.events.run import decode_stretch, singles
from tidings.core.events.subscription import Subscription
from tidings.core.structures.ranges import Ranges
from tidings.drivers.adapters.held import GroupIncoming, HeldIncoming
from tidings.drivers.adapters.held_options import HeldSupport, check_held
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.adapters.keeper import Reconnector
from tidings.drivers.adapters.session import SessionLost


class HoldingService(EventService):
    """What streams of durable subscriptions and groups call; sessions do the work."""

    held_support: HeldSupport
    """What the broker has of them."""
    server: str
    timeout_s: float
    received: int
    incoming: dict[str, Incoming]
    keeper: Reconnector

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    async def _add(self, incoming: Incoming) -> None:
        """Subscribe, on this connection or the next."""

    @abstractmethod
    def skip(self, problem: str) -> None:
        """Count a message that is not an event."""

    # --- For streams

    async def attach_held(self, subscription: Subscription, durability: Durability) -> None:
        self._check_open()
        stream = self.streams[subscription.id]
        assert isinstance(stream, DurableStream)
        if not self.held_support.keeps:
            durability = stream.durability = durability.unacknowledged()
        check_held(self.server, self.held_support, subscription, durability)
        kind = HeldIncoming if self.held_support.keeps else GroupIncoming
        await self._add(kind(subscription, stream, durability))

    def finish_held(
        self, subscription_id: str, numbers: Ranges, *, at_once: bool = False, expired: bool = False
    ) -> None:
        incoming = self.incoming.get(subscription_id)
        if isinstance(incoming, HeldIncoming):
            for first, last in numbers:
                for number in range(first, last + 1):
                    incoming.finish(number)

    def give_back(self, subscription_id: str, number: int, after_ns: int, *, aside: bool = False) -> None:
        incoming = self.incoming.get(subscription_id)
        if not isinstance(incoming, HeldIncoming):
            return
        if after_ns and not self.held_support.delays:
            asyncio.get_running_loop().call_later(after_ns / 1e9, incoming.give_back, number, 0)
        else:
            incoming.give_back(number, after_ns)

    async def leave_held(self, subscription_id: str, unseen: Ranges = ()) -> None:
        incoming = self.incoming.get(subscription_id)
        if isinstance(incoming, HeldIncoming):
            incoming.leave(unseen)
        await self.remove_subscription(subscription_id)

    async def cancel_durable(self, name: str) -> None:
        self._check_open()
        if not self.held_support.keeps:
            raise SubscriptionRefused(f"{self.server} keeps no durable subscriptions and no groups")
        session = self.keeper.live
        if session is None:
            raise SubscriptionRefused(f"{self.server} cannot be reached: {name!r} is not cancelled")
        try:
            async with asyncio.timeout(self.timeout_s):
                await session.cancel_held(name)
        except (SessionLost, TimeoutError) as error:
            raise SubscriptionRefused(
                f"{self.server} did not answer: {name!r} may not be cancelled ({error})"
            ) from None
        for incoming in list(self.incoming.values()):
            if isinstance(incoming, HeldIncoming) and incoming.durability.name == name:
                self.detach_held(incoming, f"{name!r} was cancelled")
                await session.unsubscribe(incoming)

    async def durable_subscriptions(self) -> list[dict[str, Any]]:
        raise self._unlisted("durable subscriptions and groups cannot be listed")

    async def set_aside(self, name: str) -> list[SetAside]:
        raise self._unlisted("no events are set aside")

    async def release(self, name: str, numbers: Iterable[int]) -> int:
        raise self._unlisted("no events are set aside")

    async def drop_aside(self, name: str, numbers: Iterable[int]) -> int:
        raise self._unlisted("no events are set aside")

    def _unlisted(self, problem: str) -> SubscriptionRefused:
        return SubscriptionRefused(f"{problem} at {self.server}; a guaranteed network of tidings has that")

    # --- Reports from sessions

    def detach_held(self, incoming: HeldIncoming, reason: str) -> None:
        """The broker no longer has this durable subscription or group; also called by sessions."""
        self.incoming.pop(incoming.subscription.id, None)
        incoming.detached(reason)

    def receive_held(self, raw: bytes, incoming: HeldIncoming, handle: object, attempt: int) -> None:
        """Deliver a message that is to be acknowledged. What is not an event is done."""
        self.received += 1
        try:
            publications = singles(decode_stretch(Raw(raw)))
            for publication in publications:
                check_publication(publication)
            incoming.arrive(publications, handle, attempt)
        except WireError as error:
            self.skip(str(error))
            incoming.discard(handle)
