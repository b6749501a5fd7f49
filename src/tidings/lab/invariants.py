"""The six invariants of the guaranteed overlay, asserted while it runs in the simulator.

    1. No publication on a session before SYNC; every subscription it covers was known to the peer before.
    2. Per broker and source, first copies are taken in increasing sequence.
    3. A publication stays at its client or in some queue until every certified live subscription has confirmed it.
    4. One verdict per (publication, subscription) at every broker and copy.
    5. What is uncovered only shrinks; who counts as covered has the subscription, and its publishers certify for it.
    6. Healed and quiet: queues empty, subscription logs equal, nothing uncovered.

The monitor stands beside the protocols: it takes messages a moment before and after their handlers, and looks at
the state of the brokers with the eyes of somebody who sees all of them at once. The verdict of the publisher's
broker is what all others are held to. It keeps an account of every publication: it is made for short runs.

A broker that lost its disk may judge anew what came through it; where one is on the way, 3 and 4 are not asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tidings.core.client.reliable_session import ReliableSession
from tidings.core.events.event import Publication
from tidings.core.events.run import Stretch, singles
from tidings.core.kernel import Handler, Node, Part
from tidings.core.messages import Confirm, Message, Notify, Subscribe
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.messages import Covered, Forward, Records, Stamped, StampTaken, Sync
from tidings.core.overlay.guaranteed.queued import Flow, Hop, LocalClient, Queued, name_of
from tidings.core.overlay.guaranteed.regions import Region
from tidings.core.overlay.guaranteed.subscription_log import LogEntry
from tidings.core.overlay.labels import Label, on_path
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode

TITLES = {
    1: "synchronise before use",
    2: "first copies in order",
    3: "kept until confirmed",
    4: "one verdict",
    5: "uncovered only shrinks",
    6: "healed and quiet",
}

Key = tuple[Flow, int]
"""A publication: its flow and its sequence."""


class InvariantError(AssertionError):
    """An invariant does not hold; `number` says which."""

    def __init__(self, number: int, now: int, what: str) -> None:
        super().__init__(f"invariant {number} ({TITLES[number]}) at {now / 1e9:.6f} s: {what}")
        self.number = number


class Certified(NamedTuple):
    """A record that gets a publication."""

    broker: str
    label: Label


class Judged:
    """A publication with the verdict of its publisher's broker."""

    __slots__ = ("key", "label", "publication", "records", "taken_at")

    def __init__(
        self, key: Key, label: Label, publication: Publication, records: dict[str, Certified], taken_at: int
    ) -> None:
        self.key = key
        self.label = label
        self.publication = publication
        self.records = records
        """The certified ones by id."""
        self.taken_at = taken_at

    @property
    def origin(self) -> str:
        return self.key[0][0]

    def __str__(self) -> str:
        return _text(self.key)


class Watch(Part):
    """What the monitor remembers of one life of a broker; one of its parts, to hear of connections."""

    name = "watch"

    def __init__(self, node: SimulatedNode, broker: GuaranteedBroker) -> None:
        super().__init__(node)
        self.broker = broker
        self.label = broker.neighbourhood.label
        self.highest: dict[Flow, int] = {}
        """Sequence of the last first copy."""
        self.synchronised: set[str] = set()
        """Peers that have got our SYNC since the connection to them stands."""
        self.covers: dict[tuple[str, bool], Region] = {}
        self.claimed_at: dict[str, int] = {}
        """When this broker counted itself as covered for a record."""

    def note_claims(self) -> None:
        for entry in self.broker.log:
            if entry.id not in self.claimed_at and self.label in entry.cover:
                self.claimed_at[entry.id] = self.port.now

    def on_link_up(self, peer: str) -> None:
        self.synchronised.discard(peer)

    def own_entries(self) -> Iterator[LogEntry]:
        return (entry for entry in self.broker.log if entry.record.broker == self.broker.name)

    def knows(self, record_id: str) -> bool:
        log = self.broker.log
        return record_id in log or log.is_collected(record_id)


