"""The part of a node that hosts replicas of sequencer servers and dispatches messages to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Node, Part, Port, RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.messages import (
    Between,
    ChainItem,
    ChainTaken,
    ChangeSubscription,
    Create,
    NoState,
    NotActive,
    PublisherAlive,
    PublisherGone,
    Replicate,
    Replicated,
    Ruling,
    StatePart,
    StateTaken,
    StateWanted,
    SubscriberAlive,
)
from tidings.core.ordering.replication.replica import Replica, ReplicaRole, Times
from tidings.core.ordering.replication.witness import WitnessPart
from tidings.core.ordering.routes import Routes
from tidings.core.store import Store

_REPLICA_HANDLERS: dict[type, str] = {
    ChainItem: "on_chain_item",
    ChainTaken: "on_chain_taken",
    Between: "on_between",
    Replicate: "on_replicate",
    Replicated: "on_replicated",
    StateWanted: "on_state_wanted",
    NoState: "on_no_state",
    StatePart: "on_state_part",
    StateTaken: "on_state_taken",
    Ruling: "on_ruling",
}
"""Message between replicas -> its handler."""


class _PortWithSelf:
    """A port that can also send to its own node: it may host replicas of neighbouring servers."""

    def __init__(self, port: Port, deliver: Callable[[str, Message], None]) -> None:
        self._port = port
        self._deliver = deliver
        self._waiting: deque[Message] = deque()
        self.node = port.node
        self.random: RandomSource = port.random
        self.set_timer = port.set_timer
        self.cancel_timer = port.cancel_timer
        self.emit = port.emit

    @property
    def now(self) -> int:
        return self._port.now

    def send(self, to: str, message: Message) -> None:
        if to != self.node:
            self._port.send(to, message)
            return
        self._waiting.append(message)
        self._port.set_timer(("sequencer", "", "self"), self._port.now)

    def sender(self, to: str) -> Send:
        return self._port.sender(to) if to != self.node else lambda message: self.send(to, message)

    def hand_over(self) -> None:
        while self._waiting:
            self._deliver(self.node, self._waiting.popleft())


class Sequencer(Part):
    """All replicas of a node. `first` means that the node never ran before, or has kept its disk."""

    name = "sequencer"
    handles = {
        Create: "on_create",
        ChangeSubscription: "on_change_subscription",
        PublisherAlive: "on_sign_of_life",
        PublisherGone: "on_sign_of_life",
        SubscriberAlive: "on_sign_of_life",
        NotActive: "on_not_active",
        **dict.fromkeys(_REPLICA_HANDLERS, "on_addressed"),
    }

    def __init__(self, port: Port, layout: Layout, store: Store, *, times: Times, first: bool) -> None:
        super().__init__(port)
        self.layout = layout
        self.routes = Routes(layout)
        self._port = _PortWithSelf(port, self._on_message_to_self)
        self.replicas = {
            place.name: Replica(self._port, place.name, layout, store, self.routes, times, first=first)
            for place in layout.servers
            if port.node in (place.primary, place.standby)
        }

    def start(self) -> None:
        for replica in self.replicas.values():
            replica.start()

    def on_timer(self, name: TimerName) -> None:
        _, server, what = name
        if what == "self":
            self._port.hand_over()
        else:
            self.replicas[str(server)].on_timer(str(what))

    def _on_message_to_self(self, sender: str, message: Message) -> None:
        method = self.handles.get(message.__class__)
        if method is not None:
            getattr(self, method)(sender, message)

    def on_create(self, sender: str, message: Create) -> None:
        if message.topic < self.layout.chain.topics:
            self._to_replica(sender, self.layout.chain.server_of(message.topic), message)
        else:
            self._reject(sender, f"requests numbers of topic {message.topic}, which does not exist")

    def on_change_subscription(self, sender: str, message: ChangeSubscription) -> None:
        lowest = max((*message.topics, *message.ghosts), default=self.layout.chain.topics)
        if lowest < self.layout.chain.topics:
            self._to_replica(sender, self.layout.chain.server_of(lowest), message)
        else:
            self._reject(sender, f"subscribes to topic {lowest}, which does not exist")

    def on_sign_of_life(self, sender: str, message: PublisherAlive | PublisherGone | SubscriberAlive) -> None:
        self._to_replica(sender, message.server, message)

    def on_not_active(self, sender: str, message: NotActive) -> None:
        if message.active and self.routes.is_replica(message.server, sender):
            self.routes.speaks(message.server, message.active)

    def on_addressed(self, sender: str, message: Message) -> None:
        server: str = message.server  # type: ignore[union-attr]
        replica = self.replicas.get(server)
        if replica is None:
            self._reject(sender, f"sends to sequencer server {server}, which is not on this node")
        else:
            getattr(replica, _REPLICA_HANDLERS[message.__class__])(sender, message)

    def _to_replica(
        self,
        sender: str,
        server: str,
        message: Create | ChangeSubscription | PublisherAlive | PublisherGone | SubscriberAlive,
    ) -> None:
        replica = self.replicas.get(server)
        if replica is None:
            self._reject(sender, f"sends to sequencer server {server}, which is not on this node")
        else:
            replica.on_client(sender, message)

    def _reject(self, sender: str, what: str) -> None:
        self.port.emit(Misbehaviour(sender, what))

    def no_ops_published(self, server: str, number: int) -> None:
        self.replicas[server].no_ops_published(number)

    @property
    def ready(self) -> bool:
        """True if every server of this node has an active replica, as far as this node knows."""
        return all(
            replica.role in (ReplicaRole.ACTIVE, ReplicaRole.STANDBY) for replica in self.replicas.values()
        )

    def status(self) -> dict[str, object]:
        return {server: replica.status() for server, replica in self.replicas.items()}


class SequencerNode(Node):
    """A sequencer node: its replicas, and the witness of other servers."""

    def __init__(
        self, port: Port, layout: Layout, store: Store, *, times: Times | None = None, first: bool
    ) -> None:
        self.sequencer = Sequencer(port, layout, store, times=times or Times(), first=first)
        self.witness = WitnessPart(port, layout, store)
        super().__init__((self.sequencer, self.witness))
