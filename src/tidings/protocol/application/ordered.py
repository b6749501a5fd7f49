"""A subscription of the application with an order: between the service beneath and the ordering module.

For each entry of the layout that it needs it has a subscription in the service for all numbers there, and a second one
for what it wants as a whole, where that is not everything. The module is asked to join an entry once the whole network
knows these, and to leave it at once. When the module has joined all that is wanted, the change is complete.

What comes in one piece (an event, or a run of them) goes through the order in one piece: it is cut where something must
come between, and where the subscription does not select an event.

What the service keeps until it is done with is done with in the order in which it is shown: events when the application
says so, numbers without an event when all before them are. What is merely buffered here is granted, so that what it
waits for can come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import groupby

from tidings.model.errors import OrderError, SubscriptionRefused, WireError
from tidings.model.event import WHOLE, Publication
from tidings.model.run import Content, Run, Stretch, cut, look
from tidings.model.subscription import Interest, Order, Subscription, make_interest
from tidings.model.timestamp import Timestamp
from tidings.model.topics import TopicPattern
from tidings.protocol.application.beneath import END, NOTHING, Taking
from tidings.protocol.application.owner import Owner
from tidings.protocol.facts import (
    Delivered,
    EventsMissed,
    Misbehaviour,
    RunDelivered,
    SubscriptionAccepted,
    SubscriptionBroken,
    SubscriptionCancelled,
    SubscriptionChanged,
    SubscriptionFailed,
    SubscriptionProgress,
)
from tidings.protocol.sequencing.client import OrderingModule, Shown
from tidings.protocol.sequencing.layout import Layout, overlap
from tidings.protocol.sequencing.stamps import check_stamp
from tidings.protocol.sequencing.subscriber import MAX_BUFFERED, Patience
from tidings.structures.range_set import RangeSet

SLOW_READER_EVENTS = 1_024
"""What a reader has not taken of a service that loses nothing; beyond, that is told to wait."""
MOVED = "the client moved to another broker"


class _Entry:
    """An entry of the layout and what is held for it in the service."""

    __slots__ = ("following", "made", "numbers", "unaccepted", "whole")

    def __init__(self, numbers: Subscription, whole: Subscription | None) -> None:
        self.numbers = numbers
        self.whole = whole
        """What is wanted as a whole; None: everything comes so."""
        self.following: Subscription | None = None
        """What will be, once the network knows it."""
        self.made = 1
        self.unaccepted = {subscription.id for subscription in self.subscriptions}

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return tuple(each for each in (self.numbers, self.whole, self.following) if each is not None)


class _Held:
    """What the service notified of, with the number of its first event (or no-op)."""

    __slots__ = ("left", "number", "recovered_by", "stretch", "ticket")

    def __init__(self, stretch: Stretch, number: int, ticket: Taking, recovered_by: str) -> None:
        self.stretch = stretch
        self.number = number
        self.left = stretch.numbers
        """Numbers that are not released."""
        self.ticket = ticket
        self.recovered_by = recovered_by

    def cut(self, number: int, count: int) -> Stretch:
        """The events of these numbers."""
        first = self.stretch.first + number - self.number
        return cut(self.stretch, first, first + count - 1)

    def release(self, number: int, count: int) -> None:
        """These numbers are done with; no-ops are one event of the service, done with when all of them are."""
        self.left -= count
        if self.stretch.kind <= WHOLE:
            first = self.stretch.first + number - self.number
            self.ticket.done(first, first + count - 1)
        elif not self.left:
            self.ticket.done()


class _Turn:
    """What has had its turn in the order; the application's ticket, if it was shown."""

    __slots__ = ("_held", "_number", "_owner", "_undone", "count", "stamp")

    def __init__(
        self, owner: OrderedSubscription, held: _Held, stamp: Timestamp, count: int, *, waits: bool
    ) -> None:
        self._owner = owner
        self._held = held
        self._number = stamp.number
        """The first that is not released."""
        self.stamp = stamp
        self.count = count
        """Of what is not released."""
        self._undone: RangeSet | None = None
        """The sequences that the application is not done with; None: it was not shown."""
        if waits:
            first = held.stretch.first + stamp.number - held.number
            self._undone = RangeSet([(first, first + count)])

    def grant(self, first: int = 0, last: int = END) -> None:
        pass

    def done(self, first: int = 0, last: int = END) -> None:
        if self._undone:
            self._undone.remove(first, last + 1)
            self._owner.on_done()

    def release(self) -> int:
        """Release what can be, in order; how many numbers are left."""
        count = self.count
        if self._undone:
            assert self._undone.first is not None
            count = self._undone.first - self._held.stretch.first - (self._number - self._held.number)
        if count:
            self._held.release(self._number, count)
            self._number += count
            self.count -= count
        return self.count


