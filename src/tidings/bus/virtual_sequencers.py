"""Sequencers and ordering modules in a simulated network: `LocalOrdering` in virtual time.

Each node of the layout shares a broker's machine, and its crashes. The nodes start when somebody first wants an order,
so that a network without one carries none of their heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidings.bus.bus import Bus
from tidings.bus.no_op_publisher import NoOpPublisher
from tidings.core.errors import ConnectionFailed
from tidings.core.kernel import Node
from tidings.core.ordering.layout import Layout, spread
from tidings.core.ordering.module import OrderingClient, OrderingModule
from tidings.core.ordering.replication.node import SequencerNode
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.order_nodes import host_of, is_order_node, order_node

REPLICAS = 3
"""A primary, a standby and a witness, if there are enough brokers."""


def simulated_layout(brokers: tuple[str, ...], topics: tuple[str, ...], *, causal: bool) -> Layout:
    """Return a layout with one server on the first broker's machine and its replicas on the next ones."""
    nodes = [order_node(broker) for broker in brokers[:REPLICAS]]
    return spread({nodes[0]: topics}, nodes, causal=causal)


class SimulatedOrdering:
    """Runs the sequencers and the clients' ordering modules. `make_bus(broker, name)` makes the clients for no-ops."""

    def __init__(
        self, network: SimulatedNetwork, layout: Layout, make_bus: Callable[[str, str], Bus]
    ) -> None:
        self.layout = layout
        self.wanted = False
        self._network = network
        self._make_bus = make_bus
        self._no_ops: dict[str, NoOpPublisher] = {}
        self._no_op_clients = 0
        self._seats: dict[str, str] = {}
        self._started_once: set[str] = set()

    def seat(self, name: str) -> str:
        """Return the broker on whose machine a node of the ordering runs; for any other node, the node itself."""
        return host_of(name) if is_order_node(name) else self._seats.get(name, name)

    def machine(self, broker: str) -> tuple[str, ...]:
        """Return the broker and the sequencer on its machine, if any: a fault of one hits both."""
        beside = order_node(broker)
        return (broker, beside) if beside in self._started_once else (broker,)

    def want(self) -> None:
        if self.wanted:
            return
        self.wanted = True
        nodes = [
            self._network.add(name, self._make_sequencer, self._listener(name), datagrams=True)
            for name in self.layout.nodes
        ]
        for node in nodes:
            self._start(node)

    def _start(self, node: SimulatedNode) -> None:
        broker = self._network.nodes[host_of(node.node)]
        node.start()
        if not broker.up:
            self._network.crash(node.node, keep_state=True)
        elif broker.paused:
            self._network.pause(node.node)

    def _make_sequencer(self, node: SimulatedNode) -> Node:
        first = node.node not in self._started_once or bool(node.disk)
        self._started_once.add(node.node)
        return SequencerNode(node, self.layout, node.open_store(), first=first)

    # --- No-ops

    def _listener(self, name: str) -> Callable[[object], None]:
        def on_fact(fact: object) -> None:
            if isinstance(fact, PublishNoOps):
                if name not in self._no_ops:
                    published = partial(self._no_ops_published, name)
                    self._no_ops[name] = NoOpPublisher(
                        partial(self._no_op_client, name), self.layout, published
                    )
                self._no_ops[name].add(fact)

        return on_fact

    def _no_op_client(self, name: str) -> Bus:
        self._no_op_clients += 1  # every client gets a new name
        return self._make_bus(host_of(name), f"{name}~no-ops-{self._no_op_clients}")

    def _no_ops_published(self, name: str, server: str, number: int) -> None:
        node = self._network.nodes[name]
        if node.up and isinstance(node.protocol, SequencerNode):
            node.protocol.sequencer.no_ops_published(server, number)

    # --- Clients

    def place(self, client: str, broker: str) -> None:
        """Note that the client's ordering module will run on that broker's machine."""
        self._seats[_module_node(client)] = broker

    def attach(self, client: str, emit: Callable[[object], None]) -> OrderingModule:
        name = _module_node(client)
        before = self._network.nodes.get(name)
        if before is not None and before.up:
            raise ConnectionFailed(f"the client name {client!r} is already in use")
        made: list[OrderingModule] = []

        def make(node: SimulatedNode) -> Node:
            protocol = OrderingClient(node, self.layout, incarnation=node.programs)
            made.append(protocol.module)
            return protocol

        if before is None:
            self._network.add(name, make, emit, datagrams=True).start()
        else:
            self._network.replace(name, make, emit)
        return made[0]

    def detach(self, client: str) -> None:
        if self._network.nodes[_module_node(client)].up:
            self._network.crash(_module_node(client), keep_state=False)

    def status(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for name in self.layout.nodes if self.wanted else ():
            node = self._network.nodes[name]
            if not node.up:
                found[name] = "down"
            elif isinstance(node.protocol, SequencerNode):
                found[name] = node.protocol.sequencer.status()
        return found


def _module_node(client: str) -> str:
    return f"{client}~order"
