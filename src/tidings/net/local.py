"""A network inside one process: brokers and clients on one asyncio loop, their messages on one queue.

The same protocol objects as behind sockets, without encoding. Messages are handed over in batches, so that a
busy network leaves turns to everybody else on the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from tidings.model.errors import ConnectionFailed
from tidings.model.messages import Message
from tidings.net.port import AsyncPort
from tidings.protocol.broker import Broker
from tidings.protocol.client import Client
from tidings.protocol.kernel import Node
from tidings.protocol.matching import Matcher

MESSAGES_PER_TURN = 1_000
MAX_QUEUED = 1_000_000
"""Beyond this many messages on the way, further ones are lost, as on any best-effort link."""


class LocalSink:
    """One direction of a link: puts messages on the network's queue."""

    def __init__(self, network: LocalNetwork, sender: str, receiver: str) -> None:
        self._network = network
        self._sender = sender
        self._receiver = receiver

    def send(self, message: Message) -> None:
        self._network.enqueue(self._sender, self._receiver, message)


class LocalNetwork:
    """`neighbours` says who is beside whom; `brokers` are the names in order."""

    def __init__(self, neighbours: Mapping[str, Sequence[str]], *, seed: int | None = None) -> None:
        self.brokers = tuple(neighbours)
        self.lost = 0
        self._neighbours = neighbours
        self._seed = seed
        self._matcher = Matcher()
        self._nodes: dict[str, Node] = {}
        self._ports: dict[str, AsyncPort] = {}
        self._queue: deque[tuple[str, str, Message]] = deque()
        self._lives: dict[str, int] = {}
        self._scheduled = False
        self._started = False

    def start(self) -> None:
        if self._started:
            raise ConnectionFailed("the embedded network is open already")
        self._started = True
        for name, around in self._neighbours.items():
            port = self._add_port(name, lambda fact: None)
            for peer in around:
                port.sessions[peer] = LocalSink(self, name, peer)
            self._nodes[name] = Broker(port, around, incarnation=time.time_ns(), matcher=self._matcher)
        for name in self.brokers:
            self._nodes[name].start()

    def stop(self) -> None:
        self._started = False
        for port in self._ports.values():
            port.close()
        for node in self._nodes.values():
            node.discard()
        self._queue.clear()
        self._nodes.clear()
        self._ports.clear()

    def status(self, broker: str) -> dict[str, object]:
        node = self._nodes[broker]
        assert isinstance(node, Broker)
        return node.status()

    def attach(self, name: str, broker: str, emit: Callable[[object], None]) -> tuple[Client, AsyncPort]:
        """A client of that name at the broker."""
        if not self._started:
            raise ConnectionFailed("the embedded network is not open: use it inside 'async with'")
        if name in self._nodes:
            raise ConnectionFailed(f"the name {name!r} is taken")
        port = self._add_port(name, emit)
        port.sessions[broker] = LocalSink(self, name, broker)
        self._ports[broker].sessions[name] = LocalSink(self, broker, name)
        client = Client(port, broker, incarnation=self._incarnation(name))
        self._nodes[name] = client
        client.start()
        self._nodes[broker].link_up(name)
        client.link_up(broker)
        return client, port

    def _incarnation(self, name: str) -> int:
        """A name that comes back counts from 1 again, in another life."""
        lives = self._lives[name] = self._lives.get(name, -1) + 1
        return lives

    def detach(self, name: str, broker: str) -> None:
        if self._nodes.pop(name, None) is None:
            return
        self._ports.pop(name).close()
        self._ports[broker].sessions.pop(name, None)
        self._nodes[broker].link_down(name)

    def enqueue(self, sender: str, receiver: str, message: Message) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self.lost += 1
            return
        self._queue.append((sender, receiver, message))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._scheduled = False
        queue, nodes = self._queue, self._nodes
        for _ in range(min(len(queue), MESSAGES_PER_TURN)):
            if not queue:
                return
            sender, receiver, message = queue.popleft()
            node = nodes.get(receiver)
            if node is not None:
                node.receive(sender, message)
        if queue and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _add_port(self, name: str, emit: Callable[[object], None]) -> AsyncPort:
        seed = None if self._seed is None else self._seed + len(self._ports)
        port = AsyncPort(name, on_timer=lambda timer: self._nodes[name].timer(timer), emit=emit, seed=seed)
        self._ports[name] = port
        return port


class LocalConnection:
    """A client's connection within a LocalNetwork; the shape of net.client.ClientConnection."""

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
        self._attached: tuple[Client, AsyncPort] | None = None

    @property
    def client(self) -> Client:
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
            self._attached = None
            self._network.detach(self.name, self.broker)
