"""One durable subscription with an order across publishers, as its home's own client has it (ordered_shares.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
from msgspec import Struct

from tidings.core.client.bookmark import Reached
from tidings.core.facts import Delivered, EventsGivenUp, OrderGap
from tidings.core.kernel import Port, RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.held_share import HeldShare

Shown = Delivered | OrderGap | EventsGivenUp


class Position(Struct, array_like=True, frozen=True):
    """How far the order of a share has come, as kept on disk."""

    subscription: str
    """The name of the ordered subscription; each time that the share joins, it is a new one."""
    reached: Reached | None = None


encode_position = msgspec.msgpack.Encoder().encode
decode_position = msgspec.msgpack.Decoder(Position).decode


class OrderedShareListener(Protocol):
    """Hears of the shares' orders."""

    def order_found(self) -> None:
        """There are sequencers: shares can be made."""

    def order_missing(self, reason: str) -> None:
        """The sequencers cannot be reached: no share can be made for now."""

    def share_joined(self, held: HeldShare) -> None:
        """From now on the share gets every event, in order."""

    def share_covers(self, held: HeldShare, uncovered: tuple[str, ...]) -> None:
        """What is published at these brokers does not reach the share now."""

    def share_took(self, held: HeldShare) -> None:
        """The share has kept more events."""

    def share_not_joined(self, held: HeldShare, reason: str) -> None:
        """A new share was refused by the network."""


class OrderedShare:
    """The order of one share."""

    __slots__ = ("begun_at", "held", "is_joined", "name", "shown", "started", "tried_at")

    def __init__(self, held: HeldShare, name: str, now: int) -> None:
        self.held = held
        self.name = name
        """Of the ordered subscription; empty if it needs a new one."""
        self.shown: deque[Shown] = deque()
        """Shown in order, and not kept yet. Bounded like what any slow reader of an order has not read."""
        self.started = False
        """The application has a subscription of that name."""
        self.is_joined = False
        self.begun_at = self.tried_at = now


class InsidePort:
    """The Port of a part that lives inside the part `owner`, which passes on the timers of the current `life`."""

    def __init__(
        self,
        port: Port,
        owner: str,
        node: str,
        life: int,
        send: Callable[[str, Message], None],
        emit: Callable[[object], None],
    ) -> None:
        self.node = node
        self.random: RandomSource = port.random
        self.send = send
        self.emit = emit
        self._port = port
        self._owner = owner
        self._life = life

    @property
    def now(self) -> int:
        return self._port.now

    def sender(self, to: str) -> Send:
        return partial(self.send, to)

    def set_timer(self, name: TimerName, at: int) -> None:
        self._port.set_timer((self._owner, self._life, *name), at)

    def cancel_timer(self, name: TimerName) -> None:
        self._port.cancel_timer((self._owner, self._life, *name))
