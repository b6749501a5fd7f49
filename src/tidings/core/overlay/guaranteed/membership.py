"""Brokers that join and leave at run time.

A new broker asks an existing one for a place below it. It gets a label that was never used before and its
neighbourhood, and starts as a broker that has to fetch the subscription log. Its neighbours tell each other; brokers
that were unreachable learn of it when their sessions return. A broker without others below it can leave: it ends its
subscriptions, waits until nothing waits for it, and is removed from the neighbourhoods. Brokers in the middle of the
tree cannot leave: they would count for ever among the delta that may fail.
"""

from __future__ import annotations

import msgspec

from tidings.core.errors import StoreCorrupt
from tidings.core.facts import JoinAnswered, JoinRefused, LeftNetwork, Misbehaviour, SessionWanted
from tidings.core.kernel import Node, Part, Port, TimerName
from tidings.core.messages import Refused
from tidings.core.overlay.guaranteed.attachments import Attachments
from tidings.core.overlay.guaranteed.delivery import Delivery
from tidings.core.overlay.guaranteed.far_links import FarLinks
from tidings.core.overlay.guaranteed.messages import Join, Joined, Neighbour
from tidings.core.overlay.guaranteed.neighbourhood import Neighbourhood
from tidings.core.overlay.guaranteed.sessions import SessionListener, Sessions, has_left
from tidings.core.overlay.labels import Label, distance, label_text
from tidings.core.store import Store

JOIN_RETRY_NS = 1_000_000_000
LEAVE_CHECK_NS = 250_000_000
NEWS_KEY = b"news/"

_encode = msgspec.msgpack.Encoder().encode
_decode_news = msgspec.msgpack.Decoder(Neighbour).decode


def read_news(store: Store) -> dict[str, Neighbour]:
    """Return the brokers that joined or left at run time, as far as this broker knows, by name."""
    news: dict[str, Neighbour] = {}
    for key, value in store.read("identity"):
        if key.startswith(NEWS_KEY):
            try:
                neighbour = _decode_news(value)
            except msgspec.MsgspecError as error:
                raise StoreCorrupt(f"neighbour {key!r} does not decode: {error}") from None
            news[neighbour.name] = neighbour
    return news


