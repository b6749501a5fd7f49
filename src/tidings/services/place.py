"""An event's place in the order, as applications see it (`Event.order`)."""

from __future__ import annotations

from msgspec import Struct

from tidings.model.timestamp import Timestamp
from tidings.protocol.sequencing.layout import Layout


class Places(Struct, frozen=True, gc=False):
    """Of consecutive events of a source: the first has the stamp and this sequence."""

    stamp: Timestamp
    layout: Layout
    first: int

    def of(self, sequence: int) -> Place:
        return Place(self.stamp.at(self.stamp.number + sequence - self.first), self.layout)


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
