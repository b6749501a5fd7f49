"""The positions of a run's events in their order, made when an application asks for one (`Event.order`)."""

from __future__ import annotations

from msgspec import Struct

from tidings.core.events.position import OrderPosition
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.layout import Layout


class Places(Struct, frozen=True, gc=False):
    """Of consecutive events of a source: the first has the stamp and this sequence."""

    stamp: Timestamp
    layout: Layout
    first: int

    def of(self, sequence: int) -> OrderPosition:
        stamp, entry = self.stamp, self.layout.entry
        after = {entry(rank): value for rank, value in zip(stamp.index, stamp.values, strict=True)}
        return OrderPosition(entry(stamp.topic), stamp.number + sequence - self.first, after)
