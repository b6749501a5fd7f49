"""The clients of a guaranteed broker: their subscriptions, what they publish, and what they have acknowledged.

A client's subscription uses a record of the subscription log. Equal subscriptions share a record, and a subscription
that a complete record covers uses that one: it holds at once, because everything it selects already comes here.
Subscriptions are on disk and survive restarts of the broker. A broker that lost its disk gets its records back from its
neighbours, and keeps what arrives for them for a while, until the clients subscribe again.

Publishers stamp what they publish with the position up to which this broker's log certifies it. The broker claims a
record as known here only when all its publishers stamp accordingly (core/overlay/guaranteed/subscriptions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tidings.core.errors import FilterError, StoreCorrupt, StoreError, TopicError
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.events.topics import NAME_TOPIC
from tidings.core.facts import Misbehaviour
from tidings.core.filters.matching.cover_index import CoverIndex
from tidings.core.kernel import Part, TimerName
from tidings.core.messages import (
    PublishFailed,
    Status,
    StatusRequest,
    Subscribe,
    SubscribeAfterHistory,
    Subscribed,
    SubscribeFailed,
    Unsubscribe,
    Unsubscribed,
)
from tidings.core.overlay.edge import MAX_SUBSCRIPTIONS_PER_CLIENT, check_subscription
from tidings.core.overlay.guaranteed.bookmarks import KeptBookmarks
from tidings.core.overlay.guaranteed.delivery import Delivery
from tidings.core.overlay.guaranteed.local_subscriptions import (
    UNKNOWN_CLIENT,
    ClientSubscription,
    LocalSubscriptions,
)
from tidings.core.overlay.guaranteed.messages import (
    Attach,
    Attached,
    Baseline,
    Coverage,
    Drain,
    Notified,
    Stamp,
    Stamped,
    StampTaken,
)
from tidings.core.overlay.guaranteed.queued import LocalClient
from tidings.core.overlay.guaranteed.relays import RelayingPort
from tidings.core.overlay.guaranteed.sessions import Sessions
from tidings.core.overlay.guaranteed.subscription_log import LogEntry
from tidings.core.overlay.guaranteed.subscriptions import PublisherStamps, SubscriptionListener, Subscriptions
from tidings.core.store import Change, Store
from tidings.core.structures.ranges import Ranges

ORPHAN_NS = 15_000_000_000
"""After a broker lost its disk, how long records are kept whose clients have not subscribed again."""
ABSENT_NS = 24 * 3_600 * 1_000_000_000
"""How long the subscriptions of an absent client, and everything that waits for them, are kept."""
SHORT_ABSENT_NS = 60_000_000_000
"""The same for a client whose name nobody will use again."""
ABSENT_CHECK_NS = 15_000_000_000
MAX_AHEAD = 1_000_000
"""How far a client's sequence may jump ahead; more is taken for a mistake."""
MAX_UNCOVERED_SHOWN = 64
MAX_BASELINE = 4_096
"""How many flows a Baseline lists, the most recent ones."""


class Attachment:
    """One client, connected or absent."""

    __slots__ = (
        "attached",
        "away_since",
        "done_held_back",
        "draining",
        "incarnation",
        "lasting",
        "publishes",
        "stamp_sent",
        "stamp_taken",
        "subscriptions",
    )

    def __init__(self, now: int) -> None:
        self.attached = False
        self.away_since = now
        self.incarnation = 0
        self.lasting = True
        self.publishes = False
        self.stamp_sent = self.stamp_taken = 0
        self.subscriptions: dict[str, ClientSubscription] = {}
        self.draining: dict[str, int] = {}
        """Ended subscriptions for which publications still wait, with the serial of the last one."""
        self.done_held_back: Ranges = ()
        """Notifications that it is done with, held back while the disk has no room for its bookmark."""


class StoredSubscription(msgspec.Struct, array_like=True, frozen=True):
    client: str
    subscription: str
    topics: tuple[str, ...]
    filter: str | None
    record: str
    headers: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode_stored = msgspec.msgpack.Decoder(StoredSubscription).decode


