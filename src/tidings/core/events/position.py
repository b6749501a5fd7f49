"""An event's position in its order, as applications see it and archives keep it (`Event.order`)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class OrderPosition(Struct, array_like=True, frozen=True):
    """Event `number` of `topic`, which is an entry of the layout: a topic or a topic pattern."""

    topic: str
    number: Int64
    after: dict[str, Int64]
    """For other entries, the number of the last event that comes before this one."""

    def later(self, count: int) -> OrderPosition:
        """Return the position of the event `count` numbers after this one in its run."""
        return OrderPosition(self.topic, self.number + count, self.after)
