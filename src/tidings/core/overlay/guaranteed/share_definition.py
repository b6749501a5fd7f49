"""What a durable subscription or group is, and under which key its broker keeps that."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tidings.core.events.subscription import ORDERED, OrderName
from tidings.core.overlay.guaranteed.share_messages import NEW_START, StartItem

TABLE = "shares"


class ShareDefinition(msgspec.Struct, array_like=True, frozen=True):
    """What a share selects, and for whom. All who attach must agree on it."""

    name: str
    topics: tuple[str, ...]
    filter: str | None
    group: bool
    group_by: str
    order: OrderName
    keep_for_ns: Annotated[int, Meta(ge=1)]
    life: tuple[str, int, int] = ("", 0, 0)
    """Tells it from other shares that had or will have its name."""
    epoch: Annotated[int, Meta(ge=0)] = 0
    """How often the share has moved to another broker."""
    came_in: Annotated[int, Meta(ge=0)] = 0
    """The incarnation of this broker when the share came here."""
    start: StartItem = NEW_START
    """Where it began."""

    @property
    def kind(self) -> str:
        return "group" if self.group else "durable"

    @property
    def kind_text(self) -> str:
        return "group" if self.group else "durable subscription"

    @property
    def uses_archive(self) -> bool:
        """True if it has the record of this broker's archive, with which it began (share_history.py)."""
        return self.start != NEW_START and not self.epoch

    @property
    def is_ordered(self) -> bool:
        """True for an order across publishers."""
        return self.order in ORDERED


decode_definition = msgspec.msgpack.Decoder(ShareDefinition).decode


def definition_key(name: str) -> bytes:
    """Return the key of a share's definition. A share without one does not exist."""
    return b"\0" + name.encode()


def belongs(key: bytes, name: str) -> bool:
    """Return True if a row with that key is one of that share's, and not its definition."""
    return key.startswith(name.encode() + b"\0")
