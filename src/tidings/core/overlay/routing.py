"""A broker's routing table: the neighbours and local subscriptions that have each interest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidings.core.events.run import stripped
from tidings.core.events.subscription import Interest
from tidings.core.kernel import Port, Send
from tidings.core.messages import Message, Notify
from tidings.core.overlay.matching import Matcher, Selection

MAX_CACHED_ROUTES = 4_096


class Route(NamedTuple):
    """Where this broker sends the publications of one selection."""

    hops: tuple[tuple[str, Send], ...]
    notices: tuple[tuple[Send, tuple[str, ...]], ...]
    """(how to notify a client, its subscriptions that match). Where a client wants only headers, its `Send` drops the
    body."""


class RouteEntry:
    __slots__ = ("neighbours", "subscriptions")

    def __init__(self) -> None:
        self.neighbours: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}

    @property
    def empty(self) -> bool:
        return not self.neighbours and not self.subscriptions


class RoutingListener:
    """Callbacks for changes of the table. They do nothing by default."""

    def held_here(self, interest: Interest, held: bool) -> None:
        """The interest entered or left the table."""

    def held_by_clients(self, interest: Interest, held: bool) -> None:
        """The interest got its first local subscription, or lost its last."""


class RoutingTable:
    def __init__(self, matcher: Matcher, port: Port) -> None:
        self._matcher = matcher
        self._port = port
        self._entries: dict[Interest, RouteEntry] = {}
        self._headers: set[tuple[str, str]] = set()
        """The local subscriptions that want only headers."""
        self.routes: dict[Selection, Route] = {}
        """The routes computed since the last change, cached by `route`."""
        self.listeners: list[RoutingListener] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Interest]:
        return iter(self._entries)

    def add_neighbour(self, interest: Interest, neighbour: str) -> None:
        self._entry(interest).neighbours[neighbour] = None
        self.routes.clear()

    def remove_neighbour(self, interest: Interest, neighbour: str) -> None:
        self._entries[interest].neighbours.pop(neighbour, None)
        self._tidy(interest)

    def add_subscription(
        self, interest: Interest, client: str, subscription: str, *, headers: bool = False
    ) -> None:
        subscriptions = self._entry(interest).subscriptions
        if headers:
            self._headers.add((client, subscription))
        first = not subscriptions
        subscriptions[client, subscription] = None
        self.routes.clear()
        if first:
            for listener in self.listeners:
                listener.held_by_clients(interest, True)

    def remove_subscription(self, interest: Interest, client: str, subscription: str) -> None:
        subscriptions = self._entries[interest].subscriptions
        subscriptions.pop((client, subscription), None)
        self._headers.discard((client, subscription))
        if not subscriptions:
            for listener in self.listeners:
                listener.held_by_clients(interest, False)
        self._tidy(interest)

    def has_headers(self, client: str, subscription: str) -> bool:
        return (client, subscription) in self._headers

    def wanted_by_others(self, interest: Interest, neighbour: str) -> bool:
        """Return True if anybody except that neighbour has the interest."""
        entry = self._entries.get(interest)
        if entry is None:
            return False
        return bool(entry.subscriptions) or any(other != neighbour for other in entry.neighbours)

    def neighbours(self, interest: Interest) -> tuple[str, ...]:
        """Return the neighbours that have the interest, for themselves or for somebody behind them."""
        entry = self._entries.get(interest)
        return () if entry is None else tuple(sorted(entry.neighbours))

    def subscriptions(self, interest: Interest) -> tuple[tuple[str, str], ...]:
        entry = self._entries.get(interest)
        return () if entry is None else tuple(entry.subscriptions)

    def route(self, selection: Selection) -> Route:
        """Compute the route of a selection and cache it in `routes`."""
        if len(self.routes) >= MAX_CACHED_ROUTES:
            self.routes.clear()
        route = self.routes[selection] = self._compute(selection)
        return route

    def _compute(self, selection: Selection) -> Route:
        hops: dict[str, None] = {}
        notices: dict[str, list[str]] = {}
        for interest in selection.interests:
            entry = self._entries.get(interest)
            if entry is not None:
                hops.update(entry.neighbours)
                for client, subscription in entry.subscriptions:
                    notices.setdefault(client, []).append(subscription)
        sender = self._port.sender
        return Route(
            tuple((hop, sender(hop)) for hop in sorted(hops)),
            tuple(
                (self._notifier(client, ids), tuple(sorted(ids))) for client, ids in sorted(notices.items())
            ),
        )

    def _notifier(self, client: str, subscriptions: list[str]) -> Send:
        """Return how to notify the client when these subscriptions match."""
        send = self._port.sender(client)
        if self._headers and all((client, name) in self._headers for name in subscriptions):
            return _header_sender(send)
        return send

    def discard(self) -> None:
        """Release every interest to the matcher."""
        for interest in self._entries:
            self._matcher.release(interest)
        self._entries.clear()
        self.routes.clear()

    def _entry(self, interest: Interest) -> RouteEntry:
        entry = self._entries.get(interest)
        if entry is None:
            entry = self._entries[self._matcher.hold(interest)] = RouteEntry()
            for listener in self.listeners:
                listener.held_here(interest, True)
        return entry

    def _tidy(self, interest: Interest) -> None:
        self.routes.clear()
        if self._entries[interest].empty:
            del self._entries[interest]
            self._matcher.release(interest)
            for listener in self.listeners:
                listener.held_here(interest, False)


def _header_sender(send: Send) -> Send:
    """Wrap `send` to send only the headers of notifications."""

    def send_header(message: Message) -> None:
        assert isinstance(message, Notify)
        send(Notify(message.subscriptions, stripped(message.stretch), message.by))

    return send_header
