"""Durable subscriptions and groups at an existing broker: events that the application acknowledges, one by one.

A broker's message has a *handle* by which the session settles it: done, or given back. The stream numbers events, from
1 on; here is which message each number came with. What is to be settled waits in `HeldIncoming.outbox` until the broker
has answered, across connections. So a lost connection loses no acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import Any, NamedTuple

from tidings.bus.durable_stream import Durability, DurableStream
from tidings.core.events.event import WHOLE, EventId, Publication
from tidings.core.events.subscription import Subscription
from tidings.core.structures.ranges import Ranges, merged
from tidings.drivers.adapters.incoming import Incoming

AHEAD_EVENTS = 64
"""How many events a holder may have that its application has not seen: the rest is for the other members."""
MAX_DONE_IDS = 10_000
"""How many events a holder remembers as done, the latest ones. One that comes again is acknowledged, not shown."""
SETTLE_MESSAGES = 512
"""The most messages to settle at once."""
POLL_S = 0.05

_IDENTIFIERS = count(1)


def difference(name: str, what: str, theirs: object, ours: object) -> str:
    """Say why nobody can attach who asks for other topics, another filter or another kind."""
    if what == "filter":
        theirs, ours = (f"the filter {each}" if each else "no filter" for each in (theirs, ours))
        return f"{name!r} has {theirs}, not {ours}; cancel it to change that"
    if what == "kind":
        return f"{name!r} is a {theirs}, not a {ours}; use another name"
    return f"{name!r} has {what} {theirs}, not {ours}; cancel it to change that"


class Settlement(NamedTuple):
    """What the broker should learn about a message."""

    handle: Any
    done: bool
    after_ns: int = 0
    """Not done: deliver it again no sooner than this."""
    attempts: int = 1
    """Not done: how many deliveries count."""
    numbers: tuple[int, ...] = ()
    """Its events that the application has acknowledged, which waits for the answer."""


class HeldMessage:
    """A message with events that the application has, or will get. It is settled when all of them are."""

    __slots__ = ("after_ns", "attempt", "done", "finished", "handles", "left")

    def __init__(self, handle: Any, attempt: int, events: int) -> None:
        self.handles = [handle]
        """More than one if the broker has delivered it again meanwhile."""
        self.attempt = attempt
        self.left = events
        self.finished: list[int] = []
        self.done = True
        """False once one of its events was given back."""
        self.after_ns = 0


class GroupIncoming(Incoming):
    """A member of a group at a broker without acknowledgements: it gets its share of the events, once."""

    def __init__(self, subscription: Subscription, stream: DurableStream, durability: Durability) -> None:
        super().__init__(subscription, stream, paced=False)
        self.durability = durability
        self.identifier = next(_IDENTIFIERS)
        """Its own among all members of groups in this process."""
        self._stream = stream
        self._numbers = count(1)

    def _deliver(self, publication: Publication) -> None:
        """Show an event. Nobody keeps it: beyond the stream's buffer it is dropped, and counted."""
        self.notified += 1
        self._stream.push_held_or_drop(publication, next(self._numbers))


