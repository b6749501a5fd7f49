"""Where the events of durable subscriptions with an order across publishers come from.

For these a broker hosts one ordinary lasting client inside itself, with an ordering module: a subscriber that the
sequencers know, whether anybody is attached or not. It has one ordered subscription for each share. What an order
shows is kept in the share's own queue, and from there it is given out as in any share (shares.py).

An event and the position of the order after it are one write. After a crash the subscription goes on from there: what
the overlay sends again is known by its number, and not taken twice. If a subscription cannot go on, for instance
because the sequencers have forgotten it, the share joins the order anew, under another name, and reports the gap.

The ordering module is made by the driver, in the broker or beside it, when the first such share wants it: see `find`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice, takewhile

import msgspec

from tidings.core.client.application import Application
from tidings.core.client.beneath import NOTHING
from tidings.core.client.bookmark import decode_bookmark, end_kept
from tidings.core.client.ordered import check_kind
from tidings.core.client.reliable_session import ReliableSession
from tidings.core.errors import OrderError, StoreCorrupt, StoreError, SubscriptionRefused, WireError
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import (
    BookmarksKnown,
    Delivered,
    EventsGivenUp,
    Misbehaviour,
    OrderGap,
    ShareFailed,
    SubscriptionAccepted,
    SubscriptionBroken,
    SubscriptionChanged,
    SubscriptionFailed,
    SubscriptionProgress,
)
from tidings.core.kernel import Node, Part, TimerName
from tidings.core.messages import Message
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.module import NumbersLost, OrderingModule
from tidings.core.overlay.guaranteed.held_share import SHARE_CLIENT, HeldShare
from tidings.core.overlay.guaranteed.ordered_share import (
    InsidePort,
    OrderedShare,
    OrderedShareListener,
    Position,
    Shown,
    decode_position,
    encode_position,
)
from tidings.core.overlay.guaranteed.relays import RelayingPort

RETRY_NS = 5_000_000_000
"""How long after a failure the sequencers are looked for again, or a subscription joins anew."""
ANSWER_NS = 12_000_000_000
"""How long a new share waits for the sequencers' answer before whoever attaches is refused."""
MAX_BATCH = 64
"""How many stretches of events are kept in one write."""

KNOW_NONE = "start it with their addresses (tidings broker --sequencers; tidings up --order total does so)"


def order_client(broker: str) -> str:
    """Return the name of the broker's own client, at the broker and at sequencers outside of its process."""
    return f"{SHARE_CLIENT}~{broker}"


