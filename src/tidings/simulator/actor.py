"""The subscriber of a scenario, in virtual time or over real sockets: it follows its timeline with a client.

It is pure. A host gives it the time and its client, and puts what it says into the trace. There each set of topics is a
subscription of its own: an event is shown for the one that the subscriber had when the event was published.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from tidings.model.event import Publication
from tidings.model.subscription import Order, Subscription
from tidings.model.topics import TopicPattern
from tidings.protocol.application.application import Application
from tidings.protocol.facts import (
    Delivered,
    EventsMissed,
    Misbehaviour,
    RunDelivered,
    SubscriptionAccepted,
    SubscriptionBroken,
    SubscriptionChanged,
    SubscriptionFailed,
)
from tidings.protocol.sequencing.layout import Layout

DRAIN_NS = 5_000_000_000
"""How long what was published before a subscription was cancelled may come."""
NEVER = 2**63 - 1
_pattern = lru_cache(maxsize=1_024)(TopicPattern)


class Window:
    """A subscription of the trace, and the time in which an event must have been published to be shown for it."""

    __slots__ = ("accepted_at", "cancelled_at", "requested_at", "subscription")

    def __init__(self, subscription: Subscription, requested_at: int) -> None:
        self.subscription = subscription
        self.requested_at = requested_at
        self.accepted_at = NEVER
        self.cancelled_at = NEVER

    def has(self, published_at: int) -> bool:
        return self.requested_at <= published_at < self.cancelled_at


class Host(Protocol):
    """Where a subscriber lives; times are by the clock of publishers."""

    @property
    def now(self) -> int: ...
    @property
    def application(self) -> Application | None:
        """Its client; None while that is down."""

    def later(self, at: int, action: Callable[[Window], None], window: Window) -> None: ...
    def requested(self, window: Window) -> None: ...
    def accepted(self, window: Window) -> None: ...
    def cancelled(self, window: Window) -> None: ...
    def ended(self, window: Window) -> None: ...
    def shown(self, window: Window, publication: Publication, late: bool, by: str) -> None: ...
    def missed(self, fact: EventsMissed) -> None: ...
    def failed(self, reason: str) -> None: ...
    def broken(self, reason: str) -> None: ...
    def accused(self, fact: Misbehaviour) -> None: ...


class PlainActor:
    """Its subscriptions are those of the trace; a cancelled one is kept for what was published before.

    After a crash it asks again for what it had.
    """

    id = ""
    """Of the one subscription of an actor with an order."""

    def __init__(self, host: Host, name: str, condition: str | None, order: Order, *, made: int = 0) -> None:
        self.windows: dict[str, Window] = {}
        self.current: Window | None = None
        self._host = host
        self._name = name
        self._condition = condition
        self._order = order
        self._made = made

    # --- What the application wants

    def change(self, topics: tuple[str, ...] | None) -> None:
        self._close_current()
        if topics is not None:
            self.current = self._open_window(topics)
            if self._host.application is not None:
                self._host.application.start(self.current.subscription)

    def back(self) -> None:
        """The client starts, maybe not for the first time."""
        application = self._host.application
        assert application is not None
        for window in self.windows.values():
            application.start(window.subscription)

    def crashed(self) -> None:
        """The client is gone, with what it knew."""

    def restore(self, window: Window) -> None:
        """One of an earlier life of this actor."""
        self.windows[window.subscription.id] = window
        if window.cancelled_at == NEVER:
            self.current = window
        else:
            self._end_later(window)

    def _open_window(self, topics: tuple[str, ...], at: int | None = None) -> Window:
        subscription = Subscription(f"{self._name}#{self._made}", topics, self._condition, self._order)
        self._made += 1
        window = self.windows[subscription.id] = Window(subscription, self._host.now if at is None else at)
        self._host.requested(window)
        return window

    def _close_current(self) -> None:
        window, self.current = self.current, None
        if window is not None:
            self._close(window, self._host.now)

    def _close(self, window: Window, at: int) -> None:
        window.cancelled_at = at
        self._host.cancelled(window)
        self._end_later(window)

    def _end_later(self, window: Window) -> None:
        self._host.later(max(window.cancelled_at + DRAIN_NS, self._host.now), self._end, window)

    def _end(self, window: Window) -> None:
        del self.windows[window.subscription.id]
        self._host.ended(window)
        self._leave(window)

    def _leave(self, window: Window) -> None:
        if self._host.application is not None:
            self._host.application.end(window.subscription.id)

    # --- What the client says

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, Delivered):
            self._on_delivered(fact)
            if fact.ticket is not None:
                fact.ticket.done()
            return
        match fact:
            case RunDelivered():
                self._on_run(fact)
            case SubscriptionAccepted() | SubscriptionChanged():
                self._accept(self._asked_for(fact.subscription))
            case SubscriptionFailed(reason=reason):
                self._host.failed(f"subscriber {self._name!r}: {reason}")
            case SubscriptionBroken(reason=reason):
                self._on_broken(reason)
            case EventsMissed():
                self._host.missed(fact)
                if fact.ticket is not None:
                    fact.ticket.done()
            case Misbehaviour():
                self._host.accused(fact)

    def _asked_for(self, subscription_id: str) -> Window | None:
        return self.windows.get(subscription_id)

    def _accept(self, window: Window | None) -> None:
        if window is not None and window.accepted_at == window.cancelled_at == NEVER:
            # What was published earlier in this very instant may have been missed.
            window.accepted_at = self._host.now + 1
            self._host.accepted(window)

    def _on_run(self, fact: RunDelivered) -> None:
        """Its events one by one."""
        for publication in fact.run.publications():
            how = (fact.out_of_order, fact.recovered_by)
            self._on_delivered(Delivered(fact.subscription, publication, *how, stamp=fact.stamp))
        if fact.ticket is not None:
            fact.ticket.done()

    def _on_delivered(self, fact: Delivered) -> None:
        publication = fact.publication
        window = self.windows.get(fact.subscription)
        if window is not None and window.requested_at <= publication.published_at < window.cancelled_at:
            self._host.shown(window, publication, fact.out_of_order, fact.recovered_by)

    def _on_broken(self, reason: str) -> None:
        """Nothing more is shown until the topics change."""
        self._host.broken(reason)


class OrderedActor(PlainActor):
    """It has one subscription, whatever the changes of its topics.

    One that crashes comes back as somebody else to the servers: its subscription in the trace ends with the crash, and
    another begins when it is back.
    """

    def __init__(
        self,
        host: Host,
        name: str,
        condition: str | None,
        order: Order,
        layout: Layout,
        *,
        made: int = 0,
    ) -> None:
        super().__init__(host, name, condition, order, made=made)
        self.lives = made
        """Tells the subscriptions of its lives apart."""
        self._layout = layout
        self._topics: tuple[str, ...] | None = None
        self._since: dict[str, int] = {}
        """Topic -> since when the application wants it."""
        self._eligible: list[Window] = []
        """For which events may be shown: those of this life."""

    def change(self, topics: tuple[str, ...] | None) -> None:
        self._close_current()
        self._topics = topics
        if self._host.application is not None:
            self._follow(self._host.application)

    def _follow(self, application: Application) -> None:
        """Leave at once what is not wanted any more; join what is once the service has accepted it."""
        topics = self._topics
        if topics is not None and self.current is None:
            self.current = self._open_window(topics)
            self._eligible.append(self.current)
        began_at = self._host.now if self.current is None else self.current.requested_at
        self._since = {topic: self._since.get(topic, began_at) for topic in topics or ()}
        if topics is None:
            self._rest(application)
        elif self.id:
            application.change(self.id, topics, self._condition)
        else:
            self._start(application, topics)

    def _start(self, application: Application, topics: tuple[str, ...]) -> None:
        self.id = f"{self._name}~{self.lives}"
        application.start(Subscription(self.id, topics, self._condition, self._order))

    def _rest(self, application: Application) -> None:
        if self.id:
            application.rest(self.id)

    def back(self) -> None:
        self.lives += 1
        if self._topics is not None:
            assert self._host.application is not None
            self._follow(self._host.application)

    def crashed(self) -> None:
        self.id = ""
        self._forget()

    def _forget(self) -> None:
        """What was on its way for the subscription is lost."""
        self._close_current()
        self._eligible.clear()
        self._since.clear()

    def _leave(self, window: Window) -> None:
        """A subscription of the trace is none in the service."""

    def _asked_for(self, subscription_id: str) -> Window | None:
        return self.current

    def _on_delivered(self, fact: Delivered) -> None:
        publication = fact.publication
        published_at = publication.published_at
        if published_at < min(self._wanted_since(publication.topic), default=NEVER):
            return
        for window in reversed(self._eligible):
            if window.has(published_at):
                if window.subscription.interest().matches(publication):
                    self._host.shown(window, publication, fact.out_of_order, fact.recovered_by)
                return

    def _wanted_since(self, topic: str) -> list[int]:
        """What was left is not shown any more, though it is wanted again and its entry was never left."""
        return [at for wanted, at in self._since.items() if _pattern(wanted).matches(topic)]

    def _on_broken(self, reason: str) -> None:
        super()._on_broken(reason)
        self._forget()
        self._topics = None
