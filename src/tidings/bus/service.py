"""The interface of every event service: publish, subscribe, unsubscribe, notify.

The overlay and the adapters offer it; a wrapper around a service (an order, a collection) offers it again
(paper ordering, section 3.3). A service implements the abstract methods; `subscribe` and its streams come with this
class.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, overload

from tidings.bus.durable_stream import MAX_UNACKED, Ack, Durability, DurableStream, make_durability
from tidings.bus.expiry import Expiry
from tidings.bus.history import HistoryStream, check_start
from tidings.bus.history_reader import HistorySource
from tidings.bus.receipts import Batch, Receipt
from tidings.bus.requests import RequestReply
from tidings.bus.stream import DEFAULT_BUFFER_EVENTS, Condition, Stream
from tidings.core.client.bookmark import Reached
from tidings.core.client.seam import Seam
from tidings.core.errors import SubscriptionRefused, TopicError
from tidings.core.events.event import Event, EventId
from tidings.core.events.payload import Payload
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import ORDERED, Order, OrderName, Subscription
from tidings.core.filters.language.predicates import Scalar
from tidings.core.overlay.guaranteed.archive_fence import NEEDS_ARCHIVE
from tidings.core.structures.ranges import Ranges
from tidings.storage.starts import Start, start_item

PublishedEvent = tuple[str, Mapping[str, Scalar], Payload]
"""Topic, attributes, payload."""
Notify = Callable[[Event], None]
"""Called for every event of a subscription, in its order, on the event loop; it must not block."""

NO_SHARES = (
    "nothing is kept here for durable subscriptions and groups: start the network with mode guaranteed"
)


class SetAside(NamedTuple):
    """An event that was delivered too often and set aside at its broker."""

    number: int
    attempts: int
    """How often an application was given it."""
    event: Event


class EventService(RequestReply, ABC):
    """Publish/subscribe: what `connect` and `embedded` return. `async with` opens and closes it."""

    def __init__(self) -> None:
        super().__init__()
        self._subscription_numbers = count(1)
        self.streams: dict[str, Stream] = {}
        """The open streams. Closing the service fails them, so that no reader waits for ever."""
        self.keeps_subscriptions = False
        """True: a service that `resumes` keeps events for this client after `close`."""
        self.reached_before: dict[str, Reached] = {}
        """For ordered subscriptions of a service that `resumes`: how far this client had come before it restarted,
        according to the application."""
        self.on_break: Callable[[str], None] = lambda reason: None
        """Called with the reason when the connection is lost and events may be missing."""
        self.dropped = 0
        """Notifications that the network dropped because this client was too slow."""

    @abstractmethod
    async def open(self) -> None:
        """Connect. `async with` does this."""

    @abstractmethod
    async def close(self) -> None:
        """End all streams and disconnect. `async with` does this."""

    @overload
    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: Payload = b"",
        *,
        expires: Expiry | None = None,
        wait: Literal[True] = True,
    ) -> EventId: ...

    @overload
    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: Payload = b"",
        *,
        expires: Expiry | None = None,
        wait: Literal[False],
    ) -> Receipt: ...

    @abstractmethod
    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: Payload = b"",
        *,
        expires: Expiry | None = None,
        wait: bool = True,
    ) -> Any:
        """Publish one event and return its id once it is confirmed.

        Args:
            topic: The event's topic, such as "/news/bbc".
            attributes: Names and values that filters can select by: bool, int, float, str, bytes or None.
            payload: The event's content, not looked at by the network: bytes, a str (sent as text), or anything that
                msgspec encodes as JSON, such as a dict, a list, a Struct or a dataclass. `Event.content_type` says
                which.
            expires: How long the event may be shown, as a timedelta or in seconds; None: without limit. A stream
                whose reader comes later skips it and counts it in `Stream.expired`.
            wait: False returns a `Receipt` instead, as soon as the event is accepted for sending (at most 10,000
                events may be unconfirmed). Await the receipt for the id, or ignore it.

        Raises:
            NotConfirmed: The publication failed, or its outcome cannot be known.
            TopicError: The topic is not valid.
            AttributeValueError: An attribute is not valid, or the event is too large.
            PayloadError: The payload cannot be encoded.
            ValueError: `expires` is not a positive duration.
            ConnectionFailed: The bus is not open.
        """

    @abstractmethod
    async def publish_many(
        self,
        events: Iterable[PublishedEvent] | AsyncIterable[PublishedEvent],
    ) -> int:
        """Publish events one after the other and return how many, once all are confirmed.

        It does not wait for one confirmation before the next event, but takes no more from `events` while too many
        are unconfirmed.

        Args:
            events: An iterable or async iterable of (topic, attributes, payload) tuples.

        Raises:
            NotConfirmed: Some publications failed, or their outcome cannot be known.
        """

    @property
    def now(self) -> int:
        """The time, in nanoseconds since 1970, by which events are published and expire."""
        return time.time_ns()

    def reserve(self) -> EventId:
        """Reserve the id of the next event, for a wrapper that makes the event itself and passes it to `send`."""
        raise NotImplementedError(f"{type(self).__name__} takes events from applications only")

    async def send(self, stretch: Stretch) -> Batch:
        """Publish events with reserved ids, in their order; for wrappers."""
        raise NotImplementedError(f"{type(self).__name__} takes events from applications only")

    @abstractmethod
    async def add_subscription(
        self, subscription: Subscription, notify: Notify, *, paced: bool = False
    ) -> None:
        """Subscribe, and return once the network has accepted: events published from then on are delivered.

        No-ops and bare headers, which only protocols need, are delivered only to a subscription that asks for
        `headers`, as events whose `carrier` says what they are.

        Args:
            subscription: Its id, topics, filter and order.
            notify: Called with every event, in order, on the event loop; it must not block.
            paced: True if the caller reports with `taken` when it is done with events.

        Raises:
            SubscriptionRefused: The network rejected the subscription or did not answer in time.
        """

    @abstractmethod
    async def remove_subscription(self, subscription_id: str) -> None:
        """Unsubscribe; no event is delivered for it after this returns."""

    @property
    def lossless(self) -> bool:
        """True if a slow reader loses nothing: it is sent no more until it has caught up."""
        return False

    @property
    def strips(self) -> bool:
        """True if an event that is selected only because of `headers` arrives as a bare header; False if whole."""
        return False

    def taken(self, subscription_id: str, count: int = 1) -> None:
        """Report that the reader of a paced subscription is done with its next `count` events."""

    async def change_subscription(self, changed: Subscription) -> None:
        """Replace the topics and the filter of the subscription with this id.

        Raises:
            SubscriptionRefused: The change was rejected; the subscription stays as it was.
        """
        raise SubscriptionRefused("subscriptions of this service cannot change")

    @property
    def reconnections(self) -> int:
        """Connections since the first, if events may have been missed unnoticed before each."""
        return 0

    @property
    def resumes(self) -> bool:
        """True if the network keeps what this client has not taken until a client of its name returns."""
        return False

    def reached(self, subscription_id: str, count: int) -> Reached | None:
        """Return how far an ordered subscription will have come after the next `count` events, if the service
        `resumes`. An incarnation that differs from the previous one means that it began anew."""
        return None

    @property
    def broker(self) -> str:
        """The broker that keeps what this client has not taken; empty if there is none or it is unknown."""
        return ""

    @property
    def generation(self) -> int:
        """The generation of the broker's disk. When it changes, what it kept for this client is gone. 0: unknown."""
        return 0

    def uncovered(self, subscription_id: str) -> tuple[str, ...]:
        """Return the brokers that do not know the subscription yet: events published there are not delivered."""
        return ()

    async def completed(self, subscription_id: str) -> None:
        """Wait until the whole network knows the subscription."""

    @abstractmethod
    async def status(self) -> dict[str, Any]:
        """Return the service's state, as the adapter or the broker reports it."""

    def subscribe(
        self,
        *topics: str,
        where: Condition | None = None,
        order: OrderName = "none",
        buffer_events: int = DEFAULT_BUFFER_EVENTS,
        durable: str | None = None,
        group: str | None = None,
        group_by: str | None = None,
        ack: Ack = "auto",
        takeover: bool = False,
        keep_for: timedelta | float | None = None,
        max_unacked: int = MAX_UNACKED,
        max_deliveries: int | None = None,
        dead_letter: str | None = None,
        start: Start = "new",
        archive: str | None = None,
    ) -> Stream:
        """Return a stream of events, to use with `async with`: it is subscribed inside the block.

        Args:
            topics: Topic patterns: "/a/b" exactly, "/a/*" for one level, "/a/**" for the subtree. Without any, every
                topic.
            where: A filter over the attributes: SQL, an expression made with `col`, or a `Filter`. None selects all.
            order: "none", "fifo" (each publisher's events in order), "causal", or "total" (the same order for every
                subscriber).
            buffer_events: How many events may wait for a slow reader. Where the service loses nothing, they wait at
                the broker instead.
            durable: A name that outlives this process, unique in the network. Whoever attaches next under it goes on
                where the last one stopped. Leaving the block only detaches; `DurableStream.cancel` ends it.
            group: The name of a group, which shares its events: each goes to one member. Networks without a guarantee
                have groups, too, but keep and acknowledge nothing.
            group_by: The name of an attribute. Events with equal values go to one member of the group, in order.
            ack: With durable or group, when an event is done. "auto": when the reader asks for the next one, or leaves
                its loop in order. "manual": when the application calls `event.ack()`.
            takeover: Take a durable subscription over from whoever holds it, instead of being refused.
            keep_for: How long the network keeps it while nobody is attached, as a timedelta or in seconds; 7 days.
            max_unacked: How many events may be out at once.
            max_deliveries: How often an event is delivered before it is given up; None: without limit.
            dead_letter: Where an event that is given up is published. Without it, an unordered stream sets it aside at
                the broker, and an ordered one fails.
            start: Where the stream starts. "new": with what is published from now on. Otherwise with what the broker's
                archive has, followed by new events without a gap or a repetition: "earliest" (the oldest event
                kept), an offset, a datetime (events published then or later), or "last" (the newest event of each
                topic). With durable or group, it says where a new one begins; one that exists goes on where it stopped.
            archive: With start and order "total" or "causal", the URL of a recorder that keeps an archive in that order
                (`tidings record --order total --listen`). None is the archive of the broker.

        Raises:
            TopicError: A topic pattern is not valid.
            FilterError: The filter is not valid.
            ValueError: Another argument is not valid.
        """
        check_texts(topics)
        subscription = Subscription(
            f"s{next(self._subscription_numbers)}", topics, filter_sql(where), parse_order(order)
        )
        subscription.interest()  # reports mistakes here, not at the broker
        start = check_start(start)
        durability = make_durability(
            subscription,
            durable=durable,
            group=group,
            group_by=group_by,
            ack=ack,
            takeover=takeover,
            keep_for=keep_for,
            max_unacked=max_unacked,
            max_deliveries=max_deliveries,
            dead_letter=dead_letter,
            start=start_item(start),
        )
        if archive is not None and (start == "new" or subscription.order not in ORDERED):
            raise ValueError("archive= is for subscriptions with start= and order 'total' or 'causal'")
        if durability is not None and start != "new" and subscription.order in ORDERED:
            raise ValueError(
                f"start= is not available for durable subscriptions with order {order!r}: use order 'fifo'"
            )
        try:
            if durability is not None:
                return DurableStream(self, subscription, buffer_events, durability)
            if start != "new":
                return HistoryStream(self, replace(subscription, history=True), buffer_events, start, archive)
            return Stream(self, subscription, buffer_events)
        except TypeError:
            raise ValueError(f"buffer_events must be a number, not {buffer_events!r}") from None

    # --- History, of services that have it

    def history(
        self, start: Start, subscription: Subscription, seam: Seam, archive: str | None = None
    ) -> HistorySource:
        """Return the source of a stream's history; for streams.

        Raises:
            SubscriptionRefused: The service keeps no archive from which a subscription can start.
        """
        raise SubscriptionRefused(NEEDS_ARCHIVE.format(repr(start)))

    @property
    def client_name(self) -> str:
        """The name of this client at its broker, where it has one."""
        return ""

    @property
    def connections(self) -> int:
        """How many connections this client has had or lost, for those who must know whether it is still the same."""
        return 0

    # --- Durable subscriptions and groups, of services that have them

    async def attach_held(self, subscription: Subscription, durability: Durability) -> None:
        """Attach a stream to a durable subscription or a group; for streams.

        Raises:
            SubscriptionRefused: The service has none, or somebody else holds it.
        """
        raise SubscriptionRefused(NO_SHARES)

    def finish_held(
        self, subscription_id: str, numbers: Ranges, *, at_once: bool = False, expired: bool = False
    ) -> None:
        """Report that the events with these numbers are done, or had expired, by the end of the turn or at once; for
        streams."""
        raise NotImplementedError

    def give_back(self, subscription_id: str, number: int, after_ns: int, *, aside: bool = False) -> None:
        """Give an event back, to be delivered again or to be set aside; for streams."""
        raise NotImplementedError

    async def leave_held(self, subscription_id: str, unseen: Ranges = ()) -> None:
        """Detach a stream, whose application has not seen the events with these numbers; for streams."""
        raise NotImplementedError

    async def cancel_durable(self, name: str) -> None:
        """End a durable subscription or a group for good, with everything that waits for it.

        Args:
            name: Its name.

        Raises:
            SubscriptionRefused: The broker does not have it.
        """
        raise SubscriptionRefused(NO_SHARES)

    async def durable_subscriptions(self) -> list[dict[str, Any]]:
        """Return the durable subscriptions and groups of the network by name, as `tidings subscriptions --json` prints
        them. Of those whose broker cannot be reached only `name` and `broker` are known.

        Raises:
            SubscriptionRefused: The network has none: it is not guaranteed.
        """
        raise SubscriptionRefused(NO_SHARES)

    async def set_aside(self, name: str) -> list[SetAside]:
        """Return the events of a durable subscription or a group that were delivered too often and set aside.

        Raises:
            SubscriptionRefused: It does not exist.
        """
        raise SubscriptionRefused(NO_SHARES)

    async def release(self, name: str, numbers: Iterable[int]) -> int:
        """Deliver events again that were set aside, marked; return how many.

        `event.attempt` goes on counting, and `max_deliveries` counts from here.

        Args:
            name: The name of the durable subscription or group.
            numbers: Which, as `set_aside` numbers them.

        Raises:
            SubscriptionRefused: It does not exist.
        """
        raise SubscriptionRefused(NO_SHARES)

    async def drop_aside(self, name: str, numbers: Iterable[int]) -> int:
        """Drop events for good that were set aside; return how many. The arguments are those of `release`."""
        raise SubscriptionRefused(NO_SHARES)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def check_texts(topics: tuple[object, ...]) -> None:
    """Raise TopicError for a topic that is not a string, such as a list of topics given as one argument."""
    for topic in topics:
        if not isinstance(topic, str):
            hint = "; pass topics one by one: subscribe('/a', '/b')" if isinstance(topic, Iterable) else ""
            raise TopicError(f"topic pattern {topic!r} is not a string{hint}")


def filter_sql(where: Condition | None) -> str | None:
    """Return the SQL of a filter given as text, as a `Filter` or as an expression made with `col`."""
    if where is None or isinstance(where, str):
        return where
    from tidings.core.filters.language.filter import Filter

    made = where if isinstance(where, Filter) else Filter(where)
    return made.to_sql()


def iterate(events: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over the events of a `publish_many`, or raise TypeError."""
    try:
        return iter(events)
    except TypeError:
        kind = type(events).__name__
        raise TypeError(f"events must be an iterable of (topic, attributes, payload), not {kind}") from None


async def each(*sources: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Yield the events of these sources, one source after the other."""
    for events in sources:
        if isinstance(events, AsyncIterable):
            async for event in events:
                yield event
        else:
            for event in iterate(events):
                yield event


def parse_order(order: str) -> Order:
    try:
        return Order(order)
    except ValueError:
        raise ValueError(f"order {order!r} is not one of {', '.join(Order)}") from None
