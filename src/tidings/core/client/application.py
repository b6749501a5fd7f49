"""The client of one application: publishes, subscribes, changes subscriptions, and acknowledges events.

It makes all decisions of the application's half of a promise. A host maps calls to these methods, and facts to futures,
rows or lines. Facts of the event service and of the ordering module, if any, go in at `on_fact`; facts for the
application come out at `emit`, with the application's own names of subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidings.core.client.beneath import Beneath
from tidings.core.client.bookmark import Reached
from tidings.core.client.numbering import OrderNumbering
from tidings.core.client.ordered import OrderedSubscription
from tidings.core.client.owner import Holder
from tidings.core.client.plain import PlainSubscription
from tidings.core.errors import OrderError, SubscriptionRefused
from tidings.core.events.payload import Payload
from tidings.core.events.subscription import ORDERED, Subscription
from tidings.core.facts import (
    BookmarkIsKept,
    BookmarksKnown,
    BrokerChanged,
    Delivered,
    EventsGivenUp,
    PublicationConfirmed,
    PublicationFailed,
    PublicationSent,
    SubscriptionAccepted,
    SubscriptionCancelled,
    SubscriptionFailed,
    SubscriptionProgress,
)
from tidings.core.filters.language.predicates import Scalar
from tidings.core.ordering.module import (
    DoubtOver,
    EventsShown,
    JoinCompleted,
    NumbersLost,
    OrderBroken,
    OrderingModule,
    PublishNow,
)
from tidings.core.ordering.subscriber import MAX_BUFFERED, Patience

NO_SEQUENCERS = (
    "requires sequencers, but this network has none: "
    "start them (tidings up --order total, or tidings sequencer and connect(sequencer=...))"
)


class Application:
    """Publishes and subscribes for one application, over an event service.

    `strips`: the service sends only the header of what only a subscription with `headers` selects. `hides`: the service
    shows protocol events only to such a subscription. `confirms`: the service confirms or fails each publication.
    `lingers`: after a change, an unordered subscription still shows all that was in flight for its old topics.
    """

    def __init__(
        self,
        beneath: Beneath,
        emit: Callable[[object], None],
        *,
        strips: bool = True,
        hides: bool = False,
        confirms: bool = True,
        lingers: bool = False,
    ) -> None:
        self.emit = emit
        self._beneath = beneath
        self._strips = strips
        self._hides = hides
        self._confirms = confirms
        self._lingers = lingers
        self._numbering: OrderNumbering | None = None
        self._module: OrderingModule | None = None
        self._patience: Patience | None = None
        self._max_buffered = MAX_BUFFERED
        self._subscriptions: dict[str, Holder] = {}
        """By the application's name."""
        self._holders: dict[str, Holder] = {}
        """By the name in the service."""
        self._by_key: dict[int, OrderedSubscription] = {}
        """By the key of the ordering module's subscriber."""

    def add_order(
        self,
        module: OrderingModule,
        *,
        patience: Patience | None = None,
        max_buffered: int = MAX_BUFFERED,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Add ordering. With patience, an ordered subscription eventually continues without a missing event."""
        self._module = module
        self._patience = patience
        self._max_buffered = max_buffered
        self._numbering = OrderNumbering(
            self._beneath, module, self.emit, wanted=wanted, confirms=self._confirms
        )

    # --- Publishing

    def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar],
        payload: Payload,
        published_at: int,
    ) -> int:
        """Publish an event and return its sequence."""
        if self._numbering is not None:
            return self._numbering.publish(topic, attributes, payload, published_at)
        sequence = self._beneath.reserve()
        self._beneath.publish_as(sequence, topic, attributes, payload, published_at)
        self.emit(PublicationSent(sequence, sequence))
        return sequence

    def fail_if_sent(self, sequence: int, reason: str) -> None:
        """Fail a publication if the service has it; one that waits for a number is not published yet."""
        if self._numbering is None or not self._numbering.is_waiting(sequence):
            self.on_fact(PublicationFailed(sequence, reason))

    # --- Subscribing

    def start(self, subscription: Subscription, reached: Reached | None = None) -> None:
        """Start a subscription; SubscriptionAccepted or SubscriptionFailed follows. Raises SubscriptionRefused or
        OrderError if there is no order.

        If the service kept a subscription of an earlier run of this client, it continues; an ordered one continues
        where it ended, and `reached` is what the application itself knows about that.
        """
        if subscription.id in self._subscriptions:
            raise ValueError(f"subscription {subscription.id!r} already exists")
        holder: Holder
        if subscription.order in ORDERED:
            holder = self._make_ordered(subscription, reached)
        else:
            bookmarks = self._beneath.bookmarks
            holder = PlainSubscription(self, subscription, bookmarks=bookmarks, lingers=self._lingers)
        self._subscriptions[subscription.id] = holder
        holder.start()

    def _make_ordered(self, subscription: Subscription, reached: Reached | None) -> OrderedSubscription:
        if self._module is None:
            raise SubscriptionRefused(f"order {subscription.order.value!r} {NO_SEQUENCERS}")
        if self._numbering is not None and self._numbering.refusal:
            raise OrderError(self._numbering.refusal)  # nobody would answer
        return OrderedSubscription(
            self,
            subscription,
            self._module,
            self._by_key,
            patience=self._patience,
            max_buffered=self._max_buffered,
            strips=self._strips,
            hides=self._hides,
            bookmarks=self._beneath.bookmarks,
            reached=reached,
        )

    def reached(self, subscription_id: str, count: int) -> Reached:
        """Return the position of an ordered subscription after the next `count` events that it was shown, for an
        application that keeps events and passes this to `start` after a restart. If the incarnation has changed, the
        subscription did not resume."""
        holder = self._subscriptions[subscription_id]
        assert isinstance(holder, OrderedSubscription)
        return holder.reached(count)

    def change(self, subscription_id: str, topics: tuple[str, ...], condition: str | None) -> None:
        """Change a subscription; SubscriptionChanged or ChangeFailed follows. A new change replaces a pending one."""
        self._subscriptions[subscription_id].change(topics, condition)

    def rest(self, subscription_id: str) -> None:
        """Drop all topics for now: the subscription selects nothing until the next change."""
        self._subscriptions[subscription_id].rest()

    def abandon_change(self, subscription_id: str) -> None:
        if subscription_id in self._subscriptions:
            self._subscriptions[subscription_id].abandon_change()

    def end(self, subscription_id: str) -> None:
        holder = self._subscriptions.pop(subscription_id, None)
        if holder is not None:
            holder.end()

    def subscribe(self, holder: Holder, *subscriptions: Subscription) -> None:
        """Subscribe in the service, for one of the application's subscriptions."""
        for subscription in subscriptions:
            self._holders[subscription.id] = holder
        self._beneath.subscribe(*subscriptions)

    def unsubscribe(self, subscription_id: str, *, drain: bool = False) -> None:
        """Unsubscribe in the service. With `drain`, its holder still gets what arrives until the cancellation."""
        if subscription_id in self._holders:
            if not drain:
                del self._holders[subscription_id]
            self._beneath.unsubscribe(subscription_id, drain=drain)

    @property
    def is_connected(self) -> bool:
        return self._beneath.is_connected

    def shown(self, subscription_id: str) -> Mapping[tuple[str, int], int] | None:
        return self._beneath.shown(subscription_id)

    # --- Facts of the service

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, Delivered):  # the common case
            holder = self._holders.get(fact.subscription)
            if holder is not None:
                holder.on_delivered(fact)
            elif fact.ticket is not None:
                fact.ticket.done()
            return
        handle = _HANDLERS.get(fact.__class__)
        if handle is None:
            self.emit(fact)
        else:
            handle(self, fact)

    def _on_missed(self, fact: EventsGivenUp) -> None:
        holder = self._holders.get(fact.subscription)
        if holder is not None:
            holder.on_missed(fact)
        elif fact.ticket is not None:
            fact.ticket.done()

    def _on_confirmed(self, fact: PublicationConfirmed) -> None:
        if self._numbering is not None:
            self._numbering.on_confirmed(fact.first, fact.last)
        self.emit(fact)

    def _on_publication_failed(self, fact: PublicationFailed) -> None:
        if self._numbering is not None:
            self._numbering.on_failed(fact.sequence)
        self.emit(fact)

    def _on_accepted(self, fact: SubscriptionAccepted) -> None:
        if fact.subscription in self._holders:
            self._holders[fact.subscription].on_accepted(fact)

    def _on_progress(self, fact: SubscriptionProgress) -> None:
        if fact.subscription in self._holders:
            self._holders[fact.subscription].on_progress(fact)

    def _on_failed(self, fact: SubscriptionFailed) -> None:
        if fact.subscription in self._holders:
            self._holders.pop(fact.subscription).on_failed(fact)

    def _on_cancelled(self, fact: SubscriptionCancelled) -> None:
        if fact.subscription in self._holders:
            self._holders.pop(fact.subscription).on_cancelled(fact)

    def _on_bookmarks_known(self, fact: BookmarksKnown) -> None:
        for holder in list(self._subscriptions.values()):
            holder.on_bookmarks_known()

    def _on_bookmark_kept(self, fact: BookmarkIsKept) -> None:
        for ordered in self._ordered():
            if ordered.id == fact.subscription:
                ordered.on_bookmark_kept(fact.number)

    def _on_broker_changed(self, fact: BrokerChanged) -> None:
        for holder in list(self._subscriptions.values()):
            holder.on_broker_changed()
        self.emit(fact)

    # --- Facts of the ordering module

    def _on_shown(self, fact: EventsShown) -> None:
        self._by_key[fact.key].on_shown(fact)

    def _on_publish_now(self, fact: PublishNow) -> None:
        assert self._numbering is not None
        self._numbering.on_publish_now(fact)

    def _on_joined(self, fact: JoinCompleted) -> None:
        if fact.key in self._by_key:
            self._by_key[fact.key].on_joined(fact.topics)

    def _on_broken(self, fact: OrderBroken) -> None:
        if fact.key in self._by_key:
            self._by_key[fact.key].on_broken(fact)

    def _on_doubt_over(self, fact: DoubtOver) -> None:
        if fact.key in self._by_key:
            self._by_key[fact.key].on_doubt_over(fact)

    def _on_numbers_lost(self, fact: NumbersLost) -> None:
        self.refuse_numbers(fact.reason)

    def refuse_numbers(self, reason: str) -> None:
        """Give out no more numbers."""
        if self._numbering is not None:
            self._numbering.refuse(reason)

    def _ordered(self) -> Iterable[OrderedSubscription]:
        return [holder for holder in self._subscriptions.values() if isinstance(holder, OrderedSubscription)]

    # --- State

    @property
    def beneath(self) -> tuple[str, ...]:
        """The names of the subscriptions in the service."""
        return tuple(self._holders)

    @property
    def unpublished(self) -> int:
        """The number of ordered events that the service has not confirmed."""
        return 0 if self._module is None else self._module.unpublished

    def order_status(self) -> dict[str, dict[str, object]]:
        """Return how many events each ordered subscription holds back, and which event it waits for."""
        return {ordered.id: ordered.status for ordered in self._ordered()}

    def leave_order(self) -> None:
        """Stop ordered publishing: events without a number get none, and nobody waits for them."""
        if self._numbering is not None:
            self._numbering.leave()


_HANDLERS: dict[type, Callable[[Application, Any], None]] = {
    EventsGivenUp: Application._on_missed,
    PublicationConfirmed: Application._on_confirmed,
    PublicationFailed: Application._on_publication_failed,
    SubscriptionAccepted: Application._on_accepted,
    SubscriptionProgress: Application._on_progress,
    SubscriptionFailed: Application._on_failed,
    SubscriptionCancelled: Application._on_cancelled,
    BookmarksKnown: Application._on_bookmarks_known,
    BookmarkIsKept: Application._on_bookmark_kept,
    BrokerChanged: Application._on_broker_changed,
    EventsShown: Application._on_shown,
    PublishNow: Application._on_publish_now,
    JoinCompleted: Application._on_joined,
    OrderBroken: Application._on_broken,
    DoubtOver: Application._on_doubt_over,
    NumbersLost: Application._on_numbers_lost,
}
"""Class of fact -> handler. A table, because each event makes several facts. Other facts go to the application."""
