"""What tests of real sockets share: a client that remembers what it was told, and waiting for a condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from tidings.core.events.subscription import Subscription
from tidings.core.facts import Delivered, PublicationConfirmed, SubscriptionAccepted
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.labels import Label
from tidings.drivers.address import Address, Transport
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.client import ClientConnection
from tidings.drivers.sockets.epidemic import EpidemicSettings
from tidings.scenarios.file.schema import Loss

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

    def finish(self) -> None:
        """It is done with all that it was shown."""
        for fact in self.facts:
            if isinstance(fact, Delivered) and fact.ticket is not None:
                fact.ticket.done()

    @property
    def numbers(self) -> list[object]:
        facts = [fact for fact in self.facts if isinstance(fact, Delivered)]
        return [fact.stretch.event().attributes["number"] for fact in facts]

    @property
    def recovered_by(self) -> list[str]:
        """How events came that were lost on their way."""
        facts = [fact for fact in self.facts if isinstance(fact, Delivered)]
        return [fact.recovered_by for fact in facts if fact.recovered_by]

    @property
    def confirmed(self) -> int:
        facts = [fact for fact in self.facts if isinstance(fact, PublicationConfirmed)]
        return sum(fact.last - fact.first + 1 for fact in facts)


async def until(
    condition: Callable[[], bool],
    seconds: float = 15.0,
    what: Callable[[], object] = lambda: "it did not come to pass in time",
) -> None:
    """`what` describes how things are if they never come to be so."""
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, what()
        await asyncio.sleep(0.005)


class EpidemicBrokers:
    """Epidemic brokers `b0`, `b1`, ... of this process, over real sockets. `parents` has each one's parent's number.

    Of two neighbours the one with the lower name dials: started from the last to the first, all know whom to dial.
    """

    def __init__(
        self,
        parents: Sequence[int | None],
        recovery: RecoverySettings,
        *,
        loss: Loss | None = None,
        labelled: bool = True,
        **options: Any,
    ) -> None:
        self.servers: list[BrokerServer] = []
        self._parents = parents
        self._recovery = recovery
        self._loss = loss
        self._labelled = labelled
        self._options = options

    def __getitem__(self, number: int) -> BrokerServer:
        return self.servers[number]

    def label(self, number: int) -> Label:
        parent = self._parents[number]
        if parent is None:
            return (0,)
        return (*self.label(parent), self._parents[:number].count(parent))

    def settings(self, number: int) -> EpidemicSettings:
        label = self.label(number) if self._labelled or self._parents[number] is None else None
        return EpidemicSettings(self._recovery, label, self._loss, seed=7)

    async def __aenter__(self) -> EpidemicBrokers:
        addresses: dict[str, Address] = {}
        for number in reversed(range(len(self._parents))):
            around = [child for child, parent in enumerate(self._parents) if parent == number]
            parent = self._parents[number]
            around += [] if parent is None else [parent]
            neighbours = {f"b{peer}": addresses.get(f"b{peer}", Address(port=1)) for peer in around}
            server = BrokerServer(
                f"b{number}",
                neighbours=neighbours,
                mode="epidemic",
                epidemic=self.settings(number),
                **self._options,
            )
            await server.start()
            addresses[server.name] = server.address
            self.servers.insert(0, server)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            await server.stop()

    async def acquainted(self) -> None:
        """Until every broker knows where every other one is."""
        others = len(self.servers) - 1
        await until(
            lambda: all(len(known_to(server)) == others for server in self.servers),
            what=lambda: {server.name: known_to(server) for server in self.servers},
        )


def known_to(server: BrokerServer) -> list[str]:
    """Whom the broker can reach."""
    return sorted({*server.neighbours, *server._port.others})
