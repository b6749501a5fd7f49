"""Composes a simulated client's node: its session with a broker, its application and, with an order, its module."""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.client.application import Application
from tidings.core.client.group_member import GroupMember
from tidings.core.client.reliable_session import ReliableClient
from tidings.core.client.session import BestEffortClient, ClientSession
from tidings.core.client.share_holder import ShareHolder
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
"""An ordering module uses one for each publisher and subscriber that it makes."""


def make_client(
    node: SimulatedNode, at: str, incarnation: int, *, reliable: bool
) -> BestEffortClient | ReliableClient:
    """Return a client whose application acknowledges events itself."""
    if not reliable:
        return BestEffortClient(node, at, incarnation=incarnation)
    resume_points = node.disk.setdefault("resume_points", {})
    return ReliableClient(node, at, incarnation=incarnation, acknowledges=False, resume_points=resume_points)


_OF_PUBLISHER = (PublicationConfirmed, PublicationFailed, PublicationNumbered, PublicationSent)


class WatchedNode(Node):
    """Composes the parts of one incarnation; calls `on_connection` when it is connected, `on_discard` when it ends."""

    def __init__(
        self, parts: tuple[Part, ...], on_connection: Callable[[], None], on_discard: Callable[[], None]
    ) -> None:
        super().__init__(parts)
        self._on_connection = on_connection
        self._on_discard = on_discard

    def link_up(self, peer: str) -> None:
        self._on_connection()
        super().link_up(peer)

    def discard(self) -> None:
        self._on_discard()


class SimulatedClient:
    """Connects a publisher, a subscriber, or both under one name, to the network.

    It calls `on_start` in each incarnation, once its parts exist, and `on_crash` before they are discarded.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        name: str,
        at: str,
        *,
        reliable: bool,
        publishes: bool,
        holds_shares: bool = False,
        layout: Layout | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.schedule = network.schedule
        self.session: ClientSession
        self.application: Application
        self.module: OrderingModule | None = None
        self.shares: ShareHolder | GroupMember | None = None
        """With `holds_shares`: the part for durable subscriptions and groups."""
        self.lives = 0
        self.connections = 0
        """How many connections to its broker it has had."""
        self.publisher: Emit | None = None
        """Gets the facts about publications; all facts if there is no subscriber."""
        self.subscriber: Emit | None = None
        self.on_start: list[Callable[[], None]] = []
        self.on_crash: list[Callable[[], None]] = []
        self._at = at
        self.reliable = reliable
        self._publishes = publishes
        self._holds_shares = holds_shares
        self._layout = layout
        self._patience = patience
        self.node = network.add(name, self._make)
        network.attach(name, at)

    @property
    def resumes(self) -> bool:
        """True if an ordered subscription resumes after a crash."""
        return self.reliable and self._layout is not None and self._patience is None

    def _make(self, node: SimulatedNode) -> Node:
        # A restarted publisher has forgotten its last sequence and must not reuse sequences, whether its disk is kept
        # or lost. So each incarnation has its own number; a real publisher takes its start time.
        incarnation = self.lives if self._publishes or self._layout is not None else 0
        client = make_client(node, self._at, incarnation, reliable=self.reliable)
        self.session = client.session
        self.application = Application(self.session, self._emit(), confirms=self.reliable, lingers=True)
        node.emit = self.application.on_fact
        parts: tuple[Part, ...] = (self.session,)
        if self._layout is not None:
            self.session.takes_runs = True
            self.module = OrderingModule(node, self._layout, incarnation=self.lives * IDENTITIES_PER_LIFE)
            self.application.add_order(self.module, patience=self._patience)
            parts = (self.session, self.module)
        if self._holds_shares:
            self.shares = client.shares
            if isinstance(self.shares, ShareHolder):
                parts = (*parts, self.shares)
        self.lives += 1
        for on_start in self.on_start:
            on_start()
        return WatchedNode(parts, self._connected, self._crashed)

    def _connected(self) -> None:
        self.connections += 1

    def _emit(self) -> Emit:
        if self.publisher is not None and self.subscriber is not None:
            return self._tell_both
        alone = self.publisher or self.subscriber
        assert alone is not None, "a client has a publisher or a subscriber"
        return alone

    def _tell_both(self, fact: object) -> None:
        assert self.publisher is not None and self.subscriber is not None
        if isinstance(fact, _OF_PUBLISHER):
            self.publisher(fact)
        else:
            self.subscriber(fact)

    def _crashed(self) -> None:
        for on_crash in self.on_crash:
            on_crash()
