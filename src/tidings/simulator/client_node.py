"""The node of a client: its session with a broker and, where a scenario has an order, its ordering module."""

from __future__ import annotations

from collections.abc import Callable

from tidings.protocol.client import Client, Session
from tidings.protocol.facts import PublicationConfirmed, PublicationFailed
from tidings.protocol.kernel import Node, Part
from tidings.protocol.reliable_client import ReliableClient
from tidings.protocol.sequencing.client import OrderingModule, PublishNow
from tidings.protocol.sequencing.layout import Layout
from tidings.simulator.network import SimulatedNetwork
from tidings.simulator.node import Emit, SimulatedNode

IDENTITIES_PER_LIFE = 2**32
"""An ordering module takes one for each publisher and subscriber that it makes."""


def make_client(node: SimulatedNode, at: str, incarnation: int, *, reliable: bool) -> Client | ReliableClient:
    if not reliable:
        return Client(node, at, incarnation=incarnation)
    return ReliableClient(node, at, incarnation=incarnation, marks=node.disk.setdefault("marks", {}))


class WatchedNode(Node):
    """Parts composed for one life; `on_discard` is told when it ends."""

    def __init__(self, parts: tuple[Part, ...], on_discard: Callable[[], None]) -> None:
        super().__init__(parts)
        self._on_discard = on_discard

    def discard(self) -> None:
        self._on_discard()


class SimulatedClient:
    """What a publisher, a subscriber, or both under one name, have in the network. `on_start` and `on_crash` are told
    of each life of the node, once its parts are there and before they are gone."""

    def __init__(
        self,
        network: SimulatedNetwork,
        name: str,
        at: str,
        emit: Emit,
        *,
        reliable: bool,
        publishes: bool,
        layout: Layout | None = None,
    ) -> None:
        self.session: Session
        self.module: OrderingModule
        self.on_start: list[Callable[[], None]] = []
        self.on_crash: list[Callable[[], None]] = []
        self._at = at
        self._reliable = reliable
        self._publishes = publishes
        self._layout = layout
        self._lives = 0
        self.node = network.add(name, self._make, emit)
        network.attach(name, at)

    def _make(self, node: SimulatedNode) -> Node:
        # A publisher that crashed and forgot how far it had counted must not count there again, whether its
        # disk is kept or lost: a real one takes the time of its start.
        incarnation = self._lives if self._publishes else 0
        made: Node
        made = client = make_client(node, self._at, incarnation, reliable=self._reliable)
        self.session = client.session
        if self._layout is not None:
            self.module = OrderingModule(node, self._layout, incarnation=self._lives * IDENTITIES_PER_LIFE)
            made = WatchedNode((self.session, self.module), self._crashed)
        self._lives += 1
        for told in self.on_start:
            told()
        return made

    def _crashed(self) -> None:
        for told in self.on_crash:
            told()


class SharedFacts:
    """Where a client is both: its publisher hears of publications, its subscriber of everything else."""

    def __init__(self) -> None:
        self.publisher: Emit
        self.subscriber: Emit

    def __call__(self, fact: object) -> None:
        if isinstance(fact, PublicationConfirmed | PublicationFailed | PublishNow):
            self.publisher(fact)
        else:
            self.subscriber(fact)
