"""The stream of a durable subscription or a group: events that are acknowledged, one by one.

Leaving the block detaches; the broker goes on keeping events. What was not done when its holder went is delivered
again, marked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Self

from tidings.bus.positions import Places
from tidings.bus.stream import Stream, leave_out
from tidings.core.client.dead_letter import dead_letter, times
from tidings.core.errors import (
    ConnectionFailed,
    DeliveriesExhausted,
    NotHeld,
    SubscriptionRefused,
    TidingsError,
    TopicError,
)
from tidings.core.events.event import Event
from tidings.core.events.payload import typed_payload
from tidings.core.events.run import Arrival, Stretch
from tidings.core.events.subscription import Order, Subscription
from tidings.core.events.topics import check_topic
from tidings.core.overlay.guaranteed.share_messages import NEW_START, StartItem
from tidings.core.sharing.choice import MAX_GROUP_BY_LENGTH
from tidings.core.structures.ranges import Ranges, merged

if TYPE_CHECKING:
    from types import TracebackType

    from tidings.bus.service import EventService

Ack = Literal["auto", "manual"]
NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
MAX_UNACKED = 1_024
MAX_UNACKED_LIMIT = 1_000_000
REPORTS_PER_WINDOW = 4
"""A reader that never waits reports what it has done with this often, so that the broker sends more meanwhile."""

GIVE_UP_TIMEOUT_S = 2.0
"""How long leaving a stream waits for dead letters to be confirmed."""

log = logging.getLogger("tidings")


@dataclass(frozen=True, slots=True)
class Durability:
    """What makes a subscription durable or a group, checked."""

    name: str
    group: bool = False
    group_by: str = ""
    ack: Ack = "auto"
    takeover: bool = False
    keep_for_ns: int = 0
    max_unacked: int = MAX_UNACKED
    max_deliveries: int | None = None
    dead_letter: str | None = None
    start: StartItem = NEW_START
    """Where it begins if it does not exist."""
    optional: frozenset[Literal["ack", "max_unacked"]] = frozenset()
    """Options that count only where the network has acknowledgements, instead of being refused elsewhere."""

    def unacknowledged(self) -> Durability:
        """Return it without its optional options, for a network without acknowledgements."""
        return replace(
            self,
            ack="auto" if "ack" in self.optional else self.ack,
            max_unacked=MAX_UNACKED if "max_unacked" in self.optional else self.max_unacked,
        )


class HeldEvent:
    """An event in the application's hands: its number at the broker, and which attempt it is."""

    __slots__ = ("attempt", "before", "number", "over", "stream")

    def __init__(self, stream: DurableStream, number: int, attempt: int, before: int) -> None:
        self.stream = stream
        self.number = number
        self.attempt = attempt
        self.before = before
        """How many attempts were before it was set aside and released."""
        self.over = ""
        """Why it is no longer held; empty while it is."""

    async def ack(self) -> None:
        self._end("it was acknowledged before", "acknowledged")
        await self.stream.acknowledge(self)

    async def nack(self, after: float | timedelta) -> None:
        after_s = after.total_seconds() if isinstance(after, timedelta) else after
        if not isinstance(after_s, int | float) or not 0 <= after_s <= 1e9:
            raise ValueError(f"after must be a duration of at least 0 s, not {after!r}")
        self._end("it was given back before", "given back")
        await self.stream.give_back(self, int(after_s * 1e9))

    def _end(self, why: str, done: str) -> None:
        if self.stream.durability.ack != "manual":
            raise NotHeld('this stream acknowledges by itself: subscribe with ack="manual"')
        if self.over:
            raise NotHeld(f"the event cannot be {done}: {self.over}")
        self.over = why


