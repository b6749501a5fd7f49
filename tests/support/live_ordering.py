"""What tests of live sequencers share: hosts of one layout in this process, and users with a service of their own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from live_network import until
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.layout import Layout, ServerPlacement
from tidings.core.ordering.module import EventsShown, JoinCompleted, OrderBroken, PublishNow
from tidings.core.ordering.replication.replica import Times
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.drivers.address import Address
from tidings.drivers.sockets.sequencer import SequencerHost
from tidings.drivers.sockets.sequencing import SequencingConnection

QUICK = Times(sign_ns=20_000_000, lease_ns=500_000_000, publisher_ns=2_000_000_000)
REPLICATED = Layout([ServerPlacement("main", ("/a", "/b"), node="n1", standby="n2", witness="n3")])


def played(main: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, in a loop of its own and in bounded time."""

    @functools.wraps(main)
    def play(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(main(*arguments, **named), 50)

        asyncio.run(bounded())

    return play


class Hosts:
    """Sequencers of one layout. They start from the last to the first: so each knows whom it dials."""

    def __init__(self, layout: Layout, data: Path | None = None, **options: Any) -> None:
        self.layout = layout
        self.data = data
        self.options = {"times": QUICK, **options}
        self.addresses: dict[str, Address] = {}
        self.running: dict[str, SequencerHost] = {}
        self.no_ops: list[PublishNoOps] = []

    def __getitem__(self, name: str) -> SequencerHost:
        return self.running[name]

    async def start(self, name: str, **options: Any) -> SequencerHost:
        host = SequencerHost(
            name,
            self.addresses.get(name, Address(port=0)),
            options.pop("layout", self.layout),
            self.addresses,
            data=options.pop("data", self.data),
            on_no_ops=self.no_ops.append,
            **{**self.options, **options},
        )
        await host.start()
        self.addresses[name] = host.address
        self.running[name] = host
        return host

    async def kill(self, name: str) -> None:
        """No goodbye is said in this protocol."""
        await self.running.pop(name).stop()

    async def __aenter__(self) -> Hosts:
        for name in sorted(self.layout.nodes, reverse=True):
            await self.start(name)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.running):
            await self.kill(name)

    def servers(self, name: str) -> Mapping[str, Mapping[str, object]]:
        return self.running[name].status()["servers"]  # type: ignore[return-value]

    def role(self, name: str, server: str = "main") -> object:
        return self.servers(name)[server]["role"] if name in self.running else None

    async def in_step(self, server: str = "main") -> None:
        """Until a standby may take over."""

        def together() -> bool:
            found = [self.servers(name).get(server, {}) for name in self.running]
            active = any(one.get("role") == "active" and one.get("standby") == "in step" for one in found)
            return active and any(one.get("role") == "standby" for one in found)

        await until(together, what=lambda: {name: self.servers(name) for name in self.running})


class Service:
    """It notifies everybody of everything, at once."""

    def __init__(self) -> None:
        self.users: list[OrderedUser] = []
        self.stamps: list[tuple[int, int]] = []
        """(topic, number) of all that was published."""

    def publish(self, user: OrderedUser, fact: PublishNow) -> None:
        stamp = fact.stamp
        self.stamps.append((stamp.topic, stamp.number))
        user.module.published(fact.handle)
        self.notify(stamp, fact.event)

    def notify(self, stamp: Timestamp, event: object) -> None:
        for user in self.users:
            for key in user.keys:
                user.module.receive(key, stamp, event)


class OrderedUser:
    """A client of the sequencers and what it was told."""

    def __init__(self, addresses: Any, name: str, service: Service, **options: Any) -> None:
        self.facts: list[object] = []
        self.keys: list[int] = []
        self.service = service
        self.connection = SequencingConnection(addresses, name, emit=self._on_fact, **options)

    @property
    def module(self) -> Any:
        return self.connection.module

    async def __aenter__(self) -> OrderedUser:
        await self.connection.open(15.0)
        self.service.users.append(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.service.users.remove(self)
        await self.connection.close()

    def _on_fact(self, fact: object) -> None:
        self.facts.append(fact)
        if isinstance(fact, PublishNow):
            asyncio.get_running_loop().call_soon(self.service.publish, self, fact)

    async def subscribe(self, *ranks: int) -> int:
        key = int(self.module.add_subscriber())
        self.keys.append(key)
        self.module.change(key, ranks)
        await until(lambda: any(isinstance(fact, JoinCompleted) and fact.key == key for fact in self.facts))
        return key

    def publish(self, rank: int, *events: object) -> None:
        for event in events:
            self.module.publish(rank, event)

    async def published(self) -> None:
        await until(lambda: not self.module.unpublished, what=lambda: self.module.unpublished)

    def shown(self, key: int) -> list[object]:
        return [fact.event for fact in self.facts if isinstance(fact, EventsShown) and fact.key == key]

    @property
    def broken(self) -> list[str]:
        return [fact.reason for fact in self.facts if isinstance(fact, OrderBroken)]
