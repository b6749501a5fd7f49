"""Durable subscriptions and groups of a guaranteed broker: *shares*.

A share is a client that lives in one broker, its home. It attaches and subscribes as every client does, so the overlay
brings it every event exactly once and in the order of its source; it confirms an event once it is on disk. (In an order
across publishers, events come by way of ordered_shares.py.) Whoever attaches to the share gets events from there, and
acknowledges them there (held_share.py, kept_share.py). Clients of
other brokers attach through their own broker (far_shares.py).

The name of a share is unique in the network: with its events the share subscribes to a topic made of its name, which
nobody publishes on, so every broker's log says where the share is. A new share opens when every broker knows that
subscription. Of two that were created at once, both then know both, and the one at the first broker by name stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tidings.core.client.arrivals import Arrivals
from tidings.core.errors import FilterError, StoreError, SubscriptionRefused, TopicError, WireError
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import ORDERED, Order
from tidings.core.facts import Misbehaviour, ShareFailed
from tidings.core.kernel import Part, TimerName
from tidings.core.messages import Message, Notify, Subscribe, Subscribed, SubscribeFailed, Unsubscribe
from tidings.core.overlay.guaranteed.attendance import ASKER, Attendance
from tidings.core.overlay.guaranteed.far_links import FarLinks, FarMessage
from tidings.core.overlay.guaranteed.far_shares import FarShares, Question, failure
from tidings.core.overlay.guaranteed.former_home import FormerHome, Place
from tidings.core.overlay.guaranteed.held_share import EVENTS, Client, FarClient, HeldShare, Holder
from tidings.core.overlay.guaranteed.kept_share import KeptShare, stored_shares
from tidings.core.overlay.guaranteed.messages import Attach, Coverage, Missed, Notified
from tidings.core.overlay.guaranteed.ordered_share import OrderedShareListener
from tidings.core.overlay.guaranteed.ordered_shares import OrderedShares
from tidings.core.overlay.guaranteed.relays import RelayingPort
from tidings.core.overlay.guaranteed.share_backlog import TOO_MANY, Backlog
from tidings.core.overlay.guaranteed.share_definition import defined
from tidings.core.overlay.guaranteed.share_history import (
    HISTORY,
    HistoryListener,
    HistoryPosition,
    ShareHistories,
    history_row,
)
from tidings.core.overlay.guaranteed.share_messages import (
    NEW_START,
    ClientGone,
    MoveMessage,
    ShareAside,
    ShareAsideRequest,
    ShareAttach,
    ShareBack,
    ShareDone,
    ShareElsewhere,
    ShareEnd,
    ShareEnded,
    ShareInterrupted,
    ShareLeave,
    ShareLeft,
    ShareMessage,
    ShareReach,
    ShareRead,
    ShareRefused,
)
from tidings.core.overlay.guaranteed.share_moves import ShareMoves
from tidings.core.overlay.guaranteed.share_names import Home, ShareNames, name_topic
from tidings.core.overlay.guaranteed.subscription_log import LogEntry
from tidings.core.overlay.guaranteed.subscriptions import SubscriptionListener, Subscriptions
from tidings.core.store import Store

CHECK_NS = 1_000_000_000
"""How often leases are checked, and a full disk is tried again."""
MAX_SHARES = 10_000
MAX_HELD_PER_CLIENT = 10_000
"""How many durable subscriptions a client may have, and groups it may be a member of, each with every subscription."""


class Shares(Part, SubscriptionListener, OrderedShareListener, HistoryListener):
    name = "shares"
    handles = {
        ShareAttach: "on_share_attach",
        ShareDone: "on_share_done",
        ShareBack: "on_share_back",
        ShareLeave: "on_share_leave",
        ShareEnd: "on_share_end",
        ShareAsideRequest: "on_share_aside_request",
        ShareReach: "on_share_reach",
        ShareRead: "on_share_read",
    }

    def __init__(
        self,
        port: RelayingPort,
        subscriptions: Subscriptions,
        store: Store,
        links: FarLinks,
        ordered: OrderedShares,
        histories: ShareHistories,
        receive: Callable[[str, Message], None],
        gone: Callable[[str], None],
        *,
        incarnation: int,
    ) -> None:
        """`receive` takes the messages that shares send, as those of other clients; `gone` is told when one ends."""
        super().__init__(port)
        self._inside = port.inside
        self._receive = receive
        self._gone = gone
        self._subscriptions = subscriptions
        subscriptions.listeners.append(self)
        self._store = store
        self._incarnation = incarnation
        self._created = 0
        """How many shares this broker has created since it started."""
        self._links = links
        links.listener = self
        self._ordered = ordered
        ordered.listener = self
        self._histories = histories
        histories.listener = self
        self._far = FarShares(links, port.send)
        self._attendance = Attendance(links, lambda: port.now)
        self.shares: dict[str, HeldShare] = {}
        self._names = ShareNames(port.node)
        self._holds: dict[Client, dict[str, HeldShare]] = {}
        """Client -> its subscription -> the share that it is attached to, or waits for."""
        self._clients: dict[str, HeldShare | FormerHome] = {}
        """Client inside this broker -> who reads what arrives for it."""
        self._has_mail: dict[str, None] = {}
        self._has_room: dict[HeldShare, None] = {}
        """Shares whose holders were done with something in this turn."""
        self._backlog = Backlog()
        """What waits until the log has recovered, the archive or the sequencers answer, or a link to a home is up."""
        self._moves = ShareMoves(port, store, links, self, incarnation=incarnation)
        self.records_changed(list(subscriptions.log))
        for kept in stored_shares(store, port.now):
            self.shares[kept.definition.name] = HeldShare(kept.definition, kept, self._send, port.now)

    def start(self) -> None:
        for held in self.shares.values():
            self.enter(held)
        self._moves.start()
        self.port.set_timer((self.name, "check"), self.port.now + CHECK_NS)

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "mail":
            clients, self._has_mail = list(self._has_mail), {}
            for client in clients:
                self._read(client)
        elif name[1] == "room":
            shares, self._has_room = list(self._has_room), {}
            for held in shares:
                if self._is_here(held):
                    self._give(held)
        elif name[1] == "check":
            for held in list(self.shares.values()):
                self._check_lease(held)
                self._check_order(held)
                self._read_mail(held)  # again, if the disk was full
            self._ordered.retry()
            self._histories.check()
            self._moves.check()
            self._far.check(self.port.now)
            self._attendance.check()
            self._links.close_idle(self._peers())
            self.port.set_timer((self.name, "check"), self.port.now + CHECK_NS)
        elif name[2] in self.shares:
            self._give(self.shares[str(name[2])])

    def _send(self, client: Client, message: ShareMessage) -> None:
        if isinstance(client, FarClient):
            self._links.send(client.broker, client.client, message)
        else:
            self.port.send(client, message)

    # --- Names

    def records_changed(self, entries: Sequence[LogEntry]) -> None:
        self._names.learn(entries)

    def _elsewhere(self, name: str) -> Home | None:
        """Return where else a share of that name is."""
        return self._names.elsewhere(name, self._moves.whereabouts(name))

    def recovered(self) -> None:
        for client, message in self._backlog.take():
            self._ask(client, message)

    def _wait(self, client: Client, message: Question) -> None:
        if not self._backlog.add(client, message):
            self._send(client, failure(message, TOO_MANY))

    # --- Questions by name: to attach, to end a share, to see what it has set aside

    def on_share_attach(self, sender: Client, message: ShareAttach) -> None:
        self._ask(sender, message)

    def on_share_end(self, sender: Client, message: ShareEnd) -> None:
        self._ask(sender, message)

    def on_share_aside_request(self, sender: Client, message: ShareAsideRequest) -> None:
        self._ask(sender, message)

    def on_share_read(self, sender: Client, message: ShareRead) -> None:
        self._ask(sender, message)

    def _ask(self, client: Client, message: Question) -> None:
        if self._subscriptions.recovering:
            self._wait(client, message)
            return
        if isinstance(message, ShareAttach) and (reason := self._why_not(client, message)):
            self._send(client, failure(message, reason))
            return
        held = self.shares.get(message.name)
        home = None if held is not None else self._elsewhere(message.name)
        if home is not None and not isinstance(client, FarClient):
            self._ask_elsewhere(client, home[1], message)
        elif isinstance(message, ShareAttach):
            if home is None:
                self.attach(client, message)
            else:
                self._send(client, ShareElsewhere(message.subscription, message.name, home[0], *home[1]))
        elif held is None:
            what = "no durable subscription or group {!r} exists"
            if home is not None:
                what = "{!r} is moving to another broker: try again"
            self._send(client, failure(message, what.format(message.name)))
        elif isinstance(message, ShareEnd):
            self._end(held, f"client {client} cancelled {message.name!r}")
            self._send(client, ShareEnded(message.name))
        else:
            held.answer(client, message, self.port.node, self.port.now)
            self._give(held)

    def _why_not(self, client: Client, message: ShareAttach) -> str:
        """Return why the client cannot have this subscription; empty if it can."""
        mine = self._holds.get(client, {})
        held = mine.get(message.subscription)
        name = None if held is None else held.definition.name
        count = len(mine)
        if not isinstance(client, FarClient):
            name = name or self._far.name_of(client, message.subscription)
            count += self._far.count(client)
        if name not in (None, message.name):
            return f"subscription {message.subscription!r} is one of {name!r}: leave that first"
        if name is None and count >= MAX_HELD_PER_CLIENT:
            return f"a client may have at most {MAX_HELD_PER_CLIENT} durable subscriptions and memberships of groups"
        return ""

    def _ask_elsewhere(self, client: str, home: Place, message: Question) -> None:
        if isinstance(message, ShareAttach):
            self._far.attach(client, *home, message, self.port.now)
        elif not self._far.call(client, *home, message):
            self._wait(client, message)

    def attach(self, client: Client, message: ShareAttach) -> None:
        """Attach a client to a share here, which is created if it does not exist."""
        held = self.shares.get(message.name)
        if held is not None and held.frozen:
            self._moves.defer(client, message)
            return
        if not isinstance(client, FarClient):
            self._far.forget(client, message.subscription)
        try:
            if held is None and message.resumes:
                raise ValueError(
                    f"{message.name!r} is gone: it was cancelled, or nobody attached for too long"
                )
            if held is None and message.order in ORDERED and not self._ordered.prepare(message.order):
                self._wait(client, message)
                return
            position = None
            if held is None and message.start != NEW_START:
                position = self._histories.begin(message)
                if position is None:
                    self._wait(client, message)
                    return
            if held is None:
                held = self._create(message, position)
            removed = held.attach(client, message)
        except (FilterError, TopicError, ValueError, StoreError, SubscriptionRefused) as error:
            self._send(client, ShareRefused(message.subscription, str(error)))
            return
        for holder in removed:
            self._forget(holder)
        self._holds.setdefault(client, {})[message.subscription] = held
        held.admit(self.port.now)
        self._set_due(held)

    def _create(self, message: ShareAttach, position: HistoryPosition | None) -> HeldShare:
        if len(self.shares) >= MAX_SHARES:
            raise ValueError(f"a broker keeps at most {MAX_SHARES} durable subscriptions and groups")
        self._created += 1
        epoch = self._names.next_epoch(message.name, self._moves.whereabouts(message.name))
        life = (self.port.node, self._incarnation, self._created)
        definition = defined(message, life, epoch, self._incarnation)
        if definition.is_ordered:
            self._ordered.check(Order(definition.order))
        kept = KeptShare(definition, self._store)
        kept.create()
        if position is not None:
            kept.keep_position(history_row(position))
        held = self.shares[message.name] = HeldShare(definition, kept, self._send, self.port.now)
        self.enter(held)
        return held

    def unless_attended(self, entries: Iterable[LogEntry], nobody: Callable[[], None]) -> None:
        """Call `nobody`, now or later, if these records are all of shares that nobody is attached to."""
        homes: dict[str, Place] = {}
        for entry in entries:
            name = self._names.of_record(entry.id)
            if name is None:
                return
            held = self.shares.get(name)
            if held is not None:
                if held.is_attended(self.port.now):
                    return
            elif (home := self._elsewhere(name)) is not None:
                homes[name] = home[1]
            else:
                return
        self._attendance.ask(homes, nobody)

    # --- Holders

    def on_share_leave(self, sender: Client, message: ShareLeave) -> None:
        if not isinstance(sender, FarClient) and self._far.leave(sender, message.subscription, message):
            return
        self._moves.left(sender, message.subscription)
        self._backlog.take(
            lambda client, asked: (
                client == sender
                and isinstance(asked, ShareAttach)
                and asked.subscription == message.subscription
            )
        )
        held = self._forget((sender, message.subscription))
        if held is not None:
            held.remove((sender, message.subscription), self.port.now, message.unseen)
            self._give(held)
        self._send(sender, ShareLeft(message.subscription))

    def on_link_down(self, peer: str) -> None:
        self._backlog.take(lambda client, _: client == peer)
        self._client_gone(peer)
        self._far.client_gone(peer)

    def _client_gone(self, client: Client) -> None:
        """Detach a client that is gone."""
        self._moves.left(client)
        shares = self._holds.pop(client, {})
        for subscription, held in shares.items():
            held.remove((client, subscription), self.port.now)
        for held in dict.fromkeys(shares.values()):
            self._give(held)

    def _forget(self, holder: Holder) -> HeldShare | None:
        client, subscription = holder
        shares = self._holds.get(client, {})
        held = shares.pop(subscription, None)
        if not shares:
            self._holds.pop(client, None)
        return held

    def on_share_done(self, sender: Client, message: ShareDone) -> None:
        held = self._of(sender, message.subscription, message)
        if held is not None:
            self._give_soon(held)  # first, so that it is part of the commit of what this writes
            held.finish((sender, message.subscription), message.numbers, message.expired)

    def on_share_back(self, sender: Client, message: ShareBack) -> None:
        held = self._of(sender, message.subscription, message)
        if held is not None:
            held.take_back((sender, message.subscription), message, self.port.now)
            self._give(held)

    def on_share_reach(self, sender: Client, message: ShareReach) -> None:
        held = self._of(sender, message.subscription, message)
        if held is not None:
            held.reach((sender, message.subscription), message, self.port.now)

    def _of(self, client: Client, subscription: str, message: ShareMessage) -> HeldShare | None:
        """Return the share here that the client is attached to; pass the message on if it is elsewhere."""
        held = self._holds.get(client, {}).get(subscription)
        if held is not None and held.has((client, subscription)):
            return held
        if not isinstance(client, FarClient):
            self._far.forward(client, subscription, message)
        return None

    def _give_soon(self, held: HeldShare) -> None:
        """Give by the end of the turn, once for all who are done with something in it."""
        if not self._has_room:
            self.port.set_timer((self.name, "room"), self.port.now)
        self._has_room[held] = None

    def _give(self, held: HeldShare) -> None:
        held.give(self.port.now)
        self._set_due(held)
        self._histories.go_on(held)

    def _set_due(self, held: HeldShare) -> None:
        at = held.kept.queue.next_at
        if at is not None:
            self.port.set_timer((self.name, "due", held.definition.name), at)

    # --- Links to other brokers

    def far_up(self, broker: str) -> None:
        self._moves.far_up(broker)
        self._far.far_up(broker)
        self._attendance.far_up(broker)
        self.recovered()

    def _peers(self) -> set[str]:
        """Return the brokers whose links are needed: somebody is attached over them, or a share moves."""
        attached = {client.broker for client in self._holds if isinstance(client, FarClient)}
        return attached | self._far.homes | self._moves.peers

    def far_message(self, broker: str, client: str, message: FarMessage) -> None:
        sender = FarClient(broker, client)
        if isinstance(message, MoveMessage):
            self._moves.receive(broker, message)
        elif isinstance(message, ClientGone):
            self._client_gone(sender)
        elif isinstance(message, ShareElsewhere):
            self._redirect(broker, client, message)
        elif isinstance(message, ShareAside) and client.startswith(ASKER):
            self._attendance.heard(client, message)
        elif (handler := self.handles.get(message.__class__)) is not None:
            getattr(self, handler)(sender, message)
        else:
            self._far.far_message(client, message)

    def far_down(self, broker: str) -> None:
        self._backlog.take(lambda client, _: isinstance(client, FarClient) and client.broker == broker)
        for client in list(self._holds):
            if isinstance(client, FarClient) and client.broker == broker:
                self._client_gone(client)
        self._moves.far_down(broker)
        self._far.far_down(broker)
        self._attendance.far_down(broker)

    def _redirect(self, broker: str, client: str, message: ShareElsewhere) -> None:
        """That broker does not have the share, and says who has: the client must ask again."""
        place = Place(message.broker, tuple(message.label))
        self._names.redirect(message.name, broker, (message.epoch, place))
        self._far.forget(client, message.subscription)
        self._send(client, ShareInterrupted(message.subscription, message.broker))

    # --- Events in: the share as a client of this broker

    def enter(self, share: HeldShare | FormerHome) -> None:
        """Let the share, or what is left of it, subscribe as a client of this broker."""
        client, inbox, definition = share.client, share.inbox, share.definition
        self._clients[client] = share

        def post(message: Message) -> None:
            inbox.append(message)
            if not self._has_mail:
                self.port.set_timer((self.name, "mail"), self.port.now)
            self._has_mail[client] = None

        self._inside[client] = post
        if definition.uses_archive:
            self._histories.clear(share)
        self._receive(client, Attach(self._incarnation, False))
        topics, condition = (*definition.topics, name_topic(definition)), definition.filter
        if definition.uses_archive or (isinstance(share, HeldShare) and definition.is_ordered):
            topics, condition = topics[-1:], None  # the name alone
        if isinstance(share, HeldShare) and definition.is_ordered:
            self._ordered.begin(share)
        self._receive(client, Subscribe(EVENTS, topics, condition, "none"))
        if definition.uses_archive:
            self._histories.enter(share)

    def exit(self, share: HeldShare | FormerHome) -> None:
        """End the client, and its subscriptions."""
        self._clients.pop(share.client, None)
        self._gone(share.client)  # first: nobody will acknowledge what is in its inbox
        self._receive(share.client, Unsubscribe(EVENTS))
        if share.definition.uses_archive:
            self._receive(share.client, Unsubscribe(HISTORY))
        self._gone(share.client)  # now without subscriptions: nothing of it stays
        self._inside.pop(share.client, None)

    def read_as(self, share: FormerHome) -> None:
        """Let a former home read what arrives for a share that was a home."""
        self._clients[share.client] = share
        self._read(share.client)

    def _read(self, client: str) -> None:
        share = self._clients.get(client)
        if isinstance(share, FormerHome):
            share.read(self.port.now)
            self.report(share)
        elif share is not None and self._is_here(share):
            self._read_mail(share)

    def go_on(self, share: HeldShare) -> None:
        self._read_mail(share)

    def report(self, share: HeldShare | FormerHome) -> None:
        """Tell the broker what the share is done with."""
        news = share.arrivals.news()
        if news is not None:
            self._receive(share.client, Notified(*news))

    def _read_mail(self, held: HeldShare) -> None:
        """Handle what arrived for the share, while it is one; stop at what there is no room for."""
        while self._is_here(held) and held.inbox and not held.frozen:
            try:
                if not self._handle(held, held.inbox[0]):
                    break
            except StoreError as error:
                self.port.emit(ShareFailed(held.definition.name, str(error)))
                break
            held.inbox.popleft()
        if self._is_here(held):
            self.report(held)
            self._give(held)

    def _is_here(self, held: HeldShare) -> bool:
        """Return False if the share has ended or left: nothing may be kept for it any more."""
        return self.shares.get(held.definition.name) is held

    def _handle(self, held: HeldShare, message: Message) -> bool:
        if held.reads_history and isinstance(message, Notify | Missed):
            return False  # first what its archive has
        match message:
            case Notify(stretch=stretch):
                if held.kept.is_full or (held.merged is not None and held.merged.is_full):
                    return False
                self._take(held, stretch)
            case Missed():
                held.missed += message.last - message.first + 1
                self.port.emit(ShareFailed(held.definition.name, _missed_text(message)))
                _done(held.arrivals, message.last, 1)
            case Subscribed(subscription=subscription):
                self._settled(held, subscription, ())
            case Coverage(subscription=subscription, uncovered=uncovered):
                self._settled(held, subscription, uncovered)
            case SubscribeFailed(subscription=subscription, reason=reason) if subscription != HISTORY:
                self._end(held, reason)
        return True

    def _take(self, held: HeldShare, stretch: Stretch) -> None:
        """Keep the events on disk, before the broker hears of it."""
        if held.merged is not None:
            notice = held.arrivals.arrive(stretch.first, stretch.count)
            held.merged.arrived(stretch, notice)
            notice.close()
            if held.trouble:
                self.port.emit(ShareFailed(held.definition.name, held.trouble))
                held.trouble = ""
            return
        try:
            held.kept.take(stretch)
        except WireError as error:
            self.port.emit(Misbehaviour(stretch.source, str(error)))
        _done(held.arrivals, stretch.first, stretch.count)

    def _settled(self, held: HeldShare, subscription: str, uncovered: tuple[str, ...]) -> None:
        """These brokers do not know what the share wants."""
        uncovered = held.cover(subscription, uncovered)
        held.covered_at = None if uncovered else (held.covered_at or self.port.now)
        if not held.definition.is_ordered:
            self.share_covers(held, uncovered)
        self._maybe_open(held)

    def _maybe_open(self, held: HeldShare) -> None:
        """Open a new share when every broker knows it and, if it has an order, the sequencers do."""
        joined = held.is_joined or not held.definition.is_ordered
        if held.kept.is_open or held.covered_at is None or not joined:
            return
        other = self._elsewhere(held.definition.name)
        own = (-held.definition.epoch, self.port.node)
        if other is not None and (-other[0], other[1].broker) < own:
            self._yield(held, other[1])
            return
        held.kept.open()
        held.admit(self.port.now)
        self._set_due(held)
        self._histories.go_on(held)

    def _yield(self, held: HeldShare, home: Place) -> None:
        """Another broker created the share at the same time, and keeps it: send everybody there who waits here."""
        waiting = list(held.waiting.values())
        held.waiting.clear()
        for (client, subscription), message in waiting:
            self._forget((client, subscription))
            if isinstance(client, FarClient):
                self._send(client, ShareInterrupted(subscription, home.broker))
            else:
                self._ask_elsewhere(client, home, message)
        self._end(held, "")

    # --- Histories

    def history_found(self) -> None:
        self.recovered()

    def history_took(self, held: HeldShare) -> None:
        self._read_mail(held)

    # --- Orders across publishers

    def order_found(self) -> None:
        self.recovered()

    def order_missing(self, reason: str) -> None:
        """Refuse whoever waits for a share that needs the sequencers."""
        waiting = self._backlog.take(
            lambda _, asked: (
                isinstance(asked, ShareAttach) and asked.order in ORDERED and asked.name not in self.shares
            )
        )
        for client, message in waiting:
            self._send(client, failure(message, reason))

    def share_joined(self, held: HeldShare) -> None:
        held.is_joined = True
        self.share_covers(held, ())
        self._maybe_open(held)

    def share_covers(self, held: HeldShare, uncovered: tuple[str, ...]) -> None:
        if held.uncovered != uncovered:
            held.uncovered = uncovered
            held.tell_coverage()

    def share_took(self, held: HeldShare) -> None:
        self._give(held)

    def share_not_joined(self, held: HeldShare, reason: str) -> None:
        self._end(held, reason)

    def _check_order(self, held: HeldShare) -> None:
        """Refuse whoever waits for a new share while only the sequencers do not answer."""
        waits = bool(held.waiting) and held.covered_at is not None and not held.uncovered
        reason = self._ordered.overdue(held) if waits else ""
        if reason:
            for holder in held.end(reason):
                self._forget(holder)

    # --- The end of a share

    def _check_lease(self, held: HeldShare) -> None:
        if held.is_free and held.kept.is_open and not held.frozen and held.lease_left_ns(self.port.now) <= 0:
            lost = held.kept.queue.count
            name = held.definition.name
            self.port.emit(ShareFailed(name, f"its lease is over; {lost} events were waiting"))
            self._end(held, f"the lease of {name!r} is over")

    def _end(self, held: HeldShare, reason: str) -> None:
        """End the share, and tell everybody who is attached."""
        if held.frozen:
            self._moves.give_up(held)
        for holder in held.end(reason):
            self._forget(holder)
        del self.shares[held.definition.name]
        self._ordered.end(held)
        self._histories.end(held)
        held.kept.erase()
        self.exit(held)
        self._moves.ended(held)

    def interrupt(self, share: HeldShare, home: str) -> None:
        """Detach everybody, who will attach again."""
        for holder in share.present:
            share.remove(holder, self.port.now)
            self._forget(holder)
            self._send(holder[0], ShareInterrupted(holder[1], home))

    def tell(self, client: Client, message: ShareMessage) -> None:
        self._send(client, message)

    # --- Status

    def status(self) -> list[dict[str, object]]:
        """Return what `tidings subscriptions` shows, by name: the shares of this broker."""
        return [self._status(held) for _, held in sorted(self.shares.items())]

    def _status(self, held: HeldShare) -> dict[str, object]:
        row = held.status(self.port.node, self.port.now)
        if held.definition.is_ordered:
            row["waits_for"] = self._ordered.status(held)
        elif held.reads_history:
            row["waits_for"] = self._histories.status(held)
        return row

    def end_former_homes(self) -> list[str]:
        """Stop sending on what comes for shares that were here; return the names of those for which that cannot be."""
        return self._moves.end_formers()

    def moved_away(self) -> list[dict[str, object]]:
        """Return the names of the shares that were here and whose events may still come here, and where they are."""
        return self._moves.status()

    @property
    def names(self) -> Iterator[str]:
        """The names of the shares of the whole network, as far as this broker knows."""
        yield from self.shares
        yield from (name for name in self._names if name not in self.shares and self._elsewhere(name))

    def row(self, name: str) -> dict[str, object]:
        """Return what `tidings subscriptions` shows of a share; of one of another broker, where it is."""
        held = self.shares.get(name)
        if held is not None:
            return self._status(held)
        home = self._elsewhere(name)
        return {"name": name, "broker": "" if home is None else home[1].broker}

    @property
    def count(self) -> int:
        return len(self.shares)


def _done(arrivals: Arrivals, first: int, count: int) -> None:
    notice = arrivals.arrive(first, count)
    notice.close()


def _missed_text(message: Missed) -> str:
    return f"the network gave up events {message.first} to {message.last} of {message.source}"
