"""Asserts what must hold of brokers in mode epidemic at every moment, while they run in the simulator.

    1. tree      The first copy that arrives by the tree is forwarded once to every neighbour behind whom it is wanted,
                 and never back. What arrives by gossip is not forwarded down the tree (recovery, epidemic 13).
    2. answers   What is sent by pull, or in answer to a digest, was requested by the broker that it is sent to.
    3. pushes    An event or its blocks are pushed to at most `fanout` brokers.
    4. notices   A broker notifies a client of an event once per subscription, whichever way the event arrives.
    5. requests  A broker that asked for an event and got it does not ask again. It may ask for one that it holds: it
                 does not always know that it has what arrived before its client was accepted, until it arrives again.
    6. bounds    Cache, losses, assemblies and directory stay within the bounds of the settings.

The monitor stands between a broker and its port and sees what is received and sent. It keeps an account of every event
in every incarnation, so it is made for short runs. What clients got in the end is in the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tidings.core.events.event import EventId, Publication
from tidings.core.events.run import Run, Stretch, singles
from tidings.core.events.subscription import Interest
from tidings.core.kernel import Handler, Node, Part, RandomSource, Send, TimerName
from tidings.core.messages import Message, Notify
from tidings.core.overlay.epidemic.broker import EpidemicBroker
from tidings.core.overlay.epidemic.messages import Ask, Carried, Fragment, Solicit, later
from tidings.core.overlay.epidemic.tree import Passing
from tidings.core.structures.range_set import RangeSet
from tidings.drivers.virtual.node import SimulatedNode
from tidings.scenarios.simulate import Simulation

PUSH = "push"

Identity = tuple[str, int, int]
Unit = tuple[Identity, int, int]
"""An event (-1, -1), or a plain block of one: its generation and index."""


class EpidemicError(AssertionError):
    """Raised when a rule does not hold; `title` names the rule."""

    def __init__(self, title: str, now: int, what: str) -> None:
        super().__init__(f"{title} at {now / 1e9:.6f} s: {what}")
        self.title = title


class WatchedPort:
    """Wraps the port of a broker; calls `sending` with each message before it is sent."""

    def __init__(self, node: SimulatedNode, sending: Callable[[str, Message], None]) -> None:
        self.node = node.node
        self.random: RandomSource = node.random
        self.emit = node.emit
        self.open_store = node.open_store
        self._node = node
        self._sending = sending

    @property
    def now(self) -> int:
        return self._node.now

    def send(self, to: str, message: Message) -> None:
        self._sending(to, message)
        self._node.send(to, message)

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        self._node.set_timer(name, at)

    def cancel_timer(self, name: TimerName) -> None:
        self._node.cancel_timer(name)


class Requests:
    """Holds what one broker has requested in any incarnation, as answers may be late."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, int], RangeSet] = {}
        self._numbers: dict[tuple[str, bytes, int], RangeSet] = {}

    def note(self, message: Ask | Solicit) -> None:
        for source, incarnation, sequence, _ in message.partial:
            self._events.setdefault((source, incarnation), RangeSet()).add(sequence)
        if isinstance(message, Solicit):
            for origin, pattern, epoch, ranges in message.lost:
                numbers = self._numbers.setdefault((origin, pattern, epoch), RangeSet())
                for first, last in ranges:
                    numbers.add_range(first, last + 1)
            return
        for source, incarnation, ranges in message.events:
            for first, last in ranges:
                self._events.setdefault((source, incarnation), RangeSet()).add_range(first, last + 1)

    def include(self, message: Carried | Fragment) -> bool:
        """Return whether all events of the message were requested."""
        return all(
            sequence in self._events.get((source, incarnation), ())
            or any(
                number in self._numbers.get((message.origin, pattern, epoch), ())
                for pattern, epoch, number in later(message.numbers, place)
            )
            for place, (source, incarnation, sequence) in enumerate(identities(message))
        )


