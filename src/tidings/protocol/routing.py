"""A broker's routing table: for each interest, the neighbours and the local subscriptions that have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidings.model.subscription import Interest
from tidings.protocol.matching import Matcher, Selection

MAX_CACHED_ROUTES = 4_096


class Route(NamedTuple):
    """Where the publications of one selection go from here."""

    hops: tuple[str, ...]
    notices: tuple[tuple[str, tuple[str, ...]], ...]
    """(client, its subscriptions that match)"""


class Entry:
    __slots__ = ("neighbours", "subscriptions")

    def __init__(self) -> None:
        self.neighbours: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}

    @property
    def empty(self) -> bool:
        return not self.neighbours and not self.subscriptions


class RoutingTable:
    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._entries: dict[Interest, Entry] = {}
        self._routes: dict[Selection, Route] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Interest]:
        return iter(self._entries)

    def add_neighbour(self, interest: Interest, neighbour: str) -> None:
        self._entry(interest).neighbours[neighbour] = None
        self._routes.clear()

    def remove_neighbour(self, interest: Interest, neighbour: str) -> None:
        self._entries[interest].neighbours.pop(neighbour, None)
        self._tidy(interest)

    def add_subscription(self, interest: Interest, client: str, subscription: str) -> None:
        self._entry(interest).subscriptions[client, subscription] = None
        self._routes.clear()

    def remove_subscription(self, interest: Interest, client: str, subscription: str) -> None:
        self._entries[interest].subscriptions.pop((client, subscription), None)
        self._tidy(interest)

    def wanted_by_others(self, interest: Interest, neighbour: str) -> bool:
        """True if the interest is held here for anybody but that neighbour."""
        entry = self._entries.get(interest)
        if entry is None:
            return False
        return bool(entry.subscriptions) or any(other != neighbour for other in entry.neighbours)

    def subscriptions(self, interest: Interest) -> tuple[tuple[str, str], ...]:
        entry = self._entries.get(interest)
        return () if entry is None else tuple(entry.subscriptions)

    def route(self, selection: Selection) -> Route:
        route = self._routes.get(selection)
        if route is None:
            if len(self._routes) >= MAX_CACHED_ROUTES:
                self._routes.clear()
            route = self._routes[selection] = self._compute(selection)
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
        return Route(
            tuple(sorted(hops)),
            tuple((client, tuple(sorted(ids))) for client, ids in sorted(notices.items())),
        )

    def discard(self) -> None:
        """Give every interest back to the matcher."""
        for interest in self._entries:
            self._matcher.release(interest)
        self._entries.clear()
        self._routes.clear()

    def _entry(self, interest: Interest) -> Entry:
        entry = self._entries.get(interest)
        if entry is None:
            entry = self._entries[self._matcher.hold(interest)] = Entry()
        return entry

    def _tidy(self, interest: Interest) -> None:
        self._routes.clear()
        if self._entries[interest].empty:
            del self._entries[interest]
            self._matcher.release(interest)
