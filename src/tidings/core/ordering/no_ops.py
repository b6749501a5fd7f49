"""No-ops: what takes the number of an event whose publisher died, so that nobody waits for it.

A sequencer says once what is to be published, and keeps it until it hears that the event service has it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from tidings.core.events.event import Publication, make_no_ops
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.server.machine import PublishNoOps

MAX_UNDER_WAY = 256
"""With the service at once; the others wait."""


class NoOpOutbox:
    """`published` is told what the service has. What waits here is what the sequencer itself keeps for that long."""

    def __init__(self, layout: Layout, published: Callable[[str, int], None]) -> None:
        self._layout = layout
        self._published = published
        self._waiting: OrderedDict[tuple[str, int], PublishNoOps] = OrderedDict()
        """They go from the first on; a dict would step over all that went before, each time."""
        self._under_way: dict[tuple[str, int], PublishNoOps] = {}

    def add(self, fact: PublishNoOps) -> None:
        self._waiting[fact.server, fact.number] = fact

    def take(self) -> list[PublishNoOps]:
        """What is to be published now; `confirmed` or `failed` follows for each."""
        room = MAX_UNDER_WAY - len(self._under_way)
        taken = dict(islice(self._waiting.items(), room))
        for key in taken:
            del self._waiting[key]
        self._under_way |= taken
        return list(taken.values())

    def event(self, fact: PublishNoOps, source: str, incarnation: int, sequence: int) -> Publication:
        """In the place of all of them, under this id."""
        topic = self._layout.no_op_topic(fact.stamp.topic)
        fingerprint = self._layout.fingerprint
        return make_no_ops(source, incarnation, sequence, topic, fingerprint, fact.stamp, fact.count)

    def confirmed(self, fact: PublishNoOps) -> None:
        if self._under_way.pop((fact.server, fact.number), None) is not None:
            self._published(fact.server, fact.number)

    def failed(self, fact: PublishNoOps) -> None:
        """It goes again, before those that wait."""
        if self._under_way.pop((fact.server, fact.number), None) is not None:
            self.add(fact)
            self._waiting.move_to_end((fact.server, fact.number), last=False)