class Life(Part):
    """Watches one incarnation of a broker: what it received and sent. It is one of the broker's parts, because it owns
    the handlers that it wraps: when the broker stops, messages under way are redirected by their handlers' owner."""

    name = "watch"

    def __init__(self, node: SimulatedNode, monitor: EpidemicMonitor) -> None:
        super().__init__(node)
        self.broker: EpidemicBroker
        self._monitor = monitor
        self._inner: dict[type, Handler] = {}
        self._taken: dict[Unit, None] = {}
        """What arrived by the tree."""
        self._sent: list[tuple[str, Carried | Fragment]] | None = None
        """What was sent by the tree; None unless a handler runs that may do so."""
        self._asked_at: dict[Identity, int] = {}
        """When it first asked for an event that it held."""
        self._came_at: dict[Identity, int] = {}
        """When the last copy of a whole event arrived."""
        self._pushed: dict[Identity, dict[str, None]] = {}
        self._noticed: dict[tuple[str, str, Identity], None] = {}

    def attach(self, broker: EpidemicBroker) -> None:
        self.broker = broker
        broker.parts = (*broker.parts, self)
        for kind in (Publication, Run, Carried, Fragment):
            self._inner[kind] = broker.handlers[kind]
            broker.handlers[kind] = self.publish if kind in (Publication, Run) else self.take

    def _fail(self, title: str, what: str) -> EpidemicError:
        return EpidemicError(title, self.port.now, f"{self.port.node} {what}")

    # --- Received

    def publish(self, sender: str, message: Stretch) -> None:
        self._sent = []
        self._inner[message.__class__](sender, message)
        self._sent = None

    def take(self, sender: str, message: Carried | Fragment) -> None:
        sent: list[tuple[str, Carried | Fragment]] = []
        self._sent = sent
        self._inner[message.__class__](sender, message)
        self._sent = None
        self._check_forwarded(sender, message, sent)
        if isinstance(message, Carried):
            self._came_at |= dict.fromkeys(identities(message), self.port.now)

    def _check_forwarded(
        self, sender: str, message: Carried | Fragment, sent: list[tuple[str, Carried | Fragment]]
    ) -> None:
        if message.by:
            if sent:
                raise self._fail("tree", f"sent {text(message)}, which arrived by gossip, down the tree")
            return
        if any(hop == sender for hop, _ in sent):
            raise self._fail("tree", f"sent {text(message)} back to {sender}")
        if isinstance(message, Fragment) and (message.coefficients or self.broker.settings.redundancy):
            return  # one combination does not tell how many are forwarded
        hops = sorted((unit, hop) for hop, went in sent for unit in units(went))
        expected = sorted(
            (unit, hop)
            for unit, header in zip(units(message), headers(message), strict=True)
            for hop in self._hops(header)
            if unit not in self._taken and hop != sender
        )
        self._taken |= dict.fromkeys(units(message))
        if hops != expected:
            raise self._fail("tree", f"sent {text(message)} of {sender} as {hops}, not as {expected}")

    def _hops(self, header: Publication) -> list[str]:
        """Return the neighbours behind whom the event is wanted."""
        hops: dict[str, None] = {}
        for interest in self._monitor.matching(header):
            hops |= dict.fromkeys(self.broker.table.neighbours(interest))
        return list(hops)

    # --- Sent

    def sending(self, to: str, message: Message) -> None:
        if isinstance(message, Notify):
            self._check_notice(to, message.subscriptions, message.stretch)
        elif isinstance(message, Ask):
            self._monitor.requests(self.port.node).note(message)
        elif isinstance(message, Solicit):
            if message.initiator == self.port.node:
                self._check_request(message)
                self._monitor.requests(self.port.node).note(message)
        elif isinstance(message, Carried | Fragment):
            self._check_sent(to, message)

    def _check_request(self, message: Solicit) -> None:
        for origin, pattern, epoch, ranges in message.lost:
            for first, last in ranges:
                for entry in self.broker.recovery_state.cache.find_range(origin, pattern, epoch, first, last):
                    for identity in events_of(entry.stretch):
                        asked_at = self._asked_at.setdefault(identity, self.port.now)
                        if self._came_at.get(identity, 0) > asked_at:
                            raise self._fail(
                                "requests", f"asked again for event {identity}, which had arrived"
                            )

    def _check_notice(self, to: str, subscriptions: tuple[str, ...], stretch: Stretch) -> None:
        for subscription in subscriptions:
            for identity in events_of(stretch):
                key = to, subscription, identity
                if key in self._noticed:
                    raise self._fail("notices", f"notified {subscription} of {to} twice of event {identity}")
                self._noticed[key] = None

    def _check_sent(self, to: str, message: Carried | Fragment) -> None:
        if not message.by:
            if self._sent is None:
                raise self._fail("tree", f"sent {text(message)} to {to}, but had not just received it")
            self._sent.append((to, message))
        elif message.by == PUSH and self.broker.settings.pushes_events:
            for identity in identities(message):
                partners = self._pushed.setdefault(identity, {})
                partners[to] = None
                if len(partners) > self.broker.settings.fanout:
                    raise self._fail("pushes", f"pushed {text(message)} to {list(partners)}")
        elif not self._monitor.requests(to).include(message):
            raise self._fail("answers", f"sent {text(message)} to {to}, which had not asked")

    # --- Held

    def check_bounds(self) -> None:
        settings, recovery_state = self.broker.settings, self.broker.recovery_state
        cache, assemblies = recovery_state.cache, recovery_state.assemblies
        bounds = (
            ("cached events", len(cache), settings.buffer_events),
            ("cached bytes", cache.size_bytes, settings.buffer_bytes),
            ("losses", recovery_state.losses.lost, settings.max_lost),
            ("bytes of incomplete events", assemblies.charged_bytes, settings.assembly_bytes),
            ("known brokers", len(self.broker.directory.others), self._monitor.brokers - 1),
        )
        for what, size, limit in bounds:
            if size > limit:
                raise self._fail("bounds", f"has {size} {what}; the limit is {limit}")


