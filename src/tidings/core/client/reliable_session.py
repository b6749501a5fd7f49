"""A client of a guaranteed broker: resends publications until confirmed, and shows every event once.

Publications wait here until the broker says up to which position of its log it certifies publications. A publication is
stamped with that position when it is first sent, and resent with the same stamp after every reconnect, in order, until
it is confirmed. What the broker has on disk but has not delivered is kept a while longer, in case the broker loses its
disk; then it is resent like the others, until it is on the new disk. Another broker gets everything again.

A named client that is killed and restarted finds its subscriptions at the broker. What arrived for them meanwhile is
sent before the client has subscribed again; it is kept, unacknowledged, for a moment.

Per subscription and source the client remembers the last sequence it has shown: a broker that forgot in a crash what it
had sent sends it again. What the application is not done with is sent again after a reconnect; the new notification
then takes the old one's place (core/client/arrivals.py).

A client may move to another broker. There it resends what it published and nobody is known to have received;
subscribers' clients drop duplicates. What still waited for it at the old broker is lost: for each source that
continues, the sequences that may have waited are reported as missed, at the latest with the source's next event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidings.core.client.arrivals import Arrivals, Notice, Source, Undone
from tidings.core.client.beneath import END
from tidings.core.client.session import CANCELLING, ClientSession, OwnSubscription, SubscriptionState
from tidings.core.client.share_holder import ShareHolder
from tidings.core.client.unconfirmed import Unconfirmed
from tidings.core.errors import WireError
from tidings.core.events.event import WHOLE, decode_publication
from tidings.core.events.run import Run, Stretch, singles
from tidings.core.events.subscription import Interest, Subscription
from tidings.core.facts import (
    BrokerChanged,
    Delivered,
    EventsGivenUp,
    Misbehaviour,
    PublicationConfirmed,
    PublicationFailed,
    SubscriptionProgress,
)
from tidings.core.kernel import Node, Port, TimerName
from tidings.core.messages import Confirm, Notify, PublishFailed, Unsubscribed
from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks
from tidings.core.overlay.guaranteed.messages import (
    Attach,
    Attached,
    Baseline,
    BookmarkKept,
    Coverage,
    Drain,
    KeepBookmark,
    Missed,
    Notified,
    Stamp,
    StampTaken,
    Taken,
)
from tidings.core.overlay.matching import selected

EARLY_NS = 5_000_000_000
"""How long after its first connection a client keeps notifications for subscriptions that it has not made (again)."""


ResumePoints = dict[str, Mapping[tuple[str, int], int]]
"""Subscription -> (source, incarnation) -> the last sequence that an earlier run of this client was shown."""


class EarlyNotice(NamedTuple):
    """A notification for a subscription of an earlier run of this client; held until that subscribes again."""

    notice: Notice
    what: Stretch | Missed
    waits_for: set[str]

    def release(self) -> None:
        self.notice.release(self.notice.first, self.notice.last)


class ReliableSession(ClientSession):
    """A session with a guaranteed broker."""

    lossless = True
    end_of_drain = Drain
    handles = {
        **ClientSession.handles,
        Attached: "on_attached",
        Stamp: "on_stamp",
        Taken: "on_taken",
        Missed: "on_missed",
        Coverage: "on_coverage",
        Baseline: "on_baseline",
        KeepBookmark: "on_bookmark",
        BookmarkKept: "on_bookmark_kept",
    }

    def __init__(
        self,
        port: Port,
        broker: str,
        *,
        incarnation: int,
        acknowledges: bool = True,
        gathers: bool = False,
        lasting: bool = True,
        resume_points: ResumePoints | None = None,
    ) -> None:
        super().__init__(port, broker, incarnation=incarnation)
        self._lasting = lasting
        self._resume_points: ResumePoints = {} if resume_points is None else resume_points
        self.acknowledges = acknowledges
        """True: what is shown is done. False: the application says when it is (`Delivered.ticket`)."""
        self._gathers = gathers
        self._connected = False
        self._attached = False
        self._attaching = 0
        """Unanswered Attach messages. Only the last answer gives the position to stamp with."""
        self._publishes = False
        self.generation = 0
        self._position = 0
        self._outgoing = Unconfirmed()
        self._moved: dict[str, dict[tuple[str, int], int]] = {}
        """Subscription from an earlier broker -> source -> first sequence that may have waited there, until it is
        reported. For a source that was never heard of, all before its first event may have waited."""
        self._early: list[EarlyNotice] = []
        """Bounded by the broker's window."""
        self._early_until = 0
        self._is_early = True
        self._asked: set[str] = set()
        """Subscriptions made during the early phase; they stay known after they end."""
        self._arrivals = Arrivals(self._on_news)
        """Those of this connection."""
        self._undone: dict[Source, Undone] = {}
        """What the application holds."""
        self._handling = self._gathering = self._stopped = False
        if lasting:
            # Look `emit` up at each call: a host may replace it once it has made its application.
            self.bookmarks = LeftBookmarks(
                self._send_bookmark, lambda fact: port.emit(fact), self.end_earlier
            )

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def unconfirmed(self) -> int:
        return len(self._outgoing)

    # --- Publishing

    def _publish(self, stretch: Stretch) -> None:
        self._outgoing.add(stretch)
        if not self._publishes:
            self._publishes = True
            self._attached = False
            if self._connected:
                self._attach()
        self._pump()

    def flush(self, *, full_only: bool = False) -> list[Stretch]:
        """Publish what was added. What is to be acknowledged goes with it: one message to send, not two."""
        made = super().flush(full_only=full_only)
        if made and self._gathering:
            self._gathering = False
            self.port.cancel_timer((self.name, "acknowledge"))
            self._acknowledge()
        return made

    def _pump(self) -> None:
        if self._attached and self._publishes:
            for stamped in self._outgoing.due(self.generation, self._position):
                self.port.send(self.broker, stamped)

    def on_taken(self, sender: str, message: Taken) -> None:
        self._outgoing.taken(message.count)
        self._pump()

    def _attach(self) -> None:
        self._attaching += 1
        self.port.send(self.broker, Attach(self.incarnation, self._publishes, self._lasting))

    def on_attached(self, sender: str, message: Attached) -> None:
        self._attaching -= 1
        if self._attached or self._attaching:
            return
        self._attached = True
        if self.bookmarks is not None:
            self.bookmarks.attached()
        self.generation, self._position = message.generation, message.position
        for stamped in self._outgoing.attached(message.window, message.generation):
            self.port.send(self.broker, stamped)
        self._pump()

    def on_stamp(self, sender: str, message: Stamp) -> None:
        if message.generation == self.generation:
            self._position = max(self._position, message.position)
            self.port.send(self.broker, StampTaken(message.position))

    def on_confirm(self, sender: str, message: Confirm) -> None:
        if message.incarnation != self.incarnation:
            return
        for first, last in self._outgoing.confirm(message.first, message.last, kept=message.kept):
            self.port.emit(PublicationConfirmed(first, last))
        self._pump()

    def on_publish_failed(self, sender: str, message: PublishFailed) -> None:
        if self._outgoing.fail(message.sequence):
            self.port.emit(PublicationFailed(message.sequence, message.reason))
            self._pump()

    # --- Subscribing and notifications

    def subscribe(self, *subscriptions: Subscription) -> None:
        super().subscribe(*subscriptions)
        for subscription in subscriptions:
            highest = self._held[subscription.id].highest
            highest.update(self._resume_points.get(subscription.id, {}))
            self._resume_points[subscription.id] = highest
        if self._is_early:
            self._asked.update(subscription.id for subscription in subscriptions)
            self._show_early({subscription.id: subscription.interest() for subscription in subscriptions})

    def shown(self, subscription_id: str) -> Mapping[tuple[str, int], int] | None:
        held = self._held.get(subscription_id)
        return {} if held is None else held.highest

    def unsubscribe(self, subscription_id: str, *, drain: bool = False) -> None:
        """Unsubscribe, and finish what the application holds. With `drain`, that stays, and what waits at the broker
        is still delivered, however long that takes."""
        super().unsubscribe(subscription_id, drain=drain)
        if not drain:
            for key in [key for key in self._undone if key[0] == subscription_id]:
                self._undone[key].finish(0, END)

    def end_earlier(self, subscription_id: str, *, drain: bool = False) -> None:
        super().end_earlier(subscription_id, drain=drain)
        self._asked.add(subscription_id)
        for early in self._early:
            early.waits_for.discard(subscription_id)
        self._forget_early([early for early in self._early if early.waits_for])

    def on_unsubscribed(self, sender: str, message: Unsubscribed) -> None:
        super().on_unsubscribed(sender, message)
        if message.subscription not in self._held:
            self._resume_points.pop(message.subscription, None)

    def on_notify(self, sender: str, message: Notify) -> None:
        self._handle(sender, message.subscriptions, message.stretch)

    def on_missed(self, sender: str, message: Missed) -> None:
        self._handle(sender, message.subscriptions, message)

    def _handle(self, sender: str, subscriptions: tuple[str, ...], what: Stretch | Missed) -> None:
        """Handle a notification, then acknowledge at once what is done, unless acknowledgements are gathered."""
        self._handling = True
        if isinstance(what, Missed):
            notice = self._arrivals.arrive(what.last, 1)
        else:
            notice = self._arrivals.arrive(what.first, what.count)
        for subscription_id in subscriptions:
            held = self._held.get(subscription_id)
            if held is None:
                if not self._is_early and self.bookmarks is not None:
                    self.bookmarks.discard(subscription_id)
            elif held.state is CANCELLING:
                pass
            elif isinstance(what, Missed):
                self._miss(held, what, notice)
            else:
                try:
                    self._deliver(held, what, notice)
                except WireError as error:
                    self.port.emit(Misbehaviour(sender, str(error)))
        if self._is_early and not self._asked.issuperset(subscriptions):
            self._keep_early(subscriptions, what, notice)
        notice.close()
        self._handling = False
        if not self._gathers:
            self._acknowledge()

    def _deliver(self, held: OwnSubscription, stretch: Stretch, notice: Notice) -> None:
        """Show what is new; attach what the application already holds to this notification."""
        source, incarnation, first, last = stretch.source, stretch.incarnation, stretch.first, stretch.last
        highest = self._shown_before(held, source, incarnation, last)
        if first <= highest:
            undone = self._undone.get((held.subscription.id, source, incarnation))
            if undone is not None:
                undone.move(notice, first, min(last, highest))
            if last <= highest:
                return
            assert isinstance(stretch, Run)
            stretch = stretch.cut(highest + 1, last)
        if self._moved:
            self._report_missed(held.subscription.id, stretch, highest)
        if not isinstance(stretch, Run) or self.takes_runs or stretch.kind != WHOLE:
            self._hand_out(held, stretch, notice)
        else:
            for publication in singles(stretch):
                self._hand_out(held, publication, notice)

    def _hand_out(self, held: OwnSubscription, stretch: Stretch, notice: Notice) -> None:
        subscription_id = held.subscription.id
        source = (subscription_id, stretch.source, stretch.incarnation)
        ticket = notice.ticket(self._undone, source, stretch.first, stretch.last)
        self.port.emit(Delivered(subscription_id, stretch, ticket=ticket))
        if self.acknowledges or held.state is CANCELLING:
            ticket.done()
        else:
            ticket.keep()

    def _report_missed(self, subscription_id: str, fresh: Stretch, highest: int) -> None:
        """Report what may have waited at the old broker, at a source's first event since the move."""
        if subscription_id not in self._moved:
            return
        source = (fresh.source, fresh.incarnation)
        first = self._moved[subscription_id].pop(source, 0 if highest else 1)
        last = highest if highest >= first else fresh.first - 1  # what follows a baseline is delivered
        if 0 < first <= last:
            self._may_have_missed(subscription_id, source, first, last)

    def _may_have_missed(self, subscription_id: str, source: tuple[str, int], first: int, last: int) -> None:
        self.port.emit(EventsGivenUp(subscription_id, *source, first, last, certain=False))

    def _miss(self, held: OwnSubscription, message: Missed, notice: Notice) -> None:
        self._shown_before(held, message.source, message.incarnation, message.last)
        missed = (message.source, message.incarnation, message.first, message.last)
        source = (held.subscription.id, message.source, message.incarnation)
        ticket = notice.ticket({}, source, message.last, message.last)  # if resent, it is reported again
        self.port.emit(EventsGivenUp(held.subscription.id, *missed, ticket=ticket))
        if self.acknowledges:
            ticket.done()

    # --- Notifications for subscriptions of an earlier run

    def _keep_early(self, subscriptions: tuple[str, ...], what: Stretch | Missed, notice: Notice) -> None:
        unknown = {name for name in subscriptions if name not in self._asked}
        notice.hold(notice.first, notice.last)
        self._early.append(EarlyNotice(notice, _kept(what), unknown))

    def _show_early(self, interests: Mapping[str, Interest]) -> None:
        """Show what arrived for these subscriptions before they were made, in order of arrival."""
        for early in self._early:
            for name in sorted(early.waits_for & interests.keys()):
                early.waits_for.discard(name)
                self._show_early_one(self._held[name], interests[name], early.what, early.notice)
        self._forget_early([early for early in self._early if early.waits_for])

    def _show_early_one(
        self, held: OwnSubscription, interest: Interest, what: Stretch | Missed, notice: Notice
    ) -> None:
        """Show what the interest selects: in an earlier run, that name may have had another."""
        if isinstance(what, Missed):
            self._miss(held, what, notice)
            return
        wanted = selected(what, interest) if what.kind == WHOLE else [(what.first, what.last)]
        for first, last in wanted:  # without a body, the subscriber decides
            part = what.cut(first, last) if isinstance(what, Run) else what
            self._deliver(held, part, notice)

    def _discard_early(self) -> None:
        if self.bookmarks is not None:
            for early in self._early:
                for name in early.waits_for:
                    self.bookmarks.discard(name)

    def _forget_early(self, left: list[EarlyNotice]) -> None:
        before, self._early = self._early, left
        for early in before:
            if early not in left:
                early.release()

    def on_timer(self, name: TimerName) -> None:
        match name[1]:
            case "early":
                self._is_early = False
                self._asked.clear()
                self._discard_early()
                self._forget_early([])
            case "acknowledge":
                self._gathering = False
                self._acknowledge()
            case _:
                super().on_timer(name)

    # --- Acknowledgements

    def stop_acknowledging(self) -> None:
        self._stopped = True

    def _on_news(self) -> None:
        if self._gathers:  # once per instant: a message per event would cost as much as the event
            if not self._gathering:
                self._gathering = True
                self.port.set_timer((self.name, "acknowledge"), self.port.now)
        elif not self._handling:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if not self._connected or self._stopped:
            return
        news = self._arrivals.news()
        if news is not None:
            if news[1] and self.bookmarks is not None:
                self.bookmarks.tell()
            self.port.send(self.broker, Notified(*news))

    # --- Bookmarks and baselines

    def on_bookmark(self, sender: str, message: KeepBookmark) -> None:
        if self.bookmarks is not None:
            self.bookmarks.on_bookmark(message)

    def on_bookmark_kept(self, sender: str, message: BookmarkKept) -> None:
        if self.bookmarks is not None:
            self.bookmarks.on_kept(message)

    def _send_bookmark(self, message: KeepBookmark) -> None:
        if self._connected and not self._stopped:
            self.port.send(self.broker, message)

    def on_baseline(self, sender: str, message: Baseline) -> None:
        held = self._held.get(message.subscription)
        if held is not None and held.state is SubscriptionState.REQUESTED:
            moved = self._moved.get(message.subscription)
            for source, incarnation, sequence in message.marks:
                key = (source, incarnation)
                highest = self._shown_before(held, source, incarnation, sequence)
                passed_by = sequence > highest
                if moved is not None and highest:
                    moved.pop(key, None)
                    if passed_by:
                        self._may_have_missed(message.subscription, key, highest + 1, sequence)
                elif moved is not None:  # reported with the source's next event, if any
                    moved[key] = 1

    def on_coverage(self, sender: str, message: Coverage) -> None:
        if message.subscription in self._held:
            self._answered(message.subscription)
            self.port.emit(SubscriptionProgress(message.subscription, message.uncovered))

    # --- The connection

    @property
    def can_move(self) -> bool:
        """False while a publication of this client is only on its broker's disk."""
        return self._outgoing.kept_all or not self._outgoing.has_kept

    def moved(self, broker: str) -> None:
        """Switch to that broker; its `link_up` follows."""
        self.broker = broker
        self._outgoing.moved()
        for name in [name for name, held in self._held.items() if held.state is SubscriptionState.DRAINING]:
            self.on_unsubscribed(broker, Unsubscribed(name))  # the new broker has nothing to drain
        for held in self._held.values():
            if held.state is SubscriptionState.ACCEPTED:
                held.state = SubscriptionState.REQUESTED
            self._moved[held.subscription.id] = {key: highest + 1 for key, highest in held.highest.items()}
        self.port.emit(BrokerChanged())

    def on_link_up(self, peer: str) -> None:
        self._connected = True
        self._attached = False
        if not self._early_until:
            self._early_until = self.port.now + EARLY_NS
            self.port.set_timer((self.name, "early"), self._early_until)
        self._early = []  # what is not done is sent again
        self._arrivals.end()
        self._arrivals = Arrivals(self._on_news)
        self._outgoing.connected()
        self._attaching = 0
        self._attach()
        if self.bookmarks is not None:
            self.bookmarks.link_up()  # before the subscriptions that they describe
        super().on_link_up(peer)

    def on_link_down(self, peer: str) -> None:
        self._connected = self._attached = False


