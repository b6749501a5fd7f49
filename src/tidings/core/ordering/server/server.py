"""A sequencer server: the topic managers of a range of ranks (paper ordering, section 3.4, with its errata).

It numbers the events of its topics. `clock` is exact for these; for lower-ranked topics it is the highest value that
ever passed here on its way up. A request that needs clocks of higher-ranked topics climbs the chain through every
server in between: with shortcuts, one event could overtake another, and their stamps would wait for each other. What
climbs increments the clock of its own topic only, so there are no gaps, and no dummy events to fill them.

The chain's links are reliable and FIFO. Requests, answers and retries are datagrams. The last server that a request
needs remembers the answer until the publisher acknowledges it; the server where the request entered knows which one
that is, and forwards retries there. Every number becomes an event, or a no-op once its publisher is dead.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Generic, TypeVar

from msgspec import Struct, structs

from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Misbehaviour, Output
from tidings.core.kernel import Part, Port
from tidings.core.ordering.groups import SequencingGroups
from tidings.core.ordering.messages import (
    MAX_TOPICS,
    AnswersTaken,
    ChangeSubscription,
    Create,
    CreateRelay,
    EventStamps,
    Identity,
    PublisherAlive,
    PublisherDisowned,
    PublisherGone,
    StampsAgain,
    SubscriberAlive,
    SubscriberDisowned,
    SubscribeWalk,
    WalkAgain,
    WalkDone,
)
from tidings.core.ordering.stamps import Chain

MAX_WINDOW = 256
"""Limit for the remembered answers to one publisher."""
MAX_LIVES = 64
"""Publishers of one node at a time; beyond, a new one gets no numbers until one of them leaves or its lease expires.
Together with the limits of a request and a window, one node cannot take more numbers than a subscriber accepts."""
MAX_DEAD = 65_536
"""How many dead publishers, and subscribers that left every topic, are remembered; the latest are."""
PACK_AFTER = 1024
"""After this many deletions, the dict of those remembered is rebuilt."""
EXPIRED = 2**62
"""Versions from here on belong to walks that a server made for an expired subscriber. Below is room for the
incarnations from which a restarted subscriber counts."""

Known = TypeVar("Known")


class NoOps(Output, frozen=True, gc=False):
    """Asks the driver to publish no-ops with the `count` numbers from the stamp's on."""

    stamp: Timestamp
    count: int


class ServerState(Struct, array_like=True):
    """All that a server knows, in a form that can be serialized."""

    clock: list[int]
    lingering: list[tuple[int, list[int]]]
    requests: list[tuple[Identity, int, int, list[tuple[int, str]]]]
    answers: list[EventStamps]
    dead: list[Identity]
    subscriptions: list[tuple[Identity, int, tuple[int, ...]]]
    left: list[tuple[Identity, int]]
    walks: list[WalkDone]


class _Requests:
    """A publisher's requests, at the server where they enter. 0 <= acknowledged < next."""

    __slots__ = ("acknowledged", "holders", "next")

    def __init__(self) -> None:
        self.next = 1
        self.acknowledged = 0
        self.holders: dict[int, str] = {}
        """Unacknowledged request -> the server that remembers its answer."""


class _Latest(Generic[Known]):
    """Remembers, in `of`, the latest `MAX_DEAD` clients that are gone, in the order in which they left.

    To find its first entry, a dict steps over all entries deleted before it, so it is rebuilt now and then.
    """

    __slots__ = ("_forgotten", "of")

    def __init__(self) -> None:
        self.of: dict[Identity, Known] = {}
        self._forgotten = 0

    def add(self, identity: Identity, known: Known) -> Identity | None:
        """Add an entry, and return the one that is forgotten in its place."""
        self.of[identity] = known
        if len(self.of) <= MAX_DEAD:
            return None
        oldest = next(iter(self.of))
        del self.of[oldest]
        self._forgotten += 1
        if self._forgotten >= PACK_AFTER:
            self.of, self._forgotten = dict(self.of), 0
        return oldest


