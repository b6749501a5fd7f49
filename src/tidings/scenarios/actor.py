"""Runs a scenario's subscriber, in virtual time or over real sockets: it follows its timeline with a client.

It is pure. A host provides the time and the client, and writes the trace. The client sees one subscription that
changes. In the trace, each set of topics is a subscription of its own, a *window*. An event is shown for the window
that the subscriber had when the event was published.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from tidings.core.client.application import Application
from tidings.core.client.session import DRAIN_NS
from tidings.core.events.event import Publication
from tidings.core.events.run import singles
from tidings.core.events.subscription import ORDERED, Order, Subscription
from tidings.core.events.topics import TopicPattern
from tidings.core.facts import (
    ChangeFailed,
    Delivered,
    EventsGivenUp,
    Misbehaviour,
    OrderGap,
    SubscriptionAccepted,
    SubscriptionBroken,
    SubscriptionChanged,
    SubscriptionFailed,
)

NEVER = 2**63 - 1
_pattern = lru_cache(maxsize=1_024)(TopicPattern)


class Window:
    """A subscription of the trace, and the time span whose events are shown for it."""

    __slots__ = ("accepted_at", "cancelled_at", "requested_at", "shown_since", "start", "subscription")

    def __init__(self, subscription: Subscription, requested_at: int, start: str | None = None) -> None:
        self.subscription = subscription
        self.start = start
        """Where it began; None: with what was published from then on."""
        self.requested_at = requested_at
        self.shown_since = requested_at
        """Earlier than the request if it starts with history, or continues a window after a gap, which shows nothing
        more."""
        self.accepted_at = NEVER
        self.cancelled_at = NEVER

    def has(self, published_at: int) -> bool:
        return self.shown_since <= published_at < self.cancelled_at


class ActorHost(Protocol):
    """Hosts a subscriber. Times are by the publishers' clock."""

    @property
    def now(self) -> int: ...
    @property
    def application(self) -> Application | None:
        """The client; None while it is down."""

    def later(self, at: int, action: Callable[[Window], None], window: Window) -> None: ...
    def requested(self, window: Window) -> None: ...
    def accepted(self, window: Window) -> None: ...
    def cancelled(self, window: Window) -> None: ...
    def ended(self, window: Window) -> None: ...
    def shown(self, window: Window, publication: Publication, late: bool, by: str) -> None: ...
    def missed(self, fact: EventsGivenUp) -> None: ...
    def failed(self, reason: str) -> None: ...
    def gap(self, reason: str) -> None: ...
    def broken(self, reason: str) -> None: ...
    def accused(self, fact: Misbehaviour) -> None: ...


class Actor:
    """Follows a subscriber's timeline.

    With an order, the servers take a restarted subscriber for a new one: its window ends with the crash, and another
    begins at the restart. Without an order, the window continues. `kept`: the broker keeps its subscription meanwhile.
    """

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
        """The id of its subscription in the client; empty if this incarnation has none."""
        self.current: Window | None = None
        self.lives = made
        """Distinguishes the subscriptions of its incarnations."""
        self._host = host
        self._name = name
        self._condition = condition
        self._order = order
        self._ordered = order in ORDERED
        self.kept = kept
        self._made = made
        self._topics: tuple[str, ...] | None = None
        self._begun = begun
        """The topics that its subscription started with, while the network may still know it."""
        self._windows: list[Window] = []
        """The windows that may still show events, by time."""
        self._since: dict[str, int] = {}
        """Topic -> the time since which the application wants it."""

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
        """Subscribe as the first incarnation did, then change to the topics wanted now: events owed to the earlier
        topics still arrive."""
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
        """The client has started or restarted."""
        self.lives += 1
        if self._topics is not None or self._begun is not None:
            assert self._host.application is not None
            self._follow(self._host.application, self._host.now)

    def crashed(self) -> None:
        """The client has crashed and lost its state."""
        self.id = ""
        if not self.kept:
            self._begun = None
        if self._ordered:
            self._forget()

    def restore(self, window: Window) -> None:
        """Restore a window of an earlier incarnation; called for the earliest first."""
        goes_on = bool(self._windows) and self._windows[-1].cancelled_at == window.requested_at
        since, began_at = self._since if goes_on else {}, window.requested_at
        self._since = {topic: since.get(topic, began_at) for topic in window.subscription.topics}
        self._windows.append(window)
        if window.cancelled_at == NEVER:
            self.current = window
            self._topics = window.subscription.topics
        else:
            self._end_later(window)

    @property
    def _start_of_window(self) -> str | None:
        """Where the next window begins, as the trace has it."""
        return None

    def _open_window(self, topics: tuple[str, ...], at: int) -> Window:
        subscription = Subscription(f"{self._name}#{self._made}", topics, self._condition, self._order)
        self._made += 1
        window = Window(subscription, at, self._start_of_window)
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
        """Keep the window until its client has had time to drain what the window is owed."""
        self._host.later(max(window.cancelled_at + DRAIN_NS, self._host.now), self._end, window)

    def _end(self, window: Window) -> None:
        if not self._ordered and window in self._windows:
            # From now on only some late events arrive: those that a later set of topics selects, too.
            self._windows.remove(window)
        self._host.ended(window)

    def _forget(self) -> None:
        """Close the current window and drop all others: events under way are lost."""
        self._close_current(self._host.now)
        self._windows.clear()
        self._since.clear()

    # --- What the client says

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, Delivered):
            for publication in singles(fact.stretch):
                self._on_publication(publication, fact)
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
            case OrderGap():
                self._on_gap(fact)
            case Misbehaviour():
                self._host.accused(fact)

    def _on_complete(self) -> None:
        """The network has accepted the current topics."""
        window = self.current
        if window is not None and window.accepted_at == window.cancelled_at == NEVER:
            # Events published earlier in this very instant may have been missed.
            window.accepted_at = self._host.now + 1
            self._host.accepted(window)

    def _on_publication(self, publication: Publication, fact: Delivered) -> None:
        published_at = publication.published_at
        if self._ordered and not self._wants(publication.topic, published_at):
            return
        for window in reversed(self._windows):
            if window.has(published_at):
                # An earlier set of topics may still select events of this window.
                if self._made == 1 or window.subscription.interest().matches(publication):
                    self._host.shown(window, publication, fact.out_of_order, fact.recovered_by)
                return

    def _wants(self, topic: str, published_at: int) -> bool:
        """Return whether an ordered subscription shows the event. It leaves topics at once: events from before a topic
        was added again are not shown, even if its entry in the layout was never left."""
        since = self._since.items()
        return any(published_at >= at and _pattern(wanted).matches(topic) for wanted, at in since)

    def _on_gap(self, fact: OrderGap) -> None:
        """The order goes on after a gap: another window begins, so that checkers judge both stretches. From now on
        events are shown for the new one, even those published earlier."""
        self._host.gap(fact.reason)
        if fact.ticket is not None:
            fact.ticket.done()
        window, now = self.current, self._host.now
        if window is None:
            return
        self._close_current(now)
        self._windows.clear()
        self.current = self._open_window(window.subscription.topics, now)
        self.current.shown_since = 0
        if not fact.joins_anew:
            self._on_complete()

    def _on_broken(self, reason: str) -> None:
        """The order is broken: show nothing until the topics change."""
        self._host.broken(reason)
        self._forget()
        self._topics = self._begun = None