class Membership(Part, SessionListener):
    name = "membership"
    handles = {Join: "on_join", Neighbour: "on_neighbour"}

    def __init__(
        self,
        port: Port,
        sessions: Sessions,
        delivery: Delivery,
        attachments: Attachments,
        links: FarLinks,
        store: Store,
        news: dict[str, Neighbour],
    ) -> None:
        super().__init__(port)
        self.leaving = False
        self._sessions = sessions
        self._delivery = delivery
        self._attachments = attachments
        self._links = links
        sessions.listeners.append(self)
        self._around: Neighbourhood = sessions.neighbourhood
        self._store = store
        self._news = news

    # --- Joining

    def on_join(self, sender: str, message: Join) -> None:
        reason = self._refusal(sender)
        if reason is not None:
            self.port.send(sender, Refused(reason))
            return
        if sender in self._around:
            label = self._around.label_of(sender)
        else:
            label = (*self._around.label, self._next_child())
            self._learn(Neighbour(sender, label, message.address), None)
        around = [
            Neighbour(peer, self._around.label_of(peer), self._around.address_of(peer))
            for peer in self._around
            if peer != sender and distance(self._around.label_of(peer), label) <= self._around.reach
        ]
        own = Neighbour(self._around.name, self._around.label, self._sessions.address)
        self.port.send(sender, Joined(label, self._sessions.delta, (own, *around)))

    def _refusal(self, name: str) -> str | None:
        if self._attachments.recovering:
            return f"{self._around.name} is still recovering its own state; try again later"
        if self.leaving:
            return f"{self._around.name} is leaving"
        if has_left(self._news, name):
            return f"a broker named {name} has left this network, and its name cannot be reused"
        if name in self._around and self._around.label_of(name)[:-1] != self._around.label:
            return f"there is a broker named {name} at {label_text(self._around.label_of(name))}"
        if name in self._around and self._sessions.established(name):
            return f"a broker named {name} is already connected below {self._around.name}"
        return None

    def _next_child(self) -> int:
        """Return a number that no child ever had."""
        own = self._around.label
        labels = [self._around.label_of(peer) for peer in self._around]
        labels += [tuple(neighbour.label) for neighbour in self._news.values()]
        return max((label[-1] for label in labels if label[:-1] == own), default=-1) + 1

    def on_neighbour(self, sender: str, message: Neighbour) -> None:
        if self._sessions.established(sender):
            self._learn(message, sender)

    def established(self, peer: str) -> None:
        """Send a peer that returned the news that it may have missed."""
        label = self._around.label_of(peer)
        for neighbour in self._news.values():
            if neighbour.name != peer and distance(tuple(neighbour.label), label) <= self._around.reach:
                self.port.send(peer, neighbour)

    def _learn(self, neighbour: Neighbour, source: str | None) -> None:
        """Store the news if it concerns us, and pass it on. A broker that left never returns."""
        known = self._news.get(neighbour.name)
        label: Label = tuple(neighbour.label)
        if neighbour.name == self._around.name or distance(label, self._around.label) > self._around.reach:
            return
        if known == neighbour or (known is not None and known.gone):
            return
        try:
            if neighbour.gone:
                if neighbour.name in self._around:
                    self._around.remove(neighbour.name)
            else:
                self._around.add(neighbour.name, label, neighbour.address)
        except ValueError as error:
            if source is not None:
                self.port.emit(Misbehaviour(source, f"sent impossible news of {neighbour.name}: {error}"))
            return
        self._news[neighbour.name] = neighbour
        self._store.write([("identity", NEWS_KEY + neighbour.name.encode(), _encode(neighbour))])
        for peer in list(self._around):
            if peer not in (source, neighbour.name) and self._sessions.established(peer):
                self.port.send(peer, neighbour)
        self._sessions.neighbours_changed()

    # --- Leaving

    def leave(self) -> None:
        """Begin to leave; LeftNetwork is emitted at the end. Raise ValueError if this broker cannot leave."""
        below = [
            peer
            for peer in self._around.primary
            if len(self._around.label_of(peer)) > len(self._around.label)
        ]
        if below:
            raise ValueError(
                f"{self._around.name} cannot leave: {', '.join(below)} below it could then survive one failure fewer"
            )
        if not self.leaving:
            self.leaving = True
            self._attachments.end_all()
            self._set_check()

    def on_timer(self, name: TimerName) -> None:
        reached = [peer for peer in self._around.primary if self._sessions.established(peer)]
        drained = self._delivery.is_drained and self._links.is_drained
        if not drained or (self._around.primary and not reached):
            self._set_check()
            return
        gone = Neighbour(self._around.name, self._around.label, "", True)
        for peer in self._around:
            if self._sessions.established(peer):
                self.port.send(peer, gone)
        self.port.emit(LeftNetwork())

    def _set_check(self) -> None:
        self.port.set_timer((self.name, "leave"), self.port.now + LEAVE_CHECK_NS)


class Joining(Part):
    """A broker without a place yet. It asks `parent` until it gets an answer, which it emits."""

    name = "joining"
    handles = {Joined: "on_joined", Refused: "on_refused"}

    def __init__(self, port: Port, parent: str, parent_address: str, address: str) -> None:
        super().__init__(port)
        self._parent = parent
        self._parent_address = parent_address
        self._address = address

    def start(self) -> None:
        self.port.emit(SessionWanted(self._parent, self._parent_address))

    def on_link_up(self, peer: str) -> None:
        if peer == self._parent:
            self._ask()

    def on_timer(self, name: TimerName) -> None:
        self._ask()

    def _ask(self) -> None:
        self.port.send(self._parent, Join(self._address))
        self.port.set_timer((self.name, "retry"), self.port.now + JOIN_RETRY_NS)

    def on_joined(self, sender: str, message: Joined) -> None:
        self.port.cancel_timer((self.name, "retry"))
        around = {
            neighbour.name: (tuple(neighbour.label), neighbour.address) for neighbour in message.neighbours
        }
        self.port.emit(JoinAnswered(tuple(message.label), message.delta, around))

    def on_refused(self, sender: str, message: Refused) -> None:
        self.port.emit(JoinRefused(message.reason))


class JoiningBroker(Node):
    def __init__(self, port: Port, parent: str, *, parent_address: str = "", address: str = "") -> None:
        super().__init__((Joining(port, parent, parent_address, address),))