class Attachments(Part, SubscriptionListener):
    name = "attachments"
    handles = {
        Attach: "on_attach",
        StampTaken: "on_stamp_taken",
        Stamped: "on_stamped",
        Notified: "on_notified",
        Subscribe: "on_subscribe",
        SubscribeAfterHistory: "on_subscribe",
        Unsubscribe: "on_unsubscribe",
        Drain: "on_drain",
        StatusRequest: "on_status_request",
    }

    def __init__(
        self,
        port: RelayingPort,
        sessions: Sessions,
        subscriptions: Subscriptions,
        local: LocalSubscriptions,
        stamps: PublisherStamps,
        delivery: Delivery,
        bookmarks: KeptBookmarks,
        store: Store,
        *,
        describe: Callable[[], dict[str, object]],
    ) -> None:
        """`describe` returns the broker's status."""
        super().__init__(port)
        self._inside = port.inside
        self._bookmarks = bookmarks
        self.clients: dict[str, Attachment] = {}
        self._describe = describe
        self._stamps = stamps
        subscriptions.listeners.append(self)
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._log = subscriptions.log
        self._local = local
        self._delivery = delivery
        self._store = store
        self._records: dict[Interest, str] = {}
        """Our own live record for each interest."""
        self._silent_records: dict[Interest, str] = {}
        """The same for archives. Nothing else hides behind them, for it might answer requests."""
        self._complete = CoverIndex()
        self._covering: dict[Interest, None] = {}
        self._held_back: list[tuple[str, Attach | Subscribe | Unsubscribe | Drain]] = []
        self.archive: tuple[str, str] | None = None
        """The client that records this broker's archive, and its subscription; None if there is none."""
        self._load()

    def _load(self) -> None:
        for key, value in self._store.read("clients"):
            try:
                stored = _decode_stored(value)
                interest = make_interest(stored.topics, stored.filter)
            except (msgspec.MsgspecError, FilterError, TopicError) as error:
                raise StoreCorrupt(f"subscription {key!r} does not decode: {error}") from None
            held = ClientSubscription(interest, stored.record, headers=stored.headers)
            self._hold(stored.client, stored.subscription, held)
        for client in self._bookmarks.clients:  # bookmarks count even without a subscription
            self._client(client)
        self._find_orphans()

    def _hold(self, client: str, subscription: str, held: ClientSubscription) -> None:
        self._client(client).subscriptions[subscription] = held
        self._local.add(client, subscription, held)

    def _find_orphans(self) -> None:
        """Find our records that no subscription uses: their clients have not subscribed again, and cannot before the
        log is complete."""
        name = self._sessions.neighbourhood.name
        own = [entry for entry in self._log if entry.record.broker == name and not entry.dead]
        for entry in own:
            self._records_of(silent=entry.silent)[entry.interest] = entry.id
        found = [entry.id for entry in own if entry.id not in self._local.users]
        self._local.set_orphans([*self._local.orphans, *found])
        if self._local.orphans and not self._subscriptions.recovering:
            self.port.set_timer((self.name, "orphans"), self.port.now + ORPHAN_NS)

    def _records_of(self, *, silent: bool) -> dict[Interest, str]:
        return self._silent_records if silent else self._records

    def start(self) -> None:
        self.port.set_timer((self.name, "absent"), self.port.now + ABSENT_CHECK_NS)

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "absent":
            self._end_absent()
        else:
            self._end_orphans()

    def _end_absent(self) -> None:
        for name, client in list(self.clients.items()):
            limit_ns = ABSENT_NS if client.lasting else SHORT_ABSENT_NS
            is_absent = not client.attached and name not in self._inside
            if is_absent and self.port.now - client.away_since > limit_ns:
                for subscription in [*client.subscriptions, *client.draining]:
                    self.on_unsubscribe(name, Unsubscribe(subscription))
                self._bookmarks.forget(name)
                if not client.subscriptions:
                    del self.clients[name]
        self.port.set_timer((self.name, "absent"), self.port.now + ABSENT_CHECK_NS)

    def _end_orphans(self) -> None:
        """Stop waiting for clients of orphaned records that have not returned by now."""
        orphans = self._local.orphans
        self._local.set_orphans([])
        for record_id in orphans:
            self._delivery.client_wants_no_more(UNKNOWN_CLIENT + record_id, "")
            if not self._local.users.get(record_id):
                self._end_record(record_id)

    # --- Coming and going

    def on_attach(self, sender: str, message: Attach) -> None:
        if self._subscriptions.recovering:
            self._held_back.append((sender, message))
            return
        client = self._client(sender)
        client.incarnation = message.incarnation
        client.publishes = message.publishes
        client.lasting = message.lasting
        client.stamp_sent = client.stamp_taken = self._log.position
        if client.publishes:
            self._stamps.set(sender, client.stamp_taken)
        else:
            self._stamps.remove(sender)
        for bookmark in self._bookmarks.of(sender):
            self.port.send(sender, bookmark)
        self.port.send(sender, Attached(self._delivery.generation, self._log.position, self._delivery.window))
        if not client.attached:
            client.attached = True
            self._delivery.client_ready(sender)

    @property
    def recovering(self) -> bool:
        """True while this broker has no complete log to give to others."""
        return self._subscriptions.recovering

    def recovered(self) -> None:
        """The log is complete again: serve the clients that were held back."""
        self._find_orphans()
        waiting, self._held_back = self._held_back, []
        for sender, message in waiting:
            if isinstance(message, Attach):
                self.on_attach(sender, message)
            elif isinstance(message, Subscribe):
                self.on_subscribe(sender, message)
            elif isinstance(message, Unsubscribe):
                self.on_unsubscribe(sender, message)
            else:
                self.on_drain(sender, message)

    def on_link_down(self, peer: str) -> None:
        self._held_back = [waiting for waiting in self._held_back if waiting[0] != peer]
        client = self.clients.get(peer)
        if client is None:
            return
        if client.attached:
            client.attached = client.publishes = False
            self._stamps.remove(peer)
            client.done_held_back = ()
            client.away_since = self.port.now
            self._delivery.client_gone(peer)
            self._subscriptions.claim()
        for held in client.subscriptions.values():
            held.shown = None
        if not client.subscriptions and not client.draining and not self._bookmarks.has(peer):
            del self.clients[peer]

    def on_notified(self, sender: str, message: Notified) -> None:
        done = self._forgettable(sender, message.done)
        if not self._delivery.client_took(sender, message.granted, done):
            last = max((message.granted, *(last for _, last in done)))
            self.port.emit(Misbehaviour(sender, f"acknowledges notification {last}, which it was never sent"))
            return
        client = self.clients.get(sender)
        if client is not None and client.draining:
            self._end_drained(sender, client)

    def _forgettable(self, sender: str, done: Ranges) -> Ranges:
        """Return what may be forgotten. Hold back everything while the client's bookmark does not fit on disk."""
        client = self.clients.get(sender)
        if client is None:
            return done
        if client.done_held_back:
            done, client.done_held_back = (*client.done_held_back, *done), ()
        if not self._bookmarks.write(sender):
            done, client.done_held_back = (), done
        return done

    def _client(self, name: str) -> Attachment:
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = Attachment(self.port.now)
        return client

    # --- Stamps

    def records_changed(self, entries: Sequence[LogEntry]) -> None:
        if self._subscriptions.recovering:  # whoever sent us these may already forward what they select
            self._find_orphans()
        for name, client in self.clients.items():
            if client.attached and client.publishes and client.stamp_sent == client.stamp_taken:
                self._send_stamp(name, client)

    def _send_stamp(self, name: str, client: Attachment) -> None:
        """Send the current stamp. One is in flight at a time; the next catches up."""
        if client.stamp_sent < self._log.position:
            client.stamp_sent = self._log.position
            self.port.send(name, Stamp(self._delivery.generation, client.stamp_sent))

    def on_stamp_taken(self, sender: str, message: StampTaken) -> None:
        client = self.clients.get(sender)
        if client is None or message.position > client.stamp_sent:
            return
        client.stamp_taken = max(client.stamp_taken, message.position)
        if client.attached and client.publishes:
            self._stamps.set(sender, client.stamp_taken)
        if client.stamp_taken == client.stamp_sent:
            self._send_stamp(sender, client)
        self._subscriptions.claim()

    # --- Publishing

    def on_stamped(self, sender: str, message: Stamped) -> None:
        client = self.clients.get(sender)
        if client is None or not client.attached or not client.publishes:
            self.port.emit(Misbehaviour(sender, "publishes without having attached as a publisher"))
            return
        stretch = message.stretch
        reason = self._refusal(sender, message)
        if reason is None:
            self._delivery.publish(sender, message.generation, message.stamp, stretch)
            return
        self.port.emit(Misbehaviour(sender, reason))
        for sequence in range(stretch.first, stretch.last + 1):
            self.port.send(sender, PublishFailed(sequence, reason))

    def _refusal(self, client: str, message: Stamped) -> str | None:
        stretch = message.stretch
        if stretch.source != client:
            return f"client {client!r} may not publish as {stretch.source!r}"
        if message.generation == self._delivery.generation and message.stamp > self._log.position:
            position = self._log.position
            return (
                f"publication {stretch.first} has stamp {message.stamp}, beyond the log's end at {position}"
            )
        flow = (self._sessions.neighbourhood.name, stretch.source, stretch.incarnation)
        seen = self._delivery.seen.get(flow)
        if seen is not None and stretch.last > seen + MAX_AHEAD:
            return f"publication {stretch.last} is too far ahead of the last one, {seen}"
        return None

    # --- Subscribing

    def on_subscribe(self, sender: str, message: Subscribe) -> None:
        if self._subscriptions.recovering:
            self._held_back.append((sender, message))
            return
        client = self._client(sender)
        held = client.subscriptions.get(message.subscription)
        try:
            if held is not None and held.incarnation < client.incarnation:
                held = self._take_over(sender, message, held)
            if held is None:
                interest = check_subscription(message, None)
            else:
                interest = check_subscription(message, held.interest, headers=held.headers)
            if held is None and len(client.subscriptions) >= MAX_SUBSCRIPTIONS_PER_CLIENT:
                raise ValueError(f"a client may have at most {MAX_SUBSCRIPTIONS_PER_CLIENT} subscriptions")
            if held is None:
                held = self._add(sender, message, interest)
        except (FilterError, TopicError, ValueError, StoreError) as error:
            self.port.send(sender, SubscribeFailed(message.subscription, str(error)))
            return
        held.incarnation = client.incarnation
        if held.joined:
            # If a sender or this broker restarts, the record brings older publications again. This subscription
            # must not get these: it would not get all of them.
            recent = tuple(self._delivery.recent_flows(MAX_BASELINE))
            self.port.send(sender, Baseline(message.subscription, recent))
        held.shown = None
        self._show(sender, message.subscription, held)

    def _take_over(
        self, client: str, message: Subscribe, held: ClientSubscription
    ) -> ClientSubscription | None:
        """After a restart of the client, keep an equal subscription and remove a different one."""
        interest = check_subscription(message, None)
        after_history = isinstance(message, SubscribeAfterHistory)
        elsewhere = after_history and self._archive_record(interest) not in (None, held.record)
        if held.interest == interest and held.headers == message.headers and not elsewhere:
            return held
        self._remove(client, message.subscription, held, drain=False)
        return None

    def _add(self, client: str, message: Subscribe, interest: Interest) -> ClientSubscription:
        after_history = isinstance(message, SubscribeAfterHistory)
        record_id = self._archive_record(interest) if after_history else None
        if record_id is None:
            silent = self.archive == (client, message.subscription)
            record_id = self._record_for(interest, silent=silent, after_history=after_history)
        held = ClientSubscription(interest, record_id, headers=message.headers)
        # Whoever returns after this broker lost its disk gets all that is kept for it, so nothing is too old.
        held.joined = record_id in self._local.users and record_id not in self._local.orphans
        topics = tuple(topic.text for topic in interest.topics)
        stored = StoredSubscription(
            client, message.subscription, topics, interest.sql, record_id, message.headers
        )
        try:
            self._store.write([("clients", _key(client, message.subscription), _encode(stored))])
        except StoreError:
            if record_id not in self._local.users and record_id not in self._local.orphans:
                self._end_record(record_id)
            raise
        self._hold(client, message.subscription, held)
        if record_id in self._local.orphans:
            self._delivery.adopt(UNKNOWN_CLIENT + record_id, client, message.subscription, interest)
        return held

    @property
    def archive_subscription(self) -> ClientSubscription | None:
        """What this broker's archive records; None if it has none."""
        client = None if self.archive is None else self.clients.get(self.archive[0])
        return None if client is None or self.archive is None else client.subscriptions.get(self.archive[1])

    def _archive_record(self, interest: Interest) -> str | None:
        """Return the id of the archive's record if it covers the interest, complete or not: a subscription that uses it
        gets everything that the archive gets from now on."""
        held = self.archive_subscription
        return held.record if held is not None and held.interest.covers(interest) else None

    def _record_for(self, interest: Interest, *, silent: bool, after_history: bool) -> str:
        """Return the id of an equal record, a complete one that covers it, an orphan that does, or a new one. Archives
        have silent ones."""
        records = self._records_of(silent=silent)
        record_id = records.get(interest)
        if record_id is not None:
            return record_id
        is_name = names_share(interest)
        wider = None if is_name or silent else self._complete.find(interest)
        if wider is not None:
            return self._records[wider]
        orphans = () if is_name else self._local.orphans
        for orphan in orphans:  # the subscription may have used it before our disk was lost
            entry = self._log.get(orphan)
            if entry is None or not entry.interest.covers(interest):
                continue
            if entry.silent == silent or (entry.silent and after_history):
                return orphan
        record_id = self._subscriptions.next_own_id()
        records[interest] = record_id
        try:
            self._subscriptions.add_own(record_id, interest, silent=silent)
        except StoreError:
            del records[interest]
            raise
        return record_id

    def on_unsubscribe(self, sender: str, message: Unsubscribe) -> None:
        client, name = self._client(sender), message.subscription
        if not self._end(sender, message, drain=False):
            return
        if client.draining.pop(name, None) is not None:
            self._delivery.client_wants_no_more(sender, name)
        self.port.send(sender, Unsubscribed(name))

    def on_drain(self, sender: str, message: Drain) -> None:
        client, name = self._client(sender), message.subscription
        if not self._end(sender, message, drain=True):
            return
        last = self._delivery.last_for(sender, name)
        if last:
            client.draining[name] = last
        else:
            self.port.send(sender, Unsubscribed(name))

    def _end(self, sender: str, message: Unsubscribe | Drain, *, drain: bool) -> bool:
        """End the subscription. Return False if that must wait."""
        if self._subscriptions.recovering:
            self._held_back.append((sender, message))
            return False
        held = self._client(sender).subscriptions.get(message.subscription)
        if held is not None:
            try:
                self._remove(sender, message.subscription, held, drain=drain)
            except StoreError:
                return False  # the client asks again
        return True

    def _end_drained(self, name: str, client: Attachment) -> None:
        """Report ended subscriptions as unsubscribed once the client is done with everything that waited for them."""
        oldest = self._delivery.hops.oldest(LocalClient(name))
        for subscription, last in list(client.draining.items()):
            if oldest is None or oldest > last:
                del client.draining[subscription]
                self.port.send(name, Unsubscribed(subscription))

    def _remove(self, client: str, subscription: str, held: ClientSubscription, *, drain: bool) -> None:
        """Remove the subscription. With `drain`, what already waits for it is still delivered."""
        changes: list[Change] = [("clients", _key(client, subscription), None)]
        self._store.write(changes)
        del self.clients[client].subscriptions[subscription]
        if not drain:
            self._delivery.client_wants_no_more(client, subscription)
        if self._local.remove(client, subscription, held) and held.record not in self._local.orphans:
            self._end_record(held.record)

    def _end_record(self, record_id: str) -> None:
        self._local.users.pop(record_id, None)
        entry = self._log.get(record_id)
        if entry is None or entry.dead:
            return
        del self._records_of(silent=entry.silent)[entry.interest]
        if not entry.silent and entry.interest in self._covering:
            del self._covering[entry.interest]
            self._complete.remove(entry.interest)
        self._subscriptions.end_own(entry)

    # --- Coverage of subscriptions

    def progressed(self, entry: LogEntry) -> None:
        """More brokers know one of our records."""
        is_wide = entry.cover.is_everything and not entry.silent and not names_share(entry.interest)
        if is_wide and entry.interest not in self._covering:
            self._covering[entry.interest] = None
            self._complete.add(entry.interest)
        for (client, subscription), held in list(self._local.users.get(entry.id, {}).items()):
            self._show(client, subscription, held)

    def _show(self, client: str, subscription: str, held: ClientSubscription) -> None:
        """Report to the client which brokers are uncovered, if that changed; if none, its subscription is complete."""
        entry = self._log.get(held.record)
        if entry is None or not self.clients[client].attached:
            return
        complete = entry.cover.is_everything or (entry.closed and not entry.dead)
        if complete:
            if held.shown != ():
                held.shown = ()
                held.joined = False
                self.port.send(client, Subscribed(subscription))
        elif self._subscriptions.is_settled(entry):
            uncovered = tuple(self._subscriptions.uncovered(entry, MAX_UNCOVERED_SHOWN))
            if held.shown != uncovered:
                held.shown = uncovered
                self.port.send(client, Coverage(subscription, uncovered))

    def incomplete(self) -> list[tuple[str, str, list[str]]]:
        """Return (client, subscription, brokers that do not know it yet) for each incomplete subscription."""
        found = []
        for name, client in self.clients.items():
            for subscription, held in client.subscriptions.items():
                entry = self._log.get(held.record)
                if entry is not None and not (entry.cover.is_everything or entry.closed):
                    found.append(
                        (name, subscription, self._subscriptions.uncovered(entry, MAX_UNCOVERED_SHOWN))
                    )
        return found

    def end_all(self) -> None:
        """End all subscriptions, because this broker leaves."""
        for name, client in self.clients.items():
            for subscription in list(client.subscriptions):
                self.on_unsubscribe(name, Unsubscribe(subscription))
        self._end_orphans()

    def on_status_request(self, sender: str, message: StatusRequest) -> None:
        self.port.send(sender, Status(msgspec.json.encode(self._describe()).decode()))


def names_share(interest: Interest) -> bool:
    """Return True if the interest is that of a durable subscription or group."""
    return any(topic.text.startswith(NAME_TOPIC) for topic in interest.topics)


def _key(client: str, subscription: str) -> bytes:
    return f"{client}\0{subscription}".encode()
