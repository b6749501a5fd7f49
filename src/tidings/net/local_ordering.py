"""Sequencers and ordering modules inside one process, on one asyncio loop: what LocalNetwork is for brokers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from tidings.model.errors import ConnectionFailed
from tidings.model.messages import Message
from tidings.net.port import AsyncPort
from tidings.protocol.kernel import Node
from tidings.protocol.sequencing.client import OrderingClient, OrderingModule
from tidings.protocol.sequencing.layout import Layout
from tidings.protocol.sequencing.machine import PublishNoOps
from tidings.protocol.sequencing.node import SequencerNode
from tidings.protocol.store import MemoryStore

MESSAGES_PER_TURN = 1_000
MAX_QUEUED = 1_000_000
"""Beyond, messages are lost, as datagrams are; whoever waits for an answer asks again."""


class _Sink:
    """What one node says to another, on the queue."""

    __slots__ = ("_ordering", "_receiver", "_sender")

    def __init__(self, ordering: LocalOrdering, sender: str, receiver: str) -> None:
        self._ordering = ordering
        self._sender = sender
        self._receiver = receiver

    def send(self, message: Message) -> None:
        self._ordering.enqueue(self._sender, self._receiver, message)


class LocalOrdering:
    """`on_no_ops` is told what is to be published for publishers that are gone."""

    def __init__(self, layout: Layout, on_no_ops: Callable[[PublishNoOps], None]) -> None:
        self.layout = layout
        self.wanted = False
        """Somebody wants an order. Until then events need no timestamps."""
        self._on_no_ops = on_no_ops
        self._nodes: dict[str, Node] = {}
        self._ports: dict[str, AsyncPort] = {}
        self._queue: deque[tuple[str, str, Message]] = deque()
        self._scheduled = False

    def start(self) -> None:
        for name in self.layout.nodes:
            port = self._add_port(name, self._on_fact)
            self._nodes[name] = SequencerNode(port, self.layout, MemoryStore(), first=True)
        for name in self.layout.nodes:
            for other in self.layout.nodes:
                self._ports[name].sessions[other] = _Sink(self, name, other)
        for name in self.layout.nodes:
            self._nodes[name].start()

    def stop(self) -> None:
        for port in self._ports.values():
            port.close()
        self._nodes.clear()
        self._ports.clear()
        self._queue.clear()

    def want(self) -> None:
        self.wanted = True

    def attach(self, client: str, emit: Callable[[object], None]) -> OrderingModule:
        """The ordering module of a client of that name."""
        if not self._nodes:
            raise ConnectionFailed("the embedded network is not open: use it inside 'async with'")
        if client in self._nodes:
            raise ConnectionFailed(f"the name {client!r} is taken")
        port = self._add_port(client, emit)
        for node in self.layout.nodes:
            port.sessions[node] = _Sink(self, client, node)
            self._ports[node].sessions[client] = _Sink(self, node, client)
        made = self._nodes[client] = OrderingClient(port, self.layout, incarnation=time.time_ns())
        made.start()
        return made.module

    def detach(self, client: str) -> None:
        port = self._ports.pop(client, None)
        self._nodes.pop(client, None)
        if port is not None:
            port.close()
            for node in self.layout.nodes:
                if node in self._ports:
                    self._ports[node].sessions.pop(client, None)

    def sequencer(self, name: str) -> SequencerNode:
        node = self._nodes[name]
        assert isinstance(node, SequencerNode)
        return node

    def status(self) -> dict[str, object]:
        return {
            name: self.sequencer(name).sequencer.status() for name in self.layout.nodes if name in self._nodes
        }

    def _on_fact(self, fact: object) -> None:
        if isinstance(fact, PublishNoOps):
            self._on_no_ops(fact)

    def _add_port(self, name: str, emit: Callable[[object], None]) -> AsyncPort:
        port = AsyncPort(name, on_timer=lambda timer: self._nodes[name].timer(timer), emit=emit)
        self._ports[name] = port
        return port

    def enqueue(self, sender: str, receiver: str, message: Message) -> None:
        if len(self._queue) < MAX_QUEUED:
            self._queue.append((sender, receiver, message))
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._scheduled = False
        for _ in range(min(len(self._queue), MESSAGES_PER_TURN)):
            if not self._queue:
                return
            sender, receiver, message = self._queue.popleft()
            node = self._nodes.get(receiver)
            if node is not None:
                node.receive(sender, message)
        if self._queue and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_over)
