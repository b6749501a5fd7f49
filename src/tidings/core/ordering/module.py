"""The ordering module of a client: one publisher, and one subscriber for each ordered subscription.

It sits between the application and any event service (paper ordering, section 3.3). It hands stamped events to the
service in the order in which the application published them, takes the service's notifications, and releases them in
order.

Its facts tell the driver what to publish now, what to show to the application, and which subscriptions are complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Fact, Misbehaviour, Output
from tidings.core.kernel import Node, Part, Port, RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.ordering.doubts import Doubt, Lacking, count_of
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.messages import (
    EventStamps,
    NotActive,
    PublisherAlive,
    PublisherDisowned,
    SubscriberAlive,
    SubscriberDisowned,
    WalkDone,
)
from tidings.core.ordering.publisher import EventStamped, OrderedPublisher, Receipt
from tidings.core.ordering.resuming import Resumed, Resumption
from tidings.core.ordering.routes import Routes
from tidings.core.ordering.subscriber import (
    MAX_BUFFERED,
    ClocksSurveyed,
    OrderedEvent,
    OrderedSubscriber,
    OrderStalled,
    Patience,
    ResumptionRefused,
    TopicsJoined,
    TopicsLeft,
)
from tidings.core.ordering.waiting import NO_RELEASES, Releases

ALIVE_NS = 2_500_000_000
MAX_PENDING = 65_536
"""Events that wait to be published; beyond, the module `is_full`."""
DOUBT_NS = 15_000_000_000
"""If the service may have lost events without a report, missing events are given up when none of them has arrived for
this long."""
GIVEN_UP_NS = 5_000_000_000
"""The same, if the service has reported that events are lost."""
MAX_NAMED = 3
"""How many ranges of missing numbers a message names."""
LOST_NS = 5_000_000_000
"""A server's state counts as lost when its replicas have said so for this long without contradiction."""
AWAY = "the sequencers removed this subscriber: it was away for too long"


class PublishNow(Output, frozen=True, gc=False):
    """Asks the driver to publish the `count` events of `event` with the numbers from this stamp on, and to call
    `published(handle)` or `failed(handle)` for each."""

    event: object
    stamp: Timestamp
    handle: int
    count: int = 1


class EventsShown(Fact, frozen=True, gc=False):
    """Shows the application the events of `event` that have the `count` numbers from the stamp's on."""

    key: int
    stamp: Timestamp
    event: object
    out_of_order: bool
    count: int = 1


class JoinCompleted(Fact, frozen=True, gc=False):
    """The change is complete: all events on these topics that are published from now on are shown."""

    key: int
    topics: tuple[int, ...]


class Parted(Fact, frozen=True, gc=False):
    """The servers know that the subscriber has left these topics."""

    key: int
    topics: tuple[int, ...]


class OrderBroken(Fact, frozen=True, gc=False):
    """The subscription cannot continue; nothing more is shown."""

    key: int
    reason: str
    lost: int = 0
    """How many events the service has lost, if that is why: a new subscriber can continue."""


class DoubtOver(Fact, frozen=True, gc=False):
    """The subscriber goes on. It gives up `lost` numbers, which comes right after this fact; 0: it lacks none."""

    key: int
    reason: str
    lost: int


class NumbersLost(Fact, frozen=True, gc=False):
    """Events that wait for a number may never get one; `OrderBroken` has been emitted for all subscriptions before."""

    reason: str


class _Denials:
    __slots__ = ("lost", "since")

    def __init__(self) -> None:
        self.since: dict[str, int] = {}
        """Node -> when it first said that it is not active."""
        self.lost = False
        """One of the nodes says that the state is gone."""


class _Pending:
    __slots__ = ("count", "event", "receipt", "stamp", "topic")

    def __init__(self, topic: int, event: object, count: int) -> None:
        self.topic = topic
        self.event = event
        self.count = count
        self.stamp: Timestamp | None = None
        self.receipt: tuple[int, Receipt] | None = None
        """With the incarnation of the publisher that received it."""


class _Open:
    """Events with the service, some neither confirmed nor failed."""

    __slots__ = ("incarnation", "left", "receipt")

    def __init__(self, incarnation: int, receipt: Receipt, count: int) -> None:
        self.incarnation = incarnation
        self.receipt = receipt
        self.left = count


