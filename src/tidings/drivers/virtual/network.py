"""A virtual network: nodes, the links between them, and the faults of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from tidings.core.kernel import Node
from tidings.drivers.virtual.link import VirtualLink
from tidings.drivers.virtual.node import Emit, SimulatedNode
from tidings.drivers.virtual.schedule import Schedule
from tidings.drivers.virtual.streams import Connections, StreamLink
from tidings.scenarios.file.links import LinkSpec


def ignore(fact: object) -> None:
    """Ignore a fact: for nodes whose facts nobody wants."""


class SimulatedNetwork:
    """A network whose runs `seed` determines. `spec_between(a, b)` returns the properties of the link from a to b.

    With `streams`, messages travel only over connections (drivers/virtual/streams.py). Nodes ask for them; those
    between clients and their brokers exist whenever possible. Without `streams`, messages are datagrams. So are, in any
    case, messages from and to nodes added with `datagrams`, except between a client and its broker.
    """

    def __init__(
        self, seed: int, spec_between: Callable[[str, str], LinkSpec], *, streams: bool = False
    ) -> None:
        self.seed = seed
        self.schedule = Schedule()
        self.nodes: dict[str, SimulatedNode] = {}
        self.links: dict[tuple[str, str], VirtualLink] = {}
        self._spec_between = spec_between
        self._attached: dict[str, list[str]] = {}
        self._broker_of: dict[str, str] = {}
        self._loss_rates: list[float] = []
        self._severed: list[Callable[[str, str], bool]] = []
        self._slowness: dict[str, list[float]] = {}
        self._crashes: dict[str, int] = {}
        self._pauses: dict[str, int] = {}
        self._datagrams: set[str] = set()
        self._started = False
        self.connections = Connections(seed, self.schedule, self.nodes, self.link) if streams else None

    def add(
        self,
        name: str,
        make: Callable[[SimulatedNode], Node],
        emit: Emit = ignore,
        *,
        datagrams: bool = False,
    ) -> SimulatedNode:
        """Add a node without starting it."""
        if name in self.nodes:
            raise ValueError(f"there is already a node named {name!r}")
        if datagrams:
            self._datagrams.add(name)
        random = Random(f"{self.seed}:node:{name}")
        on_start = None
        if self.connections is not None:
            emit, on_start = self.connections.listening(name, emit), self._on_start
        node = SimulatedNode(name, self.schedule, random, make, emit, self.link, on_start)
        self.nodes[name] = node
        return node

    def attach(self, client: str, broker: str) -> None:
        """Connect a client to its broker: both are told when the connection comes and goes."""
        self._attached.setdefault(broker, []).append(client)
        self._broker_of[client] = broker
        if self.connections is not None:
            self.connections.attach(client, broker)

    def move(self, client: str, broker: str, moved: Callable[[], None]) -> None:
        """Connect a client to another broker; `moved` tells it, while it has no connection."""
        assert self.connections is not None, "only with streams"
        before = self._broker_of[client]
        self.connections.disconnect(before, client)
        self._attached[before].remove(client)
        moved()
        self.attach(client, broker)
        self._settle(client, broker)

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        self._started = True
        if self.connections is not None:
            for pair in self._broker_of.items():
                self._settle(*pair)

    def _on_start(self, name: str) -> None:
        """Connect a node that joins the running network; `restart` does it for nodes that restart."""
        if self._started and name not in self._crashes:
            for pair in self._connections(name):
                self._settle(*pair)

    def run(self, until: int) -> None:
        self.schedule.run(until)

    def link(self, source: str, target: str) -> VirtualLink:
        """Return the link in that direction, made on first use."""
        link = self.links.get((source, target))
        if link is None:
            spec = self._spec_between(source, target)
            random = Random(f"{self.seed}:link:{source}>{target}")
            make = StreamLink if self._is_stream(source, target) else VirtualLink
            link = make(self.schedule, source, target, self.nodes[target].handlers, spec, random)
            self.links[source, target] = link
            self._refresh(link)
        return link

    def _is_stream(self, source: str, target: str) -> bool:
        if self.connections is None:
            return False
        datagrams = source in self._datagrams or target in self._datagrams
        return not datagrams or self._is_connection(source, target)

    # --- Faults, each with what ends it

    def crash(self, name: str, *, keep_state: bool) -> None:
        """Crash a node. Faults may overlap: it stays down until there were as many restarts as crashes."""
        self._crashes[name] = self._crashes.get(name, 0) + 1
        node = self.nodes[name]
        if node.up:
            node.crash(keep_state=keep_state)
            if self.connections is not None:
                self.connections.crash(name)
            self._connection_lost(name)

    def restart(self, name: str) -> None:
        self._crashes[name] -= 1
        node = self.nodes[name]
        if not self._crashes[name]:
            node.start()
            if self._pauses.get(name):
                node.pause()
            for client, broker in self._connections(name):
                if self._can_connect(client, broker):
                    self._tell_connection(client, broker, up=True)

    def has_client(self, name: str) -> bool:
        """Return whether the name is a client's, who may be down."""
        return name in self._broker_of

    def replace(
        self,
        name: str,
        make: Callable[[SimulatedNode], Node],
        emit: Emit = ignore,
        *,
        broker: str | None = None,
    ) -> None:
        """Start another program under the name of a node that is down; of a client, at this broker."""
        emit = emit if self.connections is None else self.connections.listening(name, emit)
        self.nodes[name].replace(make, emit)
        if broker is not None:
            self._attached[self._broker_of[name]].remove(name)
            self.attach(name, broker)
        self.restart(name)

    def pause(self, name: str) -> None:
        self._pauses[name] = self._pauses.get(name, 0) + 1
        self.nodes[name].pause()

    def resume(self, name: str) -> None:
        self._pauses[name] -= 1
        if not self._pauses[name]:
            self.nodes[name].resume()

    def sever(self, severed: Callable[[str, str], bool]) -> None:
        """Let no message pass from a to b if `severed(a, b)`, until `mend`."""
        self._change_links(lambda: self._severed.append(severed))

    def mend(self, severed: Callable[[str, str], bool]) -> None:
        self._change_links(lambda: self._severed.remove(severed))

    def lose(self, rate: float) -> None:
        """Let every link lose that share of its messages, besides its own losses, except between a client and its
        broker."""
        self._change_links(lambda: self._loss_rates.append(rate))

    def stop_losing(self, rate: float) -> None:
        self._change_links(lambda: self._loss_rates.remove(rate))

    def slow(self, name: str, factor: float) -> None:
        """Let everything to and from the node take `factor` times as long."""
        self._change_links(lambda: self._slowness.setdefault(name, []).append(factor))

    def stop_slowing(self, name: str, factor: float) -> None:
        self._change_links(lambda: self._slowness[name].remove(factor))

    def _change_links(self, change: Callable[[], object]) -> None:
        connected = {pair: self._connected(*pair) for pair in self._broker_of.items()}
        change()
        for link in self.links.values():
            self._refresh(link)
        for (client, broker), was_connected in connected.items():
            if was_connected != self._connected(client, broker):
                self._tell_connection(client, broker, up=not was_connected)

    def _refresh(self, link: VirtualLink) -> None:
        link.cuts = sum(severed(link.source, link.target) for severed in self._severed)
        local = self._seat(link.source) == self._seat(link.target)
        link.extra_loss = () if local else tuple(self._loss_rates)
        link.slowness = 1.0
        for name in (link.source, link.target):
            for factor in self._slowness.get(name, ()):
                link.slowness *= factor
        link.refresh()

    # --- Connections of clients

    def _seat(self, name: str) -> str:
        return self._broker_of.get(name, name)

    def _is_connection(self, a: str, b: str) -> bool:
        return self._broker_of.get(a) == b or self._broker_of.get(b) == a

    def _connected(self, client: str, broker: str) -> bool:
        return not any(severed(client, broker) or severed(broker, client) for severed in self._severed)

    def _connections(self, name: str) -> Iterable[tuple[str, str]]:
        if name in self._broker_of:
            yield name, self._broker_of[name]
        for client in self._attached.get(name, ()):
            yield client, name

    def _connection_lost(self, name: str) -> None:
        for client, broker in self._connections(name):
            self._tell_connection(client, broker, up=False)

    def _can_connect(self, client: str, broker: str) -> bool:
        return self.nodes[client].up and self.nodes[broker].up and self._connected(client, broker)

    def _settle(self, client: str, broker: str) -> None:
        """With streams: open or end the connection of the two according to whether they can connect."""
        assert self.connections is not None
        if not self._can_connect(client, broker):
            self.connections.disconnect(broker, client)
        elif not self.connections.connected(client, broker):
            self.connections.open(broker, client)

    def _tell_connection(self, client: str, broker: str, *, up: bool) -> None:
        if self.connections is not None:
            self._settle(client, broker)
            return
        self.nodes[broker].connection(client, up)
        self.nodes[client].connection(broker, up)
