"""A network in one process: brokers and clients on one asyncio loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from tidings.core.client.reliable_session import ReliableClient
from tidings.core.client.session import BestEffortClient
from tidings.core.errors import ConnectionFailed
from tidings.core.facts import BrokerKnown, SessionUnwanted, SessionWanted
from tidings.core.messages import Message
from tidings.core.overlay.brokers import AnyBroker, BrokerSpec, make_broker
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.matching import Matcher
from tidings.core.overlay.modes import EPIDEMIC, GUARANTEED
from tidings.drivers.local.driver import LocalDriver, LocalSink
from tidings.drivers.local.ordering import LocalOrdering
from tidings.drivers.lossy import LossyLinks
from tidings.drivers.port import AsyncPort
from tidings.scenarios.file.schema import Loss

AnyClient = BestEffortClient | ReliableClient


class LossySink(LocalSink):
    """One direction of a link between brokers that loses messages on purpose."""

    def __init__(self, driver: LocalDriver, sender: str, receiver: str, links: LossyLinks) -> None:
        super().__init__(driver, sender, receiver)
        self._links = links
        self._link = f"{sender}>{receiver}"

    def send(self, message: Message) -> None:
        if not self._links.loses(self._link):
            super().send(message)


class LocalNetwork:
    """Brokers in one process, by name and in order. `loss` applies to messages between epidemic brokers.

    Connections between guaranteed brokers open on demand and never break.
    """

    def __init__(
        self, specs: Mapping[str, BrokerSpec], *, loss: Loss | None = None, seed: int | None = None
    ) -> None:
        self.brokers = tuple(specs)
        self.guaranteed = any(spec.mode == GUARANTEED for spec in specs.values())
        self._driver = LocalDriver(lossless=self.guaranteed, seed=seed)
        self._lossy = None if loss is None else LossyLinks(loss, seed)
        self._specs = specs
        self._matcher = Matcher()
        self._nodes, self._ports = self._driver.nodes, self._driver.ports
        self.ordering: LocalOrdering | None = None
        """The sequencers; None: there are none."""
        self._lives: dict[str, int] = {}
        self._started = False

    def start(self) -> None:
        if self._started:
            raise ConnectionFailed("the embedded network is already open")
        self._started = True
        for name in self.brokers:
            self._nodes[name] = self._make_broker(name)
        for name in self.brokers:
            self._nodes[name].start()

    def node(self, name: str) -> object:
        """Return the protocol's part of a broker."""
        return self._nodes[name]

    def _make_broker(self, name: str) -> AnyBroker:
        spec = self._specs[name]
        port = self._driver.add_port(name, lambda fact: self._on_fact(name, fact))
        if not self.guaranteed:
            for peer in spec.neighbours:
                port.sessions[peer] = self._sink(name, peer)
        broker = make_broker(
            spec,
            port,
            incarnation=time.time_ns(),
            new=True,
            matcher=self._matcher,
            address=name if spec.mode == EPIDEMIC else "",  # where others reach it
        )
        if isinstance(broker, GuaranteedBroker) and self.ordering is not None:
            broker.ordered_shares.find = partial(_find_order, broker, self.ordering)
        return broker

    def _sink(self, sender: str, receiver: str) -> LocalSink:
        if self._lossy is None:
            return LocalSink(self._driver, sender, receiver)
        return LossySink(self._driver, sender, receiver, self._lossy)

    def _on_fact(self, name: str, fact: object) -> None:
        """Link to brokers learned by gossip, and open or close connections. Connections change in a later turn,
        because the protocol is still in the middle of a handler."""
        match fact:
            case BrokerKnown(broker=broker) if broker in self._specs:
                self._ports[name].sessions.setdefault(broker, self._sink(name, broker))
            case SessionWanted(peer=peer):
                asyncio.get_running_loop().call_soon(self._link, name, peer)
            case SessionUnwanted(peer=peer):
                asyncio.get_running_loop().call_soon(self._unlink, name, peer)

    def _link(self, a: str, b: str) -> None:
        if self._started and b not in self._ports[a].sessions:
            self._driver.join(a, b)
            for name, peer in ((a, b), (b, a)):
                self._nodes[name].link_up(peer)

    def _unlink(self, a: str, b: str) -> None:
        if self._started and b in self._ports[a].sessions:
            for name, peer in ((a, b), (b, a)):
                sink = self._ports[name].sessions.pop(peer)
                assert isinstance(sink, LocalSink)
                sink.is_open = False
            for name, peer in ((a, b), (b, a)):
                self._nodes[name].link_down(peer)

    def stop(self) -> None:
        self._started = False
        self._driver.stop()

    def status(self, broker: str) -> dict[str, object]:
        node = self._nodes[broker]
        assert isinstance(node, AnyBroker)
        return node.status()

    def attach(self, name: str, broker: str, emit: Callable[[object], None]) -> tuple[AnyClient, AsyncPort]:
        """Connect a client of that name to the broker."""
        if not self._started:
            raise ConnectionFailed("the embedded network is not open: use it inside 'async with'")
        if name in self._nodes:
            raise ConnectionFailed(f"the client name {name!r} is already in use")
        port = self._driver.add_port(name, emit)
        self._driver.join(name, broker)
        incarnation = self._incarnation(name)
        client: AnyClient
        if self.guaranteed:
            client = ReliableClient(port, broker, incarnation=incarnation, acknowledges=False, gathers=True)
        else:
            client = BestEffortClient(port, broker, incarnation=incarnation)
        self._nodes[name] = client
        client.start()
        self._nodes[broker].link_up(name)
        client.link_up(broker)
        return client, port

    def _incarnation(self, name: str) -> int:
        """Return a new incarnation for a name: a client that returns numbers its events from 1 again."""
        lives = self._lives[name] = self._lives.get(name, -1) + 1
        return lives

    def detach(self, name: str, broker: str) -> None:
        if self._driver.remove(name):
            self._nodes[broker].link_down(name)

    async def linked(self) -> None:
        """Wait until the brokers are connected, so that subscriptions can complete at once."""
        brokers = [node for node in self._nodes.values() if isinstance(node, GuaranteedBroker)]
        while any(broker.sessions.unreachable() for broker in brokers):  # noqa: ASYNC110 - a few turns
            await asyncio.sleep(0)

    async def settled(self) -> None:
        """Wait until all messages that are in the queue now have been delivered."""
        driver, last = self._driver, self._driver.enqueued
        while driver.handed_over < last and self._started:  # noqa: ASYNC110 - a few turns
            await asyncio.sleep(0)