class OrderedSubscription:
    def __init__(
        self,
        owner: Owner,
        subscription: Subscription,
        module: OrderingModule,
        by_key: dict[int, OrderedSubscription],
        *,
        patience: Patience | None,
        max_buffered: int = MAX_BUFFERED,
        strips: bool,
        hides: bool,
    ) -> None:
        self.id = subscription.id
        self.key: int | None = None
        """Of the module's subscriber, while there is one."""
        self._owner = owner
        self._subscription = subscription
        self._interest = self._settled = subscription.interest()
        """What is wanted, and what was when that was last complete."""
        self._module = module
        self._by_key = by_key
        """All of the application that have a key."""
        self._layout: Layout = module.layout
        self._patience = patience
        self._max_buffered = max_buffered
        self._strips = strips
        self._hides = hides
        self._wanted: frozenset[int] = frozenset()
        self._asked: frozenset[int] = frozenset()
        """What the module was asked for."""
        self._joining = 0
        """Changes that the module has not completed."""
        self._accepted = False
        """The first time that it was complete is past."""
        self._complete = True
        self._entries: dict[int, _Entry] = {}
        self._rank_of: dict[str, int] = {}
        self._made: dict[int, int] = {}
        """Rank -> how often it was joined."""
        self._turns: deque[_Turn] = deque()
        """What has had its turn and is not done with, or stands behind something that is not."""
        self._unread = 0
        """Numbers in them."""
        self._ungranted: list[Taking] = []

    # --- What is wanted

    def start(self) -> None:
        self._follow(self._interest)

    def change(self, topics: tuple[str, ...], condition: str | None) -> None:
        self._interest = make_interest(topics, condition)
        self._follow(self._interest)

    def rest(self) -> None:
        """No topics for the time being; `change` goes on. What it saw counts for what it will see."""
        self._follow(None)

    def abandon_change(self) -> None:
        """It is to be what it was; what it has left meanwhile it joins again."""
        if not self._complete:
            self._interest = self._settled
            self._follow(self._settled)

    def end(self) -> None:
        key = self._forget()
        if key is not None:
            self._module.end(key)
        for rank in sorted(self._entries):
            self._leave_entry(rank)

    def _follow(self, interest: Interest | None) -> None:
        topics = () if interest is None else interest.topics
        self._complete = False
        self._wanted = frozenset(self._layout.ranks_for(topics))
        left = self._asked - self._wanted
        if left and self.key is not None:
            self._asked -= left
            self._module.change(self.key, (), left)
        before = frozenset(self._entries)
        for rank in sorted(before - self._wanted):
            self._leave_entry(rank)
        for rank in sorted(before & self._wanted):
            self._adjust(self._entries[rank], rank, topics)
        for rank in sorted(self._wanted - before):
            self._enter(rank, topics)
        self._maybe_join()

    def _enter(self, rank: int, topics: tuple[TopicPattern, ...]) -> None:
        entry = self._entries[rank] = self._make_entry(rank, topics)
        for subscription in entry.subscriptions:
            self._rank_of[subscription.id] = rank
        for subscription in entry.subscriptions:
            self._owner.subscribe(self, subscription)

    def _adjust(self, entry: _Entry, rank: int, topics: tuple[TopicPattern, ...]) -> None:
        """Other events of an entry that stays are wanted as a whole: asked for beside those that were."""
        if entry.whole is None:
            return
        wanted = tuple(_within(topics, TopicPattern(self._layout.entry(rank))))
        if entry.following is not None:
            if (wanted, self._interest.sql) == (entry.following.topics, entry.following.filter):
                return
            self._drop(entry, entry.following)
            entry.following = None
        if (wanted, self._interest.sql) == (entry.whole.topics, entry.whole.filter):
            return
        entry.made += 1
        following = Subscription(f"{entry.numbers.id}?{entry.made}", wanted, self._interest.sql)
        entry.following = following
        entry.unaccepted.add(following.id)
        self._rank_of[following.id] = rank
        self._owner.subscribe(self, following)

    def _drop(self, entry: _Entry, subscription: Subscription) -> None:
        entry.unaccepted.discard(subscription.id)
        del self._rank_of[subscription.id]
        self._owner.unsubscribe(subscription.id)

    def _make_entry(self, rank: int, topics: tuple[TopicPattern, ...]) -> _Entry:
        self._made[rank] = self._made.get(rank, 0) + 1
        name = f"{self.id}@{rank}" + (f".{self._made[rank]}" if self._made[rank] > 1 else "")
        entry = self._layout.entry(rank)
        pattern = TopicPattern(entry)
        everything = self._interest.sql is None and any(topic.covers(pattern) for topic in topics)
        if everything and not self._hides:
            return _Entry(Subscription(name, (entry,)), None)
        numbers = Subscription(name, (entry,), headers=True)
        if not self._strips:  # everything comes whole, and is looked at here
            return _Entry(numbers, None)
        return _Entry(numbers, Subscription(f"{name}?", tuple(_within(topics, pattern)), self._interest.sql))

    def _leave_entry(self, rank: int) -> None:
        entry = self._entries.pop(rank)
        for subscription in entry.subscriptions:
            self._drop(entry, subscription)

    # --- How far the change is

    def _maybe_join(self) -> None:
        missing = self._wanted - self._asked
        if any(self._entries[rank].unaccepted for rank in missing):
            return
        if missing:
            if self.key is None:
                self.key = self._module.add_subscriber(self._patience, self._max_buffered, self)
                self._by_key[self.key] = self
            self._asked |= missing
            self._joining += 1
            self._module.change(self.key, missing)
        self._maybe_complete()

    def _maybe_complete(self) -> None:
        if self._complete or any(entry.unaccepted for entry in self._entries.values()):
            return
        if self._asked == self._wanted and not self._joining:
            self._complete = True
            self._settled = self._interest
            fact = SubscriptionChanged if self._accepted else SubscriptionAccepted
            self._accepted = True
            self._owner.emit(fact(self.id))

    def on_accepted(self, fact: SubscriptionAccepted) -> None:
        rank = self._rank_of.get(fact.subscription)
        if rank is None:
            return
        entry = self._entries[rank]
        entry.unaccepted.discard(fact.subscription)
        if entry.following is not None and entry.following.id == fact.subscription:
            before, entry.whole, entry.following = entry.whole, entry.following, None
            if before is not None:
                self._drop(entry, before)
        self._maybe_join()

    def on_failed(self, fact: SubscriptionFailed) -> None:
        self._owner.emit(SubscriptionFailed(self.id, fact.reason))

    def on_progress(self, fact: SubscriptionProgress) -> None:
        """An event that is published where the subscription is not known would be waited for in vain."""
        self._owner.emit(SubscriptionProgress(self.id, fact.uncovered))

    def on_cancelled(self, fact: SubscriptionCancelled) -> None:
        """One of several."""

    def on_joined(self) -> None:
        """By the module."""
        self._joining -= 1
        self._maybe_complete()

    # --- Events

    def on_delivered(self, fact: Delivered) -> None:
        self._take(fact.publication, fact.ticket or NOTHING, fact.recovered_by)

    def on_run(self, fact: RunDelivered) -> None:
        self._take(fact.run, fact.ticket or NOTHING, "")

    def _take(self, stretch: Stretch, ticket: Taking, recovered_by: str) -> None:
        stamp = stretch.stamp
        if stamp is None or self.key is None:  # published before anybody wanted an order, or before we did
            ticket.done()
            return
        try:
            self._check(stretch, stamp)
        except (OrderError, WireError) as error:
            ticket.done()
            self._owner.emit(Misbehaviour(stretch.source, f"{stretch} was left out: {error}"))
            return
        if self._unread < SLOW_READER_EVENTS:
            ticket.grant()
        else:
            self._ungranted.append(ticket)
        held = _Held(stretch, stamp.number, ticket, recovered_by)
        receive = self._module.receive if stretch.kind == WHOLE else self._module.receive_no_ops
        receive(self.key, stamp, held, stretch.numbers)

    def _check(self, stretch: Stretch, stamp: Timestamp) -> None:
        """OrderError or WireError unless a server could have given this stamp to these events."""
        layout = self._layout
        check_stamp(stamp, stretch.layout, stretch.numbers, of=layout.fingerprint, chain=layout.chain)
        if stretch.kind != WHOLE and not stretch.topic:
            return  # headers of events on several topics, without them
        topics = {stretch.topic} if stretch.topic else {content.topic for content in look(stretch)}
        if any(layout.rank_of(topic) != stamp.topic for topic in topics):
            raise OrderError(f"a timestamp of {layout.entry(stamp.topic)} for {', '.join(sorted(topics))}")

    def drop(self, event: object, number: int, count: int) -> None:
        """By the module: it will not be shown."""
        if isinstance(event, _Held):
            event.release(number, count)

    def pass_over(self, stamp: Timestamp, token: object, count: int) -> None:
        """By the module: the turn of numbers without events."""
        assert isinstance(token, _Held)
        self._append(token, stamp, count, waits=False)
        self.on_done()

    def on_shown(self, fact: Shown) -> None:
        """By the module. An entry of the layout may have other topics than those of the subscription."""
        held, stamp = fact.event, fact.stamp
        assert isinstance(held, _Held)
        number = stamp.number
        for count, is_selected in self._selected(held.cut(number, fact.count)):
            turn = self._append(held, stamp.at(number), count, waits=is_selected)
            if is_selected:
                self._show(held, turn, late=fact.out_of_order)
            number += count
        self.on_done()

    def _append(self, held: _Held, stamp: Timestamp, count: int, *, waits: bool) -> _Turn:
        turn = _Turn(self, held, stamp, count, waits=waits)
        self._turns.append(turn)
        self._unread += count
        return turn

    def _show(self, held: _Held, turn: _Turn, *, late: bool) -> None:
        stretch = held.cut(turn.stamp.number, turn.count)
        if isinstance(stretch, Run):
            self._owner.emit(RunDelivered(self.id, stretch, late, turn, turn.stamp))
        else:
            self._owner.emit(Delivered(self.id, stretch, late, held.recovered_by, turn, turn.stamp))

    def _selected(self, stretch: Stretch) -> list[tuple[int, bool]]:
        """How many of its events in a row are selected, or are not."""
        interest = self._interest
        try:
            if stretch.topic and interest.pattern is None:
                return [(stretch.count, interest.has_topic(stretch.topic))]
            contents = look(stretch)
        except WireError as error:
            self._leave_out(stretch, error)
            return [(stretch.count, False)]
        selected = (self._selects(stretch, content) for content in contents)
        return [(len(list(group)), is_selected) for is_selected, group in groupby(selected)]

    def _selects(self, stretch: Stretch, content: Content | Publication) -> bool:
        try:
            return self._interest.matches(content)
        except WireError as error:
            self._leave_out(stretch, error)
            return False

    def _leave_out(self, stretch: Stretch, error: WireError) -> None:
        self._owner.emit(Misbehaviour(stretch.source, f"an event was left out: {error}"))

    def on_done(self) -> None:
        turns = self._turns
        while turns:
            before = turns[0].count
            left = turns[0].release()
            self._unread -= before - left
            if left:
                break
            turns.popleft()
        if self._unread < SLOW_READER_EVENTS and self._ungranted:
            waiting, self._ungranted = self._ungranted, []
            for ticket in waiting:
                ticket.grant()

    # --- When it cannot go on

    def on_missed(self, fact: EventsMissed) -> None:
        """Those after what the service gave up would wait for ever, unless there is patience."""
        self._owner.emit(
            EventsMissed(
                self.id, fact.source, fact.incarnation, fact.first, fact.last, fact.certain, fact.ticket
            )
        )
        if fact.certain and self._patience is None:
            lost = f"events {fact.first} to {fact.last} of {fact.source}"
            if self.key is not None:
                self._module.end(self.key)
            self.on_broken(f"the service could not keep {lost}: the order cannot be continued")

    def on_broker_changed(self) -> None:
        if self.key is not None and self._patience is None:
            self._module.doubt(self.key, MOVED)

    def on_broken(self, reason: str) -> None:
        """Better an error than another order: nothing more is shown until the topics change."""
        self._forget()
        for rank in sorted(self._entries):
            self._leave_entry(rank)
        self._owner.emit(SubscriptionBroken(self.id, reason))

    def _forget(self) -> int | None:
        """The module's subscriber, which is returned, is ours no more."""
        self._wanted = self._asked = frozenset()
        self._joining = 0
        self._complete = True
        key, self.key = self.key, None
        if key is not None:
            del self._by_key[key]
        return key

    @property
    def status(self) -> dict[str, object]:
        if self.key is None:
            return {"buffered": 0, "waits_for": ""}
        return {"buffered": self._module.buffered(self.key), "waits_for": self._module.waits_for(self.key)}


def _within(topics: tuple[TopicPattern, ...], entry: TopicPattern) -> Iterator[str]:
    """Of the topics, what belongs to the entry."""
    if any(topic.covers(entry) for topic in topics):
        yield entry.text
        return
    yield from (topic.text for topic in topics if overlap(topic, entry))


def check_order(subscription: Subscription, layout: Layout, *, lossless: bool = True) -> None:
    """SubscriptionRefused if its order is not to be had from these sequencers."""
    if subscription.order is Order.CAUSAL and not layout.causal:
        raise SubscriptionRefused(
            "this network has total order, not causal order: start its sequencers with order causal"
        )
    uncovered = layout.uncovered(subscription.interest().topics)
    if uncovered:
        raise SubscriptionRefused(
            f"{', '.join(uncovered)}: events there may have no order; "
            f"topics that have one: {', '.join(layout.topics[:10])}{', ...' if len(layout.topics) > 10 else ''}"
        )
    if not layout.causal and not lossless:
        raise SubscriptionRefused(
            "this service may lose events: an order that survives that needs sequencers of order causal"
        )
