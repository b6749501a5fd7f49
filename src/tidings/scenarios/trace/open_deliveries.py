"""Deliveries of durable subscriptions and groups whose acknowledgement is not decided yet.

An acknowledgement counts when the broker has accepted it. If its answer never comes, because the client or the run
ended, it counts unless the event was delivered again with a higher attempt: then the broker did not know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from tidings.scenarios.trace.tables import SCHEMAS

_EVENT_ID, _ATTEMPT, _DONE = (
    SCHEMAS["delivered"].get_field_index(name) for name in ("event_id", "attempt", "done_ns")
)

Key = tuple[str, int]
"""Subscriber and position."""


class _OpenDelivery:
    __slots__ = ("event", "repeated", "row")

    def __init__(self, row: list[Any], event: tuple[Hashable, str]) -> None:
        self.row = row
        self.event = event
        self.repeated = False
        """Whether the event was delivered again with a higher attempt."""


class OpenDeliveries:
    """Holds rows of `delivered` until `write` may have them: at most `limit`, of which the oldest goes first."""

    def __init__(self, write: Callable[[list[Any]], None], limit: int) -> None:
        self._write = write
        self._limit = limit
        self._open: dict[Key, _OpenDelivery] = {}
        self._of_event: dict[tuple[Hashable, str], list[_OpenDelivery]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, share: Hashable, row: list[Any]) -> None:
        """An event was delivered for this durable subscription or group."""
        event = (share, row[_EVENT_ID])
        delivery = _OpenDelivery(row, event)
        others = self._of_event.setdefault(event, [])
        for other in others:
            lower = other if other.row[_ATTEMPT] < row[_ATTEMPT] else delivery
            lower.repeated |= other.row[_ATTEMPT] != row[_ATTEMPT]
        others.append(delivery)
        self._open[row[0], row[2]] = delivery
        while len(self._open) > self._limit:
            self._write(_settled(self._take(next(iter(self._open)))))

    def acknowledge(self, subscriber: str, position: int, at_ns: int) -> None:
        """The application acknowledged it. Only the first time counts."""
        delivery = self._open.get((subscriber, position))
        if delivery is not None and delivery.row[_DONE] is None:
            delivery.row[_DONE] = at_ns

    def answer(self, subscriber: str, position: int, *, accepted: bool) -> None:
        """The broker has accepted the acknowledgement, or refused it. Ignored if it was answered before."""
        if (subscriber, position) in self._open:
            row = self._take((subscriber, position)).row
            if not accepted:
                row[_DONE] = None
            self._write(row)

    def rows(self) -> Iterator[list[Any]]:
        """Return what is still open, as it counts if nothing more is heard."""
        for delivery in self._open.values():
            yield _settled(delivery)

    def _take(self, key: Key) -> _OpenDelivery:
        delivery = self._open.pop(key)
        others = self._of_event[delivery.event]
        others.remove(delivery)
        if not others:
            del self._of_event[delivery.event]
        return delivery


def _settled(delivery: _OpenDelivery) -> list[Any]:
    row = list(delivery.row)
    if delivery.repeated:
        row[_DONE] = None
    return row