class EpidemicMonitor:
    """Watches a simulation; attach it before the start, and call `check` now and then."""

    def __init__(self, simulation: Simulation) -> None:
        self.brokers = len(simulation.plan.topology.brokers)
        self.lives: dict[str, Life] = {}
        """The last incarnation of every broker."""
        self._requests: dict[str, Requests] = {}
        self._matcher = simulation.brokers.matcher
        for name in simulation.plan.topology.brokers:
            node = simulation.network.nodes[name]
            node._make = self._watching(node._make)

    def _watching(self, make: Callable[[SimulatedNode], Node]) -> Callable[[SimulatedNode], Node]:
        def make_watched(node: SimulatedNode) -> Node:
            life = self.lives[node.node] = Life(node, self)
            port = WatchedPort(node, life.sending)
            broker = cast("EpidemicBroker", make(cast("SimulatedNode", port)))
            life.attach(broker)
            return broker

        return make_watched

    def check(self) -> None:
        for life in self.lives.values():
            life.check_bounds()

    def requests(self, broker: str) -> Requests:
        return self._requests.setdefault(broker, Requests())

    def matching(self, publication: Publication) -> tuple[Interest, ...]:
        """Return all interests of any subscriber that select the publication."""
        return self._matcher.select(publication).interests


def events_of(stretch: Stretch) -> list[Identity]:
    sequences = range(stretch.first, stretch.last + 1)
    return [(stretch.source, stretch.incarnation, sequence) for sequence in sequences]


def identities(message: Carried | Fragment) -> list[Identity]:
    if isinstance(message, Carried):
        return events_of(message.stretch)
    return [(message.source, message.incarnation, message.sequence)]


def units(message: Carried | Fragment) -> list[Unit]:
    generation, index = (message.generation, message.index) if isinstance(message, Fragment) else (-1, -1)
    return [(identity, generation, index) for identity in identities(message)]


def headers(message: Carried | Fragment) -> list[Publication]:
    """Return the header that routes each event of the message."""
    return singles(message.stretch) if isinstance(message, Carried) else [Passing(message).header]


def text(message: Carried | Fragment) -> str:
    events = [str(EventId(*identity)) for identity in identities(message)]
    block = f" block {message.generation}/{message.index}" if isinstance(message, Fragment) else ""
    return f"event {' '.join(events)}{block}"
