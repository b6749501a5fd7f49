"""Plans the archives of a run: a broker keeps one if a subscriber there starts with history.

It begins with the run, and has what these subscribers select by topic, in their order if they have one. In virtual time
a node named `archive:` plus the broker's name records it; in wall time the broker does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidings.core.events.topics import EVERYTHING, canonical_topics
from tidings.scenarios.file.ordering import ORDERS
from tidings.scenarios.file.schema import Order, SubscriberTable

ARCHIVE_PREFIX = "archive:"
EARLIEST: Final = "earliest"


@dataclass(frozen=True, slots=True)
class PlannedArchive:
    """Describes what one broker records. `order` is "none" unless events have an order across publishers."""

    broker: str
    topics: tuple[str, ...]
    order: Order

    @property
    def node(self) -> str:
        return ARCHIVE_PREFIX + self.broker


def archive_order(order: Order) -> Order:
    """Return the order of an archive that serves subscribers with this one."""
    return order if order in ORDERS else "none"


def plan_archives(subscribers: Iterable[SubscriberTable]) -> tuple[PlannedArchive, ...]:
    """Return the archives that these checked subscribers need, in the order of the first of each."""
    topics: dict[str, list[str]] = {}
    orders: dict[str, Order] = {}
    for subscriber in subscribers:
        if subscriber.start == EARLIEST:
            topics.setdefault(subscriber.at, []).extend(subscriber.topics or (EVERYTHING.text,))
            orders[subscriber.at] = archive_order(subscriber.order)
    return tuple(
        PlannedArchive(broker, tuple(topic.text for topic in canonical_topics(patterns)), orders[broker])
        for broker, patterns in topics.items()
    )


def archive_seats(archives: Iterable[PlannedArchive]) -> dict[str, str]:
    """Return the broker of each node that records."""
    return {archive.node: archive.broker for archive in archives}