def _kept(what: Stretch | Missed) -> Stretch | Missed:
    """Return a copy that outlives the read buffer."""
    if isinstance(what, Missed):
        return what
    return what.kept() if isinstance(what, Run) else decode_publication(what.raw.copy())


class ReliableClient(Node):
    """A node with one reliable session.

    `resume_points` may outlive the client, so that another one can continue where it ended. A client that is not
    `lasting` has a name that nobody will use again: while it is away, its subscriptions are kept for a minute, not a
    day. Unless the client `acknowledges` by itself, the application says what it is done with. One that `gathers`
    acknowledges to its broker once per instant.
    """

    def __init__(
        self,
        port: Port,
        broker: str,
        *,
        incarnation: int = 0,
        acknowledges: bool = True,
        gathers: bool = False,
        lasting: bool = True,
        resume_points: ResumePoints | None = None,
    ) -> None:
        self.session = ReliableSession(
            port,
            broker,
            incarnation=incarnation,
            acknowledges=acknowledges,
            gathers=gathers,
            lasting=lasting,
            resume_points=resume_points,
        )
        self.publish = self.session.publish
        self.flush = self.session.flush
        self.subscribe = self.session.subscribe
        self.unsubscribe = self.session.unsubscribe
        self.request_status = self.session.request_status
        self.moved = self.session.moved
        self.shares = ShareHolder(port, self.session)
        super().__init__((self.session, self.shares))
