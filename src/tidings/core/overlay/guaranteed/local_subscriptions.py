"""Finds which clients of a guaranteed broker want a publication: their subscriptions, by the records that they use.

Delivery asks who gets a publication; core/overlay/guaranteed/attachments.py adds and removes subscriptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidings.core.events.run import Run, Stretch, look
from tidings.core.events.subscription import Interest
from tidings.core.overlay.guaranteed.subscription_log import LogEntry

UNKNOWN_CLIENT = "?"
"""A prefix: with a record's id it stands for the record's clients that have not subscribed again."""

Targets = Mapping[str, tuple[str, ...]]
"""Client -> its subscriptions that match."""
MAX_CACHED_TARGETS = 4_096


class ClientSubscription:
    """One subscription of a client."""

    __slots__ = ("headers", "incarnation", "interest", "joined", "record", "shown")

    def __init__(self, interest: Interest, record: str, *, headers: bool) -> None:
        self.interest = interest
        self.record = record
        self.headers = headers
        self.incarnation = 0
        """The incarnation of the client that subscribed last."""
        self.joined = False
        """It uses an older record, and its client may not know yet where it begins."""
        self.shown: tuple[str, ...] | None = None
        """The uncovered brokers last reported to the client."""


Users = dict[tuple[str, str], ClientSubscription]
"""(client, subscription) -> the subscription."""


class LocalSubscriptions:
    """The subscriptions of a broker's clients, shared between delivery and attachments."""

    def __init__(self) -> None:
        self.users: dict[str, Users] = {}
        """Record id -> the subscriptions that use it."""
        self.orphans: Mapping[str, None] = {}
        """Records that nobody uses since the broker lost its disk; their clients may subscribe again."""
        self.headers: set[tuple[str, str]] = set()
        """Those that want only headers."""
        self._targets: dict[tuple[LogEntry, ...], Targets] = {}
        """Cache: who gets everything that these records select. Cleared whenever that may change."""

    def add(self, client: str, subscription: str, held: ClientSubscription) -> None:
        self._targets.clear()
        self.users.setdefault(held.record, {})[client, subscription] = held
        if held.headers:
            self.headers.add((client, subscription))

    def remove(self, client: str, subscription: str, held: ClientSubscription) -> bool:
        """Remove the subscription. Return True if nothing uses its record any more."""
        self._targets.clear()
        users = self.users[held.record]
        del users[client, subscription]
        self.headers.discard((client, subscription))
        return not users

    def set_orphans(self, records: Sequence[str]) -> None:
        self._targets.clear()
        self.orphans = dict.fromkeys(records)

    def only_headers(self, client: str, subscriptions: Sequence[str]) -> bool:
        """Return True if none of these subscriptions needs more than headers. (Queued events are whole.)"""
        return all((client, name) in self.headers for name in subscriptions)

    def targets(self, stretch: Stretch, entries: tuple[LogEntry, ...]) -> list[tuple[Stretch, Targets]]:
        """Cut the stretch where its targets change, given our records that select it."""
        targets = self._targets.get(entries)
        if targets is not None:
            return [(stretch, targets)]
        alike: dict[str, list[str]] = {}
        narrower: list[tuple[str, str, Interest]] = []
        for entry in entries:
            if entry.id in self.orphans:
                alike[UNKNOWN_CLIENT + entry.id] = [""]
            for (client, subscription), held in self.users.get(entry.id, {}).items():
                if held.interest is entry.interest or held.interest == entry.interest:
                    alike.setdefault(client, []).append(subscription)
                else:
                    narrower.append((client, subscription, held.interest))
        if narrower:
            return _cut(stretch, alike, narrower)
        if len(self._targets) >= MAX_CACHED_TARGETS:
            self._targets.clear()
        targets = self._targets[entries] = _sorted(alike)
        return [(stretch, targets)]

    def gap_targets(self, records: Sequence[str]) -> Targets:
        targets: dict[str, list[str]] = {}
        for record_id in records:
            for client, subscription in self.users.get(record_id, {}):
                targets.setdefault(client, []).append(subscription)
        return _sorted(targets)


def _cut(
    stretch: Stretch, alike: dict[str, list[str]], narrower: Sequence[tuple[str, str, Interest]]
) -> list[tuple[Stretch, Targets]]:
    """Match event by event: a record may select more than a subscription that uses it."""
    parts: list[tuple[int, int, Targets]] = []
    for sequence, event in enumerate(look(stretch), stretch.first):
        wanted = {client: list(names) for client, names in alike.items()}
        for client, subscription, interest in narrower:
            if interest.matches(event):
                wanted.setdefault(client, []).append(subscription)
        targets = _sorted(wanted)
        if parts and parts[-1][2] == targets:
            parts[-1] = (parts[-1][0], sequence, targets)
        else:
            parts.append((sequence, sequence, targets))
    if len(parts) == 1 or not isinstance(stretch, Run):
        return [(stretch, parts[0][2])]
    return [(stretch.cut(first, last), targets) for first, last, targets in parts]


def _sorted(targets: dict[str, list[str]]) -> Targets:
    return {client: tuple(sorted(names)) for client, names in sorted(targets.items())}
