"""The positions of a run's events in the order, computed when an application asks for one (`Event.order`)."""

from __future__ import annotations

from msgspec import Struct

from tidings.core.events.position import OrderPosition
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.layout import Layout


class Places(Struct, frozen=True, gc=False):
    """Positions of consecutive events of a source; the event with sequence `first` has the stamp itself."""

    stamp: Timestamp
    layout: Layout
    first: int

    def of(self, sequence: int) -> OrderPosition:
        stamp, entry = self.stamp, self.layout.entry
        after = {entry(rank): value for rank, value in zip(stamp.index, stamp.values, strict=True)}
        return OrderPosition(entry(stamp.topic), stamp.number + sequence - self.first, after)