class SequencerServer(Part):
    name = "sequencer"
    handles = {
        Create: "on_create",
        CreateRelay: "on_create_relay",
        AnswersTaken: "on_answers_taken",
        StampsAgain: "on_stamps_again",
        PublisherAlive: "on_publisher_alive",
        PublisherGone: "on_publisher_gone",
        SubscriberAlive: "on_subscriber_alive",
        ChangeSubscription: "on_change_subscription",
        SubscribeWalk: "on_subscribe_walk",
        WalkAgain: "on_walk_again",
    }

    def __init__(self, port: Port, chain: Chain, *, threshold: int) -> None:
        super().__init__(port)
        self.clock = [0] * chain.topics
        self.own = chain.ranks(port.node)
        self.groups = SequencingGroups(self.own, threshold)
        self._chain = chain
        self._above = chain.above(port.node)
        self._below = chain.below(port.node)
        self._requests: dict[Identity, _Requests] = {}
        self._publisher_counts: dict[str, int] = {}
        """Node -> how many publishers it has in `_requests`."""
        self._answers: dict[Identity, dict[str, dict[int, EventStamps]]] = {}
        """Publisher -> server that counts its requests -> request -> answer: the unacknowledged ones that end here.
        Keyed by publisher first, because many may die at once."""
        self._dead: _Latest[None] = _Latest()
        self._subscriptions: dict[Identity, tuple[int, frozenset[int]]] = {}
        """Subscriber -> version and topics, for all whose walks pass here."""
        self._left: _Latest[int] = _Latest()
        """Subscriber without topics -> its version."""
        self._walks: dict[Identity, WalkDone] = {}
        """The latest answer to each subscriber whose walks end here."""

    # --- Numbers for events

    def is_early(self, message: Create) -> bool:
        """Return whether a request before it is missing; holding it back is cheaper than a retry."""
        publisher = message.publisher
        requests = self._requests.get(publisher)
        if publisher in self._dead.of or (message.acknowledged and requests is None):
            return False
        return message.request > (1 if requests is None else requests.next)

    def on_create(self, sender: str, message: Create) -> None:
        publisher = message.publisher
        if sender != publisher[0]:
            self.port.emit(Misbehaviour(sender, f"requests numbers in the name of {publisher[0]}"))
        elif message.topic not in self.own or message.acknowledged >= message.request:
            self.port.emit(
                Misbehaviour(
                    sender, "requests numbers of another server's topic, or acknowledges its own request"
                )
            )
        elif publisher in self._dead.of or (message.acknowledged and publisher not in self._requests):
            self.port.send(sender, PublisherDisowned(publisher))
        else:
            requests = self._requests.get(publisher)
            if requests is None:
                if self._publisher_counts.get(sender, 0) >= MAX_LIVES:
                    self.port.emit(Misbehaviour(sender, f"has more than {MAX_LIVES} publishers at once"))
                    return
                requests = self._begin(publisher)
            if message.request < requests.next:
                self._repeat(publisher, requests, message.request)
            elif message.request == requests.next and message.request - message.acknowledged <= MAX_WINDOW:
                self._create(message, requests)
            # What is further ahead is retried, after what is missing before it.

    def _begin(self, publisher: Identity) -> _Requests:
        requests = self._requests[publisher] = _Requests()
        self._publisher_counts[publisher[0]] = self._publisher_counts.get(publisher[0], 0) + 1
        return requests

    def _repeat(self, publisher: Identity, requests: _Requests, request: int) -> None:
        """Have the answer sent again, by datagram: retries would keep the chain busy for ever."""
        holder = requests.holders.get(request)
        again = StampsAgain(publisher, self.port.node, request)
        if holder == self.port.node:
            self.on_stamps_again(holder, again)
        elif holder is not None:
            self.port.send(holder, again)

    def _create(self, message: Create, requests: _Requests) -> None:
        """Take the numbers, then request the clocks that this server does not know from those above."""
        topic = message.topic
        base = self.clock[topic]
        self.clock[topic] = base + message.count
        index = self.groups.take(topic)
        # Clocks of higher-ranked topics are 0 here; their servers fill them in.
        values = tuple([self.clock[rank] for rank in index])
        last = self._last_of(index)
        requests.next += 1
        self._acknowledge(message.publisher, requests, message.acknowledged, last)
        requests.holders[message.request] = last
        stamps = EventStamps(
            message.publisher,
            self.port.node,
            message.request,
            topic,
            base,
            message.count,
            index,
            values,
        )
        self._send_on(stamps, message.acknowledged, last)

    def _last_of(self, index: tuple[int, ...]) -> str:
        """Return the highest server that these topics need, at least this one."""
        if index and index[0] < self.own.start:
            return self._chain.server_of(index[0])
        return self.port.node

    def _acknowledge(self, publisher: Identity, requests: _Requests, acknowledged: int, last: str) -> None:
        """Forget acknowledged answers. The request itself tells all servers up to `last`."""
        highest = last
        for request in range(requests.acknowledged + 1, acknowledged + 1):
            holder = requests.holders.pop(request)
            if holder != highest:
                highest = min(highest, holder, key=self._chain.position_of)
        requests.acknowledged = max(requests.acknowledged, acknowledged)
        self._forget_answers(publisher, self.port.node, acknowledged)
        if highest != last:
            self._climb(AnswersTaken(publisher, self.port.node, acknowledged, highest), highest)

    def on_create_relay(self, sender: str, message: CreateRelay) -> None:
        if self._is_from_below(sender):
            self._forget_answers(message.publisher, message.server, message.acknowledged)
            self._relay(message)

    def _relay(self, message: CreateRelay) -> None:
        self._learn_event(message)
        stamps = EventStamps(
            message.publisher,
            message.server,
            message.request,
            message.topic,
            message.base,
            message.count,
            message.index,
            self._filled(message.index, message.values),
        )
        self._send_on(stamps, message.acknowledged, self._last_of(message.index))

    def _send_on(self, stamps: EventStamps, acknowledged: int, last: str) -> None:
        """Answer the publisher if this server is the last one needed, else send up the chain."""
        if last == self.port.node:
            self._answer(stamps)
            return
        relay = CreateRelay(
            stamps.publisher,
            stamps.server,
            stamps.request,
            acknowledged,
            stamps.topic,
            stamps.base,
            stamps.count,
            stamps.index,
            stamps.values,
        )
        self._climb(relay, last)

    def _answer(self, stamps: EventStamps) -> None:
        """Remember the answer, then send it: a standby must have it by then."""
        if stamps.publisher in self._dead.of:
            self._replace(stamps)
            return
        self._remember(stamps)
        self.port.send(stamps.publisher[0], stamps)

    def _remember(self, stamps: EventStamps) -> None:
        of_publisher = self._answers.setdefault(stamps.publisher, {})
        of_publisher.setdefault(stamps.server, {})[stamps.request] = stamps

    def on_answers_taken(self, sender: str, message: AnswersTaken) -> None:
        if self._is_from_below(sender):
            self._forget_answers(message.publisher, message.server, message.acknowledged)
            if not message.acknowledged:  # the publisher has left
                self._replace_answers(message.publisher, message.server)
            if message.highest != self.port.node:
                self._climb(message, message.highest)

    def _forget_answers(self, publisher: Identity, server: str, acknowledged: int) -> None:
        answers = self._answers.get(publisher, {}).get(server)
        if answers is None:
            return
        while answers:
            first = next(iter(answers))  # in the order of the requests
            if first > acknowledged:
                return
            del answers[first]
        self._take_answers(publisher, server)

    def _take_answers(self, publisher: Identity, server: str) -> dict[int, EventStamps]:
        """Remove and return the remembered answers."""
        of_publisher = self._answers.get(publisher, {})
        taken = of_publisher.pop(server, {})
        if not of_publisher:
            self._answers.pop(publisher, None)
        return taken

    def on_stamps_again(self, sender: str, message: StampsAgain) -> None:
        answer = self._answers.get(message.publisher, {}).get(message.server, {}).get(message.request)
        if answer is not None:  # else it is still climbing, or acknowledged
            self.port.send(message.publisher[0], answer)
        elif message.publisher in self._dead.of:
            self.port.send(message.publisher[0], PublisherDisowned(message.publisher))

    def on_publisher_alive(self, sender: str, message: PublisherAlive | PublisherGone) -> None:
        """Take the acknowledgement of a publisher that has no request to carry it."""
        publisher = message.publisher
        requests = self._requests.get(publisher)
        if sender != publisher[0]:
            self.port.emit(Misbehaviour(sender, f"sends in the name of {publisher[0]}"))
        elif publisher in self._dead.of or (requests is None and message.acknowledged):
            self.port.send(sender, PublisherDisowned(publisher))
        elif requests is not None and requests.acknowledged < message.acknowledged < requests.next:
            self._acknowledge(publisher, requests, message.acknowledged, self.port.node)

    def on_publisher_gone(self, sender: str, message: PublisherGone) -> None:
        """Replace what the publisher did not publish. All servers get this message: one's answers may be at others."""
        if sender != message.publisher[0]:
            self.port.emit(Misbehaviour(sender, f"sends in the name of {message.publisher[0]}"))
        elif message.publisher not in self._dead.of:
            self.on_publisher_alive(sender, message)
            requests = self._requests.get(message.publisher, _Requests())
            highest = min(requests.holders.values(), key=self._chain.position_of, default=self.port.node)
            self._declare_dead(message.publisher)
            self._replace_answers(message.publisher, self.port.node)
            if highest != self.port.node:
                # Up the chain, behind its acknowledgements: PublisherGone alone could overtake these, and the servers
                # above would replace events that were published.
                self._climb(AnswersTaken(message.publisher, self.port.node, 0, highest), highest)

    def has_subscriber(self, subscriber: Identity) -> bool:
        return 0 < self._version(subscriber) < EXPIRED

    def on_subscriber_alive(self, sender: str, message: SubscriberAlive) -> None:
        if not self.has_subscriber(message.subscriber) and sender == message.subscriber[0]:
            self.port.send(sender, SubscriberDisowned(message.subscriber))

    @property
    def publishers(self) -> list[Identity]:
        """Publishers that have requests or answers here."""
        return list(dict.fromkeys([*self._requests, *self._answers]))

    @property
    def subscribers(self) -> list[Identity]:
        """Subscribers with topics whose walks begin here."""
        return [
            subscriber
            for subscriber, (_, topics) in self._subscriptions.items()
            if topics and max(topics) in self.own
        ]

    def topics_of(self, subscriber: Identity) -> frozenset[int]:
        _, topics = self._subscriptions.get(subscriber, (0, frozenset()))
        return topics

    @property
    def clients(self) -> set[str]:
        """The nodes of all clients that may wait for an answer."""
        return {name for name, _ in (*self.publishers, *self._subscriptions)}

    @property
    def subscriptions(self) -> int:
        return len(self._subscriptions)

    @property
    def unacknowledged(self) -> int:
        """The number of remembered answers."""
        return sum(len(answers) for of_one in self._answers.values() for answers in of_one.values())

    def publisher_dead(self, publisher: Identity) -> None:
        """Replace by no-ops what the publisher may not have published. Every server does so when its lease expires."""
        self._declare_dead(publisher)
        for server in list(self._answers.get(publisher, ())):
            self._replace_answers(publisher, server)

    def _declare_dead(self, publisher: Identity) -> None:
        self._dead.add(publisher, None)
        if self._requests.pop(publisher, None) is not None:
            self._publisher_counts[publisher[0]] -= 1
            if not self._publisher_counts[publisher[0]]:
                del self._publisher_counts[publisher[0]]

    def _replace_answers(self, publisher: Identity, server: str) -> None:
        for stamps in self._take_answers(publisher, server).values():
            self._replace(stamps)

    def _replace(self, stamps: EventStamps) -> None:
        """Emit no-ops with all entries: the next event of the topic relies on what this stamp waits for."""
        first = Timestamp(stamps.topic, stamps.base + 1, stamps.index, stamps.values)
        self.port.emit(NoOps(first, stamps.count))

    # --- Changes of subscriptions

    def on_change_subscription(self, sender: str, message: ChangeSubscription) -> None:
        index = tuple(sorted({*message.topics, *message.ghosts}))
        if sender != message.subscriber[0]:
            self.port.emit(Misbehaviour(sender, f"subscribes in the name of {message.subscriber[0]}"))
        elif not self._is_walk(message, index) or index[-1] not in self.own:
            self.port.emit(
                Misbehaviour(sender, "requests an invalid change of subscription, or one for another server")
            )
        elif self._version(message.subscriber) >= EXPIRED:
            self.port.send(sender, SubscriberDisowned(message.subscriber))
        elif message.version == self._version(message.subscriber):
            self._repeat_walk(message, self._last_of(index))
        elif message.version > self._version(message.subscriber):
            walk = SubscribeWalk(
                message.subscriber,
                message.version,
                message.topics,
                message.ghosts,
                index,
                (0,) * len(index),
                message.resumes,
            )
            self._maybe_walk(walk)

    def _is_walk(self, message: ChangeSubscription, index: tuple[int, ...]) -> bool:
        size = len(message.topics) + len(message.ghosts)
        sound = 0 < size == len(index) <= MAX_TOPICS and self._chain.knows(index)
        return sound and message.version < EXPIRED

    def _version(self, subscriber: Identity) -> int:
        version, _ = self._subscriptions.get(subscriber, (0, frozenset()))
        return version or self._left.of.get(subscriber, 0)

    def _repeat_walk(self, message: ChangeSubscription, last: str) -> None:
        again = WalkAgain(message.subscriber, message.version)
        if last == self.port.node:
            self.on_walk_again(last, again)
        else:
            self.port.send(last, again)

    def on_subscribe_walk(self, sender: str, message: SubscribeWalk) -> None:
        if not self._is_from_below(sender):
            return
        if self._version(message.subscriber) >= EXPIRED > message.version:
            self.port.send(message.subscriber[0], SubscriberDisowned(message.subscriber))
        else:
            self._maybe_walk(message)

    def _maybe_walk(self, walk: SubscribeWalk) -> None:
        """Walk, unless the subscriber resumes and is unknown here: stamps made meanwhile did not consider it."""
        subscriber = walk.subscriber
        has_topics_here = any(topic in self.own for topic in walk.topics)
        if walk.resumes and has_topics_here and not self.has_subscriber(subscriber):
            self.port.send(subscriber[0], SubscriberDisowned(subscriber))
        else:
            self._walk(walk)

    def _walk(self, walk: SubscribeWalk) -> None:
        """Read the clocks and change the groups, in one step, without taking a number."""
        self._learn(walk.index, walk.values)
        values = self._filled(walk.index, walk.values)
        self._record(walk)
        last = self._last_of(walk.index)
        if last == self.port.node:
            done = WalkDone(walk.subscriber, walk.version, walk.index, values)
            self._walks[walk.subscriber] = done
            self.port.send(walk.subscriber[0], done)
        else:
            self._climb(structs.replace(walk, values=values), last)

    def _record(self, walk: SubscribeWalk) -> None:
        _, old = self._subscriptions.pop(walk.subscriber, (0, frozenset()))
        new = frozenset(walk.topics)
        self._left.of.pop(walk.subscriber, None)
        if new:
            self._subscriptions[walk.subscriber] = walk.version, new
        else:
            oldest = self._left.add(walk.subscriber, walk.version)
            if oldest is not None:
                self._walks.pop(oldest, None)
        self.groups.change(old, new, walk.ghosts)

    def subscriber_gone(self, subscriber: Identity) -> None:
        """Remove a subscriber whose lease expired, by a walk that starts here, where its own would."""
        version, topics = self._subscriptions.get(subscriber, (0, frozenset()))
        if topics and max(topics) in self.own:
            ghosts = tuple(sorted(topics))
            walk = SubscribeWalk(subscriber, EXPIRED + version, (), ghosts, ghosts, (0,) * len(ghosts))
            self._walk(walk)
            self.port.send(subscriber[0], SubscriberDisowned(subscriber))

    def on_walk_again(self, sender: str, message: WalkAgain) -> None:
        done = self._walks.get(message.subscriber)
        if done is not None and done.version == message.version:  # else it is still climbing
            self.port.send(message.subscriber[0], done)

    # --- State

    def state(self) -> ServerState:
        return ServerState(
            clock=list(self.clock),
            lingering=self.groups.lingering(),
            requests=[
                (publisher, requests.next, requests.acknowledged, list(requests.holders.items()))
                for publisher, requests in self._requests.items()
            ],
            answers=[
                stamps
                for of_one in self._answers.values()
                for answers in of_one.values()
                for stamps in answers.values()
            ],
            dead=list(self._dead.of),
            subscriptions=[
                (subscriber, version, tuple(sorted(topics)))
                for subscriber, (version, topics) in self._subscriptions.items()
            ],
            left=list(self._left.of.items()),
            walks=list(self._walks.values()),
        )

    def restore(self, state: ServerState) -> None:
        """Restore a state into a new server."""
        self.clock = list(state.clock)
        for publisher, following, acknowledged, holders in state.requests:
            requests = self._begin(publisher)
            requests.next, requests.acknowledged = following, acknowledged
            requests.holders = dict(holders)
        for stamps in state.answers:
            self._remember(stamps)
        self._dead.of = dict.fromkeys(state.dead)
        for subscriber, version, topics in state.subscriptions:
            self._subscriptions[subscriber] = version, frozenset(topics)
            self.groups.change(frozenset(), frozenset(topics), ())
        self.groups.restore_lingering(state.lingering)
        self._left.of = dict(state.left)
        self._walks = {walk.subscriber: walk for walk in state.walks}

    # --- The chain

    def _climb(self, message: CreateRelay | AnswersTaken | SubscribeWalk, last: str) -> None:
        """Send towards `last`, always through the next higher server."""
        assert self._above is not None, f"{self.port.node} is the highest server, but {last} is needed"
        self.port.send(self._above, message)

    def _is_from_below(self, sender: str) -> bool:
        if sender == self._below:
            return True
        self.port.emit(Misbehaviour(sender, "sends up the chain but is not the next lower server"))
        return False

    def _learn_event(self, relay: CreateRelay) -> None:
        self._learn((relay.topic,), (relay.base + relay.count,))
        self._learn(relay.index, relay.values)

    def _learn(self, index: tuple[int, ...], values: tuple[int, ...]) -> None:
        """Raise the clocks of lower-ranked topics to the values that pass here."""
        clock = self.clock
        for position in range(bisect_left(index, self.own.stop), len(index)):
            rank = index[position]
            if values[position] > clock[rank]:
                clock[rank] = values[position]

    def _filled(self, index: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, ...]:
        """Return the values with the clocks of own topics filled in."""
        start, stop = bisect_left(index, self.own.start), bisect_left(index, self.own.stop)
        if start == stop:
            return values
        return (*values[:start], *self._read(index[start:stop]), *values[stop:])

    def _read(self, ranks: tuple[int, ...]) -> list[int]:
        return [self.clock[rank] for rank in ranks]