class HeldIncoming(Incoming):
    """A durable subscription, or a member of a group, whose events the broker keeps until they are done."""

    def __init__(self, subscription: Subscription, stream: DurableStream, durability: Durability) -> None:
        super().__init__(subscription, stream, paced=True)
        self.durability = durability
        self.outbox: list[Settlement] = []
        self._stream = stream
        self._numbers = count(1)
        self._held: dict[int, tuple[EventId, HeldMessage]] = {}
        """At most `max_unacked`, and what one request brings."""
        self._by_id: dict[EventId, int] = {}
        self._done: dict[EventId, None] = {}
        self._unseen: Ranges = ()
        self._late: list[Settlement] = []
        """What arrived after the end; at most what one request brings."""
        self._freed = asyncio.Event()
        self._work = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    # --- From the broker

    def arrive(self, publications: Iterable[Publication], handle: Any, attempt: int) -> None:
        """Show a message's events that match. Without any, the message is done."""
        if self.ended:
            self._late.append(Settlement(handle, False, attempts=attempt - 1))
            return
        wanted = [each for each in publications if each.kind == WHOLE and self.interest.matches(each)]
        new = [each for each in wanted if each.id not in self._done]
        again = [each for each in new if each.id in self._by_id]
        self.duplicates += len(wanted) - len(new) + len(again)
        if again:  # the application has it already; both deliveries are settled with it
            self._held[self._by_id[again[0].id]][1].handles.append(handle)
            return
        if not new:
            self._post(Settlement(handle, True))
            return
        message = HeldMessage(handle, attempt, len(new))
        for publication in new:
            number = next(self._numbers)
            self._held[number] = (publication.id, message)
            self._by_id[publication.id] = number
            self.notified += 1
            self.pace.handed(publication.size_bytes)
            self._stream.push_held(publication, number, attempt)

    def discard(self, handle: Any) -> None:
        """A message is not an event: it is done."""
        self._post(Settlement(handle, True))

    async def room(self) -> int:
        """Wait for room and return how many messages may be requested, at least one."""
        limit = self.durability.max_unacked
        while True:
            ahead = AHEAD_EVENTS - len(self._stream)
            room = min(ahead, limit - len(self._held), self.pace.room())
            if room > 0 and ahead >= min(AHEAD_EVENTS // 2, limit):
                return room
            self._freed.clear()
            try:
                async with asyncio.timeout(POLL_S):  # nobody reports that the application has taken an event
                    await self._freed.wait()
            except TimeoutError:
                pass

    def held_handles(self) -> list[Any]:
        """Return the handles of everything that is not done."""
        messages = {id(message): message for _, message in self._held.values()}
        return [handle for message in messages.values() for handle in message.handles]

    def lose(self, handles: Iterable[Any]) -> None:
        """Somebody else has these messages now: take back what was not shown."""
        lost = set(handles)
        numbers = [
            number for number, (_, message) in self._held.items() if not lost.isdisjoint(message.handles)
        ]
        for number in numbers:
            self._forget(number)
        self._stream.drop_held([(number, number) for number in numbers])

    def detached(self, reason: str) -> None:
        """The broker no longer has this subscription."""
        self.ended = True
        self._held.clear()
        self._by_id.clear()
        self.outbox.clear()
        self._settled.set()
        self._stream.detached(reason)

    # --- From the application

    def finish(self, number: int) -> None:
        if number not in self._held:  # another holder has it
            self._stream.finished((), ((number, number),))
            return
        event_id, message = self._forget(number)
        self._done[event_id] = None
        if len(self._done) > MAX_DONE_IDS:
            del self._done[next(iter(self._done))]
        message.finished.append(number)
        self._settle(message)

    def give_back(self, number: int, after_ns: int) -> None:
        if number in self._held:
            _, message = self._forget(number)
            message.done = False
            message.after_ns = max(message.after_ns, after_ns)
            self._settle(message)

    def leave(self, unseen: Ranges) -> None:
        """Take no more. `release` gives the rest back, once nothing can arrive here any more: the broker would give it
        to the request that is still under way."""
        self.ended = True
        self._unseen = unseen

    def release(self) -> None:
        """Give everything back. What was not seen has not been delivered, as far as the broker can count so."""
        for number in list(self._held):
            _, message = self._forget(number)
            message.done = False
            if any(first <= number <= last for first, last in self._unseen):
                message.attempt -= 1
            self._settle(message)
        for settlement in self._late:
            self._post(settlement)

    def _forget(self, number: int) -> tuple[EventId, HeldMessage]:
        held = self._held.pop(number)
        del self._by_id[held[0]]
        self.pace.taken()
        self._freed.set()
        return held

    def _settle(self, message: HeldMessage) -> None:
        message.left -= 1
        if message.left == 0:
            told = (message.done, message.after_ns, max(message.attempt, 0))
            for handle in message.handles:
                self._post(Settlement(handle, *told, tuple(message.finished)))

    # --- To the broker

    def _post(self, settlement: Settlement) -> None:
        self.outbox.append(settlement)
        self._settled.clear()
        self._work.set()

    async def next_settlements(self) -> list[Settlement]:
        """Wait for something to settle; return it without removing it."""
        while not self.outbox:
            self._work.clear()
            await self._work.wait()
        return self.outbox[:SETTLE_MESSAGES]

    def confirm(self, settled: int) -> None:
        """Remove the first so many: the broker has answered."""
        numbers = [number for each in self.outbox[:settled] for number in each.numbers]
        del self.outbox[:settled]
        self._stream.finished(merged((number, number) for number in numbers), ())
        if not self.outbox:
            self._settled.set()

    async def settled(self) -> None:
        """Wait until the broker knows everything."""
        await self._settled.wait()