def _find_order(broker: GuaranteedBroker, ordering: LocalOrdering) -> None:
    """Give the broker access to the sequencers."""
    ordered = broker.ordered_shares
    ordering.want()
    ordering.detach(ordered.client)  # from an earlier attempt
    ordered.use(ordering.attach(ordered.client, ordered.on_order_fact))


class LocalConnection:
    """Connects a client within a LocalNetwork; same interface as `sockets.client.ClientConnection`."""

    def __init__(
        self,
        network: LocalNetwork,
        broker: str,
        name: str,
        emit: Callable[[object], None],
    ) -> None:
        self.name = name
        self.broker = broker
        self.closed = False
        self._network = network
        self._emit = emit
        self._attached: tuple[AnyClient, AsyncPort] | None = None

    @property
    def client(self) -> AnyClient:
        if self._attached is None:
            raise ConnectionFailed("not connected")
        return self._attached[0]

    @property
    def now(self) -> int:
        return time.time_ns() if self._attached is None else self._attached[1].now

    async def open(self) -> None:
        self._attached = self._network.attach(self.name, self.broker, self._emit)

    async def close(self) -> None:
        if self._attached is not None:
            if self._network.guaranteed:
                await self._network.settled()  # otherwise the broker might keep events nobody wants any more
            self._attached = None
            self._network.detach(self.name, self.broker)
