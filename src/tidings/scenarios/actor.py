"""The subscriber of a scenario, in virtual time or over real sockets: it follows its timeline with a client.

It is pure. A host gives it the time and its client, and puts what it says into the trace. To the client it is one
subscription that changes. In the trace each set of topics is a subscription of its own, a *window*: an event is shown
for the one that the subscriber had when the event was published.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from tidings.core.client.application import ORDERED, Application
from tidings.core.client.session import DRAIN_NS
from tidings.core.events.event import Publication
from tidings.core.events.run import singles
from tidings.core.events.subscription import Order, Subscription
from tidings.core.events.topics import TopicPattern
from tidings.core.facts import (
    ChangeFailed,
    Delivered,
    EventsGivenUp,
    Misbehaviour,
    SubscriptionAccepted,
    SubscriptionBroken,
    SubscriptionChanged,
    SubscriptionFailed,
)

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


class ActorHost(Protocol):
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
    def missed(self, fact: EventsGivenUp) -> None: ...
    def failed(self, reason: str) -> None: ...
    def broken(self, reason: str) -> None: ...
    def accused(self, fact: Misbehaviour) -> None: ...


class Actor:
    """With an order, one that crashes comes back as somebody else to the servers: its window ends with the crash, and
    another begins when it is back. Without, the window goes on. `kept`: its broker keeps what it had meanwhile."""

    def __init__(
        self,
        host: ActorHost,
        name: str,
        condition: str | None,
        order: Order,
        *,
        kept: bool = False,
        made: int = 0,
        begun: tuple[str, ...] | None = None,
    ) -> None:
        self.id = ""
        """Of its subscription in the client; empty: there is none in this life."""
        self.current: Window | None = None
        self.lives = made
        """Tells the subscriptions of its lives apart."""
        self._host = host
        self._name = name
        self._condition = condition
        self._order = order
        self._ordered = order in ORDERED
        self.kept = kept
        self._made = made
        self._topics: tuple[str, ...] | None = None
        self._begun = begun
        """What its subscription was begun with, if the network may still know it."""
        self._windows: list[Window] = []
        """For which events may be shown, by time."""
        self._since: dict[str, int] = {}
        """Topic -> since when the application wants it."""

    # --- What the application wants

    def change(self, topics: tuple[str, ...] | None) -> None:
        now = self._host.now
        self._close_current(now)
        self._topics = topics
        if self._host.application is not None:
            self._follow(self._host.application, now)

    def _follow(self, application: Application, now: int) -> None:
        topics = self._topics
        if topics is not None and self.current is None:
            self.current = self._open_window(topics, now)
        began_at = now if self.current is None else self.current.requested_at
        self._since = {topic: self._since.get(topic, began_at) for topic in topics or ()}
        if not self.id:
            self._start(application, now)
        elif topics is None:
            application.rest(self.id)
        else:
            application.change(self.id, topics, self._condition)

    def _start(self, application: Application, now: int) -> None:
        """As the first life did, and from there to what is wanted now: what comes meanwhile comes for what it had."""
        begun = self._begun or self._topics
        if begun is not None:
            self._begun = begun
            self.id = self._make_id()
            self._start_with(application, Subscription(self.id, begun, self._condition, self._order))
            if begun != self._topics:
                self._follow(application, now)

    def _make_id(self) -> str:
        if self._ordered:
            return f"{self._name}~{self.lives}"
        if self.kept or self.current is None:
            return f"{self._name}#0"
        return self.current.subscription.id

    def _start_with(self, application: Application, subscription: Subscription) -> None:
        application.start(subscription)

    def back(self) -> None:
        """The client starts, maybe not for the first time."""
        self.lives += 1
        if self._topics is not None or self._begun is not None:
            assert self._host.application is not None
            self._follow(self._host.application, self._host.now)

    def crashed(self) -> None:
        """The client is gone, with what it knew."""
        self.id = ""
        if not self.kept:
            self._begun = None
        if self._ordered:
            self._forget()

    def restore(self, window: Window) -> None:
        """One of an earlier life of this actor, the earliest first."""
        goes_on = bool(self._windows) and self._windows[-1].cancelled_at == window.requested_at
        since, began_at = self._since if goes_on else {}, window.requested_at
        self._since = {topic: since.get(topic, began_at) for topic in window.subscription.topics}
        self._windows.append(window)
        if window.cancelled_at == NEVER:
            self.current = window
            self._topics = window.subscription.topics
        else:
            self._end_later(window)

    def _open_window(self, topics: tuple[str, ...], at: int) -> Window:
        subscription = Subscription(f"{self._name}#{self._made}", topics, self._condition, self._order)
        self._made += 1
        window = Window(subscription, at)
        self._windows.append(window)
        self._host.requested(window)
        return window

    def _close_current(self, now: int) -> None:
        window, self.current = self.current, None
        if window is not None:
            self._close(window, now)

    def _close(self, window: Window, at: int) -> None:
        window.cancelled_at = at
        self._host.cancelled(window)
        self._end_later(window)

    def _end_later(self, window: Window) -> None:
        """Its client drains at least so long what the window is owed."""
        self._host.later(max(window.cancelled_at + DRAIN_NS, self._host.now), self._end, window)

    def _end(self, window: Window) -> None:
        if not self._ordered:
            # From now on some of what is late may come, and some may not: a later form may bring what it selects, too.
            self._windows.remove(window)
        self._host.ended(window)

    def _forget(self) -> None:
        """What was on its way is lost."""
        self._close_current(self._host.now)
        self._windows.clear()
        self._since.clear()

    # --- What the client says

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, Delivered):
            self._on_delivered(fact)
            if fact.ticket is not None:
                fact.ticket.done()
            return
        match fact:
            case SubscriptionAccepted() | SubscriptionChanged():
                self._on_complete()
            case SubscriptionFailed(reason=reason) | ChangeFailed(reason=reason):
                self._host.failed(f"subscriber {self._name!r}: {reason}")
            case SubscriptionBroken(reason=reason):
                self._on_broken(reason)
            case EventsGivenUp():
                self._host.missed(fact)
                if fact.ticket is not None:
                    fact.ticket.done()
            case Misbehaviour():
                self._host.accused(fact)

    def _on_complete(self) -> None:
        """The network knows what is wanted."""
        window = self.current
        if window is not None and window.accepted_at == window.cancelled_at == NEVER:
            # What was published earlier in this very instant may have been missed.
            window.accepted_at = self._host.now + 1
            self._host.accepted(window)

    def _on_delivered(self, fact: Delivered) -> None:
        """Its events one by one."""
        for publication in singles(fact.stretch):
            self._on_publication(publication, fact)

    def _on_publication(self, publication: Publication, fact: Delivered) -> None:
        published_at = publication.published_at
        if self._ordered and not self._wants(publication.topic, published_at):
            return
        for window in reversed(self._windows):
            if window.has(published_at):
                # What was asked for before may select what is published from now on.
                if self._made == 1 or window.subscription.interest().matches(publication):
                    self._host.shown(window, publication, fact.out_of_order, fact.recovered_by)
                return

    def _wants(self, topic: str, published_at: int) -> bool:
        """An order leaves at once: what was left is not shown any more, though it is wanted again and its entry was
        never left."""
        since = self._since.items()
        return any(published_at >= at and _pattern(wanted).matches(topic) for wanted, at in since)

    def _on_broken(self, reason: str) -> None:
        """Nothing more is shown until the topics change."""
        self._host.broken(reason)
        self._forget()
        self._topics = self._begun = None
