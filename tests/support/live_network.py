"""What tests of real sockets share: a client that remembers what it was told, and waiting for a condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tidings.model.subscription import Subscription
from tidings.net.address import Address, Transport
from tidings.net.client import ClientConnection
from tidings.protocol.facts import Delivered, PublicationConfirmed, SubscriptionAccepted

TRANSPORTS: tuple[Transport, ...] = ("tcp", "udp")


class User:
    """A client and what it was told."""

    def __init__(self, address: Address, name: str, transport: Transport = "tcp", **options: object) -> None:
        self.facts: list[object] = []
        self.links: list[tuple[bool, str]] = []
        self.connection = ClientConnection(
            address,
            name,
            transport=transport,
            emit=self.facts.append,
            on_connection=lambda up, reason: self.links.append((up, reason)),
            **options,  # type: ignore[arg-type]
        )

    async def __aenter__(self) -> User:
        await self.connection.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def subscribe(self, subscription: str, *topics: str, where: str | None = None) -> None:
        self.connection.client.subscribe(Subscription(subscription, topics, where))
        await until(lambda: SubscriptionAccepted(subscription) in self.facts)

    def publish(self, number: int, topic: str = "/a/b", size_bytes: int = 10) -> None:
        payload = bytes(size_bytes)
        self.connection.client.publish(topic, {"number": number}, payload, self.connection.now)

    @property
    def numbers(self) -> list[object]:
        facts = [fact for fact in self.facts if isinstance(fact, Delivered)]
        return [fact.publication.event().attributes["number"] for fact in facts]

    @property
    def confirmed(self) -> int:
        facts = [fact for fact in self.facts if isinstance(fact, PublicationConfirmed)]
        return sum(fact.last - fact.first + 1 for fact in facts)


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not come to pass in time"
        await asyncio.sleep(0.005)
