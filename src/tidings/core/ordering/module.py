"""The ordering module of a client: one publisher, and a subscriber for each ordered subscription.

It sits between the application and any event service (paper ordering, section 3.3). Events are handed to the service in
the order in which the application published them, each with its stamp. What the service notifies of goes in here, and
comes out in order.

Facts are for whoever drives the module: publish this now, show this to the application, that subscription is complete.
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
    NO_RELEASES,
    OrderedEvent,
    OrderedSubscriber,
    OrderStalled,
    Patience,
    Releases,
    ResumptionRefused,
    TopicsJoined,
    TopicsLeft,
)

ALIVE_NS = 2_500_000_000
MAX_PENDING = 65_536
"""Events that wait for their turn to be published; beyond, the module `is_full`."""
DOUBT_NS = 15_000_000_000
"""Where the service may have lost something unseen, an event that does not come for so long, or up to twice that, is
given up, and the order with it."""
LOST_NS = 5_000_000_000
"""A server that says for so long that its state is lost, and nobody contradicts it, is believed."""
AWAY = "the sequencers gave this subscriber up: it was away for too long"


class PublishNow(Output, frozen=True, gc=False):
    """Publish the `count` events of `event` with the numbers from this stamp on in the service; then say
    `published(handle)` or `failed(handle)` for each of them."""

    event: object
    stamp: Timestamp
    handle: int
    count: int = 1


class EventsShown(Fact, frozen=True, gc=False):
    """The application is shown the events of `event` that have these numbers, `count` from the stamp's on."""

    key: int
    stamp: Timestamp
    event: object
    out_of_order: bool
    count: int = 1


class JoinCompleted(Fact, frozen=True, gc=False):
    """The change is complete: all events of these topics that are published from now on are shown."""

    key: int
    topics: tuple[int, ...]


class Parted(Fact, frozen=True, gc=False):
    """The servers know that the subscriber has left these topics."""

    key: int
    topics: tuple[int, ...]


class OrderBroken(Fact, frozen=True, gc=False):
    """The subscription cannot go on; nothing more is shown."""

    key: int
    reason: str


class NumbersLost(Fact, frozen=True, gc=False):
    """What waits for a number may wait for ever; all subscriptions were told before (`OrderBroken`)."""

    reason: str


class _Denials:
    __slots__ = ("lost", "since")

    def __init__(self) -> None:
        self.since: dict[str, int] = {}
        """By node, since when."""
        self.lost = False
        """One of them says that the state is gone."""


class _Doubt:
    __slots__ = ("lacked", "why")

    def __init__(self, why: str) -> None:
        self.why = why
        self.lacked = ""
        """At the last look, in words."""


class _Pending:
    __slots__ = ("count", "event", "receipt", "stamp", "topic")

    def __init__(self, topic: int, event: object, count: int) -> None:
        self.topic = topic
        self.event = event
        self.count = count
        self.stamp: Timestamp | None = None
        self.receipt: tuple[int, Receipt] | None = None
        """With the incarnation of the publisher that got it."""


class _Open:
    """Handed over to the service; it has not said what became of all of it."""

    __slots__ = ("incarnation", "left", "receipt")

    def __init__(self, incarnation: int, receipt: Receipt, count: int) -> None:
        self.incarnation = incarnation
        self.receipt = receipt
        self.left = count


class _InnerPort:
    """For a publisher or subscriber within the module: servers are reached by name, timers have a prefix."""

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
"""The key of the publisher's timers; subscribers have theirs from 1."""


class Gatherer(Protocol):
    """Whoever makes runs of what is published in one instant."""

    def close(self) -> None:
        """The instant ends: publish what belongs to it."""


