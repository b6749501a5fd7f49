"""A subscription of the application without an order of several topics: one in the service beneath, or two while it
changes.

A change asks for the new subscription beside the old one. When the whole network knows the new one, the old one ends:
so nothing that both select is missed. What comes for both is shown once.
"""

from __future__ import annotations

from tidings.model.errors import SubscriptionRefused
from tidings.model.event import WHOLE
from tidings.model.run import Run, Stretch
from tidings.model.subscription import Subscription
from tidings.protocol.application.beneath import NOTHING, PartOfTicket
from tidings.protocol.application.owner import Owner
from tidings.protocol.facts import (
    ChangeFailed,
    Delivered,
    EventsMissed,
    RunDelivered,
    SubscriptionAccepted,
    SubscriptionCancelled,
    SubscriptionChanged,
    SubscriptionFailed,
    SubscriptionProgress,
)
from tidings.protocol.matching import selected
from tidings.structures.recent_ids import RecentIds

RECENT_EVENTS = 4_096


class PlainSubscription:
    def __init__(self, owner: Owner, subscription: Subscription) -> None:
        self.id = subscription.id
        self._owner = owner
        self._current = subscription
        self._next: Subscription | None = None
        self._made = 1
        self._recent: RecentIds | None = None
        """What was shown lately, once the subscription has changed."""
        self._interest = subscription.interest()
        self._draining: dict[str, None] = {}
        """Those before it, in the service: what comes for one of them is shown if it is still wanted."""

    def start(self) -> None:
        self._owner.subscribe(self, self._current)

    # --- Changes

    def change(self, topics: tuple[str, ...], condition: str | None) -> None:
        if self._next is not None:
            raise SubscriptionRefused("the subscription is changing already")
        self._made += 1
        self._recent = self._recent or RecentIds(RECENT_EVENTS)
        self._next = Subscription(f"{self.id}.{self._made}", topics, condition, self._current.order)
        self._owner.subscribe(self, self._next)

    def abandon_change(self) -> None:
        """It stays as it is."""
        following, self._next = self._next, None
        if following is not None:
            self._owner.unsubscribe(following.id)

    def end(self) -> None:
        self.abandon_change()
        for name in (*self._draining, self._current.id):
            self._owner.unsubscribe(name)

    # --- What the service says

    def on_accepted(self, fact: SubscriptionAccepted) -> None:
        following = self._next
        if fact.subscription == self._current.id:
            self._owner.emit(SubscriptionAccepted(self.id))
        elif following is not None:
            before, self._current, self._next = self._current, following, None
            self._interest = following.interest()
            self._draining[before.id] = None
            self._owner.unsubscribe(before.id, drain=True)
            self._owner.emit(SubscriptionChanged(self.id))

    def on_failed(self, fact: SubscriptionFailed) -> None:
        if fact.subscription == self._current.id:
            self._owner.emit(SubscriptionFailed(self.id, fact.reason))
        else:
            self._next = None
            self._owner.emit(ChangeFailed(self.id, fact.reason))

    def on_progress(self, fact: SubscriptionProgress) -> None:
        if fact.subscription == self._current.id:
            self._owner.emit(SubscriptionProgress(self.id, fact.uncovered))

    def on_cancelled(self, fact: SubscriptionCancelled) -> None:
        if fact.subscription in self._draining:
            del self._draining[fact.subscription]
        else:
            self._owner.emit(SubscriptionCancelled(self.id))

    def on_delivered(self, fact: Delivered) -> None:
        if fact.publication.kind != WHOLE and self._hides(fact.publication):
            (fact.ticket or NOTHING).done()
            return
        if self._recent is None:
            self._owner.emit(fact)
            return
        event = fact.publication
        wanted = fact.subscription not in self._draining or bool(selected(event, self._interest))
        if wanted and self._recent.first_time(event.source, event.incarnation, event.sequence):
            self._owner.emit(Delivered(self.id, event, fact.out_of_order, fact.recovered_by, fact.ticket))
        elif fact.ticket is not None:
            fact.ticket.done()

    def on_run(self, fact: RunDelivered) -> None:
        run, ticket = fact.run, fact.ticket or NOTHING
        if self._hides(run):
            ticket.done()
            return
        if self._recent is None:
            self._owner.emit(fact)
            return
        wanted = [(run.first, run.last)]
        if fact.subscription in self._draining:
            wanted = selected(run, self._interest)
        fresh = [
            part
            for first, last in wanted
            for part in self._recent.fresh(run.source, run.incarnation, first, last)
        ]
        begin = run.first
        for first, last in fresh:
            ticket.done(begin, first - 1)
            begin = last + 1
            stretch, part = run.cut(first, last), PartOfTicket(ticket, first, last)
            late, by = fact.out_of_order, fact.recovered_by
            if isinstance(stretch, Run):
                self._owner.emit(RunDelivered(self.id, stretch, late, part, recovered_by=by))
            else:
                self._owner.emit(Delivered(self.id, stretch, late, by, part))
        ticket.done(begin, run.last)

    def _hides(self, stretch: Stretch) -> bool:
        """What has no body is for protocols, which ask for headers."""
        return stretch.kind != WHOLE and not self._current.headers

    def on_missed(self, fact: EventsMissed) -> None:
        self._owner.emit(
            EventsMissed(
                self.id, fact.source, fact.incarnation, fact.first, fact.last, fact.certain, fact.ticket
            )
        )

    def on_broker_changed(self) -> None:
        """What is missing then is reported, source by source."""
