"""The interface of every event service: publish, subscribe, unsubscribe, notify.

The overlay and the adapters offer it; a wrapper around a service (an order, a collection) offers it again
(paper ordering, section 3.3). A service implements the abstract methods; `subscribe` and its streams come with this
class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import count
from types import TracebackType
from typing import Any, Literal, Self, overload

from tidings.bus.receipts import Batch, Receipt
from tidings.bus.stream import DEFAULT_BUFFER_EVENTS, Condition, Stream
from tidings.core.client.bookmark import Reached
from tidings.core.errors import SubscriptionRefused, TopicError
from tidings.core.events.event import Event, EventId
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import Order, OrderName, Subscription
from tidings.core.filters.language.predicates import Scalar

PublishedEvent = tuple[str, Mapping[str, Scalar], bytes]
"""Topic, attributes, payload."""
Notify = Callable[[Event], None]
"""Called for every event of a subscription, in its order, on the event loop; it must not block."""


class EventService(ABC):
    """Publish/subscribe: what `connect` and `embedded` return. `async with` opens and closes it."""

    def __init__(self) -> None:
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
        payload: bytes = b"",
        *,
        wait: Literal[True] = True,
    ) -> EventId: ...

    @overload
    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: bytes = b"",
        *,
        wait: Literal[False],
    ) -> Receipt: ...

    @abstractmethod
    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: bytes = b"",
        *,
        wait: bool = True,
    ) -> Any:
        """Publish one event and return its id once it is confirmed.

        Args:
            topic: The event's topic, such as "/news/bbc".
            attributes: Names and values that filters can select by: bool, int, float, str, bytes or None.
            payload: The event's content, not looked at by the network.
            wait: False returns a `Receipt` instead, as soon as the event is accepted for sending (at most 10,000
                events may be unconfirmed). Await the receipt for the id, or ignore it.

        Raises:
            NotConfirmed: The publication failed, or its outcome cannot be known.
            TopicError: The topic is not valid.
            AttributeValueError: An attribute is not valid.
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

    def taken(self, subscription_id: str, count: int = 1) -> None:  # noqa: B027 - most services need not know
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

    async def completed(self, subscription_id: str) -> None:  # noqa: B027 - by default, complete when accepted
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

        Raises:
            TopicError: A topic pattern is not valid.
            FilterError: The filter is not valid.
            ValueError: The order is unknown, or `buffer_events` is not a positive number.
        """
        check_texts(topics)
        subscription = Subscription(
            f"s{next(self._subscription_numbers)}", topics, filter_sql(where), parse_order(order)
        )
        subscription.interest()  # reports mistakes here, not at the broker
        try:
            return Stream(self, subscription, buffer_events)
        except TypeError:
            raise ValueError(f"buffer_events must be a number, not {buffer_events!r}") from None

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
