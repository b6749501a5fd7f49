"""Links between brokers that are not neighbours: messages in order, each once, until the link is reported as down.

A message travels along the tree, from each broker to the nearest established one on the path. Sessions are first in,
first out, so messages are lost only where a session breaks; the sender repeats what is not acknowledged. Each end has a
serial, which grows with every link and every start. A link is up once each end has heard the other's serial, and down
when an end is silent for too long or has a new serial. Nothing that was under way then counts.

    new -- the other end knows our serial --> up -- silence, new serial, closed --> down
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Protocol

from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.overlay.guaranteed.sessions import SessionListener, Sessions
from tidings.core.overlay.guaranteed.share_messages import (
    ClientGone,
    MoveMessage,
    Routed,
    Serial,
    ShareMessage,
)
from tidings.core.overlay.labels import Label

TICK_NS = 1_000_000_000
"""How often each link sends something, so that the other end hears of it."""
SILENCE_NS = 6_000_000_000
"""An end that was silent for this long is gone. Neighbours need 2.5 s to notice a failure, and more to bypass it."""
IDLE_NS = 30_000_000_000
MAX_RESENT = 64
MAX_UNACKNOWLEDGED = 65_536
"""More than this many messages without acknowledgement end the link."""
UNKNOWN: Serial = (0, 0)

FarMessage = ShareMessage | MoveMessage | ClientGone


class FarListener(Protocol):
    """Who uses the links."""

    def far_up(self, broker: str) -> None: ...
    def far_message(self, broker: str, client: str, message: FarMessage) -> None: ...
    def far_down(self, broker: str) -> None: ...


class _Link:
    """Our end of a link."""

    __slots__ = (
        "acknowledges",
        "heard_at",
        "label",
        "next_number",
        "peer",
        "received",
        "serial",
        "unacknowledged",
        "up",
        "used_at",
    )

    def __init__(self, label: Label, serial: Serial, now: int) -> None:
        self.label = label
        self.serial = serial
        self.peer = UNKNOWN
        self.up = False
        self.heard_at = self.used_at = now
        self.received = 0
        self.next_number = 1
        self.unacknowledged: deque[tuple[int, str, FarMessage]] = deque()
        self.acknowledges = False
        """An acknowledgement is due."""


class FarLinks(Part, SessionListener):
    name = "far links"
    handles = {Routed: "on_routed"}

    def __init__(self, port: Port, sessions: Sessions, *, incarnation: int) -> None:
        super().__init__(port)
        self._sessions = sessions
        self._incarnation = incarnation
        self._opened = 0
        self._links: dict[str, _Link] = {}
        self.listener: FarListener | None = None
        self._ticks = False
        sessions.listeners.append(self)

    # --- For the part that uses the links

    def is_up(self, broker: str) -> bool:
        link = self._links.get(broker)
        return link is not None and link.up

    @property
    def is_drained(self) -> bool:
        """True if the other ends have taken everything that was sent."""
        return not any(link.up and link.unacknowledged for link in self._links.values())

    def label_of(self, broker: str) -> Label | None:
        """Return the label of a broker that there is a link to."""
        link = self._links.get(broker)
        return None if link is None else link.label

    def open(self, broker: str, label: Label) -> None:
        """Open a link, unless there is one; `far_up` follows when the other end has answered."""
        if broker not in self._links:
            link = self._make(broker, label)
            self._transmit(broker, link)

    def send(self, broker: str, client: str, message: FarMessage) -> None:
        """Send a message, or lose it if the link is not up: `far_down` has said so, or `far_up` will follow."""
        link = self._links.get(broker)
        if link is None or not link.up:
            return
        link.used_at = self.port.now
        number = link.next_number
        link.next_number += 1
        link.unacknowledged.append((number, client, message))
        self._transmit(broker, link, number, client, message)
        if len(link.unacknowledged) > MAX_UNACKNOWLEDGED:
            self._end(broker, link)

    def close_idle(self, in_use: Collection[str]) -> None:
        """Close links to other brokers than these, if they carried nothing for a while."""
        for broker, link in list(self._links.items()):
            if self.port.now - link.used_at > IDLE_NS and broker not in in_use:
                del self._links[broker]
                self._transmit(broker, link, closing=True)

    # --- Messages

    def on_routed(self, sender: str, message: Routed) -> None:
        own = self._sessions.neighbourhood
        if sender not in own:  # a client
            self.port.emit(Misbehaviour(sender, "sent a message of another broker"))
            return
        if message.to != own.name:
            nearest = self._sessions.frontier(message.to_label)
            if nearest is not None and tuple(message.to_label) != own.label:
                self.port.send(nearest, message)
            return
        link = self._link_for(message)
        if link is None:
            return
        link.heard_at = self.port.now
        if not link.up and message.peer_serial == link.serial:
            self._come_up(message.origin, link)
        elif message.peer_serial == UNKNOWN:
            self._transmit(message.origin, link)
        if link.up:
            self._take(link, message)

    def _link_for(self, message: Routed) -> _Link | None:
        """Return the link that the message belongs to; None if it belongs to an earlier one."""
        origin = message.origin
        link = self._links.get(origin)
        if message.closing:
            if link is not None and message.peer_serial == link.serial:
                self._end(origin, link)
            return None
        if (
            link is not None and link.peer != UNKNOWN and message.serial > link.peer
        ):  # their earlier end is gone
            self._end(origin, link)
            link = None
        if link is None:
            if message.peer_serial != UNKNOWN:  # meant for an earlier end of ours
                self._refuse(message)
                return None
            link = self._links.get(origin) or self._make(origin, message.origin_label)
        if message.serial < link.peer:
            return None
        if message.peer_serial not in (UNKNOWN, link.serial):
            self._transmit(origin, link)  # so that they learn of our new end
            return None
        link.peer = message.serial
        return link

    def _come_up(self, broker: str, link: _Link) -> None:
        link.up = True
        self._transmit(broker, link)
        if self.listener is not None:
            self.listener.far_up(broker)

    def _take(self, link: _Link, message: Routed) -> None:
        while link.unacknowledged and link.unacknowledged[0][0] <= message.received:
            link.unacknowledged.popleft()
        if not message.number:
            return
        link.acknowledges = True
        self.port.set_timer((self.name, "acknowledge"), self.port.now)
        if message.number == link.received + 1 and message.message is not None:
            link.received += 1
            link.used_at = self.port.now
            if self.listener is not None:
                self.listener.far_message(message.origin, message.client, message.message)

    # --- Time

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "acknowledge":
            for broker, link in self._links.items():
                if link.acknowledges:
                    self._transmit(broker, link)
            return
        self._ticks = False
        for broker, link in list(self._links.items()):
            if link.up and self.port.now - link.heard_at > SILENCE_NS:
                self._end(broker, link)
            elif not link.up and link.peer != UNKNOWN and self.port.now - link.heard_at > SILENCE_NS:
                del self._links[broker]
                if self.listener is not None:
                    self.listener.far_down(broker)
            else:
                self._repeat(broker, link)
        self._tick()

    def changed(self) -> None:
        """Sessions changed: what was on its way may be lost."""
        for broker, link in self._links.items():
            self._repeat(broker, link)

    def _repeat(self, broker: str, link: _Link) -> None:
        waiting = list(link.unacknowledged)[:MAX_RESENT] if link.up else []
        for number, client, message in waiting:
            self._transmit(broker, link, number, client, message)
        if not waiting:
            self._transmit(broker, link)

    def _tick(self) -> None:
        if self._links and not self._ticks:
            self._ticks = True
            self.port.set_timer((self.name, "tick"), self.port.now + TICK_NS)

    # --- Links

    def _make(self, broker: str, label: Label) -> _Link:
        self._opened += 1
        link = self._links[broker] = _Link(tuple(label), (self._incarnation, self._opened), self.port.now)
        self._tick()
        return link

    def _end(self, broker: str, link: _Link) -> None:
        """The link is down: nothing that was under way counts."""
        if self._links.get(broker) is link:
            del self._links[broker]
            self._transmit(broker, link, closing=True)
            if self.listener is not None:
                self.listener.far_down(broker)

    def _refuse(self, message: Routed) -> None:
        own = self._sessions.neighbourhood
        self._route(
            Routed(
                message.origin,
                message.origin_label,
                own.name,
                own.label,
                (self._incarnation, 0),
                message.serial,
                0,
                closing=True,
            )
        )

    def _transmit(
        self,
        broker: str,
        link: _Link,
        number: int = 0,
        client: str = "",
        message: FarMessage | None = None,
        *,
        closing: bool = False,
    ) -> None:
        link.acknowledges = False
        own = self._sessions.neighbourhood
        self._route(
            Routed(
                broker,
                link.label,
                own.name,
                own.label,
                link.serial,
                link.peer,
                link.received,
                number,
                client,
                message,
                closing,
            )
        )

    def _route(self, message: Routed) -> None:
        nearest = self._sessions.frontier(tuple(message.to_label))
        if nearest is not None:
            self.port.send(nearest, message)
