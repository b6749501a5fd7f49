"""A trace in memory, for runs by the thousand (lab/campaign.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidings.core.events.text import attribute_text
from tidings.core.filters.language.predicates import Scalar
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter


class MemoryWriter(TraceWriter):
    """Takes the rows of a trace and keeps them."""

    def __init__(self) -> None:
        self._published: dict[str, list[Any]] = {}
        self._subscribed: dict[tuple[str, str], list[Any]] = {}
        self._rows: dict[str, list[Sequence[Any]]] = {
            "delivered": [],
            "faults": [],
            "nodes": [],
            "traffic": [],
        }

    def published(
        self,
        event_id: str,
        source: str,
        sequence: int,
        topic: str,
        attributes: Mapping[str, Scalar],
        size_bytes: int,
        at_ns: int,
        confirmed_ns: int | None = None,
    ) -> None:
        texts = [(name, attribute_text(value)) for name, value in sorted(attributes.items())]
        self._published[event_id] = [
            event_id,
            source,
            sequence,
            topic,
            texts,
            size_bytes,
            at_ns,
            confirmed_ns,
        ]

    def confirmed(self, event_id: str, at_ns: int) -> None:
        row = self._published[event_id]
        if row[-1] is None:
            row[-1] = at_ns

    def subscribed(
        self,
        subscriber: str,
        subscription: str,
        topics: Sequence[str],
        filter: str | None,  # noqa: A002 - the column's name
        order: str,
        requested_ns: int,
        accepted_ns: int | None = None,
        cancelled_ns: int | None = None,
    ) -> None:
        head = [subscriber, subscription, list(topics), filter, order]
        self._subscribed[subscriber, subscription] = [*head, requested_ns, accepted_ns, cancelled_ns]

    def accepted(self, subscriber: str, subscription: str, at_ns: int) -> None:
        self._subscribed[subscriber, subscription][-2] = at_ns

    def cancelled(self, subscriber: str, subscription: str, at_ns: int) -> None:
        self._subscribed[subscriber, subscription][-1] = at_ns

    def delivered(
        self,
        subscriber: str,
        subscription: str,
        position: int,
        event_id: str,
        at_ns: int,
        out_of_order: bool = False,
        recovered_by: str | None = None,
    ) -> None:
        self._rows["delivered"].append(
            (subscriber, subscription, position, event_id, at_ns, out_of_order, recovered_by)
        )

    def _add(self, name: str, row: Sequence[Any]) -> None:
        self._rows[name].append(row)

    def close(self) -> None:
        """There is nothing to write."""

    def discard(self) -> None:
        """There is nothing to remove."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many events were published and how many delivered."""
        return len(self._published), len(self._rows["delivered"])

    def unanswered(self) -> str | None:
        """An event that was not confirmed, or a subscription that was neither accepted nor cancelled."""
        for subscription in self._subscribed.values():
            if subscription[-1] is None and subscription[-2] is None:
                return f"subscription {subscription[1]} of {subscription[0]} was never accepted"
        for event in self._published.values():
            if event[-1] is None:
                return f"event {event[0]} was never confirmed"
        return None

    def trace(self) -> Trace:
        return Trace.from_rows(
            published=self._published.values(), subscribed=self._subscribed.values(), **self._rows
        )
