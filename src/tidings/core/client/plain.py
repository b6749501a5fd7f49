"""A subscription of the application without an order across topics: one subscription in the service (a *form*), or
several while it changes.

A change requests the new form beside the current one. When the whole network knows the new one, the old one drains, so
nothing that both select is missed. What arrives for both is shown once. Of several changes in a row the last counts. If
a service shows the events of a source in order, so do the forms together: a form that is not accepted yet may bring
events older than what another has brought, and these are dropped; nobody is promised them.

If the service keeps bookmarks, a restarted client finds the forms of the earlier run and continues with them, so what
waits for one of them is delivered. Other topics than before are then a change.
"""

from __future__ import annotations

from tidings.core.client.beneath import NOTHING, PartOfTicket
from tidings.core.client.bookmark import (
    Form,
    Forms,
    decode_bookmark,
    encode_forms,
    end_kept,
    form_name,
)
from tidings.core.client.owner import SubscriptionOwner
from tidings.core.client.session import parted
from tidings.core.events.event import WHOLE
from tidings.core.events.run import Run, Stretch
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import (
    ChangeFailed,
    Delivered,
    EventsGivenUp,
    SubscriptionAccepted,
    SubscriptionCancelled,
    SubscriptionChanged,
    SubscriptionFailed,
    SubscriptionProgress,
)
from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks
from tidings.core.overlay.matching import selected
from tidings.core.structures.recent_ids import RecentIds

RECENT_EVENTS = 4_096