class OverlayMonitor:
    """Attached to a network that has not started; `check` now and then while it runs, `check_quiet` at its end."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network
        self._watches: dict[str, Watch] = {}
        self._forgetful: dict[str, Label] = {}
        """Brokers that lost their disk at some time."""
        self._judged: dict[Key, Judged] = {}
        self._open: dict[Key, Judged] = {}
        """Those that somebody may not have confirmed."""
        self._at_client: set[Key] = set()
        self._held_since: dict[tuple[str, str], int] = {}
        """Client and subscription -> when its broker had it."""
        self._notified: dict[tuple[str, str, str, int], int] = {}
        """Client, subscription, source and incarnation -> the last sequence that it was notified of."""
        for node in network.nodes.values():
            self.watch(node)

    def watch(self, node: SimulatedNode) -> None:
        """Also for a node that comes later, before it starts."""
        node._make = self._watching(node._make)

    @property
    def _now(self) -> int:
        return self._network.schedule.now

    def _fail(self, number: int, what: str) -> InvariantError:
        return InvariantError(number, self._now, what)

    # --- Lives

    def _watching(self, make: Callable[[SimulatedNode], Node]) -> Callable[[SimulatedNode], Node]:
        def make_watched(node: SimulatedNode) -> Node:
            had_disk = bool(node.disk)
            protocol = make(node)
            if isinstance(protocol, GuaranteedBroker):
                self._watch_broker(node, protocol, had_disk=had_disk)
            elif _reliable_session(protocol) is not None:
                self._watch_client(node.node, protocol)
            return protocol

        return make_watched

    def _watch_broker(self, node: SimulatedNode, broker: GuaranteedBroker, *, had_disk: bool) -> None:
        watch = Watch(node, broker)
        if node.node in self._watches and not had_disk:
            self._forgetful[node.node] = watch.label
        self._watches[node.node] = watch
        broker.parts = (*broker.parts, watch)
        handlers = broker.handlers
        handlers[Forward] = self._around_forward(watch, handlers[Forward])
        handlers[Stamped] = self._around_stamped(watch, handlers[Stamped])
        handlers[Sync] = self._around_sync(watch, handlers[Sync])
        handlers[Covered] = self._around_covered(watch, handlers[Covered])
        handlers[Subscribe] = self._around_subscribe(watch, handlers[Subscribe])
        for kind in (Records, StampTaken):
            handlers[kind] = self._before_claims(watch, handlers[kind])

    def _watch_client(self, name: str, client: Node) -> None:
        """What an earlier life of the client had not got confirmed went with it."""
        for key in [key for key in self._at_client if key[0][1] == name]:
            self._at_client.discard(key)
            self._open.pop(key, None)
        client.handlers[Confirm] = self._around_confirm(name, client.handlers[Confirm])
        client.handlers[Notify] = self._around_notify(name, client.handlers[Notify])

    # --- Messages

    def _around_sync(self, watch: Watch, handler: Handler) -> Handler:
        def on_sync(sender: str, message: Message) -> None:
            assert isinstance(message, Sync)
            if message.last:
                self._watches[sender].synchronised.add(watch.broker.name)
            handler(sender, message)

        return on_sync

    def _around_forward(self, watch: Watch, handler: Handler) -> Handler:
        broker = watch.broker

        def on_forward(sender: str, message: Message) -> None:
            assert isinstance(message, Forward)
            if not broker.sessions.established(sender):
                handler(sender, message)
                return
            stretch = message.stretch
            flow = (message.origin, stretch.source, stretch.incarnation)
            if sender not in watch.synchronised:
                key = (flow, stretch.first)
                raise self._fail(
                    1, f"{broker.name} got {_text(key)} from {sender}, which never got a SYNC for it"
                )
            for publication in self._taken(watch, flow, stretch, lambda: handler(sender, message)):
                self._check_copy(watch, self._judged[flow, publication.sequence], f"from {sender}")

        return on_forward

    def _around_stamped(self, watch: Watch, handler: Handler) -> Handler:
        broker = watch.broker

        def on_stamped(sender: str, message: Message) -> None:
            assert isinstance(message, Stamped)
            stretch = message.stretch
            flow = (broker.name, stretch.source, stretch.incarnation)
            for publication in self._taken(watch, flow, stretch, lambda: handler(sender, message)):
                judged = self._judge(watch, (flow, publication.sequence), message, publication)
                self._check_copy(watch, judged, f"from client {sender}")

        return on_stamped

    def _taken(
        self, watch: Watch, flow: Flow, stretch: Stretch, handle: Callable[[], None]
    ) -> list[Publication]:
        """Let the broker handle copies; those that it took for the first ones, the last so many. Such come in order."""
        delivery = watch.broker.delivery
        duplicates = delivery.duplicates
        handle()
        publications = singles(stretch)[delivery.duplicates - duplicates :]
        for publication in publications:
            highest = watch.highest.get(flow, 0)
            if publication.sequence <= highest:
                key = (flow, publication.sequence)
                raise self._fail(
                    2, f"{watch.broker.name} took {_text(key)} as a first copy, and {highest} before it"
                )
            watch.highest[flow] = publication.sequence
        return publications

    def _around_covered(self, watch: Watch, handler: Handler) -> Handler:
        def on_covered(sender: str, message: Message) -> None:
            assert isinstance(message, Covered)
            handler(sender, message)
            for known in message.ids:
                entry = watch.broker.log.get(known)
                if entry is not None and entry.record.broker == watch.broker.name:
                    self._check_cover(watch, entry)

        return on_covered

    def _before_claims(self, watch: Watch, handler: Handler) -> Handler:
        def on_message(sender: str, message: Message) -> None:
            handler(sender, message)
            watch.note_claims()

        return on_message

    def _around_subscribe(self, watch: Watch, handler: Handler) -> Handler:
        def on_subscribe(sender: str, message: Message) -> None:
            assert isinstance(message, Subscribe)
            handler(sender, message)
            client = watch.broker.attachments.clients.get(sender)
            if client is not None and message.subscription in client.subscriptions:
                self._held_since.setdefault((sender, message.subscription), self._now)

        return on_subscribe

    def _around_confirm(self, client: str, handler: Handler) -> Handler:
        def on_confirm(sender: str, message: Message) -> None:
            assert isinstance(message, Confirm)
            handler(sender, message)
            flow = (sender, client, message.incarnation)
            self._at_client.difference_update(
                (flow, sequence) for sequence in range(message.first, message.last + 1)
            )

        return on_confirm

    def _around_notify(self, client: str, handler: Handler) -> Handler:
        def on_notify(sender: str, message: Message) -> None:
            assert isinstance(message, Notify)
            handler(sender, message)
            stretch = message.stretch
            for subscription in message.subscriptions:
                key = (client, subscription, stretch.source, stretch.incarnation)
                self._notified[key] = max(self._notified.get(key, 0), stretch.last)

        return on_notify

    # --- Verdicts

    def _judge(self, watch: Watch, key: Key, message: Stamped, publication: Publication) -> Judged:
        """The verdict by the rule: certified is what the publisher's broker had at the stamped position."""
        judged = self._judged.get(key)
        if judged is not None:
            return judged
        broker = watch.broker
        position = broker.log.position
        stamp = message.stamp if message.generation == broker.generation else position
        records = {
            entry.id: Certified(to.broker, to.label)
            for to in broker.log.route(publication, watch.label)
            for entry in to.entries
            if entry.position <= stamp
        }
        judged = self._judged[key] = Judged(key, watch.label, publication, records, self._now)
        self._check_claims(watch, judged)
        if records:
            self._open[key] = judged
            self._at_client.add(key)
        return judged

    def _check_claims(self, watch: Watch, judged: Judged) -> None:
        """What is published after its broker claimed a record is certified for it."""
        published_at = judged.publication.published_at
        for to in watch.broker.log.route(judged.publication, judged.label):
            for entry in to.entries:
                claimed_at = watch.claimed_at.get(entry.id, published_at)
                if entry.id not in judged.records and claimed_at < published_at:
                    raise self._fail(
                        5,
                        f"{judged} is not certified for {entry.id}, which {to.broker} may have accepted since "
                        f"{watch.broker.name} claimed it at {claimed_at / 1e9:.6f} s",
                    )

    def _is_excused(self, judged: Judged, at: Label) -> bool:
        """True if a broker on the way there lost its disk."""
        return any(on_path(label, judged.label, at) for label in self._forgetful.values())

    def _check_copy(self, watch: Watch, judged: Judged, how: str) -> None:
        """The broker has just taken its first copy."""
        if self._is_excused(judged, watch.label):
            return
        broker, label = watch.broker, watch.label
        for record_id, record in judged.records.items():
            if on_path(label, judged.label, record.label) and not watch.knows(record_id):
                raise self._fail(
                    1,
                    f"{judged} is certified for {record_id}, which {broker.name} does not know when it gets it {how}",
                )
        live = {
            entry.id: entry
            for to in broker.log.route(judged.publication, judged.label)
            for entry in to.entries
        }
        wanted = {record_id for record_id in live if record_id in judged.records}
        brokers = {live[record_id].record.broker for record_id in wanted} - {broker.name}
        queued = _kept(broker, judged.key)
        if queued is None:
            if brokers:
                raise self._fail(
                    4, f"{broker.name} took {judged} {how} and does not keep it for {_names(brokers)}"
                )
            return
        given = {
            entry.id
            for entry in live.values()
            if entry.position <= queued.log_position and entry.id not in queued.excluded
        }
        pending = {name for name in queued.pending if not isinstance(name, LocalClient)}
        if given != wanted or pending != brokers:
            raise self._fail(
                4,
                f"{judged} is certified for {_names(wanted)} at {_names(brokers)}; {broker.name}, which got it "
                f"{how}, has {_names(given)} and keeps it for {_names(pending)}",
            )

    # --- Coverage

    def _check_cover(self, watch: Watch, entry: LogEntry) -> None:
        broker = watch.broker
        key = (entry.id, entry.dead)
        before = watch.covers.get(key, Region.nothing())
        cover = entry.cover
        if cover == before:
            return
        if not (before - cover).is_empty:
            raise self._fail(
                5, f"{broker.name} has {entry.id} covered in {cover} only, before that it was in {before}"
            )
        watch.covers[key] = cover
        for name, other in self._watches.items():
            if name in self._forgetful or other.broker.subscriptions.recovering:
                continue  # a newcomer gets what its parent has before it serves anybody
            if other.label in cover and not other.knows(entry.id):
                raise self._fail(
                    5, f"{broker.name} counts {name} as covered for {entry.id}, which is not in its log"
                )

    # --- At intervals

    def check(self) -> None:
        """Invariants 3 and 5; between two things that happen."""
        for name, watch in self._watches.items():
            if self._network.nodes[name].up:
                for entry in watch.own_entries():
                    self._check_cover(watch, entry)
        self._check_kept()

    def _check_kept(self) -> None:
        candidates = [judged for key, judged in self._open.items() if key not in self._at_client]
        if not candidates:
            return
        users = self._users()
        holders = self._holders()
        for judged in candidates:
            if self._network.nodes[judged.origin].up and not self._is_waited_for(judged, users, holders):
                del self._open[judged.key]

    def _users(self) -> dict[str, list[tuple[str, str]]]:
        """Record -> clients and subscriptions that hang on it, at brokers that are up."""
        users: dict[str, list[tuple[str, str]]] = {}
        for name, watch in self._watches.items():
            if not self._network.nodes[name].up:
                continue
            for client, attachment in watch.broker.attachments.clients.items():
                for subscription, held in attachment.subscriptions.items():
                    self._held_since.setdefault((client, subscription), self._now)
                    users.setdefault(held.record, []).append((client, subscription))
        return users

    def _holders(self) -> dict[Key, list[tuple[str, Queued]]]:
        """Who has which publication in its queue."""
        holders: dict[Key, list[tuple[str, Queued]]] = {}
        for name, watch in self._watches.items():
            if self._network.nodes[name].up:
                for queued in watch.broker.delivery.queue.entries():
                    for sequence in range(queued.first, queued.last + 1):
                        holders.setdefault((queued.flow, sequence), []).append((name, queued))
        return holders

    def _is_waited_for(
        self,
        judged: Judged,
        users: dict[str, list[tuple[str, str]]],
        holders: dict[Key, list[tuple[str, Queued]]],
    ) -> bool:
        """False once everybody has it who was to get it; until then somebody must keep it for each of them."""
        waited_for = False
        for record_id, record in judged.records.items():
            if self._is_excused(judged, record.label):
                continue
            watch = self._watches[record.broker]
            entry = watch.broker.log.get(record_id)
            if entry is None or entry.dead:
                continue
            if not self._network.nodes[record.broker].up:
                waited_for = True  # nobody can say who its clients are
                continue
            for client, subscription in users.get(record_id, ()):
                if self._has_seen(judged, watch, client, subscription):
                    continue
                waited_for = True
                if not any(
                    (LocalClient(client) if name == record.broker else record.broker) in queued.pending
                    for name, queued in holders.get(judged.key, ())
                ):
                    raise self._fail(
                        3,
                        f"{judged} is certified for {record_id}; subscription {subscription} of {client} at "
                        f"{record.broker} has not got it, and nobody keeps it for that",
                    )
        return waited_for

    def _has_seen(self, judged: Judged, watch: Watch, client: str, subscription: str) -> bool:
        """True if the client was notified of it, or need not be."""
        if self._held_since[client, subscription] >= judged.taken_at:
            return True
        held = watch.broker.attachments.clients[client].subscriptions[subscription]
        if not held.interest.matches(judged.publication):
            return True
        publication = judged.publication
        flow = (publication.source, publication.incarnation)
        return self._notified.get((client, subscription, *flow), 0) >= publication.sequence

    def check_quiet(self) -> None:
        """Invariant 6, once everything is healed and had its time."""
        trouble = unsettled(self._network)
        if trouble is not None:
            raise self._fail(6, trouble)


