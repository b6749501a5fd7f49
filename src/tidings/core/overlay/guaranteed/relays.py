"""Circuits: sessions through a common neighbour, used where the direct link fails and there is nobody to bypass to.

    asker               relay                target
      |---- ask ---------->|                   |
      |                    |---- offer ------->|
      |                    |<--- accept -------|     the target's end is up
      |<--- opened --------|                   |     the asker's end is up

A greedy path along the tree can wait although another path exists: the link beside the subscriber's broker is cut, but
the broker is alive. Both sessions of the relay are first in, first out, so a circuit is, too. When one of them breaks,
the circuit is closed. To the other parts a circuit is a connection like any other. As soon as the direct connection
returns, it replaces the circuit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidings.core.kernel import Part, Port, RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.delivery import Delivery
from tidings.core.overlay.guaranteed.messages import Relay, Relayed
from tidings.core.overlay.guaranteed.sessions import SessionListener, Sessions
from tidings.core.overlay.labels import distance

FIRST_ASK_NS = 1_000_000_000
LAST_ASK_NS = 16_000_000_000
"""How long a peer is unreachable before a circuit is requested, and the longest delay between requests."""
LEASE_NS = 4_000_000_000
"""How long a relay tries to reach the target."""
UNANSWERED_NS = 1_000_000_000
"""A request of our own that is not answered by then yields to one from the other end."""
MAX_CIRCUITS_CARRIED = 1_024


class Circuit(NamedTuple):
    """Our end of a circuit."""

    relay: str
    serial: int
    up: bool
    own: bool
    """We requested it."""
    since: int
    """When it was requested or opened."""


class RelayingPort:
    """The Port of a broker's parts. It sends messages for the other end of a circuit to the relay."""

    def __init__(self, port: Port) -> None:
        self.node = port.node
        self.random: RandomSource = port.random
        self.circuits: dict[str, Circuit] = {}
        self.inside: dict[str, Callable[[Message], None]] = {}
        """Clients that live in this broker: their messages never leave it."""
        self._port = port
        self._send: Callable[[str, Message], None] = port.send
        self.set_timer: Callable[[TimerName, int], None] = port.set_timer
        self.cancel_timer: Callable[[TimerName], None] = port.cancel_timer
        self.emit: Callable[[object], None] = port.emit

    @property
    def now(self) -> int:
        return self._port.now

    def send(self, to: str, message: Message) -> None:
        if self.inside and to in self.inside:
            self.inside[to](message)
            return
        circuit = self.circuits.get(to) if self.circuits else None
        if circuit is not None and circuit.up:
            self._send(circuit.relay, Relayed(to, circuit.serial, message))
        else:
            self._send(to, message)

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def send_directly(self, to: str, message: Message) -> None:
        self._send(to, message)


