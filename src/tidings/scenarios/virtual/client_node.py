"""The node of a client: its session with a broker, the application's client and, with an order, its ordering module."""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.client.application import Application
from tidings.core.client.reliable_session import ReliableClient
from tidings.core.client.session import BestEffortClient, ClientSession
from tidings.core.facts import (
    PublicationConfirmed,
    PublicationFailed,
    PublicationNumbered,
    PublicationSent,
)
from tidings.core.kernel import Node, Part
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.module import OrderingModule
from tidings.core.ordering.subscriber import Patience
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import Emit, SimulatedNode

IDENTITIES_PER_LIFE = 2**32
"""An ordering module takes one for each publisher and subscriber that it makes."""


def make_client(
    node: SimulatedNode, at: str, incarnation: int, *, reliable: bool
) -> BestEffortClient | ReliableClient:
    """Its application says what it is done with."""
    if not reliable:
        return BestEffortClient(node, at, incarnation=incarnation)
    resume_points = node.disk.setdefault("resume_points", {})
    return ReliableClient(node, at, incarnation=incarnation, acknowledges=False, resume_points=resume_points)


_OF_PUBLISHER = (PublicationConfirmed, PublicationFailed, PublicationNumbered, PublicationSent)


class WatchedNode(Node):
    """Parts composed for one life; `on_discard` is told when it ends."""

    def __init__(self, parts: tuple[Part, ...], on_discard: Callable[[], None]) -> None:
        super().__init__(parts)
        self._on_discard = on_discard

    def discard(self) -> None:
        self._on_discard()


class SimulatedClient:
    """What a publisher, a subscriber, or both under one name, have in the network.

    `on_start` is told of each life of the node, once its parts are there; `on_crash` before they are gone.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        name: str,
        at: str,
        *,
        reliable: bool,
        publishes: bool,
        layout: Layout | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.schedule = network.schedule
        self.session: ClientSession
        self.application: Application
        self.module: OrderingModule | None = None
        self.lives = 0
        self.publisher: Emit | None = None
        """It hears of publications; if it is alone, of everything."""
        self.subscriber: Emit | None = None
        self.on_start: list[Callable[[], None]] = []
        self.on_crash: list[Callable[[], None]] = []
        self._at = at
        self.reliable = reliable
        self._publishes = publishes
        self._layout = layout
        self._patience = patience
        self.node = network.add(name, self._make)
        network.attach(name, at)

    @property
    def resumes(self) -> bool:
        """An ordered subscription goes on after a crash."""
        return self.reliable and self._layout is not None and self._patience is None

    def _make(self, node: SimulatedNode) -> Node:
        # A publisher that crashed and forgot how far it had counted must not count there again, whether its
        # disk is kept or lost: a real one takes the time of its start.
        incarnation = self.lives if self._publishes or self._layout is not None else 0
        self.session = make_client(node, self._at, incarnation, reliable=self.reliable).session
        self.application = Application(self.session, self._emit(), confirms=self.reliable, lingers=True)
        node.emit = self.application.on_fact
        parts: tuple[Part, ...] = (self.session,)
        if self._layout is not None:
            self.session.takes_runs = True
            self.module = OrderingModule(node, self._layout, incarnation=self.lives * IDENTITIES_PER_LIFE)
            self.application.add_order(self.module, patience=self._patience)
            parts = (self.session, self.module)
        self.lives += 1
        for told in self.on_start:
            told()
        return WatchedNode(parts, self._crashed)

    def _emit(self) -> Emit:
        if self.publisher is not None and self.subscriber is not None:
            return self._tell_both
        alone = self.publisher or self.subscriber
        assert alone is not None, "it is somebody's"
        return alone

    def _tell_both(self, fact: object) -> None:
        assert self.publisher is not None and self.subscriber is not None
        if isinstance(fact, _OF_PUBLISHER):
            self.publisher(fact)
        else:
            self.subscriber(fact)

    def _crashed(self) -> None:
        for told in self.on_crash:
            told()
