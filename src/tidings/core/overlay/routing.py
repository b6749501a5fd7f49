"""A broker's routing table: the neighbours and local subscriptions that have each interest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidings.core.events.run import stripped
from tidings.core.events.subscription import Interest
from tidings.core.kernel import Port, Send
from tidings.core.messages import Message, Notify
from tidings.core.overlay.matching import Matcher, Selection
from tidings.core.overlay.members import GroupMembership

MAX_CACHED_ROUTES = 4_096


LocalMember = tuple[str, str]
"""A client of this broker and its subscription."""


class LocalMembership(NamedTuple):
    """A subscription's membership in a group."""

    membership: GroupMembership
    group_by: str


class LocalGroup(NamedTuple):
    """A group's members at this broker."""

    name: str
    terms: str
    group_by: str
    members: dict[str, LocalMember]


class SharedRoute(NamedTuple):
    """What the clients that belong to groups get of one selection (core/overlay/groups.py)."""

    groups: tuple[LocalGroup, ...]
    clients: dict[str, tuple[str, ...]]
    """Client -> its subscriptions that match and share with nobody."""


class Route(NamedTuple):
    """Where this broker sends the publications of one selection."""

    hops: tuple[tuple[str, Send], ...]
    notices: tuple[tuple[Send, tuple[str, ...]], ...]
    """(how to notify a client, its subscriptions that match), for clients without groups. Where a client wants only
    headers, its `Send` drops the body."""
    shared: SharedRoute | None = None

    @property
    def wanted(self) -> bool:
        """Whether clients of this broker subscribe to it, if only in a group."""
        return bool(self.notices) or self.shared is not None


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
        self._joined: dict[LocalMember, LocalMembership] = {}
        """The local subscriptions that are members of groups."""
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
        self,
        interest: Interest,
        client: str,
        subscription: str,
        *,
        headers: bool = False,
        joined: LocalMembership | None = None,
    ) -> None:
        subscriptions = self._entry(interest).subscriptions
        if headers:
            self._headers.add((client, subscription))
        if joined is not None:
            self._joined[client, subscription] = joined
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
        self._joined.pop((client, subscription), None)
        if not subscriptions:
            for listener in self.listeners:
                listener.held_by_clients(interest, False)
        self._tidy(interest)

    def has_headers(self, client: str, subscription: str) -> bool:
        return (client, subscription) in self._headers

    def joined(self, client: str, subscription: str) -> LocalMembership | None:
        return self._joined.get((client, subscription))

    def joined_to(self, group: str) -> list[tuple[str, str, LocalMembership]]:
        """Return the local members of the group: (client, subscription, membership)."""
        return [(*who, joined) for who, joined in self._joined.items() if joined.membership.group == group]

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

    def leads_anywhere(self, selection: Selection) -> bool:
        """Return True if any neighbour or client gets the publications of a selection."""
        route = self.routes.get(selection) or self.route(selection)
        return bool(route.hops) or route.wanted

    def _compute(self, selection: Selection) -> Route:
        hops: dict[str, None] = {}
        notices: dict[str, list[str]] = {}
        members: list[LocalMember] = []
        for interest in selection.interests:
            entry = self._entries.get(interest)
            if entry is not None:
                hops.update(entry.neighbours)
                for client, subscription in entry.subscriptions:
                    if (client, subscription) in self._joined:
                        members.append((client, subscription))
                    else:
                        notices.setdefault(client, []).append(subscription)
        shared = self._share(members, notices) if members else None
        sender = self._port.sender
        return Route(
            tuple((hop, sender(hop)) for hop in sorted(hops)),
            tuple(
                (self.notifier(client, ids), tuple(sorted(ids))) for client, ids in sorted(notices.items())
            ),
            shared,
        )

    def _share(self, members: list[LocalMember], notices: dict[str, list[str]]) -> SharedRoute:
        """Return the part of a route that is about members of groups; take their clients out of `notices`."""
        groups: dict[tuple[str, str], LocalGroup] = {}
        for who in sorted(members):
            (name, terms, member), group_by = self._joined[who]
            group = groups.setdefault((name, terms), LocalGroup(name, terms, group_by, {}))
            group.members[member] = who
        clients = {client: tuple(notices.pop(client, ())) for client, _ in sorted(members)}
        return SharedRoute(tuple(groups.values()), clients)

    def notifier(self, client: str, subscriptions: Sequence[str]) -> Send:
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