class Relays(Part, SessionListener):
    name = "relays"
    handles = {Relay: "on_relay", Relayed: "on_relayed"}

    def __init__(
        self,
        port: RelayingPort,
        sessions: Sessions,
        delivery: Delivery,
        receive: Callable[[str, Message], None],
        *,
        incarnation: int,
    ) -> None:
        """`receive` takes messages that arrive over a circuit as if they came directly."""
        super().__init__(port)
        self._delivery = delivery
        self._receive = receive
        sessions.listeners.append(self)
        self.carried: dict[tuple[str, str], int] = {}
        """Open circuits through this relay: (asker, target) -> serial."""
        self._relaying = port
        self._circuits = port.circuits
        self._sessions = sessions
        self._serial = incarnation
        self._asked: dict[tuple[str, str], int] = {}
        """Circuits through this relay that wait for the target's session or its answer."""
        self._asked_until: dict[tuple[str, str], int] = {}
        self._attempts: dict[str, tuple[int, int]] = {}
        """Unreachable peer -> when to ask next, and how often we have asked."""
        self._direct: dict[str, None] = {}

    def _is_needed(self, peer: str) -> bool:
        """Return True if the peer needs a circuit: something waits for it, or nobody behind it is reached."""
        behind = self._sessions.neighbourhood.behind(peer)
        if not any(self._sessions.established(other) for other in behind):
            return True
        return self._delivery.waits_behind(peer)

    # --- Asking

    def beat(self) -> None:
        """Request circuits to peers that can be reached in no other way."""
        now = self.port.now
        unreachable = self._sessions.unreachable()
        self._attempts = {peer: self._attempts[peer] for peer in unreachable if peer in self._attempts}
        for peer in unreachable:
            due, count = self._attempts.get(peer, (self._sessions.unreachable_since(peer) + FIRST_ASK_NS, 0))
            if now < due or peer in self._direct or not self._is_needed(peer):
                continue
            relay = self._choose_relay(peer, count)
            wait_ns = min(FIRST_ASK_NS << min(count + 1, 6), LAST_ASK_NS)
            self._attempts[peer] = (now + wait_ns, count + 1)
            if relay is not None:
                self._serial += 1
                self._circuits[peer] = Circuit(relay, self._serial, up=False, own=True, since=now)
                self._relaying.send_directly(relay, Relay(peer, "ask", self._serial))
        self._offer_all()

    def _choose_relay(self, peer: str, attempt: int) -> str | None:
        """Return a neighbour of both, a different one for each attempt."""
        around = self._sessions.neighbourhood
        label = around.label_of(peer)
        candidates = [
            other
            for other in around
            if other != peer
            and other in self._direct
            and self._sessions.established(other)
            and distance(around.label_of(other), label) <= around.reach
        ]
        candidates.sort(key=lambda other: (distance(around.label_of(other), label), other))
        return candidates[attempt % len(candidates)] if candidates else None

    def circuit(self, peer: str) -> str | None:
        """Return the relay of the session to that peer; None if it is direct, or there is none."""
        circuit = self._circuits.get(peer)
        return circuit.relay if circuit is not None and circuit.up else None

    # --- The messages

    def on_relay(self, sender: str, message: Relay) -> None:
        peer, serial = message.peer, message.serial
        match message.step:
            case "ask":
                self._on_ask(sender, peer, serial)
            case "offer":
                self._on_offer(sender, peer, serial)
            case "accept":
                if self._asked.get((peer, sender)) == serial:
                    del self._asked[peer, sender]
                    self.carried[peer, sender] = serial
                    self._relaying.send_directly(peer, Relay(sender, "opened", serial))
            case "opened":
                circuit = self._circuits.get(peer)
                if circuit is not None and circuit[:2] == (sender, serial):
                    self._open(peer, circuit._replace(up=True))
                else:
                    self._relaying.send_directly(sender, Relay(peer, "closed", serial))
            case "closed":
                self._on_closed(sender, peer, serial)

    def _on_ask(self, asker: str, target: str, serial: int) -> None:
        full = len(self.carried) + len(self._asked) >= MAX_CIRCUITS_CARRIED
        if full or target not in self._sessions.neighbourhood or asker not in self._direct:
            self._relaying.send_directly(asker, Relay(target, "closed", serial))
            return
        self.carried.pop((asker, target), None)
        self._asked[asker, target] = serial
        self._asked_until[asker, target] = self.port.now + LEASE_NS
        self._keep(asker)
        self._keep(target)
        self._offer(asker, target)

    def _offer_all(self) -> None:
        now = self.port.now
        self._asked_until = {pair: until for pair, until in self._asked_until.items() if pair in self._asked}
        for asker, target in list(self._asked):
            if self._asked_until[asker, target] < now:
                self._relaying.send_directly(asker, Relay(target, "closed", self._asked.pop((asker, target))))
            else:
                self._offer(asker, target)
        for asker, target in list(self.carried):
            self._keep(asker)
            self._keep(target)
        for circuit in list(self._circuits.values()):
            self._keep(circuit.relay)

    def _keep(self, peer: str) -> None:
        """Keep the session to that peer, because a circuit goes through it."""
        if peer in self._sessions.neighbourhood:
            self._sessions.want_for_others(peer, self.port.now + LEASE_NS)

    def _offer(self, asker: str, target: str) -> None:
        if target in self._direct and self._sessions.established(target):
            self._relaying.send_directly(target, Relay(asker, "offer", self._asked[asker, target]))

    def _on_offer(self, relay: str, asker: str, serial: int) -> None:
        mine = self._circuits.get(asker)
        if mine is not None and (mine.relay, mine.serial) == (relay, serial):
            self._relaying.send_directly(relay, Relay(asker, "accept", serial))
            return
        refused = (
            asker not in self._sessions.neighbourhood
            or asker in self._direct
            or relay not in self._direct
            or (mine is not None and mine.own and self.port.node < asker and not self._is_unanswered(mine))
        )
        if refused:
            self._relaying.send_directly(relay, Relay(asker, "closed", serial))
            return
        if mine is not None and mine.own and mine.relay in self._direct:
            self._relaying.send_directly(mine.relay, Relay(asker, "closed", mine.serial))
        self._relaying.send_directly(relay, Relay(asker, "accept", serial))
        self._open(asker, Circuit(relay, serial, up=True, own=False, since=self.port.now))

    def _is_unanswered(self, circuit: Circuit) -> bool:
        return not circuit.up and self.port.now - circuit.since >= UNANSWERED_NS

    def _open(self, peer: str, circuit: Circuit) -> None:
        self._end(peer, tell=False)
        self._circuits[peer] = circuit
        self._keep(circuit.relay)
        self._sessions.on_link_up(peer)

    def _on_closed(self, sender: str, peer: str, serial: int) -> None:
        circuit = self._circuits.get(peer)
        if circuit is not None and circuit[:2] == (sender, serial):
            self._end(peer, tell=False)
        for pair, other in (((sender, peer), peer), ((peer, sender), peer)):
            if serial in (self.carried.get(pair), self._asked.get(pair)):
                self.carried.pop(pair, None)
                self._asked.pop(pair, None)
                self._relaying.send_directly(other, Relay(sender, "closed", serial))

    def on_relayed(self, sender: str, message: Relayed) -> None:
        peer, serial = message.peer, message.serial
        circuit = self._circuits.get(peer)
        if circuit is not None and circuit[:2] == (sender, serial):
            if circuit.up:
                self._receive(peer, message.message)
            return
        if serial in (self.carried.get((sender, peer)), self.carried.get((peer, sender))):
            self._relaying.send_directly(peer, Relayed(sender, serial, message.message))
        else:
            self._relaying.send_directly(sender, Relay(peer, "closed", serial))

    # --- Connections

    def on_link_up(self, peer: str) -> None:
        """Replace a circuit by the direct connection. (The sessions are told after us.)"""
        self._direct[peer] = None
        self._end(peer, tell=True)

    def on_link_down(self, peer: str) -> None:
        self._direct.pop(peer, None)
        for other in [other for other, circuit in self._circuits.items() if circuit.relay == peer]:
            self._end(other, tell=False)
        for table in (self.carried, self._asked):
            for asker, target in [pair for pair in table if peer in pair]:
                serial = table.pop((asker, target))
                other = target if asker == peer else asker
                if other in self._direct:
                    self._relaying.send_directly(other, Relay(peer, "closed", serial))

    def ended(self, peer: str) -> None:
        """End the circuit to a peer whose session ended."""
        self._end(peer, tell=True)

    def _end(self, peer: str, *, tell: bool) -> None:
        circuit = self._circuits.pop(peer, None)
        if circuit is None:
            return
        if tell and circuit.relay in self._direct:
            self._relaying.send_directly(circuit.relay, Relay(peer, "closed", circuit.serial))
        if circuit.up:
            self._sessions.on_link_down(peer)
