"""Tracks when a server last heard from each client, and which events subscribers wait for.

Only the active replica tracks this, starting anew when it becomes active: leases are not part of the state.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tidings.core.ordering.layout import Layout
from tidings.core.ordering.messages import Identity, SubscriberAlive

MAX_SHOWN = 100
"""How many subscribers the status lists."""


class _Stall(Struct, frozen=True, gc=False):
    topic: int
    number: int
    waiting: int
    since: int


class Leases:
    def __init__(self) -> None:
        self._heard: dict[Identity, int] = {}
        self._stalls: dict[Identity, _Stall] = {}

    def clear(self) -> None:
        """Forget all: nobody is overdue or known to wait."""
        self._heard.clear()
        self._stalls.clear()

    def hear(self, identity: Identity, now: int) -> None:
        self._heard[identity] = now

    def overdue(self, identities: Iterable[Identity], now: int, lease_ns: int) -> list[Identity]:
        """Return those not heard from for longer than the lease; the lease of a new one starts now."""
        heard = self._heard
        return [identity for identity in identities if now - heard.setdefault(identity, now) > lease_ns]

    def keep_only(self, known: set[Identity]) -> None:
        for identity in [identity for identity in self._heard if identity not in known]:
            del self._heard[identity]
            self._stalls.pop(identity, None)

    def note_stall(self, message: SubscriberAlive, now: int) -> None:
        """Record the event that a subscriber waits for."""
        before = self._stalls.pop(message.subscriber, None)
        if message.buffered:
            same = before is not None and (before.topic, before.number) == (message.topic, message.number)
            since = before.since if before is not None and same else now
            self._stalls[message.subscriber] = _Stall(message.topic, message.number, message.buffered, since)

    def stalled(self, layout: Layout, now: int) -> list[dict[str, object]]:
        """Return, for operators, who waits for which event, how many wait behind it, and for how long."""
        return [
            {
                "subscriber": subscriber,
                "lacks": f"event {stall.number} of {layout.entry(stall.topic)}",
                "waiting": stall.waiting,
                "seconds": round((now - stall.since) / 1e9, 1),
            }
            for (subscriber, _), stall in list(self._stalls.items())[:MAX_SHOWN]
            if stall.topic < layout.chain.topics
        ]
