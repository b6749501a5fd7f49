"""A guaranteed overlay in virtual time, driven by a script: what tests of the partitions paper share.

    network = OverlayNetwork("b0-b1-b2 b1-b3", {"p": "b0", "s": "b2"}, delta=1)
    network.at(1.0).subscribe("s")
    network.at(2.0).publish("p")
    network.at(2.1).crash("b1")
    assert network.at(9.0).shown("s") == ["p:1"]

`at` lets time pass; what follows happens at that instant. The network is deterministic: 10 ms between brokers, none
between a client and its broker, unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from tidings.core.client.reliable_session import ReliableClient, ReliableSession
from tidings.core.events.event import Publication
from tidings.core.events.run import singles
from tidings.core.events.subscription import Subscription
from tidings.core.facts import (
    Delivered,
    EventsGivenUp,
    Misbehaviour,
    PublicationConfirmed,
    PublicationFailed,
    SubscriptionAccepted,
    SubscriptionFailed,
    SubscriptionProgress,
)
from tidings.core.filters.language.predicates import Scalar
from tidings.core.kernel import Handler, Node
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed import subscription_log
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.delivery import Delivery
from tidings.core.overlay.guaranteed.queued import Hop, LocalClient, Queued
from tidings.core.overlay.guaranteed.spill import SpillLimits
from tidings.core.overlay.guaranteed.subscription_log import Route, SubscriptionLog
from tidings.core.overlay.guaranteed.subscriptions import Subscriptions
from tidings.core.overlay.labels import step
from tidings.drivers.virtual.brokers import BrokerMaker
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import Emit, SimulatedNode
from tidings.scenarios.file.brokers import broker_specs
from tidings.scenarios.file.links import LinkSpec
from tidings.scenarios.file.schema import ConstantDelay, NoLoss, Overlay
from tidings.scenarios.file.topology import Topology

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

Pairs = frozenset[frozenset[str]]


class OverlayNetwork:
    """`edges` has paths of the primary tree; `clients` has the broker of each client; `delays_ms` is by 'a-b'."""

    def __init__(
        self,
        edges: str,
        clients: Mapping[str, str],
        *,
        delta: int = 1,
        window: int = 64,
        client_delay_ms: float = 0.0,
        delays_ms: Mapping[str, float] | None = None,
        together: bool = False,
        limits: SpillLimits | None = None,
    ) -> None:
        self.topology = _topology(edges)
        self.clients = dict(clients)
        self.deliveries: list[tuple[str, str, float]] = []
        """Subscriber, event and time in milliseconds, in the order of time."""
        self.confirmations: list[tuple[str, float]] = []
        """Event and time: its publisher was told that it is safe."""
        self.accepted: dict[str, float] = {}
        """When each subscriber was first told that everybody knows its subscription."""
        self.uncovered: dict[str, list[tuple[str, ...]]] = {}
        """What each subscriber was told of who does not know its subscription yet."""
        self.complaints: list[str] = []
        self.messages: list[tuple[float, str, str, Message]] = []
        """What brokers received from brokers: time, sender, receiver, message."""
        self._together = together
        self._delays_ms = {_pair(names): value for names, value in (delays_ms or {}).items()}
        self._client_delay_ms = client_delay_ms
        self._subscriptions: dict[str, dict[str, Subscription]] = {name: {} for name in clients}
        specs = broker_specs(self.topology, Overlay(delta=delta, window=window))
        self._brokers = BrokerMaker({name: replace(spec, limits=limits) for name, spec in specs.items()})
        self._cuts: dict[Pairs, Callable[[str, str], bool]] = {}
        self.network = SimulatedNetwork(1, self._spec, streams=True)
        for name in self.topology.brokers:
            self.network.add(name, self._make_broker, self._on_broker_fact(name))
        for name, at in self.clients.items():
            self.network.add(name, self._make_client, self._on_client_fact(name))
            self.network.attach(name, at)
        self.network.start()

    # --- Building

    def _spec(self, left: str, right: str) -> LinkSpec:
        usual_ms = self._client_delay_ms if left in self.clients or right in self.clients else 10.0
        delay_ms = self._delays_ms.get(frozenset((left, right)), usual_ms)
        return LinkSpec(ConstantDelay(value=delay_ms), NoLoss(), 0.0, 0.0, 0.0)

    def _make_broker(self, node: SimulatedNode) -> Node:
        broker = self._brokers(node)
        for kind, handler in broker.handlers.items():
            broker.handlers[kind] = self._noting(node.node, handler)
        return broker

    def _noting(self, receiver: str, handler: Handler) -> Handler:
        def handle(sender: str, message: Message) -> None:
            if sender not in self.clients:
                self.messages.append((self.now_ms, sender, receiver, message))
            handler(sender, message)

        return handle

    def _make_client(self, node: SimulatedNode) -> Node:
        resume_points = node.disk.setdefault("resume_points", {})
        client = ReliableClient(
            node, self.clients[node.node], incarnation=node.now, resume_points=resume_points
        )
        for subscription in self._subscriptions[node.node].values():
            client.subscribe(subscription)
        return client

    def _on_broker_fact(self, name: str) -> Emit:
        def on_fact(fact: object) -> None:
            if isinstance(fact, Misbehaviour):
                self.complaints.append(f"{name}: {fact.peer}: {fact.what}")

        return on_fact

    def _on_client_fact(self, name: str) -> Emit:
        def on_fact(fact: object) -> None:
            match fact:
                case Delivered(stretch=stretch):
                    self.deliveries += [(name, _event(event), self.now_ms) for event in singles(stretch)]
                case PublicationConfirmed(first=first, last=last):
                    for sequence in range(first, last + 1):
                        self.confirmations.append((f"{name}:{sequence}", self.now_ms))
                case SubscriptionAccepted():
                    self.accepted.setdefault(name, self.now_ms)
                case SubscriptionProgress(uncovered=uncovered):
                    self.uncovered.setdefault(name, []).append(uncovered)
                case EventsGivenUp(source=source, first=first, last=last):
                    self.deliveries.append((name, f"gap {source}:{first}-{last}", self.now_ms))
                case PublicationFailed(reason=reason) | SubscriptionFailed(reason=reason):
                    self.complaints.append(f"{name}: {reason}")

        return on_fact

    # --- The script

    @property
    def now_ms(self) -> float:
        return self.network.schedule.now / NS_PER_MS

    def at(self, seconds: float) -> OverlayNetwork:
        """Let time pass until then."""
        until = round(seconds * NS_PER_S)
        assert until >= self.network.schedule.now, "a script goes forward in time"
        self.network.run(until)
        return self

    def subscribe(self, client: str, where: str | None = None) -> None:
        """Each client has one subscription, of its own name."""
        subscription = self._subscriptions[client][client] = Subscription(client, (), where)
        self.client(client).subscribe(subscription)

    def unsubscribe(self, client: str) -> None:
        del self._subscriptions[client][client]
        self.client(client).unsubscribe(client)

    def publish(self, client: str, count: int = 1, **attributes: Scalar) -> None:
        for _ in range(count):
            self.client(client).publish("/t", attributes, b"", self.network.schedule.now)

    def publish_all(self, client: str, values: Sequence[int]) -> None:
        """An event with each of these values of x; `together`: as one run."""
        session = self.client(client).session
        for value in values:
            if self._together:
                session.add("/t", {"x": value}, b"", self.network.schedule.now)
            else:
                session.publish("/t", {"x": value}, b"", self.network.schedule.now)
        session.flush()

    def crash(self, *names: str, keep_state: bool = True) -> None:
        for name in names:
            self.network.crash(name, keep_state=keep_state)

    def restart(self, *names: str) -> None:
        for name in names:
            self.network.restart(name)

    def pause(self, *names: str) -> None:
        for name in names:
            self.network.pause(name)

    def resume(self, *names: str) -> None:
        for name in names:
            self.network.resume(name)

    def cut(self, *links: str) -> None:
        """No message passes between 'a-b', in either direction, until `heal` with the same links."""
        pairs = frozenset(map(_pair, links))
        self._cuts[pairs] = lambda source, target: frozenset((source, target)) in pairs
        self.network.sever(self._cuts[pairs])

    def heal(self, *links: str) -> None:
        self.network.mend(self._cuts.pop(frozenset(map(_pair, links))))

    def links_between(self, first: str, second: str) -> tuple[str, ...]:
        """The pairs of a broker among `first` and one among `second`, each given as 'b0 b1 b2'."""
        return tuple(f"{left}-{right}" for left in first.split() for right in second.split())

    # --- What came of it

    def broker(self, name: str) -> GuaranteedBroker:
        protocol = self.network.nodes[name].protocol
        assert isinstance(protocol, GuaranteedBroker)
        return protocol

    def client(self, name: str) -> ReliableClient:
        protocol = self.network.nodes[name].protocol
        assert isinstance(protocol, ReliableClient)
        return protocol

    def shown(self, client: str) -> list[str]:
        """The events that the client was shown, in order."""
        return [event for name, event, _ in self.deliveries if name == client]

    def shown_at(self, client: str) -> list[tuple[str, float]]:
        return [(event, at_ms) for name, event, at_ms in self.deliveries if name == client]

    def confirmed(self, client: str) -> list[str]:
        """The events of that publisher that it was told to be safe, in the order in which it was told."""
        return [event for event, _ in self.confirmations if event.startswith(f"{client}:")]

    def queues(self) -> dict[str, list[str]]:
        """What brokers keep because somebody has not confirmed it."""
        found = {
            name: [
                f"{queued.flow[1]}:{sequence}"
                for queued in self.broker(name).delivery.queue.entries()
                for sequence in range(queued.first, queued.last + 1)
            ]
            for name in self.topology.brokers
        }
        return {name: events for name, events in found.items() if events}

    def received(self, kind: type[Message], sender: str, receiver: str) -> int:
        """How many messages of that kind one broker received from another."""
        return sum(
            (source, target) == (sender, receiver) and isinstance(message, kind)
            for _, source, target, message in self.messages
        )

    def remains(self) -> list[str]:
        """What a network that is healed and quiet must not have; nothing if all is well."""
        found = [f"{name} keeps {', '.join(events)}" for name, events in self.queues().items()]
        for name in self.clients:
            unconfirmed = self.client(name).session.unconfirmed
            if unconfirmed:
                found.append(f"{name} waits for {unconfirmed} confirmations")
            for subscription in self._subscriptions[name]:
                if subscription not in self.accepted:
                    found.append(f"{name} does not know whether its subscription is complete")
        logs = {
            frozenset((entry.id, entry.dead) for entry in self.broker(name).log)
            for name in self.topology.brokers
        }
        if len(logs) > 1:
            found.append("the subscription logs differ")
        return found + self.complaints


def _event(publication: Publication) -> str:
    return f"{publication.source}:{publication.sequence}"


def events(source: str, first: int, last: int) -> list[str]:
    """The ids of a run of events of one publisher."""
    return [f"{source}:{sequence}" for sequence in range(first, last + 1)]


def _pair(names: str) -> frozenset[str]:
    left, right = names.split("-")
    return frozenset((left, right))


def _topology(paths: str) -> Topology:
    edges: list[tuple[str, str]] = []
    for path in paths.split():
        names = path.split("-")
        edges += pairwise(names)
    return Topology(tuple(dict.fromkeys(name for edge in edges for name in edge)), tuple(edges))


# --- Flaws of the paper's text: each puts one into whatever network is built afterwards


def match_towards_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 8, lines 13-17: a publication is for whoever wants it, wherever it came from."""
    monkeypatch.setattr(subscription_log, "on_path", lambda *labels: True)