class OrderingModule(Part):
    """`incarnation` was never used by a module of this node before; those after it are this module's."""

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
        """Who has still something to publish in this instant."""
        self._pending: deque[_Pending] = deque()
        """In the order of publication: not all stamped, none handed over."""
        self._waiting = 0
        """Events in them."""
        self._open: dict[int, _Open] = {}
        """By handle."""
        self._handles = 0
        self._failed = False
        """The service refused an event: its number must be given back."""
        self._subscribers: dict[int, OrderedSubscriber] = {}
        self._by_identity: dict[tuple[str, int], int] = {}
        self._keys = PUBLISHER
        self._ending: set[int] = set()
        self._wanted: dict[int, set[int]] = {}
        """Key -> the topics whose events the application wants."""
        self._leaving: dict[int, int] = {}
        """Key -> changes that leave something and that the servers do not know of yet."""
        self._nodes = frozenset(layout.nodes)
        self._lineages: dict[str, int] = {}
        """Of the servers that were met."""
        self._releases: dict[int, Releases] = {}
        self._doubts: dict[int, _Doubt] = {}
        """Of subscribers whose service may have lost something."""
        self._denials: dict[str, _Denials] = {}
        """Of servers for which somebody said that it does not speak, since one last did."""

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
            self._look_at_doubtful(subscriber)
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
        """To all who may speak for the server: nothing else would tell us that another does now."""
        for node in self.layout.replicas(server):
            self.port.send(node, message)

    def on_not_active(self, sender: str, message: NotActive) -> None:
        """What was not answered is repeated there: at once if the new one says so itself, else in a while."""
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
        """If all who could speak for the server say for a while that they do not, and one that all is lost, it is."""
        denials = self._denials.setdefault(server, _Denials())
        denials.since.setdefault(node, self.port.now)
        denials.lost = denials.lost or lost
        everybody = len(denials.since) == len(self.layout.replicas(server))
        if denials.lost and everybody and self.port.now - max(denials.since.values()) >= LOST_NS:
            denials.since.clear()  # said once in a while is enough
            reason = f"sequencer server {server} lost its state: its topics get no numbers any more"
            self.give_up(reason)
            self.port.emit(NumbersLost(reason))

    def _on_answer(self, node: str) -> None:
        for server in [server for server in self._denials if self.routes.is_replica(server, node)]:
            del self._denials[server]

    def meet(self, server: str, lineage: int) -> None:
        """Somebody speaks for the server who has this lineage of its state (0: of none that is known).

        Numbers of another lineage than before begin anew: what was made of the old ones cannot go on.
        """
        if server not in self.layout.chain.servers or not lineage:
            return
        if self._lineages.setdefault(server, lineage) != lineage:
            self._lineages[server] = lineage
            self.give_up(f"sequencer server {server} lost its state")

    def give_up(self, reason: str) -> None:
        """All subscriptions are broken; what is to be published gets its numbers under another identity."""
        for key in list(self._subscribers):
            self._break(key, reason)
        if self._publisher is not None:
            self._begin_anew()

    # --- Publishing

    def publish(self, topic: int, event: object, count: int = 1) -> None:
        """Get numbers for the events of a batch, so many; not while it `is_full`."""
        pending = _Pending(topic, event, count)
        self._pending.append(pending)
        self._waiting += count
        self._request(pending)

    def gather(self, gatherer: Gatherer | None = None) -> None:
        """What is published until the end of this instant is asked for together, and what the gatherer has then."""
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
        """No more may wait for their numbers."""
        return self._waiting >= MAX_PENDING

    @property
    def unpublished(self) -> int:
        """Events that are not with the service yet, as far as is known."""
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
        self.port.emit(Misbehaviour(sender, "it is not a sequencer and answers as if it were"))
        return False

    def on_event_stamps(self, sender: str, message: EventStamps) -> None:
        if self._is_sequencer(sender):
            self._on_answer(sender)
            if self._publisher is not None:
                self._publisher.on_event_stamps(sender, message)

    def on_publisher_disowned(self, sender: str, message: PublisherDisowned) -> None:
        """It leaves with what is unanswered as such: servers that still know the identity replace that."""
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
        # After a failure nothing more, or the last answer that it waits for might never come.
        while self._pending and self._pending[0].stamp is not None and not self._failed:
            pending = self._pending.popleft()
            assert pending.stamp is not None and pending.receipt is not None
            self._waiting -= pending.count
            self._handles += 1
            self._open[self._handles] = _Open(*pending.receipt, pending.count)
            self.port.emit(PublishNow(pending.event, pending.stamp, self._handles, pending.count))

    def published(self, handle: int, count: int = 1) -> None:
        """The service has so many of these events."""
        opened = self._open.get(handle)
        publisher = self._settle(handle, count)
        if opened is not None and publisher is not None:
            publisher.published(opened.receipt, count)
        self._maybe_give_up()

    def failed(self, handle: int, count: int = 1) -> None:
        """The service does not take so many of these events, or it is not known: their numbers are to become no-ops."""
        if self._settle(handle, count) is not None:
            self._failed = True  # else all that its identity did not publish is replaced already
        self._maybe_give_up()

    def _settle(self, handle: int, count: int) -> OrderedPublisher | None:
        """The publisher that got their numbers, if it is still ours."""
        opened = self._open.get(handle)
        if opened is None:
            return None
        opened.left -= count
        if not opened.left:
            del self._open[handle]
        publisher = self._publisher
        return publisher if publisher is not None and publisher.identity[1] == opened.incarnation else None

    def _maybe_give_up(self) -> None:
        """When all that is with the service is answered: what this identity got and did not publish is replaced."""
        if self._failed and not self._open:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Another identity; what was not handed over gets other numbers."""
        self._failed = False
        if self._publisher is not None:
            self._publisher.leave()
            self._publisher = None
        for pending in self._pending:
            pending.stamp = pending.receipt = None
        for pending in self._pending:
            self._request(pending)

    def leave(self) -> None:
        """The application publishes nothing more: what it acknowledged is forgotten, the rest replaced, at once."""
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
        """A subscriber without topics, or one that resumes; its key is named in all facts about it. `releases` hears
        of all that it was given and will not be shown."""
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
        """A server that is not the one whose numbers an earlier life saw; empty: there is none, as far as is known.
        What is not known yet is compared when that server is met."""
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
        """Of the servers that were met."""
        return tuple(sorted(self._lineages.items()))

    def start_of(self, key: int, topic: int) -> Resumed:
        """Where a topic begins that has just been joined."""
        return self._subscribers[key].start_of(topic)

    def change(self, key: int, add: Iterable[int], remove: Iterable[int] = ()) -> None:
        """Topics to join and to leave; ask the service for those to join before.

        Who has left all topics and may come back is kept: what it saw counts for what it will see.
        """
        adds, removes, before = {*add}, {*remove}, self._wanted[key]
        # Before, for the topics are left one by one: what waited for one of them must not show another.
        self._wanted[key] = (before | adds) - removes
        self._leaving[key] += bool(removes)
        try:
            self._subscribers[key].change(adds, removes)
        except ValueError:
            self._wanted[key] = before
            self._leaving[key] -= bool(removes)
            raise

    def receive(self, key: int, stamp: Timestamp, event: object, count: int = 1) -> None:
        """The service notifies a subscriber of what stands for `count` numbers from the stamp's on."""
        if key in self._subscribers:
            self._subscribers[key].receive(stamp, event, count)

    def receive_no_ops(self, key: int, stamp: Timestamp, token: object = None, count: int = 1) -> None:
        """Numbers without events: of a publisher that died, or of events that are not for this subscriber, or come by
        themselves."""
        if key in self._subscribers:
            self._subscribers[key].receive_no_op(stamp, token, count)

    def end(self, key: int) -> None:
        """Leave all topics; nothing more is shown, and the subscriber is forgotten once the servers know."""
        if key not in self._subscribers:
            return
        self._ending.add(key)
        if self._wanted[key]:
            self.change(key, (), self._wanted[key])
        self._maybe_forget(key)

    def _maybe_forget(self, key: int) -> None:
        """The last change of one that ends, if it ever had topics, leaves some."""
        if key in self._ending and not self._leaving[key]:
            self._forget(key)

    def waits_for(self, key: int) -> str:
        """In words, the event that a subscriber lacks; empty: none."""
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

    def doubt(self, key: int, why: str) -> None:
        """From now on what the subscriber waits for may never come: it does not wait for ever any more."""
        if key in self._subscribers and key not in self._doubts:
            self._doubts[key] = _Doubt(why)
            self._look_at_doubtful(key)

    def _look_at_doubtful(self, key: int) -> None:
        doubt = self._doubts[key]
        lacks = self.waits_for(key) if self.buffered(key) else ""
        if lacks and lacks == doubt.lacked:
            self._break(key, f"{doubt.why}, and {lacks} has not come since: the order cannot be continued")
            return
        doubt.lacked = lacks
        self.port.set_timer((self.name, "doubt", key), self.port.now + DOUBT_NS)

    def knows(self, key: int) -> bool:
        """False: the subscriber has ended, or its order is broken."""
        return key in self._subscribers

    def _break(self, key: int, reason: str) -> None:
        """It is said before what waits is released: nobody may come back to what is then gone."""
        self.port.emit(OrderBroken(key, reason))
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
                else:  # it was left before it was joined
                    self._releases[key].drop(fact.event, fact.stamp.number, fact.count)
            case TopicsJoined():
                self.port.emit(JoinCompleted(key, fact.topics))
            case TopicsLeft():
                self._leaving[key] -= 1
                self.port.emit(Parted(key, fact.topics))
                self._maybe_forget(key)
            case ResumptionRefused(topic=topic):
                self._break(key, f"sequencer server {self.layout.chain.server_of(topic)} lost its state")
            case OrderStalled():
                reason = (
                    f"{fact.buffered} events wait for {self.waits_for(key) or 'one that does not come'}: "
                    "no more can be kept"
                )
                self._break(key, reason)
            case Misbehaviour():
                self.port.emit(fact)


class OrderingClient(Node):
    """The module alone, for drivers that have no other parts at the node."""

    def __init__(self, port: Port, layout: Layout, *, incarnation: int) -> None:
        self.module = OrderingModule(port, layout, incarnation=incarnation)
        super().__init__((self.module,))