def unsettled(network: SimulatedNetwork) -> str | None:
    """What a healed network has still to do; None once it is quiet."""
    brokers: list[GuaranteedBroker] = []
    for name, node in network.nodes.items():
        protocol = node.protocol
        if not node.up or node.paused:
            return f"{name} is {'paused' if node.up else 'down'}"
        session = _reliable_session(protocol)
        if isinstance(protocol, GuaranteedBroker):
            brokers.append(protocol)
        elif session is not None and session.unconfirmed:
            return f"client {name} has {session.unconfirmed} publications that are not confirmed"
        elif session is not None and session._unanswered:
            return f"client {name} has no answer for its subscriptions {_names(session._unanswered)}"
    for trouble in (_busy(brokers), _differing_logs(brokers), _uncovered(brokers)):
        if trouble is not None:
            return trouble
    return None


def _reliable_session(protocol: Node) -> ReliableSession | None:
    return next((part for part in protocol.parts if isinstance(part, ReliableSession)), None)


def _busy(brokers: Iterable[GuaranteedBroker]) -> str | None:
    for broker in brokers:
        if broker.subscriptions.recovering:
            return f"{broker.name} is still recovering its log"
        for queued in broker.delivery.queue.entries():
            return f"{broker.name} keeps {_text((queued.flow, queued.first))} for {_names(queued.pending)}"
    return None