class OrderedShares(Part):
    name = "ordered_shares"
    handles = dict.fromkeys(OrderingModule.handles, "on_order")

    def __init__(
        self,
        port: RelayingPort,
        receive: Callable[[str, Message], None],
        gone: Callable[[str], None],
    ) -> None:
        """`receive` takes what our own client sends, as from other clients; `gone` is told when it ends."""
        super().__init__(port)
        self.find: Callable[[], None] | None = None
        """Set by the driver of a network with sequencers: looks for them, then calls `use`, `order_here` or `refuse`,
        now or later."""
        self.listener: OrderedShareListener
        self.client = order_client(port.node)
        self._inside = port.inside
        self._receive = receive
        self._gone = gone
        self._shares: dict[str, OrderedShare] = {}
        """By the shares' names."""
        self._by_name: dict[str, OrderedShare] = {}
        """By the names of their subscriptions."""
        self._news: dict[str, None] = {}
        """Shares that were shown something."""
        self._inbox: deque[Message] = deque()
        self._application: Application | None = None
        self._session: ReliableSession | None = None
        self._node = Node(())
        self._module: OrderingModule | None = None
        self._here: OrderingModule | None = None
        """The module, if it uses this broker's own port."""
        self._life = 0
        """How often sequencers were found."""
        self._finding = False
        self._trouble = ""
        """Why there are no sequencers."""
        self._serial = 0

    # --- Sequencers

    def prepare(self, order: str) -> bool:
        """Return True if shares can be made. Otherwise look for the sequencers: `order_found` or `order_missing`
        follows. Raise ValueError if there are none."""
        if self._application is None:
            if self.find is None:
                raise ValueError(f"order {order!r} {self._none}")
            self._want()
        return self._application is not None

    def _want(self) -> None:
        if self._application is not None or self._finding:
            return
        if self.find is None:
            self.refuse(f"its order {self._none}")
        else:
            self._finding = True
            self.find()

    @property
    def _none(self) -> str:
        return f"requires sequencers, but broker {self.port.node} knows of none: {KNOW_NONE}"

    def refuse(self, reason: str) -> None:
        """The sequencers cannot be reached. While a share needs them, they are looked for again."""
        self._finding = False
        if reason != self._trouble:
            self._trouble = reason
            for share in self._shares.values():
                self._report_trouble(share)
        self.listener.order_missing(reason)
        self._retry()

    def _report_trouble(self, share: OrderedShare) -> None:
        self._report(share, f"nothing comes until its sequencers are there: {self._trouble}")

    def _retry(self) -> None:
        if self._shares and self.find is not None:
            self.port.set_timer((self.name, "find"), self.port.now + RETRY_NS)

    def order_here(self, layout: Layout) -> None:
        """Use sequencers that this broker reaches by its own port."""
        life = self._life + 1
        port = InsidePort(self.port, self.name, self.port.node, life, self.port.send, self.on_order_fact)
        module = OrderingModule(port, layout, incarnation=self.port.now)
        module.start()
        self.use(module)
        self._here = module

    def use(self, module: OrderingModule) -> None:
        """Use this module, whose facts go to `on_order_fact`, until `lost`."""
        self._finding, self._trouble = False, ""
        self._life += 1
        self._module = module
        session_port = InsidePort(
            self.port,
            self.name,
            self.client,
            self._life,
            self._send,
            partial(self._on_session_fact, self._life),
        )
        session = self._session = ReliableSession(
            session_port, self.port.node, incarnation=self.port.now, acknowledges=False, gathers=True
        )
        session.takes_runs = True
        self._node = Node((session,))
        self._application = Application(session, partial(self._on_fact, self._life))
        self._application.add_order(module)
        self._inside[self.client] = self._post
        self._node.link_up(self.port.node)
        for share in list(self._shares.values()):
            self._start(share)
        self.listener.order_found()

    def lost(self, reason: str) -> None:
        """The module is of no use any more: for instance, the sequencers refuse it. Another one is looked for."""
        if self._application is None:
            return
        self._application = self._session = self._module = self._here = None
        self._node = Node(())
        self._life += 1
        self._inbox.clear()
        self._by_name.clear()
        for share in self._shares.values():
            share.shown.clear()  # it comes again: nothing of it is acknowledged
            share.started = share.is_joined = False
        self._gone(self.client)
        self._trouble = ""
        self.refuse(reason)

    def on_order_fact(self, fact: object) -> None:
        """Handle a fact of the module."""
        if self._application is None:
            return
        self._application.on_fact(fact)
        if isinstance(fact, NumbersLost):
            self.lost(fact.reason)

    def on_order(self, sender: str, message: Message) -> None:
        if self._here is not None:
            getattr(self._here, OrderingModule.handles[message.__class__])(sender, message)

    # --- Our own client

    def _send(self, to: str, message: Message) -> None:
        self._receive(self.client, message)

    def _post(self, message: Message) -> None:
        if self._application is None:
            return  # only a client that is attached is sent anything
        if not self._inbox:
            self.port.set_timer((self.name, "mail"), self.port.now)
        self._inbox.append(message)

    def _read_mail(self) -> None:
        inbox, self._inbox = self._inbox, deque()
        for message in inbox:
            self._node.receive(self.port.node, message)

    def on_timer(self, name: TimerName) -> None:
        match name[1]:
            case "mail":
                self._read_mail()
            case "take":
                names, self._news = list(self._news), {}
                for share in names:
                    if share in self._shares:
                        self._take_all(self._shares[share])
            case "find":
                self._want()
            case "join":
                share_name = str(name[2])
                if share_name in self._shares and not self._shares[share_name].started:
                    self._start(self._shares[share_name])
            case self._life:
                inner = name[2:]
                if inner[0] == OrderingModule.name and self._here is not None:
                    self._here.on_timer(inner)
                elif inner[0] != OrderingModule.name:
                    self._node.timer(inner)

    # --- Shares

    def check(self, order: Order) -> None:
        """Raise SubscriptionRefused if the sequencers provide another order. (Which topics have an order, the client
        has checked.)"""
        assert self._module is not None, "prepared"
        check_kind(order, self._module.layout)

    def begin(self, held: HeldShare) -> None:
        """Subscribe for a share: a new one, or one that was kept on disk."""
        position = held.kept.position
        try:
            name = decode_position(position).subscription if position else ""
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"the order of {held.definition.name!r} does not decode: {error}") from None
        self._shares[held.definition.name] = share = OrderedShare(held, name, self.port.now)
        self._inside[self.client] = self._post  # what waits for our client is kept, also while it is away
        if self._application is not None:
            self._start(share)
            return
        if self._trouble:
            self._report_trouble(share)
        self._want()

    def _new_name(self, held: HeldShare) -> str:
        """Return a name that no subscription of ours ever had, and keep it."""
        self._serial = max(self._serial + 1, self.port.now)
        name = f"{held.definition.name}/{self._serial}"
        held.kept.keep_position(encode_position(Position(name)))
        return name

    def _start(self, share: OrderedShare) -> None:
        """Start the share's subscription; it goes on where it was, if that is known."""
        application, definition = self._application, share.held.definition
        if application is None:
            return
        share.tried_at = self.port.now
        order = Order(definition.order)
        try:
            share.name = share.name or self._new_name(share.held)
            self.check(order)
            self._by_name[share.name] = share
            share.started = True
            subscription = Subscription(share.name, definition.topics, definition.filter, order)
            application.start(subscription, decode_position(share.held.kept.position).reached)
        except (OrderError, StoreError, SubscriptionRefused) as error:
            self._stop(share)
            self._fail(share, str(error))

    def _stop(self, share: OrderedShare) -> None:
        share.started = share.is_joined = False
        if self._by_name.pop(share.name, None) is not None and self._application is not None:
            self._application.end(share.name)

    def _fail(self, share: OrderedShare, reason: str) -> None:
        """Report why nothing comes, and try again: at once, unless the last time was just now."""
        self._report(share, reason)
        at = max(self.port.now, share.tried_at + RETRY_NS)
        self.port.set_timer((self.name, "join", share.held.definition.name), at)

    def _report(self, share: OrderedShare, reason: str) -> None:
        self.port.emit(ShareFailed(share.held.definition.name, reason))

    def end(self, held: HeldShare) -> None:
        """The share is over."""
        share = self._shares.pop(held.definition.name, None)
        if share is None:
            return
        share.shown.clear()
        self._stop(share)
        if not self._shares and self._application is None:
            self._inside.pop(self.client, None)  # what it left there is ended a day later

    def retry(self) -> None:
        """Keep what there was no room for."""
        for name, share in self._shares.items():
            if share.shown:
                self._has_news(name)

    def overdue(self, held: HeldShare) -> str:
        """Return why a new share should wait no longer; empty if it should."""
        share = self._shares.get(held.definition.name)
        if share is None or share.is_joined or self.port.now - share.begun_at < ANSWER_NS:
            return ""
        return self._trouble or f"the sequencers did not answer within {ANSWER_NS // 10**9} s"

    def status(self, held: HeldShare) -> str:
        """Return what the share's order waits for; empty if nothing."""
        share = self._shares.get(held.definition.name)
        if share is None or self._application is None:
            return self._trouble or "its sequencers"
        waits_for = self._application.order_status().get(share.name, {}).get("waits_for", "")
        return str(waits_for) if share.is_joined else "its sequencers"

    # --- Facts of our own client

    def _on_session_fact(self, life: int, fact: object) -> None:
        if life != self._life or self._application is None:
            return
        self._application.on_fact(fact)
        if isinstance(fact, BookmarksKnown):
            self._end_leftovers()

    def _end_leftovers(self) -> None:
        """End subscriptions of shares that were cancelled while the sequencers were away."""
        bookmarks = None if self._session is None else self._session.bookmarks
        for name in [] if bookmarks is None else bookmarks.left:
            assert bookmarks is not None
            state = bookmarks.take(name)
            if state is not None:
                end_kept(bookmarks, name, decode_bookmark(state))

    def _on_fact(self, life: int, fact: object) -> None:
        if life != self._life:
            return
        if isinstance(fact, Misbehaviour):
            self.port.emit(fact)
            return
        share = self._by_name.get(getattr(fact, "subscription", ""))
        match fact:
            case Delivered() | OrderGap() | EventsGivenUp():
                if share is None:
                    (fact.ticket or NOTHING).done()
                else:
                    share.shown.append(fact)
                    self._has_news(share.held.definition.name)
            case _ if share is None:
                pass
            case SubscriptionAccepted() | SubscriptionChanged():
                share.is_joined = True
                self.listener.share_joined(share.held)
            case SubscriptionProgress(uncovered=uncovered):
                self.listener.share_covers(share.held, uncovered)
            case SubscriptionBroken(reason=reason):
                self._join_anew(share, reason)
            case SubscriptionFailed(reason=reason):
                if share.held.kept.is_open:
                    self._join_anew(share, reason)
                else:
                    self.listener.share_not_joined(share.held, reason)

    def _join_anew(self, share: OrderedShare, reason: str) -> None:
        """The order cannot go on: keep what it has shown, then subscribe anew. Events may be missing in between."""
        self._stop(share)
        share.name = ""
        self._take_all(share, anyway=True)
        share.held.missed += sum(fact.stretch.count for fact in share.shown if isinstance(fact, Delivered))
        share.shown.clear()
        self._fail(share, f"events may be missing, as the order is joined anew: {reason}")

    # --- Events

    def _has_news(self, name: str) -> None:
        if not self._news:
            self.port.set_timer((self.name, "take"), self.port.now)
        self._news[name] = None

    def _take_all(self, share: OrderedShare, *, anyway: bool = False) -> None:
        """Keep what was shown, as far as there is room."""
        try:
            while share.shown and (anyway or not share.held.kept.is_full):
                if isinstance(share.shown[0], Delivered):
                    self._take(share, MAX_BATCH)
                else:
                    self._miss(share, share.shown[0])
        except StoreError as error:
            self._report(share, str(error))
        self.listener.share_took(share.held)

    def _take(self, share: OrderedShare, limit: int) -> None:
        """Keep the next events, with the position after them, then acknowledge them."""
        batch = [
            fact for fact in islice(takewhile(_is_event, share.shown), limit) if isinstance(fact, Delivered)
        ]
        try:
            share.held.kept.take_in_order(
                [(fact.stretch, fact.out_of_order) for fact in batch],
                self._position(share, sum(fact.stretch.count for fact in batch)),
            )
        except WireError as error:
            if len(batch) > 1:
                self._take(share, 1)
                return
            self.port.emit(Misbehaviour(batch[0].stretch.source, f"an event was dropped: {error}"))
        for fact in batch:
            share.shown.popleft()
            (fact.ticket or NOTHING).done()

    def _position(self, share: OrderedShare, count: int) -> bytes:
        """Return the position when the next `count` events are kept."""
        reached = None
        if share.started and self._application is not None:
            reached = self._application.reached(share.name, count)
        return encode_position(Position(share.name, reached))

    def _miss(self, share: OrderedShare, gap: Shown) -> None:
        share.shown.popleft()
        if isinstance(gap, OrderGap):
            share.held.missed += gap.count
            self._report(share, f"{gap.count} numbers of its order are missing: {gap.reason}")
        elif isinstance(gap, EventsGivenUp):
            share.held.missed += gap.last - gap.first + 1
            source = f"{gap.source}: the network gave up events {gap.first} to {gap.last}"
            self._report(share, source)
        (gap.ticket or NOTHING).done()


def _is_event(fact: Shown) -> bool:
    return isinstance(fact, Delivered)
