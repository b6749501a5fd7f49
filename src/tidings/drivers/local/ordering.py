"""Sequencers and ordering modules in one process, on one asyncio loop; `LocalNetwork` does the same for brokers."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations_with_replacement

from tidings.core.errors import ConnectionFailed
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.module import OrderingClient, OrderingModule
from tidings.core.ordering.replication.node import SequencerNode
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.core.store import MemoryStore
from tidings.drivers.local.driver import LocalDriver


class LocalOrdering:
    """Runs the sequencers of a layout. `on_no_ops` gets the no-ops to publish for publishers that are gone."""

    def __init__(self, layout: Layout, on_no_ops: Callable[[PublishNoOps], None]) -> None:
        self.layout = layout
        self.wanted = False
        """True once somebody wants an order; until then events need no timestamps."""
        self._on_no_ops = on_no_ops
        self._driver = LocalDriver()
        self._nodes = self._driver.nodes

    def start(self) -> None:
        for name in self.layout.nodes:
            port = self._driver.add_port(name, self._on_fact)
            self._nodes[name] = SequencerNode(port, self.layout, MemoryStore(), first=True)
        for name, other in combinations_with_replacement(self.layout.nodes, 2):
            self._driver.join(name, other)
        for name in self.layout.nodes:
            self._nodes[name].start()

    def stop(self) -> None:
        self._driver.stop()

    def want(self) -> None:
        self.wanted = True

    def attach(self, client: str, emit: Callable[[object], None]) -> OrderingModule:
        """Return the ordering module for a client of that name."""
        if not self._nodes:
            raise ConnectionFailed("the embedded network is not open: use it inside 'async with'")
        if client in self._nodes:
            raise ConnectionFailed(f"the client name {client!r} is already in use")
        port = self._driver.add_port(client, emit)
        for node in self.layout.nodes:
            self._driver.join(client, node)
        made = self._nodes[client] = OrderingClient(port, self.layout, incarnation=time.time_ns())
        made.start()
        return made.module

    def detach(self, client: str) -> None:
        self._driver.remove(client)

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