class PlainSubscription:
    """An unordered subscription. If it `lingers`, it shows all that was in flight for a form that it has left, else
    only what is still wanted."""

    def __init__(
        self,
        owner: SubscriptionOwner,
        subscription: Subscription,
        *,
        bookmarks: LeftBookmarks | None = None,
        lingers: bool = False,
    ) -> None:
        self.id = subscription.id
        self._owner = owner
        self._started = self._wanted = subscription
        """What it started with, and what is wanted now."""
        self._bookmarks = bookmarks
        self._lingers = lingers
        self._is_waiting = self._is_resting = False
        """Waiting for what an earlier run may have left; resting without topics."""
        self._current: Form | None = None
        self._holds = False
        """The whole network knows the current form."""
        self._next: Form | None = None
        self._draining: dict[str, Form] = {}
        """Earlier forms, by their names in the service."""
        self._made = 0
        self._accepted = False
        """The application has been told that it is accepted."""
        self._interest = subscription.interest()
        """The interest when it was last complete, or when it started."""
        self._recent: RecentIds | None = None
        """Recently shown events, once there has been a second form."""
        self._in_order = False
        """Never show events of a source that are older than what was shown."""

    # --- Requests of the application

    def start(self) -> None:
        self._is_waiting = True
        if self._bookmarks is None or self._bookmarks.known:
            self.on_bookmarks_known()

    def change(self, topics: tuple[str, ...], condition: str | None) -> None:
        before = self._wanted
        self._wanted = Subscription(self.id, topics, condition, before.order, before.headers)
        self._is_resting = False
        self._maybe_follow()

    def rest(self) -> None:
        """Drop all topics for now; `change` continues."""
        self._is_resting = True
        self._maybe_follow()

    def abandon_change(self) -> None:
        """Drop the pending change, if any."""
        following, self._next = self._next, None
        if following is not None:
            self._leave(following)  # it may have been accepted in an earlier run

    def end(self) -> None:
        self._is_waiting = False
        for form in (*self._draining.values(), self._current, self._next):
            if form is not None:
                self._owner.unsubscribe(self._name(form))
        if self._bookmarks is not None and self._made > 1:
            self._bookmarks.forget(self.id)

    def _maybe_follow(self) -> None:
        """Pursue the current wish, once it is known where to begin."""
        if self._is_waiting:
            return
        if self._recent is None and (self._is_resting or not self._is_wanted(self._current)):
            self._begin_recent()
        if self._is_resting:
            self.abandon_change()
            before, self._current, self._holds = self._current, None, False
            if before is not None:
                self._leave(before)
        elif self._current is None:
            self._current = self._make()
            self._interest = self._wanted.interest()
            self._ask_for(self._current)
        elif self._is_wanted(self._current):
            self.abandon_change()
            if self._holds:
                self._say_complete()
        elif self._next is None or not self._is_wanted(self._next):
            self.abandon_change()
            self._next = self._make()
            self._ask_for(self._next)

    def _make(self) -> Form:
        self._made += 1
        return Form(self._made, self._wanted.topics, self._wanted.filter)

    def _begin_recent(self) -> None:
        """Start to detect duplicates: the first form gets company. Its session knows what it has shown."""
        self._recent = RecentIds(RECENT_EVENTS)
        shown = self._owner.shown(self.id)
        self._in_order = shown is not None
        for (source, incarnation), sequence in (shown or {}).items():
            self._recent.first_time(source, incarnation, sequence)

    def _is_wanted(self, form: Form | None) -> bool:
        return form is not None and (form.topics, form.filter) == (self._wanted.topics, self._wanted.filter)

    def _ask_for(self, *forms: Form) -> None:
        """Request forms in the service, after the bookmark that describes them."""
        self._send_bookmark()
        self._owner.subscribe(self, *map(self._in_service, forms))

    def _leave(self, form: Form) -> None:
        self._draining[self._name(form)] = form
        self._send_bookmark()
        self._owner.unsubscribe(self._name(form), drain=True)

    def _name(self, form: Form) -> str:
        return form_name(self.id, form.number)

    def _in_service(self, form: Form) -> Subscription:
        wanted = self._wanted
        name = self._name(form)
        return Subscription(name, form.topics, form.filter, wanted.order, wanted.headers, wanted.history)

    # --- Resuming after a restart

    def on_bookmarks_known(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            state = None if self._bookmarks is None else self._bookmarks.take(self.id)
            kept = None if state is None else decode_bookmark(state)
            if isinstance(kept, Forms):
                self._resume(kept)
            else:
                if self._bookmarks is not None and kept is not None:  # it was ordered
                    end_kept(self._bookmarks, self.id, kept)
                self._begin()
            self._maybe_follow()

    def _begin(self) -> None:
        """Start under the subscription's own name, as an earlier run that never changed did."""
        self._made = 1
        self._current = Form(1, self._started.topics, self._started.filter)
        self._ask_for(self._current)

    def _resume(self, kept: Forms) -> None:
        """Take up the forms of the earlier run, all at once, so that what arrived for them is shown in order."""
        assert self._bookmarks is not None
        self._made = kept.made
        self._recent = RecentIds(RECENT_EVENTS)
        self._in_order = True  # a service with bookmarks shows events in order
        self._current = kept.current
        self._next = kept.next if self._is_wanted(kept.next) else None
        left = (*kept.draining, kept.next if self._next is None else None)
        self._draining = {self._name(form): form for form in left if form is not None}
        for number in kept.others:
            self._bookmarks.end(form_name(self.id, number))
        here = (self._current, self._next)
        self._ask_for(*self._draining.values(), *(form for form in here if form is not None))
        for name in list(self._draining):
            self._owner.unsubscribe(name, drain=True)

    def _send_bookmark(self) -> None:
        """Send the bookmark. A subscription that never changed needs none: its own name is enough."""
        if self._bookmarks is not None and self._made > 1:
            forms = Forms(self._made, self._current, self._next, tuple(self._draining.values()))
            state = encode_forms(forms)
            self._bookmarks.keep(self.id, lambda: state)
            self._bookmarks.tell()

    # --- Answers of the service

    def on_accepted(self, fact: SubscriptionAccepted) -> None:
        if self._next is not None and fact.subscription == self._name(self._next):
            before, self._current, self._next = self._current, self._next, None
            self._interest = self._in_service(self._current).interest()
            assert before is not None
            self._leave(before)
        elif self._current is None or fact.subscription != self._name(self._current):
            return
        self._holds = True
        if self._next is None:
            self._say_complete()

    def _say_complete(self) -> None:
        fact = SubscriptionChanged if self._accepted else SubscriptionAccepted
        self._accepted = True
        self._owner.emit(fact(self.id))

    def on_failed(self, fact: SubscriptionFailed) -> None:
        if self._next is not None and fact.subscription == self._name(self._next):
            self._next = None
            self._send_bookmark()
            self._owner.emit(ChangeFailed(self.id, fact.reason))
        elif self._draining.pop(fact.subscription, None) is None:
            self._owner.emit(SubscriptionFailed(self.id, fact.reason))

    def on_progress(self, fact: SubscriptionProgress) -> None:
        if (
            self._next is None
            and self._current is not None
            and fact.subscription == self._name(self._current)
        ):
            self._owner.emit(SubscriptionProgress(self.id, fact.uncovered))

    def on_cancelled(self, fact: SubscriptionCancelled) -> None:
        if self._draining.pop(fact.subscription, None) is not None:
            self._send_bookmark()

    # --- Events

    def on_delivered(self, fact: Delivered) -> None:
        stretch = fact.stretch
        if stretch.kind != WHOLE and self._hides(stretch):
            (fact.ticket or NOTHING).done()
        elif self._recent is None:
            self._owner.emit(fact)
        else:
            self._show(stretch, fact)

    def _show(self, stretch: Stretch, fact: Delivered) -> None:
        """Show what is wanted and was not shown before."""
        ticket, begin = fact.ticket or NOTHING, stretch.first
        for part, late in self._fresh(stretch, fact):
            ticket.done(begin, part.first - 1)
            begin = part.last + 1
            taking = PartOfTicket(ticket, part.first, part.last)
            self._owner.emit(Delivered(self.id, part, late, fact.recovered_by, taking))
        ticket.done(begin, stretch.last)

    def _fresh(self, stretch: Stretch, fact: Delivered) -> list[tuple[Stretch, bool]]:
        """Return the parts to show, and whether they are late; what arrived for other forms counts, too."""
        assert self._recent is not None
        source, incarnation = stretch.source, stretch.incarnation
        wanted = [(stretch.first, stretch.last)]
        if not self._lingers and (fact.subscription in self._draining or not self._accepted):
            wanted = [] if self._is_resting else selected(stretch, self._interest)
        before = self._recent.highest(source, incarnation)
        if self._in_order:
            wanted = [(max(first, before + 1), last) for first, last in wanted if last > before]
        fresh = [
            part for first, last in wanted for part in self._recent.fresh(source, incarnation, first, last)
        ]
        parts = [stretch.cut(*part) if isinstance(stretch, Run) else stretch for part in fresh]
        if fact.out_of_order or self._wanted.order is not Order.FIFO:
            return [(part, fact.out_of_order) for part in parts]
        return [piece for part in parts for piece in parted(part, before)]

    def _hides(self, stretch: Stretch) -> bool:
        """Return whether to hide it: what has no body is for protocols, which request headers."""
        return stretch.kind != WHOLE and not self._wanted.headers

    def on_missed(self, fact: EventsGivenUp) -> None:
        self._owner.emit(
            EventsGivenUp(
                self.id, fact.source, fact.incarnation, fact.first, fact.last, fact.certain, fact.ticket
            )
        )

    def on_broker_changed(self) -> None:
        """Do nothing: missing events are reported source by source."""
