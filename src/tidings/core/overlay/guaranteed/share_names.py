"""Which broker has the share of a name, as the subscription log and other brokers say.

A share subscribes to a topic made of its name. When it moves its epoch grows, and the latest epoch counts: records of
former homes stay in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidings.core.events.topics import NAME_TOPIC
from tidings.core.overlay.guaranteed.former_home import Place
from tidings.core.overlay.guaranteed.share_definition import ShareDefinition
from tidings.core.overlay.guaranteed.subscription_log import LogEntry

Home = tuple[int, Place]
"""A share's epoch, and the broker that has it."""


class ShareNames:
    """What the broker `node` knows of names."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._homes: dict[str, dict[str, Home]] = {}
        """Name -> record id -> home."""
        self._names: dict[str, str] = {}
        """Record id -> name."""
        self._hints: dict[str, Home] = {}
        """Name -> where another broker says that the share is."""
        self._not_at: dict[str, dict[str, int]] = {}
        """Name -> broker that says it does not have the share, although the log names it -> the epoch up to which that
        is so: the share may come to it later."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def learn(self, entries: Sequence[LogEntry]) -> None:
        """Take over what the log says."""
        for entry in entries:
            topics = entry.record.topics
            if entry.dead:
                name = self._names.pop(entry.id, None)
                if name is not None:
                    self._homes[name].pop(entry.id, None)
                    if not self._homes[name]:
                        del self._homes[name]
            elif topic := next((each for each in topics if each.startswith(NAME_TOPIC)), None):
                name, epoch = _named_by(topic)
                self._names[entry.id] = name
                home = Place(entry.record.broker, tuple(entry.record.label))
                self._homes.setdefault(name, {})[entry.id] = (epoch, home)
                self._not_at.pop(name, None)
                if self._hints.get(name, (0,))[0] <= epoch:
                    self._hints.pop(name, None)

    def of_record(self, record_id: str) -> str | None:
        """Return the name of the share that a record belongs to; None if it is no share's."""
        return self._names.get(record_id)

    def elsewhere(self, name: str, known: Home | None = None) -> Home | None:
        """Return the other broker that has a share of that name: the latest, and of those that were created at once the
        first. `known` is what this broker knows by itself."""
        found = self._known(name, known)
        not_at = self._not_at.get(name, {})
        others = [
            (epoch, place)
            for epoch, place in found
            if place.broker != self._node and epoch > not_at.get(place.broker, -1)
        ]
        return min(others, key=lambda each: (-each[0], each[1]), default=None)

    def _known(self, name: str, known: Home | None) -> list[Home]:
        hints = (self._hints.get(name), known)
        return [*self._homes.get(name, {}).values(), *(each for each in hints if each is not None)]

    def next_epoch(self, name: str, known: Home | None = None) -> int:
        """Return the epoch of a new share of that name: later than what is left of those that ended."""
        return max((epoch for epoch, _ in self._known(name, known)), default=-1) + 1

    def redirect(self, name: str, broker: str, home: Home) -> None:
        """That broker does not have the share, and says who has."""
        not_at = self._not_at.setdefault(name, {})
        not_at[broker] = max(home[0], not_at.get(broker, -1))
        not_at.pop(home[1].broker, None)
        known = self.elsewhere(name)
        if known is None or known[0] < home[0]:
            self._hints[name] = home


def name_topic(definition: ShareDefinition) -> str:
    """Return the topic that says where a share is; the epoch decides if brokers differ. After a move it is a topic that
    this broker has never subscribed to."""
    moved = f"/{definition.epoch}/{definition.came_in}" if definition.epoch else ""
    return NAME_TOPIC + definition.name + moved


def _named_by(topic: str) -> tuple[str, int]:
    """Return the name and the epoch of the share that the topic is for."""
    name, epoch, *_ = *topic[len(NAME_TOPIC) :].split("/"), "0"
    return name, int(epoch) if epoch.isdecimal() else 0
