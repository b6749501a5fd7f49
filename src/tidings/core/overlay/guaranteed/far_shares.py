"""Clients of this broker that are attached to shares of other brokers: their messages go there and back.

The broker speaks for its clients over a link to the share's home (far_links.py). While the link is not up, what a
client sends is lost, and the client knows that: it attaches again when it is told of the interruption.
"""

from __future__ import annotations

from collections.abc import Callable

from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.far_links import FarLinks
from tidings.core.overlay.guaranteed.share_messages import (
    ClientGone,
    ShareAside,
    ShareAsideRequest,
    ShareAttach,
    ShareEnd,
    ShareEnded,
    ShareInterrupted,
    ShareLeft,
    ShareMessage,
    ShareRead,
    ShareRefused,
    ShareRows,
)
from tidings.core.overlay.labels import Label

PATIENCE_NS = 2_000_000_000
"""How long a client waits for an unreachable home before it hears of that."""

Question = ShareAttach | ShareEnd | ShareAsideRequest | ShareRead
"""What a client asks about a share by its name."""


class _FarHold:
    """A client's hold of a share elsewhere."""

    __slots__ = ("asked", "home", "label", "leaving", "name", "since", "told")

    def __init__(self, home: str, label: Label, asked: ShareAttach, now: int) -> None:
        self.home, self.label = home, label
        self.name = asked.name
        self.asked: ShareAttach | None = asked
        """What to send when the link is up; None: it was sent."""
        self.since = now
        self.leaving = False
        """The client has left, and waits for the answer."""
        self.told = False
        """The client knows that its share cannot be reached."""


class FarShares:
    """The holds of this broker's clients on shares elsewhere. `send` reaches a client of this broker."""

    def __init__(self, links: FarLinks, send: Callable[[str, Message], None]) -> None:
        self._links = links
        self._send = send
        self._holds: dict[str, dict[str, _FarHold]] = {}
        """Client -> its subscription -> its hold."""
        self._callers: dict[str, dict[str, None]] = {}
        """Home -> our clients that sent something there."""

    @property
    def homes(self) -> set[str]:
        """The brokers that have shares which clients of ours are attached to."""
        return {hold.home for _, _, hold in self._all()}

    def _all(self) -> list[tuple[str, str, _FarHold]]:
        return [(client, name, hold) for client, holds in self._holds.items() for name, hold in holds.items()]

    def _hold(self, client: str, subscription: str) -> _FarHold | None:
        return self._holds.get(client, {}).get(subscription)

    def count(self, client: str) -> int:
        """Return how many holds the client has."""
        return len(self._holds.get(client, ()))

    def name_of(self, client: str, subscription: str) -> str | None:
        """Return the name of the share that the client holds with this subscription; None if it holds none."""
        hold = self._hold(client, subscription)
        return None if hold is None else hold.name

    def attach(self, client: str, home: str, label: Label, message: ShareAttach, now: int) -> None:
        hold = self._hold(client, message.subscription)
        if hold is None or hold.home != home:
            hold = _FarHold(home, label, message, now)
            self._holds.setdefault(client, {})[message.subscription] = hold
        hold.asked = message
        self._links.open(home, label)
        if self._links.is_up(home):
            self._ask(client, hold)

    def _ask(self, client: str, hold: _FarHold) -> None:
        if hold.asked is not None:
            message, hold.asked = hold.asked, None
            hold.told = False
            self._to(hold.home, client, message)

    def _to(self, home: str, client: str, message: ShareMessage | ClientGone) -> None:
        self._callers.setdefault(home, {})[client] = None
        self._links.send(home, client, message)

    def call(self, client: str, home: str, label: Label, message: ShareMessage) -> bool:
        """Send a question that needs no hold; return False if the link is not up yet."""
        self._links.open(home, label)
        if not self._links.is_up(home):
            return False
        self._to(home, client, message)
        return True

    def forward(self, client: str, subscription: str, message: ShareMessage) -> bool:
        """Send what a client says about its hold; return False if it has none."""
        hold = self._hold(client, subscription)
        if hold is None:
            return False
        if hold.asked is None:
            self._to(hold.home, client, message)
        return True

    def leave(self, client: str, subscription: str, message: ShareMessage) -> bool:
        """A client leaves; return False if it has no such hold."""
        hold = self._hold(client, subscription)
        if hold is None:
            return False
        if hold.asked is None and self._links.is_up(hold.home):
            hold.leaving = True
            self._to(hold.home, client, message)
        else:
            self._left(client, subscription)
        return True

    def _left(self, client: str, subscription: str) -> None:
        """The client has left as far as it can tell: its home does not hear of it, or has heard that it is gone."""
        self.forget(client, subscription)
        self._send(client, ShareLeft(subscription))

    def forget(self, client: str, subscription: str) -> None:
        """Drop a hold: the client attaches elsewhere."""
        holds = self._holds.get(client, {})
        holds.pop(subscription, None)
        if not holds:
            self._holds.pop(client, None)

    def client_gone(self, client: str) -> None:
        self._holds.pop(client, None)
        for home, callers in self._callers.items():
            if callers.pop(client, "") is None:
                self._links.send(home, client, ClientGone())

    # --- The links

    def far_up(self, broker: str) -> None:
        for client, _, hold in self._all():
            if hold.home == broker:
                self._ask(client, hold)

    def far_message(self, client: str, message: ShareMessage) -> None:
        """Pass on what the home says to a client of ours."""
        if isinstance(message, ShareRefused | ShareLeft):
            self.forget(client, message.subscription)
        self._send(client, message)

    def far_down(self, broker: str) -> None:
        """The way to the home is broken: the clients must attach again."""
        self._callers.pop(broker, None)
        for client, subscription, hold in self._all():
            if hold.home == broker and hold.leaving:
                self._left(client, subscription)
            elif hold.home == broker and hold.asked is None:
                hold.told = True
                self._send(client, ShareInterrupted(subscription, broker))

    def check(self, now: int) -> None:
        """Keep trying to reach the homes, and tell clients whose home has not answered for a while."""
        for client, subscription, hold in self._all():
            if hold.asked is None:
                continue
            self._links.open(hold.home, hold.label)
            if not hold.told and now - hold.since > PATIENCE_NS:
                hold.told = True
                self._send(client, ShareInterrupted(subscription, hold.home))


def failure(message: Question, reason: str) -> ShareRefused | ShareEnded | ShareAside | ShareRows:
    """Return the answer to a question that failed."""
    if isinstance(message, ShareAttach):
        return ShareRefused(message.subscription, reason)
    if isinstance(message, ShareEnd):
        return ShareEnded(message.name, reason)
    if isinstance(message, ShareRead):
        return ShareRows(message.name, message.request, reason=reason, unread=True)
    return ShareAside(message.name, reason=reason)
