"""An ordered subscription of the application, between the event service and the ordering module.

For each entry of the layout that it needs, it has a subscription in the service for all numbers and, unless it wants
all events, a second one for the events that it wants with their bodies. The module joins an entry once the whole
network knows these subscriptions, and leaves it at once. A change is complete when the module has joined all entries.

A notification (an event, or a run of events) passes through the order in one piece. It is cut only where something must
come between, and where the subscription does not select an event.

Notifications are done in the order in which they are shown: events when the application says so, numbers without an
event when all before them are. What is only buffered here is granted, so that what it waits for can be sent.

If the service loses events, or may have, the module finds out which numbers are missing for good. Then the gap is shown
once, and the subscription goes on: without these numbers or, where the order of the others could follow from them
alone, as a new subscriber of the module, with the same subscriptions in the service.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, groupby

from tidings.core.client.beneath import NOTHING, Taking
from tidings.core.client.bookmark import (
    Bookmark,
    Forms,
    KeptEntry,
    Progress,
    Reached,
    advanced,
    decode_bookmark,
    encode_bookmark,
    end_kept,
    entry_names,
    numbers_name,
    whole_name,
)
from tidings.core.client.gap_reports import GapReports
from tidings.core.client.owner import SubscriptionOwner
from tidings.core.client.turns import LOST, HeldStretch, LostNumbers, Turn
from tidings.core.errors import OrderError, SubscriptionRefused, WireError
from tidings.core.events.event import WHOLE, Publication
from tidings.core.events.run import Content, Stretch, look
from tidings.core.events.subscription import Interest, Order, Subscription, make_interest
from tidings.core.events.timestamp import Timestamp
from tidings.core.events.topics import TopicPattern
from tidings.core.facts import (
    Delivered,
    EventsGivenUp,
    Misbehaviour,
    OrderGap,
    SubscriptionAccepted,
    SubscriptionBroken,
    SubscriptionCancelled,
    SubscriptionChanged,
    SubscriptionFailed,
    SubscriptionProgress,
)
from tidings.core.ordering.layout import Layout, overlap
from tidings.core.ordering.module import (
    DOUBT_NS,
    GIVEN_UP_NS,
    DoubtOver,
    EventsShown,
    OrderBroken,
    OrderingModule,
)
from tidings.core.ordering.resuming import Resumption
from tidings.core.ordering.stamps import check_stamp
from tidings.core.ordering.subscriber import MAX_BUFFERED, Patience
from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks

SLOW_READER_EVENTS = 1_024
"""Numbers that had their turn and are not done; beyond, no further notifications are granted."""
MOVED = "the client moved to another broker"
GIVEN_UP = "the network could not keep all events"
NOT_RESUMED = "the subscription cannot resume after the restart"


class _Entry:
    """An entry of the layout, and its subscriptions in the service."""

    __slots__ = ("chosen", "following", "joined", "made", "numbers", "unaccepted", "whole")

    def __init__(
        self,
        joined: int,
        numbers: Subscription,
        whole: Subscription | None,
        *,
        chosen: int = 1,
        made: int = 1,
    ) -> None:
        self.joined = joined
        """How often the entry has been joined."""
        self.numbers = numbers
        self.whole = whole
        """For events with bodies; None: all events have them."""
        self.following: Subscription | None = None
        """Replaces `whole` once the network knows it."""
        self.chosen = chosen
        """The number of `whole`, if there is one; chosen <= made."""
        self.made = made
        """How many subscriptions for bodies were made."""
        self.unaccepted = {subscription.id for subscription in self.subscriptions}

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return tuple(each for each in (self.numbers, self.whole, self.following) if each is not None)


class OrderedSubscription:
    """Joins and leaves entries of the layout, and shows their events in order."""

    def __init__(
        self,
        owner: SubscriptionOwner,
        subscription: Subscription,
        module: OrderingModule,
        by_key: dict[int, OrderedSubscription],
        *,
        patience: Patience | None,
        max_buffered: int = MAX_BUFFERED,
        strips: bool,
        hides: bool,
        bookmarks: LeftBookmarks | None = None,
        reached: Reached | None = None,
    ) -> None:
        self.id = subscription.id
        self.progress = Progress()
        self.key: int | None = None
        """The key of the module's subscriber, while there is one."""
        self._owner = owner
        self._subscription = subscription
        self._interest = self._settled = subscription.interest()
        """What is wanted now, and what was wanted when the subscription was last complete."""
        self._module = module
        self._by_key = by_key
        """The application's table of subscriptions with a key."""
        self._layout: Layout = module.layout
        self._patience = patience
        self._max_buffered = max_buffered
        self._strips = strips
        self._hides = hides
        self._wanted: frozenset[int] = frozenset()
        self._asked: frozenset[int] = frozenset()
        """The ranks that the module was asked to join."""
        self._joining: dict[int, int] = {}
        """Rank -> number of pending joins."""
        self._ever: frozenset[int] = frozenset()
        """All ranks that were ever requested, or may be before the bookmark is kept."""
        self._incarnation = 0
        """That of the module's subscriber."""
        self._bookmarks = None if patience is not None else bookmarks
        """Where the service keeps the progress."""
        self._reached = reached
        self._is_waiting = self._is_resting = False
        """Waiting for what an earlier run may have left; resting without topics."""
        self._resuming = False
        """The servers have not confirmed yet that they know the earlier run."""
        self._awaited_bookmark = 0
        """The number of the bookmark that completes the change once it is kept."""
        self._doubt = ""
        """Why a missing event may never arrive; empty if nothing is lost."""
        self._reports = GapReports()
        self._moving: set[str] = set()
        """Subscriptions in the service that the new broker's network does not know everywhere."""
        self._accepted = False
        """The subscription has been complete before."""
        self._complete = True
        self._entries: dict[int, _Entry] = {}
        self._rank_of: dict[str, int] = {}
        self._new: list[Subscription] = []
        """To be requested from the service."""
        self._made: dict[int, int] = {}
        """Rank -> how often it was joined."""
        self._turns: deque[Turn] = deque()
        """Turns that are not done, or behind one that is not."""
        self._unread = 0
        """How many numbers are in `_turns`."""
        self._ungranted: list[Taking] = []
        self._draining: dict[str, None] = {}
        """Replaced subscriptions in the service; what is in flight for them alone is still delivered."""

    # --- Requests of the application

    def start(self) -> None:
        self._is_waiting = True
        if self._bookmarks is None or self._bookmarks.known:
            self.on_bookmarks_known()

    def change(self, topics: tuple[str, ...], condition: str | None) -> None:
        self._interest = make_interest(topics, condition)
        self._is_resting = False
        self._maybe_follow()

    def rest(self) -> None:
        """Drop all topics for now; `change` continues. What the subscriber saw constrains what it may see later."""
        self._is_resting = True
        self._maybe_follow()

    def _maybe_follow(self) -> None:
        """Pursue the current wish, once it is known where to begin."""
        if not self._is_waiting:
            self._follow(None if self._is_resting else self._interest)

    def abandon_change(self) -> None:
        """Return to the last complete state; entries left meanwhile are joined again."""
        if not self._complete:
            self._interest = self._settled
            self._maybe_follow()

    def end(self) -> None:
        key = self._forget()
        if key is not None:
            self._module.end(key)
        self._reports.take()[1].done()
        self._leave_all()

    def _follow(self, interest: Interest | None) -> None:
        """Move towards the interest. The bookmark is sent before anything that it describes changes in the service."""
        topics = () if interest is None else interest.topics
        self._complete = False
        self._wanted = frozenset(self._layout.ranks_for(topics))
        self._ever |= self._wanted
        if self.key is None and self._wanted:
            self._make_subscriber(None)
        before = frozenset(self._entries)
        ended = [self._leave_entry(rank) for rank in sorted(before - self._wanted)]
        for rank in sorted(before & self._wanted):
            ended.append(self._adjust(self._entries[rank], rank, topics))
        for rank in sorted(self._wanted - before):
            self._enter(rank, self._make_entry(rank, topics))
        self._send_bookmark()
        left = self._asked - self._wanted
        if left and self.key is not None:
            self._asked -= left
            self._module.change(self.key, (), left)
        for subscription in chain.from_iterable(ended):
            self._owner.unsubscribe(subscription.id)
        self._subscribe_new()
        self._maybe_join()

    def _enter(self, rank: int, entry: _Entry) -> None:
        self._entries[rank] = entry
        for subscription in entry.subscriptions:
            self._rank_of[subscription.id] = rank
            self._new.append(subscription)

    def _subscribe_new(self) -> None:
        new, self._new = self._new, []
        self._owner.subscribe(self, *new)

    def _adjust(self, entry: _Entry, rank: int, topics: tuple[TopicPattern, ...]) -> list[Subscription]:
        """Request the bodies of other events of an entry that stays, beside those requested before. Return
        subscriptions of an abandoned change, which must end."""
        if entry.whole is None:
            return []
        ended: list[Subscription] = []
        wanted = tuple(_within(topics, TopicPattern(self._layout.entry(rank))))
        if entry.following is not None:
            if (wanted, self._interest.sql) == (entry.following.topics, entry.following.filter):
                return []
            self._drop(entry, entry.following)
            ended.append(entry.following)
            entry.following = None
        if (wanted, self._interest.sql) == (entry.whole.topics, entry.whole.filter):
            return ended
        entry.made += 1
        following = Subscription(whole_name(entry.numbers.id, entry.made), wanted, self._interest.sql)
        entry.following = following
        entry.unaccepted.add(following.id)
        self._rank_of[following.id] = rank
        self._new.append(following)
        return ended

    def _drop(self, entry: _Entry, subscription: Subscription) -> None:
        entry.unaccepted.discard(subscription.id)
        del self._rank_of[subscription.id]

    def _make_entry(self, rank: int, topics: tuple[TopicPattern, ...]) -> _Entry:
        joined = self._made[rank] = self._made.get(rank, 0) + 1
        pattern = TopicPattern(self._layout.entry(rank))
        everything = self._interest.sql is None and any(topic.covers(pattern) for topic in topics)
        name = numbers_name(self.id, rank, joined)
        if everything and not self._hides:
            return _Entry(joined, Subscription(name, (pattern.text,)), None)
        numbers = Subscription(name, (pattern.text,), headers=True)
        if not self._strips:  # all events have bodies, and are filtered here
            return _Entry(joined, numbers, None)
        return _Entry(joined, numbers, self._make_whole(whole_name(name, 1), pattern, topics))

    def _make_whole(self, name: str, entry: TopicPattern, topics: tuple[TopicPattern, ...]) -> Subscription:
        return Subscription(name, tuple(_within(topics, entry)), self._interest.sql)

    def _leave_entry(self, rank: int) -> list[Subscription]:
        """Leave an entry, and return its subscriptions in the service, which must end."""
        entry = self._entries.pop(rank)
        self.progress.end(rank)
        subscriptions = [*entry.subscriptions]
        for subscription in subscriptions:
            self._drop(entry, subscription)
        return subscriptions

    def _leave_all(self) -> None:
        for rank in sorted(self._entries):
            for subscription in self._leave_entry(rank):
                self._owner.unsubscribe(subscription.id)
        for name in self._draining:
            self._owner.unsubscribe(name)
        self._draining.clear()

    # --- Progress of a change

    def _maybe_join(self) -> None:
        missing = self._wanted - self._asked
        if any(self._entries[rank].unaccepted for rank in missing):
            return
        if missing:
            assert self.key is not None
            self._ask_for(missing)
            self._module.change(self.key, missing)
        self._maybe_complete()

    def _make_subscriber(self, earlier: Resumption | None) -> None:
        self.key = self._module.add_subscriber(self._patience, self._max_buffered, self, earlier)
        self._by_key[self.key] = self
        self._incarnation = self._module.incarnation_of(self.key)
        if self._bookmarks is not None:
            self._bookmarks.keep(self.id, self._bookmark)

    def _ask_for(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._joining[rank] = self._joining.get(rank, 0) + 1
        self._asked |= {*ranks}

    def _maybe_complete(self) -> None:
        if self._complete or any(entry.unaccepted for entry in self._entries.values()):
            return
        if self._asked == self._wanted and not self._joining:
            self._complete = True
            self._settled = self._interest
            if self._bookmarks is None or self.key is None:
                self._say_complete()
            else:  # complete only when a restart would resume it
                self._awaited_bookmark = self._bookmarks.ask(self.id)

    def on_bookmark_kept(self, number: int) -> None:
        if self._complete and number == self._awaited_bookmark:
            self._awaited_bookmark = 0
            self._say_complete()

    def _say_complete(self) -> None:
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
            entry.chosen = entry.made
            if before is not None:
                self._drop(entry, before)
                self._draining[before.id] = None
                self._send_bookmark()
                self._owner.unsubscribe(before.id, drain=True)
        self._on_known_further(fact.subscription, everywhere=True)
        self._maybe_join()

    def on_failed(self, fact: SubscriptionFailed) -> None:
        self._owner.emit(SubscriptionFailed(self.id, fact.reason))

    def on_progress(self, fact: SubscriptionProgress) -> None:
        """Report progress: an event published where the subscription is unknown would never arrive."""
        self._owner.emit(SubscriptionProgress(self.id, fact.uncovered))
        self._on_known_further(fact.subscription, everywhere=not fact.uncovered)

    def on_cancelled(self, fact: SubscriptionCancelled) -> None:
        """Forget a replaced subscription: it has drained."""
        if fact.subscription in self._draining:
            del self._draining[fact.subscription]
            self._send_bookmark()

    def on_joined(self, ranks: Iterable[int]) -> None:
        """Handle the module's JoinCompleted. An entry that was left and joined again starts with its last join."""
        self._resuming = False
        for rank in ranks:
            left = self._joining.pop(rank) - 1
            if left:
                self._joining[rank] = left
            elif rank in self._asked and rank not in self.progress.ranks and self.key is not None:
                self.progress.begin(rank, self._module.start_of(self.key, rank))
        self._maybe_complete()
        self._maybe_grant()

    # --- Resuming after a restart

    def on_bookmarks_known(self) -> None:
        if not self._is_waiting:
            return
        self._is_waiting = False
        state = None if self._bookmarks is None else self._bookmarks.take(self.id)
        kept = None if state is None else decode_bookmark(state)
        if self._bookmarks is not None and isinstance(kept, Forms):  # it had no order
            end_kept(self._bookmarks, self.id, kept)
            kept = None
        if not isinstance(kept, Bookmark) or self._resume(advanced(kept, self._reached)):
            self._maybe_follow()

    def _resume(self, kept: Bookmark) -> bool:
        """Resume what the earlier run was; False if that is impossible, which has been reported."""
        assert self._bookmarks is not None
        earlier = kept.resumption()
        reason = kept.refusal or self._refusal(kept)
        if reason:
            end_kept(self._bookmarks, self.id, kept)
            self._owner.emit(SubscriptionBroken(self.id, f"{NOT_RESUMED}: {reason}"))
            return False
        for name in kept.others:
            self._bookmarks.end(name)
        for name in kept.draining:
            self._bookmarks.end(name, drain=True)
        wanted, self._interest = self._interest, make_interest(kept.topics, kept.filter)
        self._settled = self._interest
        self._made = dict(kept.joined) | {entry.rank: entry.joined for entry in kept.entries}
        self._ever = frozenset(kept.ever)
        self._draining = dict.fromkeys(kept.draining)
        for entry in kept.entries:
            self._enter(entry.rank, self._resumed_entry(entry))
            self.progress.begin(entry.rank, entry.done)
        self._wanted = frozenset(earlier.topics)
        self._resuming = bool(self._wanted)
        self._ask_for(self._wanted)
        self._make_subscriber(earlier)
        if kept.doubt:
            self._begin_doubt(kept.doubt, DOUBT_NS)
        self._subscribe_new()
        self._interest = wanted
        return True

    def _refusal(self, kept: Bookmark) -> str:
        assert self._bookmarks is not None
        if kept.layout != self._layout.fingerprint:
            return "the layout of ordered topics has changed"
        if self._bookmarks.has_discarded(kept.resumable(self.id)):
            return "the client subscribed again too late, and events that arrived meanwhile are gone"
        stranger = self._module.stranger(kept.resumption())
        return f"sequencer server {stranger} lost its state" if stranger else ""

    def _resumed_entry(self, kept: KeptEntry) -> _Entry:
        """Rebuild an entry as the earlier run requested it, and as the service has it."""
        pattern = TopicPattern(self._layout.entry(kept.rank))
        name, whole_one = entry_names(self.id, kept)
        numbers = Subscription(name, (pattern.text,), headers=whole_one is not None)
        whole = None if whole_one is None else self._make_whole(whole_one, pattern, self._interest.topics)
        return _Entry(kept.joined, numbers, whole, chosen=kept.whole, made=kept.made)

    def _bookmark(self) -> bytes:
        """Encode the current state, so that a restart can resume it."""
        progress, joined = self.progress, self.progress.ranks
        entries = [
            KeptEntry(rank, entry.joined, entry.chosen if entry.whole else 0, entry.made, progress.of(rank))
            for rank, entry in sorted(self._entries.items())
            if rank in joined
        ]
        following = {entry.following.id for entry in self._entries.values() if entry.following is not None}
        return encode_bookmark(
            Bookmark(
                self._incarnation,
                self._layout.fingerprint,
                topics=tuple([topic.text for topic in self._settled.topics]),
                filter=self._settled.sql,
                entries=tuple(entries),
                others=tuple(
                    [name for name, rank in self._rank_of.items() if rank not in joined or name in following]
                ),
                joined=tuple([(rank, made) for rank, made in self._made.items() if rank not in joined]),
                ever=tuple(sorted(self._ever)),
                lineages=self._module.lineages,
                doubt=self._doubt,
                draining=tuple(self._draining),
            )
        )

    def reached(self, count: int) -> Reached:
        """Return the position when the application is done with the next `count` events that it was shown."""
        progress = self.progress.copy()
        for turn in self._turns:
            passed = min(turn.count, count) if turn.waits else turn.count
            if passed:
                turn.ahead(progress, passed)
            if passed < turn.count:
                break
            count -= passed if turn.waits else 0
        return progress.reached(self._incarnation)

    def _send_bookmark(self) -> None:
        if self._bookmarks is not None:
            self._bookmarks.tell()

    # --- Events

    def on_delivered(self, fact: Delivered) -> None:
        stretch, ticket = fact.stretch, fact.ticket or NOTHING
        stamp = stretch.stamp
        if stamp is None or self.key is None:  # published before anybody wanted an order, or we have none
            ticket.done()
            return
        try:
            self._check(stretch, stamp)
        except (OrderError, WireError) as error:
            ticket.done()
            self._owner.emit(Misbehaviour(stretch.source, f"{stretch} was dropped: {error}"))
            return
        has_room = self._unread < SLOW_READER_EVENTS and not self._resuming
        if not has_room:
            self._ungranted.append(ticket)
        held = HeldStretch(stretch, stamp.number, ticket, fact.recovered_by)
        receive = self._module.receive if stretch.kind == WHOLE else self._module.receive_no_ops
        receive(self.key, stamp, held, held.left)
        if has_room:  # buffered, unless it has had its turn
            ticket.grant()

    def _check(self, stretch: Stretch, stamp: Timestamp) -> None:
        """Raise OrderError or WireError unless a server could have given this stamp to these events."""
        layout = self._layout
        check_stamp(stamp, stretch.layout, stretch.numbers, of=layout.fingerprint, chain=layout.chain)
        if stretch.kind != WHOLE and not stretch.topic:
            return  # headers of events on several topics do not name these
        topics = (stretch.topic,) if stretch.topic else sorted({content.topic for content in look(stretch)})
        for topic in topics:
            if layout.rank_of(topic) != stamp.topic:
                raise OrderError(f"a timestamp of {layout.entry(stamp.topic)} for {', '.join(topics)}")

    def drop(self, event: object, number: int, count: int) -> None:
        """Release what the module will not show."""
        if isinstance(event, HeldStretch):
            event.release(number, count)

    def pass_over(self, stamp: Timestamp, token: object, count: int) -> None:
        """Handle the turn of numbers without events."""
        assert isinstance(token, HeldStretch)
        self._append(token, stamp, count, waits=False)
        self.on_done()

    def on_shown(self, fact: EventsShown) -> None:
        """Show what the subscription selects: an entry of the layout may have other topics, too."""
        held, stamp = fact.event, fact.stamp
        assert isinstance(held, HeldStretch)
        number = stamp.number
        stretch = held.stretch
        if fact.count < stretch.count:
            stretch = held.cut(number, fact.count)
        for count, is_selected in self._selected(stretch):
            turn = self._append(held, stamp.at(number), count, waits=is_selected)
            if is_selected:
                part = stretch if count == fact.count else held.cut(number, count)
                self._show(held, part, turn, late=fact.out_of_order)
            number += count
        self.on_done()

    def skip(self, topic: int, number: int, count: int) -> None:
        """Handle the turn of numbers that never arrived."""
        self._append(LOST, Timestamp(topic, number), count, waits=False)
        self.on_done()

    def _append(self, held: HeldStretch | LostNumbers, stamp: Timestamp, count: int, *, waits: bool) -> Turn:
        turn = Turn(self, held, stamp, count, waits=waits)
        self._turns.append(turn)
        self._unread += count
        return turn

    def _show(self, held: HeldStretch, stretch: Stretch, turn: Turn, *, late: bool) -> None:
        self._owner.emit(Delivered(self.id, stretch, late, held.recovered_by, turn, turn.stamp))

    def _selected(self, stretch: Stretch) -> list[tuple[int, bool]]:
        """Return how many events in a row are selected, or not, in alternation."""
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
        self._owner.emit(Misbehaviour(stretch.source, f"an event was dropped: {error}"))

    def on_done(self) -> None:
        turns = self._turns
        while turns:
            before = turns[0].count
            left = turns[0].release()
            self._unread -= before - left
            if left:
                break
            turns.popleft()
        if self._ungranted:
            self._maybe_grant()

    def _maybe_grant(self) -> None:
        """Grant what was held back, if there is room. Not while resuming: nothing is shown before servers answer."""
        if self._unread < SLOW_READER_EVENTS and self._ungranted and not self._resuming:
            waiting, self._ungranted = self._ungranted, []
            for ticket in waiting:
                ticket.grant()

    # --- Lost events

    def on_missed(self, fact: EventsGivenUp) -> None:
        """Keep the report until it is known what the order lacks."""
        self._reports.add(
            self.id, fact, says_more=fact.certain or not self._tells_by_itself(fact.subscription)
        )
        if fact.certain:
            self._begin_doubt(GIVEN_UP, GIVEN_UP_NS)
        if not self._doubt:
            self._show_reports()

    def _tells_by_itself(self, name: str) -> bool:
        """Return whether the order will lack what that subscription in the service may have lost: it has all numbers.
        One for bodies has not, as a number may come without its event; with patience, the order does not tell."""
        rank = self._rank_of.get(name)
        return self._patience is None and rank is not None and self._entries[rank].numbers.id == name

    def on_broker_changed(self) -> None:
        self._moving = {*self._rank_of}
        self._begin_doubt(MOVED, DOUBT_NS)

    def _on_known_further(self, name: str, *, everywhere: bool) -> None:
        """After a move, events are lost until all brokers know the subscription again."""
        if name in self._moving:
            if everywhere:
                self._moving.discard(name)
            self._begin_doubt(MOVED, DOUBT_NS)

    def _begin_doubt(self, why: str, quiet_ns: int) -> None:
        """Find out what is lost. With patience, nothing waits for ever."""
        if self.key is not None and self._wanted and self._patience is None:
            self._module.doubt(self.key, why, quiet_ns, self._is_held_up)
            if self._module.is_in_doubt(self.key):
                self._doubt = why
                self._send_bookmark()

    def _is_held_up(self) -> bool:
        """Return whether what is missing may wait for the application, or for a connection."""
        return self._unread >= SLOW_READER_EVENTS or bool(self._ungranted) or not self._owner.is_connected

    def on_doubt_over(self, fact: DoubtOver) -> None:
        assert self.key is not None
        if not self._module.is_in_doubt(self.key):
            self._doubt = ""
            self._send_bookmark()
        if fact.lost:
            self._show_gap(fact.reason, fact.lost, joins_anew=False)
        else:
            self._show_reports()

    def _show_gap(self, reason: str, count: int, *, joins_anew: bool) -> None:
        lost, ticket = self._reports.take()
        self._owner.emit(OrderGap(self.id, reason, count, lost, joins_anew, ticket))

    def _show_reports(self) -> None:
        """Show what the service has reported, although the order lacks nothing."""
        for report in self._reports.take_telling():
            self._owner.emit(report)

    # --- Failure

    def on_broken(self, fact: OrderBroken) -> None:
        if fact.lost:
            self._join_anew(fact)
        else:
            self._end_with(fact.reason)

    def _join_anew(self, fact: OrderBroken) -> None:
        """Continue as a new subscriber of the module. The network knows our subscriptions: only what has a number by
        now is missed. What was shown, and is not done, will not come again after a restart."""
        assert self.key is not None
        del self._by_key[self.key]
        for rank in self._entries:
            self.progress.end(rank)
        self._asked = frozenset()
        self._joining = {}
        self._complete = False
        self._doubt = ""
        self._show_gap(fact.reason, fact.lost, joins_anew=True)
        self._make_subscriber(None)
        self._send_bookmark()
        self._maybe_join()

    def _end_with(self, reason: str) -> None:
        """End with an error rather than a different order: nothing more is shown until the topics change."""
        self._show_reports()
        self._forget()
        self._leave_all()
        self._owner.emit(SubscriptionBroken(self.id, reason))

    def _forget(self) -> int | None:
        """Reset, and return the key of the module's subscriber, which is no longer ours."""
        self._wanted = self._asked = frozenset()
        self._joining = {}
        self._complete = True
        self._is_waiting = self._resuming = False
        self._doubt = ""
        key, self.key = self.key, None
        if key is not None:
            del self._by_key[key]
            if self._bookmarks is not None:
                self._bookmarks.forget(self.id)
        return key

    @property
    def status(self) -> dict[str, object]:
        if self.key is None:
            return {"buffered": 0, "waits_for": ""}
        return {"buffered": self._module.buffered(self.key), "waits_for": self._module.waits_for(self.key)}


def _within(topics: tuple[TopicPattern, ...], entry: TopicPattern) -> Iterator[str]:
    """Yield the topics that belong to the entry."""
    if any(topic.covers(entry) for topic in topics):
        yield entry.text
        return
    yield from (topic.text for topic in topics if overlap(topic, entry))


def check_order(subscription: Subscription, layout: Layout, *, lossless: bool = True) -> None:
    """Raise SubscriptionRefused if these sequencers cannot provide the order."""
    check_kind(subscription.order, layout)
    uncovered = layout.uncovered(subscription.interest().topics)
    if uncovered:
        raise SubscriptionRefused(
            f"{', '.join(uncovered)}: events on these topics may be unordered; "
            f"ordered topics: {', '.join(layout.topics[:10])}{', ...' if len(layout.topics) > 10 else ''}"
        )
    if not layout.causal and not lossless:
        raise SubscriptionRefused(
            "this service may lose events, which requires order causal: start the sequencers with order causal"
        )


def check_kind(order: Order, layout: Layout) -> None:
    """Raise SubscriptionRefused if these sequencers provide another order."""
    if order is Order.CAUSAL and not layout.causal:
        raise SubscriptionRefused(
            "this network provides total order, not causal order: start its sequencers with order causal"
        )