def _differing_logs(brokers: Iterable[GuaranteedBroker]) -> str | None:
    first: tuple[str, dict[str, bool]] | None = None
    for broker in brokers:
        log = {entry.id: entry.dead for entry in broker.log}
        if first is None:
            first = (broker.name, log)
        elif log != first[1]:
            differing = sorted(known for known, _ in log.items() ^ first[1].items())
            return f"the logs of {first[0]} and {broker.name} differ in {_names(differing)}"
    return None


def _uncovered(brokers: Iterable[GuaranteedBroker]) -> str | None:
    for broker in brokers:
        for entry in broker.log:
            if entry.record.broker == broker.name and not entry.dead and not entry.cover.is_everything:
                return f"{entry.id} of {broker.name} is uncovered in {entry.cover.complement()}"
    return None


def _kept(broker: GuaranteedBroker, key: Key) -> Queued | None:
    """The publication, if it is in the queue."""
    flow, sequence = key
    return next((queued for _, _, queued in broker.delivery.queue.of_flow(flow, sequence, sequence)), None)


def _text(key: Key) -> str:
    (origin, source, incarnation), sequence = key
    return f"publication {source}/{incarnation}:{sequence} (of {origin})"


def _names(names: Iterable[Hop]) -> str:
    return ", ".join(sorted(map(name_of, names))) or "nobody"
