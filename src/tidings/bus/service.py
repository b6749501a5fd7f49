"""The interface of every event service: publish, subscribe, unsubscribe, notify.

The overlay, the peers and the adapters offer it; what wraps a service (an order, a collection) offers it again.
A service implements four coroutines; `subscribe` and its streams come with this class.
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
"""Called for every event of a subscription, in its order, inside the loop; it must not block."""


class EventService(ABC):
    """`async with` opens and closes it."""

    def __init__(self) -> None:
        self._subscription_numbers = count(1)
        self.streams: dict[str, Stream] = {}
        """The streams that are open; whoever closes the service fails them, so that no reader waits for ever."""
        self.keeps_subscriptions = False
        """True: where the service `resumes`, it goes on keeping events for this client after `close`."""
        self.reached_before: dict[str, Reached] = {}
        """By subscription, where it `resumes` and has an order: how far an earlier life of this client has come, as the
        application itself knows."""
        self.on_break: Callable[[str], None] = lambda reason: None
        """Told when the connection is lost, for whoever must know that something may be missing."""
        self.dropped = 0
        """Notifications that the network left out because this client did not keep up."""

    @abstractmethod
    async def open(self) -> None:
        """Connect; `async with` does it."""

    @abstractmethod
    async def close(self) -> None:
        """End all streams and disconnect; `async with` does it."""

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
        """Publish one event; returns once it is confirmed, raises NotConfirmed if that cannot be known.

        With `wait=False` it returns a `Receipt` as soon as there is room for the event on its way: await that for the
        event's id, or do not.
        """

    @abstractmethod
    async def publish_many(
        self,
        events: Iterable[PublishedEvent] | AsyncIterable[PublishedEvent],
    ) -> int:
        """Publish (topic, attributes, payload) one after the other; returns how many, once all are confirmed.

        It does not wait between them, but takes no more from `events` while too many are on their way.
        """

    def reserve(self) -> EventId:
        """For what wraps a service: the id of the next event, which it will make and `send`."""
        raise NotImplementedError(f"{type(self).__name__} takes events from applications only")

    async def send(self, stretch: Stretch) -> Batch:
        """For what wraps a service: publish events with ids that were reserved, in their order."""
        raise NotImplementedError(f"{type(self).__name__} takes events from applications only")

    @abstractmethod
    async def add_subscription(
        self, subscription: Subscription, notify: Notify, *, paced: bool = False
    ) -> None:
        """Returns once the subscription is accepted: what is published from then on is for it.

        What is for protocols alone (no-ops, headers) is passed on where the subscription asks for `headers`, as an
        event whose `carrier` says what it is, and nowhere else.

        `paced`: the caller says `taken` for each event when it is done with it.
        """

    @abstractmethod
    async def remove_subscription(self, subscription_id: str) -> None:
        """Nothing is notified for it any more, once this returns."""

    @property
    def lossless(self) -> bool:
        """True: a reader that does not keep up loses nothing, and is sent no more until it has."""
        return False

    @property
    def strips(self) -> bool:
        """True: what only a subscription with `headers` selects comes as a header. False: it comes whole."""
        return False

    def taken(self, subscription_id: str, count: int = 1) -> None:  # noqa: B027 - most services need not know
        """The reader of a paced subscription is done with its next events, so many."""

    async def change_subscription(self, changed: Subscription) -> None:
        """The subscription of that name has other topics or another filter, once this returns; SubscriptionRefused if
        that cannot be, and it stays as it was."""
        raise SubscriptionRefused("subscriptions of this service cannot change")

    @property
    def reconnections(self) -> int:
        """Connections since the first, where each may have missed something unseen."""
        return 0

    @property
    def resumes(self) -> bool:
        """True: what is not taken is kept while this client is away, for a later one of its name."""
        return False

    def reached(self, subscription_id: str, count: int) -> Reached | None:
        """How far an ordered subscription will have come with the next so many events, where it `resumes`. Another
        incarnation than before: it began anew."""
        return None

    @property
    def broker(self) -> str:
        """Where what is not taken is kept; empty: nowhere, or not known."""
        return ""

    @property
    def generation(self) -> int:
        """Of the broker's disk: with another one, what it kept for this client is gone. 0: not known."""
        return 0

    def uncovered(self, subscription_id: str) -> tuple[str, ...]:
        """Who does not know the subscription yet, in words: what is published there is not for it."""
        return ()

    async def completed(self, subscription_id: str) -> None:  # noqa: B027 - it is, where this is all
        """Returns once everybody knows the subscription."""

    @abstractmethod
    async def status(self) -> dict[str, Any]:
        """What the service knows of its own state."""

    def subscribe(
        self,
        *topics: str,
        where: Condition | None = None,
        order: OrderName = "none",
        buffer_events: int = DEFAULT_BUFFER_EVENTS,
    ) -> Stream:
        """A stream of the events on these topic patterns (none: every topic) that the filter selects.

        `buffer_events` bounds what waits for a slow reader, unless the service loses nothing: then it waits at
        the broker.
        `where` is SQL, an expression made with `col`, or a `Filter`. Use it as `async with`; it is subscribed
        inside the block.
        """
        check_texts(topics)
        subscription = Subscription(
            f"s{next(self._subscription_numbers)}", topics, filter_sql(where), parse_order(order)
        )
        subscription.interest()  # a mistake shows here, not at the broker
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
    """TopicError for what is no string, as where a list of topics is one of them."""
    for topic in topics:
        if not isinstance(topic, str):
            hint = "; give topics one by one: subscribe('/a', '/b')" if isinstance(topic, Iterable) else ""
            raise TopicError(f"topic pattern {topic!r} is not a string{hint}")


def filter_sql(where: Condition | None) -> str | None:
    """The SQL of a filter given as text, as a Filter or as an expression of `col`."""
    if where is None or isinstance(where, str):
        return where
    from tidings.core.filters.language.filter import Filter

    made = where if isinstance(where, Filter) else Filter(where)
    return made.to_sql()


def iterate(events: Iterable[Any]) -> Iterator[Any]:
    """The events of a `publish_many`."""
    try:
        return iter(events)
    except TypeError:
        kind = type(events).__name__
        raise TypeError(f"events must be an iterable of (topic, attributes, payload), not {kind}") from None


async def each(*sources: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    """The events of these, one after the other."""
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
        raise ValueError(f"order {order!r} is unknown; known: {', '.join(Order)}") from None
