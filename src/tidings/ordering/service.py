"""Any event service with total and causal order: the same interface again (paper ordering, section 3.3).

Events on topics that have an order are numbered by the sequencers before the service gets them, and shown to ordered
subscriptions in one order for all. Everything else passes through.

A service that loses nothing is trusted: an ordered subscription waits for the event that it lacks, however long, names
it in its status, and ends with an error before it shows anything out of order. With any other service it has
`Patience`: after a time it goes on without what did not come, and shows it, marked `out_of_order`, if it comes after
all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from tidings.model.errors import ConnectionFailed, OrderError, SubscriptionRefused
from tidings.model.event import (
    HEADER_ATTRIBUTE,
    ORDER_ATTRIBUTE,
    Event,
    check_not_internal,
    make_publication,
)
from tidings.model.predicates import Scalar
from tidings.model.subscription import Interest, Order, Subscription
from tidings.net.sequencing import SequencersRefused
from tidings.ordering.place import Place
from tidings.ordering.publishing import Outgoing, Publishing, Together, check_room, note
from tidings.ordering.sequencing import Sequencing
from tidings.protocol.facts import Misbehaviour
from tidings.protocol.sequencing.client import (
    Joined,
    NumbersLost,
    OrderBroken,
    OrderingModule,
    PublishNow,
    Shown,
)
from tidings.protocol.sequencing.stamps import decode_stamp
from tidings.protocol.sequencing.subscriber import MAX_BUFFERED, Patience
from tidings.services.receipts import Receipt
from tidings.services.service import EventService, Notify, PublishedEvent, each, no_event
from tidings.services.stream import EventsMissed

DEFAULT_PATIENCE = Patience(events=4_096, limit_ns=5_000_000_000)
JOIN_TIMEOUT_S = 30.0
DOUBT_SECONDS = 15.0
"""Where the service may have lost something unseen, an event that does not come for so long, or up to twice that, is
given up, and the order with it."""
SLOW_READER_EVENTS = 1_024
"""What a reader has not taken of a service that loses nothing; beyond, that is told to wait."""
MAX_ACCUSED = 100
"""Topics and peers of which is said what is wrong with them, once."""
ORDERED = (Order.TOTAL, Order.CAUSAL)

log = logging.getLogger("tidings")


class _Ordered:
    """One ordered subscription."""

    def __init__(self, subscription: Subscription, notify: Notify, key: int, *, paced: bool) -> None:
        self.subscription = subscription
        self.interest: Interest = subscription.interest()
        self.notify = notify
        self.key = key
        self.paced = paced
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.joined.add_done_callback(note)
        self.unread = 0
        self.owed = 0
        """Events of the service that it is not told yet to be done with."""
        self.warned = False
        self.doubt = ""
        """Why what it waits for may never come."""


class OrderedService(EventService):
    """`sequencing` finds the sequencers once the service is open; None: there are none, and no order."""

    def __init__(
        self,
        inner: EventService,
        sequencing: Callable[[], Sequencing | None],
        *,
        patience: Patience | None = None,
        max_buffered: int = MAX_BUFFERED,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.streams = inner.streams  # it fails ours, too, when it is closed
        self._subscription_numbers = inner._subscription_numbers
        self._find_sequencing = sequencing
        self._sequencing: Sequencing | None = None
        self._patience = patience
        self._max_buffered = max_buffered
        self._publishing: Publishing | None = None
        self._by_id: dict[str, _Ordered] = {}
        self._by_key: dict[int, _Ordered] = {}
        self._accused: set[str] = set()

    # --- Life

    async def open(self) -> None:
        await self.inner.open()
        try:
            sequencing = self._find_sequencing()
            if sequencing is not None:
                await sequencing.open(self._on_fact)
                self._sequencing = sequencing
                self._publishing = Publishing(self.inner, sequencing.module)
        except BaseException:
            await self.inner.close()
            raise

    async def close(self) -> None:
        try:
            for subscription_id in list(self._by_id):
                await self.remove_subscription(subscription_id)
            if self._publishing is not None:
                await self._publishing.close()
                self._publishing = None
            if self._sequencing is not None:
                sequencing, self._sequencing = self._sequencing, None
                await sequencing.close()
        finally:
            await self.inner.close()

    @property
    def _module(self) -> OrderingModule:
        assert self._sequencing is not None
        return self._sequencing.module

    # --- Publishing

    @property
    def _numbers(self) -> bool:
        """Events get numbers, if their topics have an order."""
        return self._sequencing is not None and self._sequencing.wanted

    async def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: bytes = b"",
        *,
        internal: bool = False,
        wait: bool = True,
    ) -> Any:
        if internal or not self._numbers:
            publish: Any = self.inner.publish
            return await publish(topic, attributes, payload, internal=internal, wait=wait)
        outgoing = await self._begin(topic, attributes or {}, payload, anonymous=False)
        receipt = Receipt()  # who is cancelled does not take the event back
        outgoing.done.add_done_callback(receipt.follow)
        return await receipt if wait else receipt

    async def publish_many(
        self, events: Iterable[PublishedEvent] | AsyncIterable[PublishedEvent], *, internal: bool = False
    ) -> int:
        if internal or self._sequencing is None:
            return await self.inner.publish_many(events, internal=internal)
        remaining = each(events)
        held: list[PublishedEvent] = []
        published = 0
        if not self._numbers:
            published = await self.inner.publish_many(self._until_wanted(remaining, held))
        together = Together()
        async for event in each(held, remaining):
            try:
                topic, attributes, payload = event
            except (TypeError, ValueError):
                raise no_event(event) from None
            together.add(await self._begin(topic, attributes, payload, anonymous=True))
        return published + await together.settled()

    async def _until_wanted(
        self, events: AsyncIterator[PublishedEvent], held: list[PublishedEvent]
    ) -> AsyncIterator[PublishedEvent]:
        """Those that need no number; the first that does is `held`, the others stay where they are."""
        async for event in events:
            if self._numbers:
                held.append(event)
                return
            yield event

    async def _begin(
        self, topic: str, attributes: Mapping[str, Scalar], payload: bytes, *, anonymous: bool
    ) -> Outgoing:
        sequencing, publishing = self._sequencing, self._publishing
        if sequencing is None or publishing is None:
            raise ConnectionFailed("the bus is not open: use it inside 'async with'")
        # All mistakes show before the event has a number.
        check_not_internal(attributes)
        publication = make_publication("-", 0, 1, topic, attributes, payload, 0)
        rank = sequencing.layout.rank_of(topic)
        if rank is not None:
            check_room(publication, len(attributes), sequencing.layout)
        outgoing = Outgoing(topic, dict(attributes), bytes(payload), anonymous=anonymous)
        await publishing.begin(rank, outgoing)
        return outgoing

    # --- Subscribing

    async def add_subscription(
        self, subscription: Subscription, notify: Notify, *, paced: bool = False
    ) -> None:
        if subscription.order not in ORDERED:
            await self.inner.add_subscription(subscription, notify, paced=paced)
            return
        ranks = self._check_order(subscription)
        assert self._sequencing is not None
        self._sequencing.want()
        module = self._module
        patience = self._patience
        if patience is None and not self.inner.lossless:
            patience = DEFAULT_PATIENCE
        key = module.add_subscriber(patience, self._max_buffered)
        ordered = _Ordered(subscription, notify, key, paced=paced)
        self._by_id[subscription.id] = self._by_key[ordered.key] = ordered
        stream = self.streams.get(subscription.id)
        if stream is not None and patience is None:
            stream.on_miss = lambda gap, certain: self._on_miss(ordered, gap, certain)
            stream.on_doubt = lambda why: self._doubt(ordered, why)
        try:
            await self._subscribe_inside(ordered, ranks)
            if not ordered.joined.done():  # else it has ended by now
                module.change(ordered.key, ranks)
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await ordered.joined
        except TimeoutError:
            await self.remove_subscription(subscription.id)
            raise SubscriptionRefused(
                f"the sequencers did not answer within {JOIN_TIMEOUT_S:.0f} s"
            ) from None
        except BaseException:
            await self.remove_subscription(subscription.id)
            raise

    def _check_order(self, subscription: Subscription) -> tuple[int, ...]:
        sequencing = self._sequencing
        if sequencing is None:
            raise SubscriptionRefused(
                f"order {subscription.order!r} needs sequencers, and this network has none: "
                "start it with them (tidings up --order total, or tidings sequencer and connect(sequencer=...))"
            )
        if self._publishing is not None and self._publishing.refusal:
            raise OrderError(self._publishing.refusal)  # nobody is left who would answer
        layout = sequencing.layout
        if subscription.order is Order.CAUSAL and not layout.causal:
            raise SubscriptionRefused(
                "this network has total order, not causal order: start its sequencers with order causal"
            )
        topics = subscription.interest().topics
        uncovered = layout.uncovered(topics)
        if uncovered:
            raise SubscriptionRefused(
                f"{', '.join(uncovered)}: events there may have no order; "
                f"topics that have one: {', '.join(layout.topics[:10])}{', ...' if len(layout.topics) > 10 else ''}"
            )
        if not layout.causal and (self._patience is not None or not self.inner.lossless):
            raise SubscriptionRefused(
                "this service may lose events: an order that survives that needs sequencers of order causal"
            )
        return layout.ranks_for(topics)

    async def _subscribe_inside(self, ordered: _Ordered, ranks: tuple[int, ...]) -> None:
        """Headers of all events that have a number there, and the events that are wanted as a whole."""
        assert self._sequencing is not None
        subscription = ordered.subscription
        entries = tuple(self._sequencing.layout.entry(rank) for rank in ranks)
        if self.inner.strips:
            # Accepted first: what is wanted as a whole must not come as a header alone. It mostly comes for both at
            # once; where a broker lost its memory the header may come before.
            whole = Subscription(self._whole_id(subscription.id), subscription.topics, subscription.filter)
            await self.inner.add_subscription(whole, lambda event: self._on_event(ordered, event))
        wide = Subscription(subscription.id, entries, None, Order.NONE, headers=True)
        await self.inner.add_subscription(
            wide, lambda event: self._on_notified(ordered, event), paced=ordered.paced
        )
        await self._until_known(wide.id)

    async def _until_known(self, subscription_id: str) -> None:
        """An event that is published where the subscription is not known would be waited for in vain."""
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await self.inner.completed(subscription_id)
        except TimeoutError:
            uncovered = ", ".join(self.inner.uncovered(subscription_id))
            raise SubscriptionRefused(
                "an order begins when the whole network knows of it, and these did not answer within "
                f"{JOIN_TIMEOUT_S:.0f} s: {uncovered}"
            ) from None

    @staticmethod
    def _whole_id(subscription_id: str) -> str:
        return f"{subscription_id}~whole"

    async def remove_subscription(self, subscription_id: str) -> None:
        ordered = self._by_id.pop(subscription_id, None)
        if ordered is not None:
            self._by_key.pop(ordered.key, None)
            if not ordered.joined.done():
                ordered.joined.set_exception(ConnectionFailed("the subscription has ended"))
            if self._sequencing is not None:
                self._module.end(ordered.key)
            await self.inner.remove_subscription(self._whole_id(subscription_id))
        await self.inner.remove_subscription(subscription_id)

    # --- Events

    def _on_notified(self, ordered: _Ordered, event: Event) -> None:
        if ordered.paced:
            self._took(ordered)
        self._on_event(ordered, event)

    def _on_event(self, ordered: _Ordered, event: Event) -> None:
        """A number of one of the subscription's topics, with or without the event."""
        sequencing = self._sequencing
        if sequencing is None:
            return
        order = event.internal.get(ORDER_ATTRIBUTE)
        if order is None:
            return  # published before anybody wanted an order
        layout = sequencing.layout
        try:
            carried = decode_stamp(order, layout.fingerprint, layout.chain)
        except OrderError as error:
            if not ordered.warned:
                ordered.warned = True
                log.warning("event %s was left out: %s", event.id, error)
            return
        if HEADER_ATTRIBUTE in event.internal:
            sequencing.module.receive_header(ordered.key, carried)
        else:
            sequencing.module.receive(ordered.key, carried, event)

    def _took(self, ordered: _Ordered) -> None:
        """What waits for a predecessor must not keep that from coming; what waits for a slow reader may."""
        if ordered.unread < SLOW_READER_EVENTS:
            self.inner.taken(ordered.subscription.id)
        else:
            ordered.owed += 1

    def taken(self, subscription_id: str) -> None:
        ordered = self._by_id.get(subscription_id)
        if ordered is None:
            self.inner.taken(subscription_id)
            return
        ordered.unread -= 1
        if ordered.unread < SLOW_READER_EVENTS:
            for _ in range(ordered.owed):
                self.inner.taken(subscription_id)
            ordered.owed = 0

    def _on_fact(self, fact: object) -> None:
        match fact:
            case Shown():
                self._show(fact)
            case PublishNow():
                if self._publishing is not None:
                    self._publishing.on_publish_now(fact)
            case Joined(key=key) if key in self._by_key:
                joined = self._by_key[key].joined
                if not joined.done():
                    joined.set_result(None)
            case OrderBroken(key=key, reason=reason) if key in self._by_key:
                self._break(self._by_key[key], OrderError(reason))
            case SequencersRefused(reason=reason) | NumbersLost(reason=reason):
                if self._publishing is not None:
                    self._publishing.fail(OrderError(reason))
            case Misbehaviour(peer=peer, what=what) if peer not in self._accused:
                if len(self._accused) < MAX_ACCUSED:
                    self._accused.add(peer)
                    log.warning("%s: %s (said once)", peer, what)

    def _show(self, fact: Shown) -> None:
        ordered = self._by_key.get(fact.key)
        event = fact.event
        # An entry of the layout may have other topics than those of the subscription.
        if ordered is None or not isinstance(event, Event) or not ordered.interest.selects(event):
            return
        assert self._sequencing is not None
        event.__dict__["order"] = Place(fact.stamp, self._sequencing.layout)
        event.__dict__.pop("out_of_order", None)  # how it came is not how it is shown
        if fact.out_of_order:
            event.__dict__["out_of_order"] = True
        if ordered.paced:
            ordered.unread += 1
        ordered.notify(event)

    def _on_miss(self, ordered: _Ordered, gap: EventsMissed, certain: bool) -> None:
        """The service gave events up; those after them would wait for ever."""
        if certain:
            lost = f"events {gap.first} to {gap.last} of {gap.source}"
            self._end(ordered, f"the service could not keep {lost}: the order cannot be continued")

    def _end(self, ordered: _Ordered, reason: str) -> None:
        if self._sequencing is not None:
            self._module.end(ordered.key)
        self._break(ordered, OrderError(reason))

    def _doubt(self, ordered: _Ordered, why: str) -> None:
        """From now on what it waits for may never come: it does not wait for ever any more."""
        if not ordered.doubt:
            self._look_at_doubtful(ordered, "")
        ordered.doubt = why

    def _look_at_doubtful(self, ordered: _Ordered, lacked: str) -> None:
        if self._sequencing is None or self._by_key.get(ordered.key) is not ordered:
            return
        lacks = self._module.waits_for(ordered.key) if self._module.buffered(ordered.key) else ""
        if lacks and lacks == lacked:
            self._end(
                ordered, f"{ordered.doubt}, and {lacks} has not come since: the order cannot be continued"
            )
            return
        loop = asyncio.get_running_loop()
        loop.call_later(DOUBT_SECONDS, self._look_at_doubtful, ordered, lacks)

    def _break(self, ordered: _Ordered, error: OrderError) -> None:
        """The order cannot be continued: better an error than another order."""
        if not ordered.joined.done():
            ordered.joined.set_exception(error)
        stream = self.streams.get(ordered.subscription.id)
        if stream is not None:
            stream.fail(error)
        else:
            log.error("subscription %s: %s", ordered.subscription.id, error)

    # --- What passes through

    @property
    def lossless(self) -> bool:
        return self.inner.lossless

    def uncovered(self, subscription_id: str) -> tuple[str, ...]:
        return self.inner.uncovered(subscription_id)

    async def completed(self, subscription_id: str) -> None:
        await self.inner.completed(subscription_id)

    async def status(self) -> dict[str, Any]:
        """That of the service; beside it, what the sequencers say and what ordered subscriptions wait for."""
        found = await self.inner.status()
        if self._sequencing is not None:
            module = self._module
            found["ordering"] = {
                "sequencers": await self._sequencing.status(),
                "subscriptions": {
                    subscription_id: {
                        "buffered": module.buffered(ordered.key),
                        "waits_for": module.waits_for(ordered.key),
                    }
                    for subscription_id, ordered in self._by_id.items()
                },
                "unpublished": module.unpublished,
            }
        return found