def drop_what_has_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 8, line 16: whoever cannot be reached when a publication comes is not waited for."""
    set_pending = Delivery._set_pending

    def only_with_session(self: Delivery, queued: Queued, route: Route) -> None:
        set_pending(self, queued, route)
        for name in [name for name in queued.pending if not isinstance(name, LocalClient)]:
            if self._sessions.frontier(self._log.labels[name]) is None:
                del queued.pending[name]

    monkeypatch.setattr(Delivery, "_set_pending", only_with_session)


def wait_for_confirmations_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 8, lines 15-23: only a confirmation makes a broker look whether everybody has confirmed."""
    place = Delivery._place

    def no_test_on_arrival(self: Delivery, queued: Queued) -> None:
        if all(isinstance(name, LocalClient) for name in queued.pending):
            queued.senders.clear()
        place(self, queued)

    monkeypatch.setattr(Delivery, "_place", no_test_on_arrival)


def discharge_all_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 8, lines 46-48: one broker behind a dead one takes its place for all."""
    ready = Delivery.ready

    def for_all_behind(self: Delivery, peer: str) -> None:
        ready(self, peer)
        own, labels = self._sessions.neighbourhood, self._log.labels
        bypassed = step(own.label, own.label_of(peer))
        if bypassed != own.label_of(peer):
            for queued in self.queue.entries():
                for name in [name for name, hop in queued.pending.items() if hop is None]:
                    if not isinstance(name, LocalClient) and step(own.label, labels[name]) == bypassed:
                        del queued.pending[name]

    monkeypatch.setattr(Delivery, "ready", for_all_behind)


def stay_on_the_old_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switching paths: what went to a session that is active no more is left to it, as long as it stands."""

    deactivated, lost = Delivery.deactivated, Delivery.lost

    def leave_it(self: Delivery, hop: Hop) -> None:
        if isinstance(hop, LocalClient):
            deactivated(self, hop)

    def give_up(self: Delivery, hop: str) -> None:
        deactivated(self, hop)
        lost(self, hop)

    monkeypatch.setattr(Delivery, "deactivated", leave_it)
    monkeypatch.setattr(Delivery, "lost", give_up)


def use_before_synchronising(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery: a session carries publications as soon as it is there."""
    activated = Subscriptions.activated

    def ready_at_once(self: Subscriptions, peer: str) -> None:
        activated(self, peer)
        self._exchange(peer).ready = True
        self._tell_ready(peer)

    monkeypatch.setattr(Subscriptions, "activated", ready_at_once)


def exclude_by_the_table_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags: whom a publication is not for is forgotten while it waits."""
    message = Delivery._message

    def as_of_now(self: Delivery, queued: Queued) -> Message:
        queued.log_position, queued.excluded = self._log.position, ()
        return message(self, queued)

    monkeypatch.setattr(Delivery, "_message", as_of_now)


def lose_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section VIII.B: a broker that restarts knows no subscription until its neighbours tell it."""

    def load_nothing(self: SubscriptionLog, key: bytes, value: bytes) -> None: ...

    monkeypatch.setattr(SubscriptionLog, "_load", load_nothing)


def trust_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients show whatever they are notified of, as the paper's do."""
    monkeypatch.setattr(ReliableSession, "_shown_before", staticmethod(lambda *about: 0))
