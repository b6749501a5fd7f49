"""The asyncio host of an application's client: it turns calls into the client's inputs, and its facts into results.

It decides nothing. The subclass provides what is beneath the client: a connection to a broker, or an adapter.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from tidings.bus import stream
from tidings.bus.gaps import GIVEN_UP, MOVED, EventsMissed, Gap, gap_of
from tidings.bus.positions import Places
from tidings.bus.receipts import PendingPublications
from tidings.bus.sequencing import Sequencing
from tidings.bus.service import EventService, Notify
from tidings.bus.stream import leave_out
from tidings.core.client.application import NO_SEQUENCERS, Application
from tidings.core.client.beneath import NOTHING, Beneath, PartOfTicket, Taking
from tidings.core.client.bookmark import Reached
from tidings.core.client.ordered import check_order
from tidings.core.errors import ConnectionFailed, NotConfirmed, OrderError, SubscriptionRefused, WireError
from tidings.core.events.event import BARE, Event, Publication
from tidings.core.events.run import Run, Stretch
from tidings.core.events.subscription import ORDERED, Subscription
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import (
    ChangeFailed,
    Delivered,
    EventsGivenUp,
    Misbehaviour,
    OrderGap,
    PublicationConfirmed,
    PublicationFailed,
    SubscriptionAccepted,
    SubscriptionBroken,
    SubscriptionChanged,
    SubscriptionFailed,
    SubscriptionProgress,
)
from tidings.core.ordering.subscriber import MAX_BUFFERED, Patience
from tidings.drivers.sockets.sequencing import SequencersRefused

SUBSCRIBE_TIMEOUT_S = 30.0
DEFAULT_PATIENCE = Patience(events=4_096, limit_ns=5_000_000_000)
MAX_UNCONFIRMED = 10_000
"""How many publications of a client may be unconfirmed at once; further ones wait."""
CLOSED = "the connection was closed"
MAX_REPORTED = 100
"""How many topics and peers are reported for misbehaviour, each once."""

log = logging.getLogger("tidings")


class _Shown:
    """The application's side of one subscription."""

    __slots__ = ("complete", "notify", "paced", "subscription", "tickets", "uncovered")

    def __init__(self, subscription: Subscription, notify: Notify, *, paced: bool) -> None:
        self.subscription = subscription
        self.notify = notify
        self.paced = paced
        """True: the reader reports what it is done with. False: an event counts as done once notified."""
        self.tickets: deque[tuple[Taking, int, int]] = deque()
        """For what the reader is not done with: a ticket, and the first and last of its sequences."""
        self.uncovered: tuple[str, ...] = ()
        self.complete = asyncio.Event()

    @property
    def is_ordered(self) -> bool:
        return self.subscription.order in ORDERED

    def owes(self, ticket: Taking, stretch: Stretch) -> None:
        if self.paced:
            self.tickets.append((ticket, stretch.first, stretch.last))
        else:
            ticket.done(stretch.first, stretch.last)


