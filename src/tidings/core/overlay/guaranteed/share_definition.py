"""What a durable subscription or group is, and under which key its broker keeps that."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from tidings.core.events.subscription import ORDERED, OrderName, make_interest
from tidings.core.overlay.guaranteed.share_messages import NEW_START, Life, ShareAttach, StartItem
from tidings.core.sharing.choice import SHARE_NAME

TABLE = "shares"
DEFAULT_KEEP_NS = 7 * 24 * 3_600 * 1_000_000_000


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
    """How often the share has moved to another broker; a new one counts on, if something is left of one that ended."""
    came_in: Annotated[int, Meta(ge=0)] = 0
    """The incarnation of this broker when the share came here."""
    start: StartItem = NEW_START
    """Where it began, if it began at this broker."""

    @property
    def kind(self) -> str:
        return "group" if self.group else "durable"

    @property
    def kind_text(self) -> str:
        return "group" if self.group else "durable subscription"

    @property
    def uses_archive(self) -> bool:
        """True if it has the record of this broker's archive, with which it began (share_history.py)."""
        return self.start != NEW_START

    @property
    def is_ordered(self) -> bool:
        """True for an order across publishers."""
        return self.order in ORDERED


def defined(message: ShareAttach, life: Life, epoch: int, came_in: int) -> ShareDefinition:
    """Return what a new share is to be; raise ValueError, FilterError or TopicError if it cannot."""
    if re.fullmatch(SHARE_NAME, message.name) is None:
        raise ValueError(f"{message.name!r} is not a name of a durable subscription or group")
    if message.group and message.order != "none":
        raise ValueError("a group has no order: each of its members gets some of the events")
    if message.group and message.reading:
        raise ValueError("a group cannot be read by number: use a durable subscription")
    if message.group_by and not message.group:
        raise ValueError("a durable subscription has one holder at a time: only a group is grouped")
    interest = make_interest(message.topics, message.filter)
    return ShareDefinition(
        message.name,
        tuple(topic.text for topic in interest.topics),
        interest.sql,
        message.group,
        message.group_by,
        message.order,
        message.keep_for_ns or DEFAULT_KEEP_NS,
        life,
        epoch,
        came_in,
        message.start,
    )


decode_definition = msgspec.msgpack.Decoder(ShareDefinition).decode


def definition_key(name: str) -> bytes:
    """Return the key of a share's definition. A share without one does not exist."""
    return b"\0" + name.encode()


def belongs(key: bytes, name: str) -> bool:
    """Return True if a row with that key is one of that share's, and not its definition."""
    return key.startswith(name.encode() + b"\0")
