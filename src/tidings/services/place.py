"""An event's place in the order, as applications see it (`Event.order`)."""

from __future__ import annotations

from msgspec import Struct

from tidings.protocol.sequencing.layout import Layout
from tidings.protocol.sequencing.stamps import Timestamp


class Place(Struct, frozen=True, gc=False):
    """Event `number` of `topic` (of an entry of the layout: a topic, or a pattern)."""

    stamp: Timestamp
    layout: Layout

    @property
    def topic(self) -> str:
        return self.layout.entry(self.stamp.topic)

    @property
    def number(self) -> int:
        return self.stamp.number

    @property
    def after(self) -> dict[str, int]:
        """Other topics, with the number of the last event of each that comes before this one."""
        return {
            self.layout.entry(rank): value
            for rank, value in zip(self.stamp.index, self.stamp.values, strict=True)
        }

    def __repr__(self) -> str:
        return f"Place(topic={self.topic!r}, number={self.number}, after={self.after!r})"