class _InnerPort:
    """The port of a publisher or subscriber in the module: addresses servers by name, prefixes timers."""

    def __init__(self, module: OrderingModule, key: int, emit: Callable[[object], None]) -> None:
        self._module = module
        self._key = key
        self._port = module.port
        self.node = module.port.node
        self.random: RandomSource = module.port.random
        self.emit = emit

    @property
    def now(self) -> int:
        return self._port.now

    def send(self, to: str, message: Message) -> None:
        if isinstance(message, PublisherAlive):
            self._module.send_to_all(to, message)
        else:
            self._port.send(self._module.routes.active(to), message)

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        self._port.set_timer((OrderingModule.name, self._key, *name), at)

    def cancel_timer(self, name: TimerName) -> None:
        self._port.cancel_timer((OrderingModule.name, self._key, *name))


PUBLISHER = 0
"""The key of the publisher's timers; subscribers' keys start at 1."""


class Gatherer(Protocol):
    """Makes runs of what is published in one instant."""

    def close(self) -> None:
        """Publish what was gathered; the instant ends."""


class OrderingModule(Part):
    """Orders one client's publications and subscriptions.

    No module of this node may have used `incarnation` before; this one takes the incarnations after it.
    """

    name = "ordering"
    handles = {
        EventStamps: "on_event_stamps",
        PublisherDisowned: "on_publisher_disowned",
        WalkDone: "on_walk_done",
        SubscriberDisowned: "on_subscriber_disowned",
        NotActive: "on_not_active",
    }

    def __init__(self, port: Port, layout: Layout, *, incarnation: int) -> None:
        super().__init__(port)
        self.layout = layout
        self.routes = Routes(layout)
        self._incarnation = incarnation
        self._publisher: OrderedPublisher | None = None
        self._gathering = False
        self._gatherer: Gatherer | None = None
        """Has more to publish in this instant."""
        self._pending: deque[_Pending] = deque()
        """In the order of publication: some are stamped, none is with the service."""
        self._waiting = 0
        """Events in `_pending`."""
        self._open: dict[int, _Open] = {}
        """By handle."""
        self._handles = 0
        self._failed = False
        """The service rejected an event: its number must become a no-op."""
        self._subscribers: dict[int, OrderedSubscriber] = {}
        self._by_identity: dict[tuple[str, int], int] = {}
        self._keys = PUBLISHER
        self._ending: set[int] = set()
        self._wanted: dict[int, set[int]] = {}
        """Key -> the topics whose events the application wants."""
        self._leaving: dict[int, int] = {}
        """Key -> number of changes that leave topics and that the servers have not completed."""
        self._nodes = frozenset(layout.nodes)
        self._lineages: dict[str, int] = {}
        """Server -> its lineage, once known."""
        self._releases: dict[int, Releases] = {}
        self._doubts: dict[int, Doubt] = {}
        """Key -> doubt, for subscribers whose service may have lost events."""
        self._denials: dict[str, _Denials] = {}
        """Server -> replicas that said they are not active since one last was."""

    def start(self) -> None:
        self._set_alive()

    def _set_alive(self) -> None:
        self.port.set_timer((self.name, "alive"), self.port.now + ALIVE_NS)

    def _next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    def on_timer(self, name: TimerName) -> None:
        _, key, *inner = name
        if key == "alive":
            self._say_alive()
            self._set_alive()
        elif key == "gather":
            self._on_gathered()
        elif key == "doubt":
            (subscriber,) = inner
            assert isinstance(subscriber, int)
            if subscriber in self._doubts:
                self._check_doubt(subscriber)
        elif key == PUBLISHER:
            if self._publisher is not None:
                self._publisher.on_timer(tuple(inner))
        elif isinstance(key, int) and key in self._subscribers:
            self._subscribers[key].on_timer(tuple(inner))

    def _say_alive(self) -> None:
        if self._publisher is not None:
            self._publisher.alive()
        for subscriber in self._subscribers.values():
            lowest = subscriber.lowest
            if lowest is not None:
                server = self.layout.chain.server_of(lowest)
                topic, number = subscriber.waits_for() or (0, 0)
                waiting = subscriber.buffered if number else 0
                alive = SubscriberAlive(subscriber.identity, server, topic, number, waiting)
                self.send_to_all(server, alive)

    def send_to_all(self, server: str, message: Message) -> None:
        """Send to all replicas of the server: nothing else would tell us that another one is active now."""
        for node in self.layout.replicas(server):
            self.port.send(node, message)

    def on_not_active(self, sender: str, message: NotActive) -> None:
        """Switch to the active replica. Unanswered requests go there at once if it announces itself, else on retry."""
        if not self.routes.is_replica(message.server, sender):
            return
        if message.active == sender:
            self._denials.pop(message.server, None)
        else:
            self._on_denial(message.server, sender, lost=message.lost)
        if not message.active:
            return
        if self.routes.speaks(message.server, message.active) and message.active == sender:
            if self._publisher is not None:
                self._publisher.repeat(message.server)
            for subscriber in self._subscribers.values():
                subscriber.repeat(message.server)

    def _on_denial(self, server: str, node: str, *, lost: bool) -> None:
        """Believe that the state is lost if one replica says so and, for `LOST_NS`, none says that it is active."""
        denials = self._denials.setdefault(server, _Denials())
        denials.since.setdefault(node, self.port.now)
        denials.lost = denials.lost or lost
        everybody = len(denials.since) == len(self.layout.replicas(server))
        if denials.lost and everybody and self.port.now - max(denials.since.values()) >= LOST_NS:
            denials.since.clear()  # report it again after LOST_NS at the earliest
            reason = f"sequencer server {server} lost its state: its topics get no more numbers"
            self.give_up(reason)
            self.port.emit(NumbersLost(reason))

    def _on_answer(self, node: str) -> None:
        for server in [server for server in self._denials if self.routes.is_replica(server, node)]:
            del self._denials[server]

    def meet(self, server: str, lineage: int) -> None:
        """Record the lineage that the server's active replica reported (0: unknown).

        If it differs from before, the server has started numbering anew: everything based on the old numbers ends.
        """
        if server not in self.layout.chain.servers or not lineage:
            return
        if self._lineages.setdefault(server, lineage) != lineage:
            self._lineages[server] = lineage
            self.give_up(f"sequencer server {server} lost its state")

    def give_up(self, reason: str) -> None:
        """Break all subscriptions, and request numbers for pending events under a new identity."""
        for key in list(self._subscribers):
            self._break(key, reason)
        if self._publisher is not None:
            self._begin_anew()

    # --- Publishing

    def publish(self, topic: int, event: object, count: int = 1) -> None:
        """Request numbers for a batch of `count` events. Do not call it while the module `is_full`."""
        pending = _Pending(topic, event, count)
        self._pending.append(pending)
        self._waiting += count
        self._request(pending)

    def gather(self, gatherer: Gatherer | None = None) -> None:
        """Request numbers at the end of this instant, for all published in it and for what the gatherer then has."""
        self._gatherer = gatherer or self._gatherer
        if not self._gathering:
            self._gathering = True
            self.port.set_timer((self.name, "gather"), self.port.now)

    def _on_gathered(self) -> None:
        gatherer, self._gatherer = self._gatherer, None
        if gatherer is not None:
            gatherer.close()
        self._gathering = False
        if self._publisher is not None:
            self._publisher.flush()

    @property
    def is_full(self) -> bool:
        """True if no more events may wait for numbers."""
        return self._waiting >= MAX_PENDING

    @property
    def unpublished(self) -> int:
        """The number of events that the service has not confirmed."""
        return self._waiting + sum(opened.left for opened in self._open.values())

    def _request(self, pending: _Pending) -> None:
        if self._publisher is None:
            self._publisher = OrderedPublisher(
                _InnerPort(self, PUBLISHER, self._on_publisher_fact),
                self.layout.chain,
                incarnation=self._next_incarnation(),
                serial=self.layout.causal,
                max_waiting=2 * MAX_PENDING,
                gathers=True,
                on_silence=self.routes.suspect,
            )
        taken = self._publisher.publish(pending.topic, pending, pending.count)
        assert taken, "a publisher has room for all that is pending"
        self.gather()

    def _is_sequencer(self, sender: str) -> bool:
        if sender in self._nodes:
            return True
        self.port.emit(Misbehaviour(sender, "sent a sequencer's answer but is not a sequencer"))
        return False

    def on_event_stamps(self, sender: str, message: EventStamps) -> None:
        if self._is_sequencer(sender):
            self._on_answer(sender)
            if self._publisher is not None:
                self._publisher.on_event_stamps(sender, message)

    def on_publisher_disowned(self, sender: str, message: PublisherDisowned) -> None:
        """Take a new identity. Servers that still know the old one replace its unpublished events by no-ops."""
        publisher = self._publisher if self._is_sequencer(sender) else None
        if publisher is not None and message.publisher == publisher.identity:
            self._begin_anew()

    def _on_publisher_fact(self, fact: object) -> None:
        if isinstance(fact, EventStamped):
            pending = fact.event
            assert isinstance(pending, _Pending) and self._publisher is not None
            pending.stamp = fact.stamp
            pending.receipt = (self._publisher.identity[1], fact.receipt)
            self._hand_over()
        elif isinstance(fact, Misbehaviour):
            self.port.emit(fact)

    def _hand_over(self) -> None:
        # Nothing more after a failure: `_maybe_give_up` waits until the service has answered for all.
        while self._pending and self._pending[0].stamp is not None and not self._failed:
            pending = self._pending.popleft()
            assert pending.stamp is not None and pending.receipt is not None
            self._waiting -= pending.count
            self._handles += 1
            self._open[self._handles] = _Open(*pending.receipt, pending.count)
            self.port.emit(PublishNow(pending.event, pending.stamp, self._handles, pending.count))

    def published(self, handle: int, count: int = 1) -> None:
        """Record that the service has confirmed `count` of these events."""
        opened = self._open.get(handle)
        publisher = self._settle(handle, count)
        if opened is not None and publisher is not None:
            publisher.published(opened.receipt, count)
        self._maybe_give_up()

    def failed(self, handle: int, count: int = 1) -> None:
        """Record that the service rejected `count` of these events, or may have: their numbers become no-ops."""
        if self._settle(handle, count) is not None:
            self._failed = True  # else no-ops have replaced what that identity did not publish
        self._maybe_give_up()

    def _settle(self, handle: int, count: int) -> OrderedPublisher | None:
        """Return the publisher that requested their numbers, if it is still the current one."""
        opened = self._open.get(handle)
        if opened is None:
            return None
        opened.left -= count
        if not opened.left:
            del self._open[handle]
        publisher = self._publisher
        return publisher if publisher is not None and publisher.identity[1] == opened.incarnation else None

    def _maybe_give_up(self) -> None:
        """After a failure, change identity once the service has answered for all: no-ops replace the failed events."""
        if self._failed and not self._open:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Take a new identity, and request new numbers for what is not with the service."""
        self._failed = False
        if self._publisher is not None:
            self._publisher.leave()
            self._publisher = None
        for pending in self._pending:
            pending.stamp = pending.receipt = None
        for pending in self._pending:
            self._request(pending)

    def leave(self) -> None:
        """Stop publishing: servers forget what was acknowledged and replace the rest at once."""
        if self._publisher is not None:
            self._publisher.leave()
            self._publisher = None
        self._pending.clear()
        self._waiting = 0

    # --- Subscribing

    def add_subscriber(
        self,
        patience: Patience | None = None,
        max_buffered: int = MAX_BUFFERED,
        releases: Releases = NO_RELEASES,
        earlier: Resumption | None = None,
    ) -> int:
        """Add a subscriber without topics, or one that resumes, and return its key, which all its facts carry.
        `releases` is told about everything that the subscriber received and will not show."""
        self._keys += 1
        key = self._keys
        incarnation = self._next_incarnation()
        identity = earlier.incarnation if earlier is not None and earlier.topics else incarnation
        subscriber = OrderedSubscriber(
            _InnerPort(self, key, partial(self._on_subscriber_fact, key)),
            self.layout.chain,
            threshold=self.layout.threshold,
            incarnation=identity,
            version=0 if identity == incarnation else incarnation,
            patience=patience,
            max_buffered=max_buffered,
            on_silence=self.routes.suspect,
            releases=releases,
        )
        self._subscribers[key] = subscriber
        self._releases[key] = releases
        self._wanted[key] = set()
        self._leaving[key] = 0
        self._by_identity[subscriber.identity] = key
        if earlier is not None:
            self._wanted[key] |= {*earlier.topics}
            subscriber.resume(earlier)
        return key

    def stranger(self, earlier: Resumption) -> str:
        """Return a server whose lineage differs from what the earlier run saw; empty if none is known. A lineage that
        is not known yet is compared when that server is met."""
        for server, lineage in earlier.lineages:
            if self._lineages.setdefault(server, lineage) != lineage:
                return server
        return ""

    @property
    def subscribers(self) -> list[OrderedSubscriber]:
        return list(self._subscribers.values())

    def incarnation_of(self, key: int) -> int:
        return self._subscribers[key].identity[1]

    @property
    def lineages(self) -> tuple[tuple[str, int], ...]:
        """Server and lineage, where known."""
        return tuple(sorted(self._lineages.items()))

    def start_of(self, key: int, topic: int) -> Resumed:
        """Return where a topic that has just been joined begins."""
        return self._subscribers[key].start_of(topic)

    def change(self, key: int, add: Iterable[int], remove: Iterable[int] = ()) -> None:
        """Join and leave topics. Subscribe in the service to those to join first.

        A subscriber that has left all topics is kept: what it saw constrains what it may see later.
        """
        adds, removes, before = {*add}, {*remove}, self._wanted[key]
        # Set first, because topics are left one by one: leaving one must not show an event of another.
        self._wanted[key] = (before | adds) - removes
        self._leaving[key] += bool(removes)
        try:
            self._subscribers[key].change(adds, removes)
        except ValueError:
            self._wanted[key] = before
            self._leaving[key] -= bool(removes)
            raise

    def receive(self, key: int, stamp: Timestamp, event: object, count: int = 1) -> None:
        """Take a notification that stands for the `count` numbers from the stamp's on."""
        if key in self._subscribers:
            self._subscribers[key].receive(stamp, event, count)

    def receive_no_ops(self, key: int, stamp: Timestamp, token: object = None, count: int = 1) -> None:
        """Take numbers without events: the publisher died, or the events are not for this subscriber, or arrive
        separately."""
        if key in self._subscribers:
            self._subscribers[key].receive_no_op(stamp, token, count)

    def end(self, key: int) -> None:
        """Leave all topics. Nothing more is shown, and the subscriber is removed once the servers know."""
        if key not in self._subscribers:
            return
        self._ending.add(key)
        if self._wanted[key]:
            self.change(key, (), self._wanted[key])
        self._maybe_forget(key)

    def _maybe_forget(self, key: int) -> None:
        """Remove an ending subscriber once the servers know all changes that leave topics; its last one does."""
        if key in self._ending and not self._leaving[key]:
            self._forget(key)

    def waits_for(self, key: int) -> str:
        """Describe the event that a subscriber waits for; empty if none."""
        subscriber = self._subscribers.get(key)
        missing = None if subscriber is None else subscriber.waits_for()
        if missing is None:
            return ""
        topic, number = missing
        return (
            f"event {number} of {self.layout.entry(topic)}"
            if number
            else f"its subscription to {self.layout.entry(topic)}"
        )

    def buffered(self, key: int) -> int:
        subscriber = self._subscribers.get(key)
        return 0 if subscriber is None else subscriber.buffered

    def on_walk_done(self, sender: str, message: WalkDone) -> None:
        key = self._by_identity.get(message.subscriber)
        if key is not None and self._is_sequencer(sender):
            self._on_answer(sender)
            self._subscribers[key].on_walk_done(sender, message)

    def on_subscriber_disowned(self, sender: str, message: SubscriberDisowned) -> None:
        key = self._by_identity.get(message.subscriber)
        if key is not None and self._is_sequencer(sender):
            self._break(key, AWAY)

    # --- Events that may be lost

    def doubt(self, key: int, why: str, quiet_ns: int, is_held_up: Callable[[], bool]) -> None:
        """Find out whether the subscriber lacks events that will never arrive, and go on without them; `DoubtOver`
        or `OrderBroken` follows."""
        if key not in self._subscribers or not self._wanted[key]:
            return
        doubt = Doubt(why, quiet_ns, is_held_up)
        if key in self._doubts:
            self._doubts[key].following = doubt
        else:
            self._begin_doubt(key, doubt)

    def is_in_doubt(self, key: int) -> bool:
        return key in self._doubts

    def _begin_doubt(self, key: int, doubt: Doubt) -> None:
        self._doubts[key] = doubt
        self._subscribers[key].survey()

    def _on_surveyed(self, key: int, fact: ClocksSurveyed) -> None:
        doubt = self._doubts.get(key)
        if doubt is not None and doubt.clocks is None:
            doubt.clocks = fact.clocks
            self._check_doubt(key)

    def _check_doubt(self, key: int) -> None:
        doubt, subscriber = self._doubts[key], self._subscribers[key]
        lacking = subscriber.lacking(doubt.clocks or ())
        if not lacking:
            self._end_doubt(key, lacking)
        elif doubt.is_certain(lacking, settled=subscriber.settled):
            self._go_on_without(key, lacking)
        else:
            # Whoever joins anew misses what is published meanwhile as well, so a long wait may cost more than it saves.
            quiet_ns = doubt.quiet_ns if subscriber.can_skip else min(doubt.quiet_ns, GIVEN_UP_NS)
            self.port.set_timer((self.name, "doubt", key), self.port.now + quiet_ns)

    def _go_on_without(self, key: int, lacking: Lacking) -> None:
        if not self._subscribers[key].can_skip:
            self._break(key, self._reason(key, lacking), lost=count_of(lacking))
            return
        self._end_doubt(key, lacking)
        if key in self._subscribers:
            self._subscribers[key].skip(lacking)

    def _end_doubt(self, key: int, lacking: Lacking) -> None:
        reason, lost = self._reason(key, lacking), count_of(lacking)
        doubt = self._doubts.pop(key)
        self.port.cancel_timer((self.name, "doubt", key))
        if doubt.following is not None:
            self._begin_doubt(key, doubt.following)
        self.port.emit(DoubtOver(key, reason, lost))

    def _reason(self, key: int, lacking: Lacking) -> str:
        doubt = self._doubts[key]
        return f"{doubt.why}, and {self._in_words(lacking)} did not arrive" if lacking else doubt.why

    def _in_words(self, lacking: Lacking) -> str:
        """Name the first missing numbers."""
        words = [
            f"event{'s' if last > first else ''} {first}{f' to {last}' if last > first else ''} of "
            f"{self.layout.entry(topic)}"
            for topic, first, last in lacking[:MAX_NAMED]
        ]
        return ", ".join(words) + (", ..." if len(lacking) > MAX_NAMED else "")

    def _on_stalled(self, key: int, buffered: int) -> None:
        """Go on without the missing events if they may be lost, else break the order."""
        doubt, subscriber = self._doubts.get(key), self._subscribers[key]
        lacking = [] if doubt is None else subscriber.lacking(doubt.clocks or ())
        if lacking and subscriber.settled:
            self._go_on_without(key, lacking)
            return
        missing = self.waits_for(key) or "one that does not arrive"
        self._break(key, f"{buffered} events wait for {missing}: the buffer is full")

    def knows(self, key: int) -> bool:
        """Return False if the subscriber has ended or its order is broken."""
        return key in self._subscribers

    def _break(self, key: int, reason: str, *, lost: int = 0) -> None:
        """End a subscriber with an error. The fact comes before the releases, so that nobody uses what is released."""
        self.port.emit(OrderBroken(key, reason, lost))
        if key in self._subscribers:
            self._forget(key)

    def _forget(self, key: int) -> None:
        subscriber = self._subscribers.pop(key)
        del self._releases[key]
        subscriber.drop_all()
        if self._doubts.pop(key, None) is not None:
            self.port.cancel_timer((self.name, "doubt", key))
        self._ending.discard(key)
        del self._by_identity[subscriber.identity], self._wanted[key], self._leaving[key]
        for what in ("repeat", "patience"):
            self.port.cancel_timer((self.name, key, subscriber.name, what))

    def _on_subscriber_fact(self, key: int, fact: object) -> None:
        match fact:
            case OrderedEvent():
                if fact.stamp.topic in self._wanted.get(key, ()):
                    self.port.emit(EventsShown(key, fact.stamp, fact.event, fact.out_of_order, fact.count))
                else:  # the topic was left before it was joined
                    self._releases[key].drop(fact.event, fact.stamp.number, fact.count)
            case TopicsJoined():
                self.port.emit(JoinCompleted(key, fact.topics))
            case TopicsLeft():
                self._leaving[key] -= 1
                self.port.emit(Parted(key, fact.topics))
                self._maybe_forget(key)
            case ResumptionRefused(topic=topic):
                self._break(key, f"sequencer server {self.layout.chain.server_of(topic)} lost its state")
            case OrderStalled(buffered=buffered):
                self._on_stalled(key, buffered)
            case ClocksSurveyed():
                self._on_surveyed(key, fact)
            case Misbehaviour():
                self.port.emit(fact)


class OrderingClient(Node):
    """A node with the module only."""

    def __init__(self, port: Port, layout: Layout, *, incarnation: int) -> None:
        self.module = OrderingModule(port, layout, incarnation=incarnation)
        super().__init__((self.module,))
