"""Keeps a trace in memory, for campaigns of thousands of runs (lab/campaign.py)."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from tidings.scenarios.trace.open_deliveries import OpenDeliveries
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import TABLES
from tidings.scenarios.trace.writer import ACCEPTED, CANCELLED, TraceWriter


class MemoryWriter(TraceWriter):
    """Keeps the rows of a trace. Any number of events may wait for their confirmation."""

    def __init__(self) -> None:
        self._max_pending = sys.maxsize
        self._pending: deque[list[Any]] = deque()
        self._unconfirmed: dict[str, list[Any]] = {}
        self._subscriptions: dict[tuple[str, str], list[Any]] = {}
        self._rows: dict[str, list[Sequence[Any]]] = {name: [] for name in TABLES}
        self._open = OpenDeliveries(self._add_delivered, sys.maxsize)

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
            (subscriber, subscription, position, event_id, at_ns, out_of_order, recovered_by, 1, None)
        )

    def _add(self, name: str, row: Sequence[Any]) -> None:
        self._rows[name].append(row)

    def close(self) -> None:
        """Do nothing: there is nothing to write."""

    def discard(self) -> None:
        """Do nothing: there is nothing to remove."""

    @property
    def counts(self) -> tuple[int, int]:
        """How many events were published and how many delivered."""
        published = len(self._rows["published"]) + len(self._pending)
        return published, len(self._rows["delivered"]) + len(self._open)

    def unanswered(self) -> str | None:
        """Describe a subscription that was neither accepted nor cancelled, or an unconfirmed event; None if none."""
        for subscription in self._subscriptions.values():
            if subscription[ACCEPTED] is None and subscription[CANCELLED] is None:
                return f"subscription {subscription[1]} of {subscription[0]} was never accepted"
        for event_id in self._unconfirmed:
            return f"event {event_id} was never confirmed"
        return None

    def trace(self) -> Trace:
        published, subscribed = [*self._rows["published"], *self._pending], self._subscriptions.values()
        delivered = [*self._rows["delivered"], *self._open.rows()]
        return Trace.from_rows(
            **{**self._rows, "published": published, "subscribed": subscribed, "delivered": delivered}
        )
