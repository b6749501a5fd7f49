"""Publishes no-ops, which take the numbers of events whose publisher died, so that nobody waits for them.

A sequencer asks once for each to be published, and keeps it until the event service has confirmed it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from tidings.core.events.event import Publication, make_no_ops
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.server.machine import PublishNoOps

MAX_UNDER_WAY = 256
"""How many may be unconfirmed; the others wait."""


class NoOpOutbox:
    """Queues no-ops for the event service and reports confirmed ones to `published`. It is bounded by the sequencer,
    which keeps the same no-ops for as long."""

    def __init__(self, layout: Layout, published: Callable[[str, int], None]) -> None:
        self._layout = layout
        self._published = published
        self._waiting: OrderedDict[tuple[str, int], PublishNoOps] = OrderedDict()
        """Taken from the front: a dict would step over all deleted entries each time."""
        self._under_way: dict[tuple[str, int], PublishNoOps] = {}

    def add(self, fact: PublishNoOps) -> None:
        self._waiting[fact.server, fact.number] = fact

    def take(self) -> list[PublishNoOps]:
        """Return what to publish now; call `confirmed` or `failed` for each."""
        room = MAX_UNDER_WAY - len(self._under_way)
        taken = dict(islice(self._waiting.items(), room))
        for key in taken:
            del self._waiting[key]
        self._under_way |= taken
        return list(taken.values())

    def event(self, fact: PublishNoOps, source: str, incarnation: int, sequence: int) -> Publication:
        """Make the event, with this id, that stands for all these numbers."""
        topic = self._layout.no_op_topic(fact.stamp.topic)
        fingerprint = self._layout.fingerprint
        return make_no_ops(source, incarnation, sequence, topic, fingerprint, fact.stamp, fact.count)

    def confirmed(self, fact: PublishNoOps) -> None:
        if self._under_way.pop((fact.server, fact.number), None) is not None:
            self._published(fact.server, fact.number)

    def failed(self, fact: PublishNoOps) -> None:
        """Put it back at the front of the queue."""
        if self._under_way.pop((fact.server, fact.number), None) is not None:
            self.add(fact)
            self._waiting.move_to_end((fact.server, fact.number), last=False)
