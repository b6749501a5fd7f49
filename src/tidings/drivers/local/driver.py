"""Runs nodes in one process: one asyncio loop, one queue for all messages.

The protocol objects are the same as behind sockets; messages are not encoded. They are delivered in batches, so that
busy nodes do not starve everybody else on the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tidings.core.kernel import Node
from tidings.core.messages import Message
from tidings.drivers.port import AsyncPort

MESSAGES_PER_TURN = 1_000
MAX_QUEUED = 1_000_000
"""With so many messages in the queue, further ones are dropped, as on any best-effort link."""


class LocalSink:
    """One direction of a link: it puts messages on the queue."""

    __slots__ = ("_driver", "is_open", "receiver", "sender")

    def __init__(self, driver: LocalDriver, sender: str, receiver: str) -> None:
        self.sender = sender
        self.receiver = receiver
        self.is_open = True
        """Once False, messages in the queue are dropped."""
        self._driver = driver

    def send(self, message: Message) -> None:
        self._driver.enqueue(self, message)


class LocalDriver:
    """Holds the nodes, their ports and the queue. `lossless`: the queue is unbounded, because the nodes limit what they
    send themselves."""

    def __init__(self, *, lossless: bool = False, seed: int | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        self.ports: dict[str, AsyncPort] = {}
        self.lost = 0
        self.enqueued = self.handed_over = 0
        self._lossless = lossless
        self._seed = seed
        self._queue: deque[tuple[LocalSink, Message]] = deque()
        self._scheduled = False

    def add_port(self, name: str, emit: Callable[[object], None]) -> AsyncPort:
        seed = None if self._seed is None else self._seed + len(self.ports)
        port = AsyncPort(name, on_timer=lambda timer: self.nodes[name].timer(timer), emit=emit, seed=seed)
        self.ports[name] = port
        return port

    def join(self, a: str, b: str) -> None:
        """Link two nodes in both directions."""
        for sender, receiver in ((a, b), (b, a)):
            self.ports[sender].sessions[receiver] = LocalSink(self, sender, receiver)

    def remove(self, name: str) -> bool:
        """Remove a node and its links; return False if it is already gone."""
        if self.nodes.pop(name, None) is None:
            return False
        port = self.ports.pop(name)
        for peer in port.sessions.keys() & self.ports.keys():
            self.ports[peer].sessions.pop(name, None)
        port.close()
        return True

    def stop(self) -> None:
        for port in self.ports.values():
            port.close()
        for node in self.nodes.values():
            node.discard()
        self._queue.clear()
        self.nodes.clear()
        self.ports.clear()

    def enqueue(self, sink: LocalSink, message: Message) -> None:
        if len(self._queue) >= MAX_QUEUED and not self._lossless:
            self.lost += 1
            return
        self.enqueued += 1
        self._queue.append((sink, message))
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._scheduled = False
        queue, nodes = self._queue, self.nodes
        for _ in range(min(len(queue), MESSAGES_PER_TURN)):
            if not queue:
                return
            sink, message = queue.popleft()
            self.handed_over += 1
            node = nodes.get(sink.receiver)
            if node is not None and sink.is_open:
                node.receive(sink.sender, message)
        if queue:
            self._schedule()
