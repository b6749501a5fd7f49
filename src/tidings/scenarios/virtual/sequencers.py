"""Runs a simulated run's sequencers: one node beside each broker that has a replica or a witness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tidings.core.client.session import ClientSession
from tidings.core.facts import Misbehaviour, PublicationConfirmed, PublicationFailed
from tidings.core.kernel import Node
from tidings.core.ordering.layout import ServerPlacement
from tidings.core.ordering.no_ops import NoOpOutbox
from tidings.core.ordering.replication.node import Sequencer, SequencerNode
from tidings.core.ordering.replication.replica import Replica, ReplicaRole, RoleChanged
from tidings.core.ordering.replication.witness import WitnessPart
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.core.ordering.server.server import SequencerServer
from tidings.core.ordering.subscriber import OrderedSubscriber
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.file.order_nodes import order_node
from tidings.scenarios.file.ordering import PlannedOrdering
from tidings.scenarios.summary import ordering_summary, status_of
from tidings.scenarios.virtual.client_node import make_client

MAX_NOTED = 100
"""Reports of misbehaviour that are kept."""


class RunOrdering:
    """Holds the ordering of one run: its layout, its nodes and its counts."""

    def __init__(self, network: SimulatedNetwork, planned: PlannedOrdering, *, reliable: bool) -> None:
        self.layout = planned.layout()
        self.patience = planned.patience
        self.broken: list[str] = []
        """Subscriptions that ended with an order error, and why."""
        self.not_resumed: list[str] = []
        """Subscriptions that began anew after a crash."""
        self.misbehaviour: list[str] = []
        self.lost_alone: set[str] = set()
        """Servers that lost their disk while no standby was in step: their state may be gone."""
        self._stamped = self._entries = 0
        self._no_ops: dict[str, dict[int, int]] = {}
        """Server -> number -> count of no-ops. A replica that takes over repeats them, so they are kept by number."""
        self._changes_of_role = 0
        self.nodes = [
            SimulatedSequencer(network, broker, self, reliable=reliable) for broker in planned.brokers
        ]

    def stamped(self, entries: int) -> None:
        self._stamped += 1
        self._entries += entries

    def no_ops(self, fact: PublishNoOps) -> None:
        self._no_ops.setdefault(fact.server, {})[fact.number] = fact.count

    def disk_lost(self, name: str) -> None:
        """Note the servers lost with the node's disk: those without a standby, and those that run there alone
        according to their witness."""
        witnesses = {node.name: node.witness for node in self.nodes}
        for place in self.layout.servers:
            if place.standby:
                is_alone = witnesses[place.witness].alone(place.name) == name
            else:
                is_alone = place.primary == name
            if is_alone:
                self.lost_alone.add(place.name)

    def role_changed(self) -> None:
        self._changes_of_role += 1

    def complain(self, node: str, fact: Misbehaviour) -> None:
        if len(self.misbehaviour) < MAX_NOTED:
            self.misbehaviour.append(f"{node}: {fact.peer}: {fact.what}")

    def summary(self) -> dict[str, Any]:
        servers = {place.name: self._server_summary(place) for place in self.layout.servers}
        return ordering_summary(
            self.layout, self._stamped, self._entries, self._changes_of_role, self.broken, servers
        )

    @property
    def alone(self) -> list[str]:
        """Servers that run without their standby."""
        return [
            place.name
            for place in self.layout.servers
            if place.standby
            and any(
                replica.role is ReplicaRole.ACTIVE and replica.alone
                for replica in self._replicas(place).values()
            )
        ]

    def mistaken(self, subscriber: OrderedSubscriber) -> Iterator[str]:
        """Yield a message for each server that knows the subscriber with other topics than it has."""
        for place in self.layout.servers:
            server = self._active_server(place)
            known = frozenset[int]() if server is None else server.topics_of(subscriber.identity)
            if known and known != {*subscriber.wanted}:
                topics = ", ".join(map(self.layout.entry, sorted(known)))
                yield f"server {place.name} believes that {subscriber.identity[0]} has {topics}"

    def _replicas(self, place: ServerPlacement) -> dict[str, Replica]:
        return {
            node.name: node.sequencer.replicas[place.name]
            for node in self.nodes
            if place.name in node.sequencer.replicas
        }

    def _active_server(self, place: ServerPlacement) -> SequencerServer | None:
        for replica in self._replicas(place).values():
            if replica.role is ReplicaRole.ACTIVE and replica.machine is not None:
                return replica.machine.server
        return None

    def _server_summary(self, place: ServerPlacement) -> dict[str, Any]:
        roles = {name: str(replica.role) for name, replica in self._replicas(place).items()}
        server = self._active_server(place)
        numbers = None if server is None else sum(server.clock[rank] for rank in server.own)
        no_ops = self._no_ops.get(place.name, {})
        return {
            "status": status_of(roles),
            "roles": roles,
            "numbers": numbers,
            "no_ops": sum(no_ops.values()),
        }


class SimulatedSequencer:
    """Runs one sequencer's node, with a session at its broker to publish no-ops."""

    def __init__(
        self, network: SimulatedNetwork, broker: str, ordering: RunOrdering, *, reliable: bool
    ) -> None:
        self.name = order_node(broker)
        self.sequencer: Sequencer
        self.witness: WitnessPart
        self._session: ClientSession
        self._broker = broker
        self._ordering = ordering
        self._reliable = reliable
        self._schedule = network.schedule
        self._lives = 0
        self._first = True
        """True until it first loses its disk."""
        self._outbox: NoOpOutbox
        self._under_way: dict[int, PublishNoOps] = {}
        """Sequence in the session -> no-ops that are not confirmed."""
        self.node = network.add(self.name, self._make, self._on_fact, datagrams=True)
        network.attach(self.name, broker)

    def _make(self, node: SimulatedNode) -> Node:
        if self._lives and not node.disk:
            self._first = False
            self._ordering.disk_lost(self.name)
        store = node.open_store("sequencer")
        hosted = SequencerNode(node, self._ordering.layout, store, first=self._first)
        self.sequencer, self.witness = hosted.sequencer, hosted.witness
        self._session = make_client(node, self._broker, self._lives, reliable=self._reliable).session
        self._outbox = NoOpOutbox(self._ordering.layout, hosted.sequencer.no_ops_published)
        self._under_way.clear()
        self._lives += 1
        return Node((*hosted.parts, self._session))

    def _on_fact(self, fact: object) -> None:
        match fact:
            case PublishNoOps():
                self._ordering.no_ops(fact)
                self._outbox.add(fact)
                self._publish()
            case PublicationConfirmed():
                for sequence in range(fact.first, fact.last + 1):
                    self._settle(sequence, self._outbox.confirmed)
            case PublicationFailed():
                self._settle(fact.sequence, self._outbox.failed)
            case RoleChanged():
                self._ordering.role_changed()
            case Misbehaviour():
                self._ordering.complain(self.name, fact)

    def _publish(self) -> None:
        session = self._session
        for fact in self._outbox.take():
            sequence = session.reserve()
            self._under_way[sequence] = fact
            session.publish_stretch(self._outbox.event(fact, *session.identity, sequence))
            if not self._reliable:  # best effort: no confirmation will follow
                self._settle(sequence, self._outbox.confirmed)

    def _settle(self, sequence: int, say: Callable[[PublishNoOps], None]) -> None:
        """Call `say` later: the sequencer may be in the middle of a handler."""
        fact = self._under_way.pop(sequence, None)
        if fact is not None:
            self._schedule.at(self._schedule.now, partial(self._say, say), self._lives, fact)

    def _say(self, say: Callable[[PublishNoOps], None], life: int, fact: PublishNoOps) -> None:
        if life == self._lives and self.node.up:
            say(fact)
            self._publish()