class DurableStream(Stream):
    """The events of a durable subscription or a group, as `Stream`. `cancel` ends the subscription for good."""

    def __init__(
        self, service: EventService, subscription: Subscription, buffer_events: int, durability: Durability
    ) -> None:
        super().__init__(service, subscription, buffer_events)
        self.durability = durability
        self.set_aside = 0
        """Events that were delivered too often and set aside at the broker."""
        self._lossless = True
        self._may_expire = True
        self._hand: dict[int, Event] = {}
        """What the application has and is not done with."""
        self._answers: dict[int, asyncio.Future[None]] = {}
        """Acknowledged by the application, and not answered by the broker."""
        self.refused = 0
        """Acknowledgements that did not count: another holder had the event, or was done with it first."""
        self._done: list[tuple[int, int]] = []
        """Acknowledged in automatic mode, and not reported yet."""
        self._done_count = 0
        self._report_after = max(durability.max_unacked // REPORTS_PER_WINDOW, 1)
        self._attached = False
        self._cancels = False
        """This stream cancels its subscription: that ends it without an error."""

    def may_do_without(self, *options: Literal["ack", "max_unacked"]) -> None:
        """Let these options count only where the network has acknowledgements; called before the stream is entered."""
        self.durability = replace(self.durability, optional=frozenset(options))

    # --- Called by the service

    def push_held(
        self,
        stretch: Stretch,
        first: int,
        attempt: int,
        *,
        before: int = 0,
        out_of_order: bool = False,
        recovered_by: str = "",
        places: Places | None = None,
    ) -> None:
        """Append events, numbered from `first` on."""
        arrival = Arrival(stretch, out_of_order, places, recovered_by)
        for number, event in enumerate(arrival.events(leave_out), first):
            held = HeldEvent(self, number, attempt, before)
            if event is None:  # it cannot be decoded
                self.finish(held)
            else:
                event.__dict__["held"] = held
                self._events.append(event)
        self._waiting = len(self._events)
        self._wake_some(arrival.count)

    def push_held_or_drop(self, stretch: Stretch, first: int, recovered_by: str = "") -> None:
        """Append events that nobody keeps; drop them if the reader is too slow."""
        if self._waiting >= self._limit:
            self._drop(stretch.count)
        else:
            self.push_held(stretch, first, 1, recovered_by=recovered_by)

    def drop_held(self, numbers: Sequence[tuple[int, int]], reason: str = "") -> None:
        """Drop what has not been shown; what has been can no longer be acknowledged."""

        def is_dropped(number: int) -> bool:
            return any(first <= number <= last for first, last in numbers)

        kept = [event for event in self._events if event is not None and not is_dropped(_number(event))]
        self._events.clear()
        self._events.extend(kept)
        self._waiting = len(kept)
        for number in [number for number in self._hand if is_dropped(number)]:
            _held(self._hand.pop(number)).over = reason or "another holder has it, or it comes again"

    def detached(self, reason: str) -> None:
        """The broker ended this stream's hold."""
        self._attached = False
        self._lose(reason or "the stream is detached")
        self._events.clear()
        self._waiting = 0
        if reason and not self._cancels:
            self.fail(SubscriptionRefused(reason))

    def finished(self, done: Ranges, refused: Ranges, reason: str = "") -> None:
        """The broker answers acknowledgements: these count, and those do not."""
        for first, last in done:
            for number in range(first, last + 1) if self._answers else ():
                answer = self._answers.pop(number, None)
                if answer is not None and not answer.done():
                    answer.set_result(None)
        for first, last in refused:
            self.refused += last - first + 1
            for number in range(first, last + 1) if self._answers else ():
                self._refuse(number, reason or "another holder has it, or was done with it first")

    def _refuse(self, number: int, why: str) -> None:
        answer = self._answers.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_exception(NotHeld(f"the acknowledgement does not count: {why}"))

    async def acknowledge(self, held: HeldEvent) -> None:
        """Acknowledge an event, and wait for the broker's answer; raise NotHeld if it does not count."""
        answer = self._answers[held.number] = asyncio.get_running_loop().create_future()
        self.finish(held)
        await answer

    def finish(self, held: HeldEvent, *, expired: bool = False) -> None:
        """Report that the application is done with the event, or that it had expired; called by events."""
        self._hand.pop(held.number, None)
        self._service.finish_held(self.subscription.id, ((held.number, held.number),), expired=expired)

    async def give_back(self, held: HeldEvent, after_ns: int) -> None:
        """Give the event back, to be delivered again unless this was the last time; called by events."""
        self._report()
        event = self._hand.pop(held.number)
        if self._was_last(held):
            await self._give_up(event)
        else:
            self._service.give_back(self.subscription.id, held.number, after_ns)

    # --- Reading

    def _next(self) -> Event | None:
        event = super()._next()
        if event is not None:
            self._hand[_number(event)] = event
        return event

    def _skip(self, event: Event) -> None:
        held = _held(event)
        held.over = "it expired"
        self.finish(held, expired=True)

    async def get(self, timeout_s: float | None = None) -> Event:
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        while True:
            event = await super().get(None if until is None else max(until - loop.time(), 0))
            if not await self._is_given_up(event):
                return event

    async def __anext__(self) -> Event:
        if self._done_count >= self._report_after:
            self._report()
            await asyncio.sleep(0)  # let the report leave, and events come in
        event = self.take_next()
        if event is None:
            event = await super().__anext__()
        while self.durability.max_deliveries is not None and await self._is_given_up(event):
            event = await super().__anext__()
        return event

    async def _next_until(self, until: float) -> Event | None:
        event = await super()._next_until(until)
        while event is not None and await self._is_given_up(event):
            event = await super()._next_until(until)
        return event

    def _finish(self) -> None:
        """Acknowledge what was shown, in automatic mode: the reader asks for the next one."""
        self._taken = 0
        if not self._hand or self.durability.ack != "auto":
            return
        if not self._done:  # one report per turn of the loop is enough: nothing leaves earlier
            asyncio.get_running_loop().call_soon(self._report)
        done = self._done
        for number, event in self._hand.items():
            _held(event).over = "it was acknowledged before"
            if done and done[-1][1] == number - 1:
                done[-1] = (done[-1][0], number)
            else:
                done.append((number, number))
        self._done_count += len(self._hand)
        self._hand.clear()

    def _report(self) -> None:
        done, self._done, self._done_count = self._done, [], 0
        if done:
            self._service.finish_held(self.subscription.id, tuple(done), at_once=True)

    # --- Giving up

    async def _is_given_up(self, event: Event) -> bool:
        """Give an event up that comes after its last delivery: whoever had it then went without a word."""
        limit, held = self.durability.max_deliveries, _held(event)
        if limit is None or held.attempt - held.before <= limit:
            return False
        del self._hand[held.number]
        if not self._may_give_up:
            error = DeliveriesExhausted(
                f"event {event.id} of {self.durability.name!r} was delivered {times(limit)} and never acknowledged; "
                "give the subscription a dead_letter, or cancel it"
            )
            self.fail(error)
            raise error
        await self._give_up(event)
        return True

    @property
    def _may_give_up(self) -> bool:
        """Return whether events can be given up: to set one aside would leave a hole in an order."""
        return self.durability.dead_letter is not None or self.subscription.order is Order.NONE

    def _was_last(self, held: HeldEvent) -> bool:
        """Return whether the event is given up if the application is not done with it now."""
        limit = self.durability.max_deliveries
        return limit is not None and held.attempt - held.before >= limit and self._may_give_up

    async def _give_up(self, event: Event) -> None:
        """Publish the event as a dead letter, or set it aside. If it cannot be published, it comes again."""
        topic, held, name = self.durability.dead_letter, _held(event), self.durability.name
        limit = self.durability.max_deliveries or 0
        if topic is None:
            held.over = "it was set aside"
            self.set_aside += 1
            self._service.give_back(self.subscription.id, held.number, 0, aside=True)
            log.warning("%r set event %s aside: delivered %s", name, str(event.id), times(limit))
            return
        held.over = "it was published as a dead letter"
        try:
            await self._service.publish(
                topic, dead_letter(event, name, limit), typed_payload(event.payload_item)
            )
        except BaseException:
            with suppress(ConnectionFailed):
                self._service.give_back(self.subscription.id, held.number, 0)
            raise
        self.finish(held)

    async def _give_up_in_hand(self) -> None:
        """Give up what the application leaves undone after its last delivery. Without a connection, whoever attaches
        next does it."""
        last = [event for event in self._hand.values() if self._was_last(_held(event))]
        with suppress(TimeoutError, TidingsError):
            async with asyncio.timeout(GIVE_UP_TIMEOUT_S):
                for event in last:
                    if self._hand.pop(_number(event), None) is not None:  # it is still ours
                        await self._give_up(event)

    # --- Attaching and detaching

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ValueError("a stream can be used only once: subscribe again")
        self._entered = True
        self._service.streams[self.subscription.id] = self
        try:
            await self._service.attach_held(self.subscription, self.durability)
        except BaseException:
            self._service.streams.pop(self.subscription.id, None)
            raise
        self._attached = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._wake_all()
        if kind is None and self._attached:
            self._finish()
        if self._attached:
            await self._give_up_in_hand()
        if self._attached:
            self._report()
            unseen = merged((_number(event), _number(event)) for event in self._events if event is not None)
            await self._service.leave_held(self.subscription.id, unseen)
        self._lose("the stream was left")
        self._service.streams.pop(self.subscription.id, None)

    def _lose(self, why: str) -> None:
        hand, self._hand = self._hand, {}
        for event in hand.values():
            _held(event).over = why
        for number in list(self._answers):
            self._refuse(number, why)

    async def cancel(self) -> None:
        name = self.durability.name
        if self._cancels:
            raise SubscriptionRefused(f"{name!r} was cancelled before")
        if not self._entered or self._closed:
            raise ValueError("a stream can be cancelled only inside its 'async with' block")
        if not self._attached:  # the name may be somebody else's by now
            raise SubscriptionRefused(f"{name!r} is not cancelled, this stream has ended: {self._failure}")
        self._cancels = True
        try:
            await self._service.cancel_durable(name)
        except BaseException:
            self._cancels = False
            raise
        self._attached = False
        self._lose("the subscription was cancelled")
        self._closed = True
        self._wake_all()

    async def _change(self, topics: tuple[str, ...], condition: str | None) -> None:
        raise SubscriptionRefused(
            "a durable subscription or a group keeps its topics and its filter; cancel it first"
        )

    async def completed(self) -> None:
        if not self._attached:
            raise ConnectionFailed("the subscription has ended")


def _held(event: Event) -> HeldEvent:
    held: HeldEvent = event.__dict__["held"]
    return held


def _number(event: Event) -> int:
    return _held(event).number


def make_durability(
    subscription: Subscription,
    *,
    durable: str | None,
    group: str | None,
    group_by: str | None,
    ack: str,
    takeover: bool,
    keep_for: timedelta | float | None,
    max_unacked: int,
    max_deliveries: int | None,
    dead_letter: str | None,
    start: StartItem = NEW_START,
) -> Durability | None:
    """Check the options of `subscribe`; return None if the subscription is neither durable nor a group."""
    if durable is not None and group is not None:
        raise ValueError("a subscription is durable or a member of a group: a group is durable already")
    name = group if durable is None else durable
    if name is None:
        _check_unused(
            ack=None if ack == "auto" else ack,
            takeover=takeover or None,
            keep_for=keep_for,
            max_unacked=None if max_unacked == MAX_UNACKED else max_unacked,
            max_deliveries=max_deliveries,
            dead_letter=dead_letter,
            group_by=group_by,
        )
        return None
    _check_name(name)
    if group and subscription.order is not Order.NONE:
        raise ValueError(
            f"order {subscription.order.value!r} is not available for a group, whose members share the events: "
            "use durable=, or group_by="
        )
    if ack not in ("auto", "manual"):
        raise ValueError(f'ack must be "auto" or "manual", not {ack!r}')
    if group_by is not None and not group:
        raise ValueError("group_by needs group=")
    if group_by is not None:
        _check_group_by(group_by)
    if takeover and group:
        raise ValueError("takeover needs durable=: a group has many members")
    if not _is_count(max_unacked) or max_unacked > MAX_UNACKED_LIMIT:
        raise ValueError(f"max_unacked must be between 1 and {MAX_UNACKED_LIMIT:,}, not {max_unacked!r}")
    if max_deliveries is not None and not _is_count(max_deliveries):
        raise ValueError(f"max_deliveries must be at least 1, not {max_deliveries!r}")
    _check_dead_letter(subscription, dead_letter, max_deliveries)
    return Durability(
        name,
        group is not None,
        group_by or "",
        "manual" if ack == "manual" else "auto",
        takeover,
        _keep_ns(keep_for),
        max_unacked,
        max_deliveries,
        dead_letter,
        start,
    )


def _check_unused(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            needed = {"group_by": "group=", "takeover": "durable="}.get(name, "durable= or group=")
            raise ValueError(f"{name} needs {needed}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_name(name: str) -> None:
    import re

    if not isinstance(name, str) or re.fullmatch(NAME_PATTERN, name) is None:
        raise ValueError(
            f"name {name!r} must have 1 to 64 letters, digits, '.', '_' or '-', and start with a letter or a digit"
        )


def _check_group_by(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"group_by must be the name of an attribute, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"group_by must be a text that can be sent, not {name!r}") from None
    if len(name) > MAX_GROUP_BY_LENGTH:
        raise ValueError(f"group_by must have at most {MAX_GROUP_BY_LENGTH} characters, not {len(name):,}")


def _keep_ns(keep_for: timedelta | float | None) -> int:
    if keep_for is None:
        return 0
    seconds = keep_for.total_seconds() if isinstance(keep_for, timedelta) else keep_for
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= 1e9:
        raise ValueError(f"keep_for must be a positive duration of at most 1e+09 s, not {keep_for!r}")
    return max(int(seconds * 1e9), 1)


def _check_dead_letter(subscription: Subscription, topic: str | None, max_deliveries: int | None) -> None:
    if topic is None:
        return
    if max_deliveries is None:
        raise ValueError("dead_letter needs max_deliveries: without it, events are delivered without limit")
    try:
        check_topic(topic)
    except TopicError as error:
        raise TopicError(f"dead_letter: {error}") from None
    if any(pattern.matches(topic) for pattern in subscription.interest().topics) or not subscription.topics:
        raise ValueError(f"dead_letter {topic!r} is among the subscription's own topics")