class ApplicationHost(EventService):
    """An event service around the pure client. `find_order` returns the access to the sequencers once the service is
    open, or None if there are none."""

    def __init__(
        self,
        beneath: Beneath,
        find_order: Callable[[], Sequencing | None],
        *,
        strips: bool,
        hides: bool,
        patience: Patience | None = None,
        max_buffered: int = MAX_BUFFERED,
    ) -> None:
        super().__init__()
        self.ledger = PendingPublications()
        self._application = Application(beneath, self._on_application_fact, strips=strips, hides=hides)
        self._find_order = find_order
        self._order: Sequencing | None = None
        self._patience = patience
        self._max_buffered = max_buffered
        self._shown: dict[str, _Shown] = {}
        self._pending: dict[str, asyncio.Future[None]] = {}
        self._room: asyncio.Future[None] | None = None
        self._reported: set[str] = set()

    # --- The order

    async def _open_order(self) -> None:
        order = self._find_order()
        if order is not None:
            await order.open(self._application.on_fact)
            self._order = order
            patience = self._patience
            if patience is None and not self.lossless:
                patience = DEFAULT_PATIENCE
            self._application.add_order(
                order.module,
                patience=patience,
                max_buffered=self._max_buffered,
                wanted=lambda: order.wanted,
            )

    async def _close_order(self) -> None:
        order, self._order = self._order, None
        if order is not None:
            self._application.leave_order()
            # Publications without a number will not be published.
            for sequence in self.ledger.sequences() if order.wanted else ():
                self.ledger.settle(sequence, sequence, ConnectionFailed(CLOSED))
            await order.close()

    def _check_order(self, subscription: Subscription) -> None:
        if subscription.order not in ORDERED:
            return
        if self._order is None:
            raise SubscriptionRefused(f"order {subscription.order.value!r} {NO_SEQUENCERS}")
        check_order(subscription, self._order.layout, lossless=self.lossless and self._patience is None)

    def without_order(self) -> Self:
        """Do without an order, so that it opens even while the sequencers are away."""
        self._find_order = lambda: None
        return self

    # --- Publications

    async def _wait_for_room(self) -> None:
        while self._is_full:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    @property
    def _is_full(self) -> bool:
        """True while publications must wait for room."""
        return self.ledger.under_way >= MAX_UNCONFIRMED

    def _room_left(self) -> int:
        return max(MAX_UNCONFIRMED - self.ledger.under_way, 1)

    def _make_room(self) -> None:
        if self._room is not None and self.ledger.under_way < MAX_UNCONFIRMED // 2:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)

    # --- Subscriptions

    async def add_subscription(
        self, subscription: Subscription, notify: Notify, *, paced: bool = False
    ) -> None:
        """Subscribe. On a guaranteed network this also returns when the brokers that do not know the subscription yet
        are unreachable; an ordered subscription waits for them."""
        self._check_open()
        self._check_order(subscription)
        if self._order is not None and subscription.order in ORDERED:
            self._order.want()
        shown = self._shown[subscription.id] = _Shown(subscription, notify, paced=paced and self.lossless)
        try:
            reached = self.reached_before.get(subscription.id)
            await self._ask(subscription.id, lambda: self._application.start(subscription, reached))
        except TimeoutError:
            await self._give_up(subscription.id)
            raise SubscriptionRefused(self._timeout_reason(shown)) from None
        except BaseException:
            await self._give_up(subscription.id)
            raise

    def _timeout_reason(self, shown: _Shown) -> str:
        if shown.is_ordered and shown.uncovered:
            return (
                "an ordered subscription begins once the whole network knows it; no answer within "
                f"{SUBSCRIBE_TIMEOUT_S:.0f} s from {', '.join(shown.uncovered)}"
            )
        if shown.is_ordered and shown.complete.is_set():
            return f"the sequencers did not answer within {SUBSCRIBE_TIMEOUT_S:.0f} s"
        return f"the network did not accept the subscription within {SUBSCRIBE_TIMEOUT_S:.0f} s"

    async def change_subscription(self, changed: Subscription) -> None:
        self._check_open()
        self._check_order(changed)
        shown = self._shown[changed.id]
        try:
            await self._ask(
                changed.id, lambda: self._application.change(changed.id, changed.topics, changed.filter)
            )
        except BaseException as error:
            self._application.abandon_change(changed.id)
            if isinstance(error, TimeoutError):
                raise SubscriptionRefused(
                    f"the network did not accept the change within {SUBSCRIBE_TIMEOUT_S:.0f} s"
                ) from None
            raise
        shown.subscription = changed

    async def remove_subscription(self, subscription_id: str) -> None:
        """Stop delivering at once; the network is told when it can be reached."""
        self._forget(subscription_id)
        if self._is_open:
            self._application.end(subscription_id)

    async def _give_up(self, subscription_id: str) -> None:
        """Withdraw a subscription that was not accepted, or that nobody waits for any more."""
        await self.remove_subscription(subscription_id)

    def _forget(self, subscription_id: str) -> None:
        shown = self._shown.pop(subscription_id, None)
        if shown is not None:
            shown.complete.set()
            for ticket, first, last in shown.tickets:
                ticket.done(first, last)

    async def _ask(self, subscription_id: str, ask: Callable[[], None]) -> None:
        answered = self._pending[subscription_id] = asyncio.get_running_loop().create_future()
        try:
            ask()
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                await answered
        finally:
            self._pending.pop(subscription_id, None)

    def _answer(self, subscription_id: str, error: Exception | None) -> bool:
        """Pass the outcome to whoever asked; return False if nobody waits."""
        answered = self._pending.get(subscription_id)
        if answered is None:
            return False
        if not answered.done():
            if error is None:
                answered.set_result(None)
            else:
                answered.set_exception(error)
        return True

    def reached(self, subscription_id: str, count: int) -> Reached | None:
        shown = self._shown.get(subscription_id)
        if shown is None or not shown.is_ordered or not self.resumes:
            return None
        return self._application.reached(subscription_id, count)

    def taken(self, subscription_id: str, count: int = 1) -> None:
        shown = self._shown.get(subscription_id)
        tickets = None if shown is None else shown.tickets
        while tickets and count:
            ticket, first, last = tickets.popleft()
            if last - first >= count:
                tickets.appendleft((ticket, first + count, last))
                last = first + count - 1
            ticket.done(first, last)
            count -= last - first + 1

    def uncovered(self, subscription_id: str) -> tuple[str, ...]:
        shown = self._shown.get(subscription_id)
        return () if shown is None else shown.uncovered

    async def completed(self, subscription_id: str) -> None:
        shown = self._shown.get(subscription_id)
        if shown is not None:
            await shown.complete.wait()
        if subscription_id not in self._shown:
            raise ConnectionFailed("the subscription has ended")

    def _progress(self, subscription_id: str, uncovered: tuple[str, ...]) -> None:
        """Note who does not know it yet. Once everybody did, a restarted broker that forgot it does not count."""
        shown = self._shown.get(subscription_id)
        if shown is not None and not shown.complete.is_set():
            shown.uncovered = uncovered
            if not uncovered:
                shown.complete.set()

    # --- Facts from the client

    def _on_application_fact(self, fact: object) -> None:
        if isinstance(fact, Delivered):  # the common case
            if isinstance(fact.stretch, Run):
                self._on_run(fact.stretch, fact)
            else:
                self._on_publication(fact.stretch, fact)
            return
        handle = _HANDLERS.get(fact.__class__)
        if handle is None:
            self._on_other_fact(fact)
        else:
            handle(self, fact)

    def _on_confirmed(self, fact: PublicationConfirmed) -> None:
        self.ledger.settle(fact.first, fact.last)
        if self._room is not None:
            self._make_room()

    def _on_publication_failed(self, fact: PublicationFailed) -> None:
        sequence, reason = fact.sequence, fact.reason
        error = OrderError(reason) if fact.unordered else self._not_confirmed(sequence, reason)
        self.ledger.settle(sequence, sequence, error)
        self._make_room()

    def _on_accepted(self, fact: SubscriptionAccepted) -> None:
        self._progress(fact.subscription, ())
        self._answer(fact.subscription, None)

    def _on_changed(self, fact: SubscriptionChanged) -> None:
        self._answer(fact.subscription, None)

    def _on_progress(self, fact: SubscriptionProgress) -> None:
        name = fact.subscription
        self._progress(name, fact.uncovered)
        if name in self._shown and not self._shown[name].is_ordered:
            self._answer(name, None)

    def _on_failed(self, fact: SubscriptionFailed) -> None:
        if not self._answer(fact.subscription, SubscriptionRefused(fact.reason)):
            log.error("subscription %s was refused after a reconnection: %s", fact.subscription, fact.reason)

    def _on_change_failed(self, fact: ChangeFailed) -> None:
        self._answer(fact.subscription, SubscriptionRefused(fact.reason))

    def _on_broken(self, fact: SubscriptionBroken) -> None:
        self._break(fact.subscription, OrderError(fact.reason))

    def _on_sequencers_refused(self, fact: SequencersRefused) -> None:
        self._application.refuse_numbers(fact.reason)

    def _on_misbehaviour(self, fact: Misbehaviour) -> None:
        peer = fact.peer
        if peer in self._reported:
            self._on_other_fact(fact)
        elif len(self._reported) < MAX_REPORTED:
            self._reported.add(peer)
            log.warning("%s: %s (reported once)", peer, fact.what)

    def _not_confirmed(self, sequence: int, reason: str) -> NotConfirmed:
        return NotConfirmed(f"publication {sequence}: {reason}")

    def _on_other_fact(self, fact: object) -> None:
        """Handle facts that only some services emit."""

    def _on_publication(self, publication: Publication, fact: Delivered) -> None:
        shown, ticket = self._shown.get(fact.subscription), fact.ticket or NOTHING
        if shown is None:
            ticket.done()
            return
        try:
            event = publication.event()
        except WireError as error:
            leave_out(error)
            ticket.done(publication.first, publication.last)
            return
        if fact.out_of_order:
            event.__dict__["out_of_order"] = True
        if fact.recovered_by:
            event.__dict__["recovered_by"] = fact.recovered_by
        if fact.stamp is not None and (places := self._places(publication, fact.stamp)) is not None:
            event.__dict__["places"] = places
        if isinstance(shown.notify, stream.Stream):
            shown.owes(ticket, publication)
            shown.notify.push(event)
        else:
            self._show(shown, event, publication, ticket)

    def _show(self, shown: _Shown, event: Event, carrier: Stretch, ticket: Taking) -> None:
        if not isinstance(shown.notify, stream.Stream):
            event.__dict__["carrier"] = carrier
        shown.owes(ticket, carrier)
        shown.notify(event)

    def _places(self, stretch: Stretch, stamp: Timestamp | None) -> Places | None:
        """Return the positions of a stretch's events, of which the first has this stamp."""
        if stamp is None or self._order is None:
            return None
        return Places(stamp, self._order.layout, stretch.first)

    def _places_of(self, stretch: Stretch) -> Places | None:
        """Return the positions that a stretch says it has; None if they are not of our sequencers' layout."""
        is_ours = self._order is not None and stretch.layout == self._order.layout.fingerprint
        return self._places(stretch, stretch.stamp) if is_ours else None

    def _on_run(self, run: Run, fact: Delivered) -> None:
        """Deliver a run. A stream gets it whole, and decodes its events when they are taken."""
        shown, ticket = self._shown.get(fact.subscription), fact.ticket or NOTHING
        if shown is None:
            ticket.done()
        elif run.kind == BARE:
            self._on_bare_run(shown, run, ticket)
        elif isinstance(shown.notify, stream.Stream):
            shown.owes(ticket, run)
            places = self._places(run, fact.stamp)
            shown.notify.push_run(run, late=fact.out_of_order, by=fact.recovered_by, places=places)
        else:
            self._on_each(run, fact)

    def _on_each(self, run: Run, fact: Delivered) -> None:
        stamp, ticket = fact.stamp, fact.ticket or NOTHING
        publications = _publications(run)
        if not publications:
            ticket.done()
        for place, publication in enumerate(publications):
            at = None if stamp is None else stamp.at(stamp.number + place)
            part = PartOfTicket(ticket, publication.sequence, publication.sequence)
            how = (fact.out_of_order, fact.recovered_by, part, at)
            self._on_publication(publication, Delivered(fact.subscription, publication, *how))

    def _on_bare_run(self, shown: _Shown, run: Run, ticket: Taking) -> None:
        """Deliver bare headers, to a subscription that asked for them, as events that only have a carrier."""
        for sequence in range(run.first, run.last + 1):
            event = Event(run.source, run.incarnation, sequence, run.topic, 0, {}, b"")
            self._show(shown, event, run.cut(sequence, sequence), ticket)

    def _on_missed(self, fact: EventsGivenUp) -> None:
        ticket = fact.ticket or NOTHING
        reader = self.streams.get(fact.subscription)
        if reader is None:
            ticket.done()
            return
        missed = EventsMissed(fact.source, fact.incarnation, fact.first, fact.last)
        gap = gap_of(missed, GIVEN_UP if fact.certain else MOVED, self.now)
        reader.miss(gap, certain=fact.certain, noted=ticket.done)

    def _on_order_gap(self, fact: OrderGap) -> None:
        """Show the gap once; the stream goes on."""
        ticket = fact.ticket or NOTHING
        reader = self.streams.get(fact.subscription)
        if reader is None:
            log.warning("subscription %s missed events: %s", fact.subscription, fact.reason)
            ticket.done()
            return
        missed = tuple(
            [EventsMissed(lost.source, lost.incarnation, lost.first, lost.last) for lost in fact.lost]
        )
        reader.miss(Gap(fact.reason, self.now, fact.count, missed), noted=ticket.done)

    def _break(self, subscription_id: str, error: OrderError) -> None:
        """End a subscription whose order cannot be continued: an error is better than a wrong order."""
        asked = self._answer(subscription_id, error)
        reader = self.streams.get(subscription_id)
        if reader is not None:
            reader.fail(error)
        elif not asked:
            log.error("subscription %s: %s", subscription_id, error)

    def _fail_publications(self, reason: str) -> None:
        self.ledger.fail_all(reason)
        self._make_room()

    def _fail_everything(self, reason: str) -> None:
        self._fail_publications(reason)
        self.requests.fail(reason)
        for name in list(self._pending):
            self._answer(name, ConnectionFailed(reason))
        for reader in list(self.streams.values()):
            reader.fail(ConnectionFailed(reason))

    async def _order_status(self) -> dict[str, Any]:
        """Return the sequencers' status and what ordered subscriptions wait for."""
        if self._order is None:
            return {}
        return {
            "ordering": {
                "sequencers": await self._order.status(),
                "subscriptions": self._application.order_status(),
                "unpublished": self._application.unpublished,
            }
        }

    @property
    def _is_open(self) -> bool:
        raise NotImplementedError

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConnectionFailed("the bus is not open: use it inside 'async with'")


_HANDLERS: dict[type, Callable[[ApplicationHost, Any], None]] = {
    PublicationConfirmed: ApplicationHost._on_confirmed,
    PublicationFailed: ApplicationHost._on_publication_failed,
    SubscriptionAccepted: ApplicationHost._on_accepted,
    SubscriptionChanged: ApplicationHost._on_changed,
    SubscriptionProgress: ApplicationHost._on_progress,
    SubscriptionFailed: ApplicationHost._on_failed,
    ChangeFailed: ApplicationHost._on_change_failed,
    SubscriptionBroken: ApplicationHost._on_broken,
    EventsGivenUp: ApplicationHost._on_missed,
    OrderGap: ApplicationHost._on_order_gap,
    SequencersRefused: ApplicationHost._on_sequencers_refused,
    Misbehaviour: ApplicationHost._on_misbehaviour,
}
"""Class of fact -> handler. A table, because each event makes several facts. The others are for the subclass."""


def _publications(run: Run) -> list[Any]:
    try:
        return list(run.publications())
    except WireError as error:
        leave_out(error)
        return []
