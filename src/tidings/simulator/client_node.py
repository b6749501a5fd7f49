"""The node of a client: its session with a broker and, where a scenario has an order, its ordering module."""

from __future__ import annotations

from collections.abc import Callable

from tidings.model.subscription import Subscription
from tidings.protocol.application.application import Application
from tidings.protocol.client import Client, Session
from tidings.protocol.facts import (
    PublicationConfirmed,
    PublicationFailed,
    PublicationNumbered,
    PublicationSent,
)
from tidings.protocol.kernel import Node, Part
from tidings.protocol.reliable_client import ReliableClient
from tidings.protocol.sequencing.client import OrderingModule
from tidings.protocol.sequencing.layout import Layout
from tidings.protocol.sequencing.subscriber import Patience
from tidings.simulator.network import SimulatedNetwork
from tidings.simulator.node import Emit, SimulatedNode

IDENTITIES_PER_LIFE = 2**32
"""An ordering module takes one for each publisher and subscriber that it makes."""


def make_client(
    node: SimulatedNode, at: str, incarnation: int, *, reliable: bool, acknowledges: bool = True
) -> Client | ReliableClient:
    if not reliable:
        return Client(node, at, incarnation=incarnation)
    marks = node.disk.setdefault("marks", {})
    return ReliableClient(node, at, incarnation=incarnation, acknowledges=acknowledges, marks=marks)


class WatchedNode(Node):
    """Parts composed for one life; `on_discard` is told when it ends."""

    def __init__(self, parts: tuple[Part, ...], on_discard: Callable[[], None]) -> None:
        super().__init__(parts)
        self._on_discard = on_discard

    def discard(self) -> None:
        self._on_discard()


class SimulatedClient:
    """What a publisher, a subscriber, or both under one name, have in the network. With an order, their `application`
    is between them and their session. `on_start` and `on_crash` are told of each life of the node, once its parts are
    there and before they are gone."""

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
        patience: Patience | None = None,
    ) -> None:
        self.session: Session
        self.application: Application
        self.lives = 0
        self.on_start: list[Callable[[], None]] = []
        self.on_crash: list[Callable[[], None]] = []
        self._at = at
        self._reliable = reliable
        self._publishes = publishes
        self._layout = layout
        self._patience = patience
        self._emit = emit
        self.node = network.add(name, self._make, emit if layout is None else self._on_fact)
        network.attach(name, at)

    def _make(self, node: SimulatedNode) -> Node:
        # A publisher that crashed and forgot how far it had counted must not count there again, whether its
        # disk is kept or lost: a real one takes the time of its start.
        incarnation = self.lives if self._publishes or self._layout is not None else 0
        acknowledges = self._layout is None
        made: Node
        made = client = make_client(
            node, self._at, incarnation, reliable=self._reliable, acknowledges=acknowledges
        )
        self.session = client.session
        if self._layout is not None:
            made = WatchedNode((self.session, self._make_application(node, self._layout)), self._crashed)
        self.lives += 1
        for told in self.on_start:
            told()
        return made

    def _make_application(self, node: SimulatedNode, layout: Layout) -> OrderingModule:
        module = OrderingModule(node, layout, incarnation=self.lives * IDENTITIES_PER_LIFE)
        self.application = Application(self.session, self._emit, confirms=self._reliable)
        self.application.add_order(module, patience=self._patience)
        return module

    def _on_fact(self, fact: object) -> None:
        self.application.on_fact(fact)

    def subscribe(self, subscription: Subscription) -> None:
        if self._layout is None:
            self.session.subscribe(subscription)
        else:
            self.application.start(subscription)

    def unsubscribe(self, subscription_id: str) -> None:
        if self._layout is None:
            self.session.unsubscribe(subscription_id)
        else:
            self.application.end(subscription_id)

    def _crashed(self) -> None:
        for told in self.on_crash:
            told()


class SharedFacts:
    """Where a client is both: its publisher hears of publications, its subscriber of everything else."""

    def __init__(self) -> None:
        self.publisher: Emit
        self.subscriber: Emit

    def __call__(self, fact: object) -> None:
        if isinstance(fact, PublicationConfirmed | PublicationFailed | PublicationNumbered | PublicationSent):
            self.publisher(fact)
        else:
            self.subscriber(fact)
