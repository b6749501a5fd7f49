"""A seeded world of whole sequencer nodes and clients, in virtual time, with everything that can go wrong.

Nodes host primaries, standbys and witnesses as `layout.spread` places them. Datagrams are lost, repeated, reordered and
delayed; nodes crash (with their disk or without), pause, are cut off, find their disk full; clients publish, join,
change, leave, die, or are away for too long. The event service is reliable, and reorders and repeats notifications.
After a while the faults end, and everything must become quiet and right.

What leaves the nodes is watched all the time (`Watcher`): an answer, a number, an item of the chain has one meaning for
ever, whoever speaks. At the end `World.problems` also has all that is not as it should be then.

`python tests/support/sequencer_network.py SEED [--long] [--trace]` plays one run again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import combinations
from random import Random
from typing import Any

import msgspec
from msgspec import structs

from tidings.core.errors import StoreFull
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Node, RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.ordering.layout import Layout, spread
from tidings.core.ordering.messages import ChainItem, Claim, EventStamps, WalkDone
from tidings.core.ordering.module import (
    EventsShown,
    JoinCompleted,
    OrderBroken,
    OrderingClient,
    PublishNow,
)
from tidings.core.ordering.replication.journal import Journal
from tidings.core.ordering.replication.node import SequencerNode
from tidings.core.ordering.replication.replica import Replica, ReplicaRole, Times
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.core.ordering.subscriber import OrderedSubscriber
from tidings.core.store import Change, MemoryStore

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
TIMES = Times(
    sign_ns=200 * MILLISECOND, lease_ns=1 * SECOND, publisher_ns=8 * SECOND, subscriber_ns=12 * SECOND
)
LONG_TIMES = structs.replace(TIMES, subscriber_ns=60 * SECOND)
"""No subscriber is out of luck for so long."""
MAX_QUIET_NS = 120 * SECOND
"""So long after the faults everything must be quiet."""
Tables = dict[str, dict[bytes, bytes]]
Number = tuple[int, int]
"""(topic, number)"""


class FullStore(MemoryStore):
    """Can be full: then nothing is written, all else works."""

    full = False

    def write(self, changes: Sequence[Change]) -> None:
        if self.full and any(value is not None for _, _, value in changes):
            raise StoreFull("the disk is full")
        super().write(changes)


class WorldPort:
    def __init__(self, world: World, host: Host) -> None:
        self.node = host.name
        self.random: RandomSource = Random(world.random.getrandbits(32))
        self._world = world
        self._host = host
        self._life = host.life
        self._timers: dict[TimerName, int] = {}

    @property
    def now(self) -> int:
        return self._world.now

    def send(self, to: str, message: Message) -> None:
        self._world.send(self._host, to, message)

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        self._world.ticket += 1
        self._timers[name] = self._world.ticket
        self._world.at(max(at, self._world.now), self._fire, name, self._world.ticket)

    def cancel_timer(self, name: TimerName) -> None:
        self._timers.pop(name, None)

    def _fire(self, name: TimerName, ticket: int) -> None:
        host = self._host
        if host.life != self._life or self._timers.get(name) != ticket:
            return
        if host.paused_until > self._world.now:
            self._world.at(host.paused_until, self._fire, name, ticket)
            return
        del self._timers[name]
        host.node.timer(name)

    def emit(self, fact: object) -> None:
        self._world.on_fact(self._host, fact)


class Host:
    """A node's place: its disk outlives it."""

    node: Node
    store: FullStore

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0
        self.up = False
        self.paused_until = 0
        self.tables: Tables = {}
        self.lost_life = 0
        """The last life before its disk was lost."""


@dataclass
class Watch:
    """One ordered subscription of a client, and what it saw."""

    client: str
    key: int
    wanted: set[int] = field(default_factory=set)
    joining: dict[int, int] = field(default_factory=dict)
    """Topic -> changes that join it and are not complete."""
    joined: dict[int, int] = field(default_factory=dict)
    """Topic -> the step at which the application was told."""
    shown: list[tuple[str, bool]] = field(default_factory=list)
    """(event, out of order)"""
    ended: bool = False
    broken: str = ""


@dataclass
class Published:
    client: str
    topic: int
    step: int
    knows: frozenset[str]
    """What its publisher had published, or been shown, before."""
    number: Number | None = None
    accepted: bool = False
    refused: bool = False


class Watcher:
    """What was said once is true for ever."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        self.answers: dict[tuple[Any, ...], Message] = {}
        self.stamps: dict[Number, tuple[Any, ...]] = {}

    def on_send(self, sender: str, message: Message) -> None:
        match message:
            case EventStamps():
                self._once(sender, ("request", message.publisher, message.server, message.request), message)
                for offset in range(1, message.count + 1):
                    whole = (message.publisher, message.index, message.values)
                    self.on_number(sender, (message.topic, message.base + offset), whole)
            case WalkDone():
                self._once(sender, ("walk", message.subscriber, message.version), message)
            case ChainItem():
                self._once(sender, ("item", message.server, message.number), message)
            case _:
                pass

    def on_no_ops(self, sender: str, no_ops: PublishNoOps) -> None:
        for offset in range(no_ops.count):
            number = (no_ops.stamp.topic, no_ops.stamp.number + offset)
            said = self.stamps.get(number)
            if said is not None and said[1:] != (no_ops.stamp.index, no_ops.stamp.values):
                self.problems.append(f"{sender} replaces {number} with another stamp than {said}")

    def on_number(self, sender: str, number: Number, whole: tuple[Any, ...]) -> None:
        if self.stamps.setdefault(number, whole) != whole:
            self.problems.append(f"{sender} gives {number} to {whole}; it was {self.stamps[number]}")

    def _once(self, sender: str, what: tuple[Any, ...], message: Message) -> None:
        if self.answers.setdefault(what, message) != message:
            self.problems.append(f"{sender} says {message}; it was {self.answers[what]}")


@dataclass(eq=False)
class Batch:
    """Events that are published together."""

    names: tuple[str, ...]
    first: int = 0
    """The number of the first of them, once it has one."""

    def named(self, number: int, count: int) -> tuple[str, ...]:
        return self.names[number - self.first : number - self.first + count]


class Service:
    """Takes events and no-ops, and notifies whoever is subscribed to their topic then."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.topics: dict[tuple[str, int], set[int]] = {}
        """(client, key of the subscription) -> topics"""
        self.events: dict[Number, str] = {}
        self.no_ops: set[Number] = set()
        self.on_the_way = 0
        """Events and no-ops that somebody was not notified of yet."""

    def publish(self, host: Host, fact: PublishNow) -> None:
        world = self._world
        self.on_the_way += 1
        world.later(self._take_event, host, host.life, fact, unlucky=world.random.random())

    def _take_event(self, host: Host, life: int, fact: PublishNow, *, unlucky: float) -> None:
        """A client that died may have handed it over or not."""
        world = self._world
        self.on_the_way -= 1
        if host.life != life and world.random.random() < 0.5:
            return
        batch = fact.event
        assert isinstance(batch, Batch) and len(batch.names) == fact.count
        is_refused = not world.healed and unlucky < world.plan.refusals
        if is_refused:
            for name in batch.names:
                world.events[name].refused = True
            world.later(self._answer, host, life, fact.handle, fact.count, taken=False)
            if unlucky < world.plan.refusals / 2:
                return  # else it is taken, and nobody knows
        for offset, name in enumerate(batch.names):
            number = (fact.stamp.topic, fact.stamp.number + offset)
            if self.events.setdefault(number, name) != name:
                world.problems.append(f"{number} is in the service as {self.events[number]} and as {name}")
            world.events[name].accepted, world.events[name].number = True, number
        self._notify_in_pieces(fact.stamp, batch, fact.count)
        if not is_refused:
            for part in self._pieces(fact.count):
                world.later(self._answer, host, life, fact.handle, part, taken=True)

    def _answer(self, host: Host, life: int, handle: int, count: int, *, taken: bool) -> None:
        if host.life == life:
            module = self._world.client(host).module
            (module.published if taken else module.failed)(handle, count)

    def _notify_in_pieces(self, stamp: Timestamp, event: object, count: int) -> None:
        """Runs are cut wherever the service likes."""
        for part in self._pieces(count):
            self._notify(stamp, event, part)
            stamp = stamp.at(stamp.number + part)

    def _pieces(self, count: int) -> list[int]:
        cut = self._world.random.randrange(count)
        return [cut, count - cut] if cut else [count]

    def publish_no_ops(self, host: Host, fact: PublishNoOps) -> None:
        self.on_the_way += 1
        self._world.later(self._take_no_ops, host, host.life, fact)

    def _take_no_ops(self, host: Host, life: int, fact: PublishNoOps) -> None:
        self.on_the_way -= 1
        if host.life != life:
            return
        for offset in range(fact.count):
            self.no_ops.add((fact.stamp.topic, fact.stamp.number + offset))
        self._notify_in_pieces(fact.stamp, None, fact.count)
        self._world.later(self._no_ops_published, host, life, fact)

    def _no_ops_published(self, host: Host, life: int, fact: PublishNoOps) -> None:
        if host.life == life:
            self._world.sequencer(host).sequencer.no_ops_published(fact.server, fact.number)

    def _notify(self, stamp: Timestamp, event: object, count: int = 1) -> None:
        world = self._world
        for (client, key), topics in self.topics.items():
            if stamp.topic in topics:
                for _ in range(1 + (world.random.random() < world.plan.repeats)):
                    self.on_the_way += 1
                    world.later(self._hand_over, client, key, stamp, event, count)

    def _hand_over(self, client: str, key: int, stamp: Timestamp, event: object, count: int) -> None:
        """Reliable: who pauses gets it later, who died does not need it."""
        host = self._world.hosts[client]
        if host.paused_until > self._world.now:
            self._world.at(host.paused_until, self._hand_over, client, key, stamp, event, count)
            return
        self.on_the_way -= 1
        if host.up:
            module = self._world.client(host).module
            (module.receive_no_ops if event is None else module.receive)(key, stamp, event, count)


@dataclass(frozen=True)
class Plan:
    """What a seed stands for."""

    servers: int
    nodes: int
    topics: int
    causal: bool
    clients: int
    operations: int
    faults: int
    faulty_ns: int
    losses: float
    repeats: float
    refusals: float
    delay_ns: int
    long_delays: float
    wire: bool
    """Messages are encoded and decoded."""


def plan_of(seed: int, *, long: bool = False) -> Plan:
    random = Random(f"plan {seed}")
    servers = random.choice((1, 1, 2, 2, 3))
    nodes = random.choice((3, 3, 3, 4, 5)) if random.random() < 0.9 else servers
    return Plan(
        servers=servers,
        nodes=nodes,
        topics=servers + random.randrange(3),
        causal=random.random() < 0.5,
        clients=random.randrange(2, 5),
        operations=random.randrange(40, 120) if long else random.randrange(4, 24),
        faults=random.randrange(10, 30) if long else random.randrange(5),
        faulty_ns=(30 if long else random.choice((2, 4, 6))) * SECOND,
        losses=random.choice((0.0, 0.02, 0.1, 0.3)),
        repeats=random.choice((0.0, 0.05, 0.3)),
        refusals=random.choice((0.0, 0.0, 0.0, 0.1)),
        delay_ns=random.choice((1, 10, 100)) * MILLISECOND,
        long_delays=random.choice((0.0, 0.0, 0.02, 0.1)),
        wire=seed % 8 == 0,
    )


class World:
    def __init__(self, seed: int, *, long: bool = False, trace: bool = False) -> None:
        self.random = Random(f"world {seed}")
        self.plan = plan = plan_of(seed, long=long)
        self.trace = trace
        self.times = LONG_TIMES if long else TIMES
        self.now = 0
        self.step = 0
        self.ticket = 0
        self.healed = False
        self.problems: list[str] = []
        self.watcher = Watcher(self.problems)
        self.service = Service(self)
        self.events: dict[str, Published] = {}
        self.known: dict[str, frozenset[str]] = {}
        self.watches: dict[tuple[str, int], Watch] = {}
        self.excused: set[str] = set()
        """Clients that were dead or away."""
        self.cut: set[frozenset[str]] = set()
        """Pairs that do not hear each other."""
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...], dict[str, Any]]] = []
        names = [f"n{number}" for number in range(plan.nodes)]
        self.layout = self._layout(names)
        self.hosts = {name: Host(name) for name in names}
        self.sequencers = names
        self.clients = [f"c{number}" for number in range(plan.clients)]
        for client in self.clients:
            self.hosts[client] = Host(client)
            self.known[client] = frozenset()

    def _layout(self, names: list[str]) -> Layout:
        plan = self.plan
        cuts = sorted(self.random.sample(range(1, plan.topics), plan.servers - 1))
        bounds = [0, *cuts, plan.topics]
        hosts = self.random.sample(names, plan.servers)
        servers = {
            host: [f"/t{rank}" for rank in range(bounds[place], bounds[place + 1])]
            for place, host in enumerate(hosts)
        }
        return spread(servers, names, causal=plan.causal)

    # --- Time

    def at(self, when: int, what: Callable[..., None], *arguments: Any, **named: Any) -> None:
        self.ticket += 1
        heappush(self._queue, (when, self.ticket, what, arguments, named))

    def later(self, what: Callable[..., None], *arguments: Any, **named: Any) -> None:
        """After a delay of the network."""
        self.at(self.now + self._delay(), what, *arguments, **named)

    def _delay(self) -> int:
        if not self.healed and self.random.random() < self.plan.long_delays:
            return self.random.randrange(3 * SECOND)
        return self.random.randrange(1, self.plan.delay_ns)

    def run_until(self, when: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= when and len(self.problems) < 5:
            self.now, _, what, arguments, named = heappop(queue)
            self.step += 1
            what(*arguments, **named)
        self.now = when

    # --- The network

    def send(self, host: Host, to: str, message: Message) -> None:
        if not host.up:
            return
        self.watcher.on_send(host.name, message)
        if to not in self.hosts:
            self.problems.append(f"{host.name} sends {message} to {to}, and there is none")
            return
        if self.plan.wire:
            message = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
        lossy = not self.healed
        if lossy and self.random.random() < self.plan.losses:
            return
        for _ in range(1 + (lossy and self.random.random() < self.plan.repeats)):
            self.later(self._deliver, host, host.life, to, message)

    def _deliver(self, sender: Host, life: int, to: str, message: Message) -> None:
        host = self.hosts[to]
        if not host.up or frozenset((sender.name, to)) in self.cut:
            return
        if isinstance(message, Claim) and life <= sender.lost_life:
            return  # granted to one that has lost its disk since, it would lose the server for good
        if host.paused_until > self.now:
            self.at(host.paused_until, self._deliver, sender, life, to, message)
            return
        if self.trace:
            print(f"{self.now / SECOND:9.4f} {sender.name} -> {to} {message}")
        host.node.receive(sender.name, message)

    # --- Nodes

    def start_host(self, host: Host) -> None:
        host.life += 1
        host.up = True
        host.paused_until = 0
        port = WorldPort(self, host)
        if host.name in self.clients:
            host.node = OrderingClient(port, self.layout, incarnation=host.life << 20)
        else:
            first = not host.tables or any(host.tables.values())
            host.store = FullStore(host.tables)
            host.node = SequencerNode(port, self.layout, host.store, times=self.times, first=first)
        host.node.start()

    def stop_host(self, host: Host) -> None:
        host.life += 1
        host.up = False
        if host.name in self.sequencers:
            host.store.close()

    def sequencer(self, host: Host) -> SequencerNode:
        assert isinstance(host.node, SequencerNode)
        return host.node

    def client(self, host: Host) -> OrderingClient:
        assert isinstance(host.node, OrderingClient)
        return host.node

    def on_fact(self, host: Host, fact: object) -> None:
        if self.trace:
            print(f"{self.now / SECOND:9.4f} {host.name} {fact}")
        match fact:
            case PublishNow():
                self._on_publish_now(fact)
                self.service.publish(host, fact)
            case PublishNoOps():
                self.watcher.on_no_ops(host.name, fact)
                self.service.publish_no_ops(host, fact)
            case EventsShown():
                self._on_shown(host, fact)
            case JoinCompleted():
                self._on_joined(self.watches[host.name, fact.key], fact.topics)
            case OrderBroken():
                self.watches[host.name, fact.key].broken = fact.reason
                if host.name not in self.excused:
                    self.problems.append(f"{host.name} was never away, and {fact}")
            case Misbehaviour():
                self.problems.append(f"{host.name}: {fact}")
            case _:
                pass

    def _on_joined(self, watch: Watch, topics: Iterable[int]) -> None:
        for topic in topics:
            watch.joining[topic] -= 1
            if not watch.joining[topic] and topic in watch.wanted:  # else it was left, or joined again, since
                watch.joined[topic] = self.step

    def _on_publish_now(self, fact: PublishNow) -> None:
        batch = fact.event
        assert isinstance(batch, Batch)
        batch.first = fact.stamp.number
        for offset, name in enumerate(batch.names):
            if self.events[name].number is not None:
                self.problems.append(f"{name} is handed over twice")
            self.events[name].number = (fact.stamp.topic, fact.stamp.number + offset)

    def _on_shown(self, host: Host, fact: EventsShown) -> None:
        batch, number = fact.event, fact.stamp.number
        assert isinstance(batch, Batch)
        for offset, name in enumerate(batch.named(number, fact.count)):
            self._on_each_shown(host, fact, name, number + offset)

    def _on_each_shown(self, host: Host, fact: EventsShown, event: str, at: int) -> None:
        watch = self.watches[host.name, fact.key]
        if fact.stamp.topic not in watch.wanted or watch.ended or watch.broken:
            self.problems.append(f"{host.name} is shown {event} of {fact.stamp.topic}, which it left")
        if event in [shown for shown, _ in watch.shown]:
            self.problems.append(f"{host.name} is shown {event} twice")
        number = (fact.stamp.topic, at)
        if fact.out_of_order and number not in self.service.no_ops:
            self.problems.append(f"{event} comes late to {host.name}, and nobody replaced it")
        watch.shown.append((event, fact.out_of_order))
        self.known[host.name] |= {event}

    # --- What clients do

    def operate(self, client: str) -> None:
        host = self.hosts[client]
        if not host.up:
            return
        if host.paused_until > self.now:
            self.at(host.paused_until, self.operate, client)
            return
        mine = [
            watch
            for watch in self.watches.values()
            if watch.client == client and not watch.ended and not watch.broken
        ]
        choice = self.random.random()
        if choice < 0.6:
            self._publish(client, self.random.randrange(1, 4))
        elif not mine or choice < 0.7:
            self._join(client)
        elif choice < 0.88:
            self._change(self.random.choice(mine))
        elif choice < 0.94:
            self._end(self.random.choice(mine))
        elif not self.client(host).module.unpublished:
            self.client(host).module.leave()

    def _publish(self, client: str, count: int) -> None:
        topic = self.random.randrange(self.plan.topics)
        for _ in range(count):
            if self.random.random() < 0.3:
                topic = self.random.randrange(self.plan.topics)
            names = []
            for _ in range(self.random.choice((1, 1, 2, 5))):
                event = f"e{len(self.events)}"
                self.events[event] = Published(client, topic, self.step, self.known[client])
                self.known[client] |= {event}
                names.append(event)
            self.client(self.hosts[client]).module.publish(topic, Batch(tuple(names)), len(names))

    def _join(self, client: str) -> None:
        module = self.client(self.hosts[client]).module
        key = module.add_subscriber()
        watch = self.watches[client, key] = Watch(client, key)
        self.service.topics[client, key] = set()
        topics = range(self.plan.topics)
        self._ask(watch, self.random.sample(topics, self.random.randrange(1, len(topics) + 1)), ())

    def _change(self, watch: Watch) -> None:
        absent = [topic for topic in range(self.plan.topics) if topic not in watch.wanted]
        add = self.random.sample(absent, self.random.randrange(len(absent) + 1))
        present = sorted(watch.wanted)
        remove = self.random.sample(present, self.random.randrange(len(present) + 1))
        self._ask(watch, add, remove)

    def _ask(self, watch: Watch, add: Iterable[int], remove: Iterable[int]) -> None:
        watch.wanted.update(add)
        watch.wanted.difference_update(remove)
        for topic in remove:
            watch.joined.pop(topic, None)
        for topic in add:
            watch.joining[topic] = watch.joining.get(topic, 0) + 1
        self.service.topics[watch.client, watch.key] = set(watch.wanted)
        self.client(self.hosts[watch.client]).module.change(watch.key, add, remove)

    def _end(self, watch: Watch) -> None:
        watch.ended = True
        self.service.topics.pop((watch.client, watch.key))
        self.client(self.hosts[watch.client]).module.end(watch.key)

    # --- What goes wrong

    def fail(self) -> None:
        kinds = (
            self._crash,
            self._crash,
            self._lose_disk,
            self._pause,
            self._cut_pair,
            self._cut_off,
            self._cut_off,
            self._fill_disk,
            self._kill_client,
            self._send_away,
        )
        weights = (3, 3, 4, 3, 3, 2, 2, 2, 1, 1)
        self.random.choices(kinds, weights)[0]()

    def _duration(self) -> int:
        return self.random.choice((100, 700, 1500, 3000)) * MILLISECOND

    def _note(self, what: str) -> None:
        if self.trace:
            print(f"{self.now / SECOND:9.4f} *** {what}")

    def _crash(self) -> None:
        host = self.hosts[self.random.choice(self.sequencers)]
        if host.up:
            self._note(f"crash of {host.name}")
            self.stop_host(host)
            self.at(self.now + self._duration(), self._restart, host, host.life)

    def _restart(self, host: Host, life: int) -> None:
        if host.life == life:
            self._note(f"restart of {host.name}")
            self.start_host(host)

    def _lose_disk(self) -> None:
        """Never of both replicas of a server, and witnesses keep theirs."""
        host = self.hosts[self.random.choice(self.sequencers)]
        if host.up and self._is_dispensable(host.name):
            self._note(f"crash of {host.name}, with its disk")
            host.lost_life = host.life
            self.stop_host(host)
            rulings = {
                key: value for key, value in host.tables["identity"].items() if key.startswith(b"witness:")
            }
            host.tables = {"identity": rulings} if rulings else {}
            self.at(self.now + self._duration(), self._restart, host, host.life)

    def _is_dispensable(self, name: str) -> bool:
        for place in self.layout.servers:
            replicas = self.layout.replicas(place.name)
            if name not in replicas:
                continue
            if len(replicas) < 2:
                return False
            (other,) = set(replicas) - {name}
            witness = self.hosts[place.witness]
            record = self.sequencer(witness)
            ruling = record.witness._records.get(place.name)
            standing = Journal(MemoryStore(self.hosts[other].tables), place.name, self.layout).standing
            if ruling is None or not standing.stated or (ruling.active == name and ruling.alone):
                return False
        return True

    def _pause(self) -> None:
        host = self.random.choice(list(self.hosts.values()))
        self._note(f"pause of {host.name}")
        host.paused_until = self.now + self._duration()

    def _cut_pair(self) -> None:
        place = self.random.choice(self.layout.servers)
        nodes = [node for node in (place.primary, place.standby, place.witness) if node]
        if len(nodes) > 1:
            self._cut([frozenset(self.random.sample(nodes, 2))])

    def _cut_off(self) -> None:
        name = self.random.choice(self.sequencers)
        others = self.sequencers if self.random.random() < 0.3 else list(self.hosts)
        self._cut([frozenset((name, other)) for other in others if other != name])

    def _cut(self, pairs: list[frozenset[str]]) -> None:
        self._note(f"cut {[sorted(pair) for pair in pairs]}")
        self.cut.update(pairs)
        self.at(self.now + self._duration(), self.cut.difference_update, pairs)

    def _fill_disk(self) -> None:
        host = self.hosts[self.random.choice(self.sequencers)]
        if host.up:
            self._note(f"full disk of {host.name}")
            host.store.full = True
            self.at(self.now + self._duration(), setattr, host.store, "full", False)

    def _kill_client(self) -> None:
        host = self.hosts[self.random.choice(self.clients)]
        if host.up and sum(self.hosts[name].up for name in self.clients) > 1:
            self._note(f"death of {host.name}")
            self.stop_host(host)
            self.excused.add(host.name)
            for key in [key for key in self.service.topics if key[0] == host.name]:
                del self.service.topics[key]

    def _send_away(self) -> None:
        name = self.random.choice(self.clients)
        if name not in self.excused:
            self._note(f"{name} goes away")
            self.excused.add(name)
            pairs = [frozenset((name, other)) for other in self.sequencers]
            self.cut.update(pairs)
            away_ns = self.random.choice((self.times.publisher_ns, self.times.subscriber_ns)) + 5 * SECOND
            self.at(self.now + away_ns, self.cut.difference_update, pairs)

    def heal(self) -> None:
        self._note("all is well")
        self.healed = True
        away = {pair for pair in self.cut if pair & self.excused}
        self.cut &= away
        for host in self.hosts.values():
            host.paused_until = 0
            if host.name in self.sequencers:
                if not host.up:
                    self.start_host(host)
                host.store.full = False

    # --- The end

    def run(self) -> list[str]:
        random, plan = self.random, self.plan
        for host in self.hosts.values():
            self.at(random.randrange(300 * MILLISECOND), self.start_host, host)
        for _ in range(plan.operations):
            when = random.randrange(300 * MILLISECOND, plan.faulty_ns)
            self.at(when, self.operate, random.choice(self.clients))
        for _ in range(plan.faults):
            self.at(random.randrange(300 * MILLISECOND, plan.faulty_ns), self.fail)
        self.run_until(plan.faulty_ns)
        self.heal()
        unrest = ["never looked"]
        while unrest and self.now < plan.faulty_ns + MAX_QUIET_NS and not self.problems:
            self.run_until(self.now + SECOND)
            unrest = [] if self.cut else self.unrest()
            if self.cut:
                unrest = ["somebody is away"]
        if not self.problems:
            self.problems += unrest
            self._check_numbers()
            self._check_shown()
            self._check_order()
            if plan.causal:
                self._check_causes()
        return self.problems

    def replicas(self, server: str) -> list[Replica]:
        return [
            self.sequencer(self.hosts[node]).sequencer.replicas[server]
            for node in self.layout.replicas(server)
        ]

    def active(self, server: str) -> Replica | None:
        return next(
            (replica for replica in self.replicas(server) if replica.role is ReplicaRole.ACTIVE), None
        )

    def unrest(self) -> list[str]:
        """What is not yet as it must be in the end."""
        found = [f"{self.service.on_the_way} notifications are on their way"] * bool(self.service.on_the_way)
        for place in self.layout.servers:
            found += self._unrest_of(place.name)
        if any(self.active(place.name) is None for place in self.layout.servers):
            return found
        for client in self.clients:
            host = self.hosts[client]
            if host.up:
                module = self.client(host).module
                if module.unpublished:
                    found.append(f"{client} has {module.unpublished} events to publish")
                found += [
                    f"{client} has {module.buffered(key)} events that wait for {module.waits_for(key)}"
                    for key in module._subscribers
                    if module.buffered(key)
                ]
                found += [
                    f"{client} does not know that it was given up"
                    for subscriber in module._subscribers.values()
                    if not self._is_known(subscriber)
                ]
        for watch in self.watches.values():
            lacks = watch.wanted - watch.joined.keys()
            if lacks and not watch.ended and not watch.broken and self.hosts[watch.client].up:
                found.append(f"{watch.client} has not joined {lacks}")
        return found

    def _is_known(self, subscriber: OrderedSubscriber) -> bool:
        if subscriber.lowest is None:
            return True
        active = self.active(self.layout.chain.server_of(subscriber.lowest))
        assert active is not None and active.machine is not None
        return active.machine.server.has_subscriber(subscriber.identity)

    def _unrest_of(self, server: str) -> list[str]:
        replicas = self.replicas(server)
        roles = sorted(replica.role for replica in replicas)
        if roles != sorted([ReplicaRole.ACTIVE, ReplicaRole.STANDBY][: len(replicas)]):
            return [f"{server} has the roles {roles}"]
        found = []
        active = self.active(server)
        assert active is not None and active.machine is not None
        machine = active.machine
        if len(replicas) > 1 and active.alone:
            found.append(f"{server} is alone")
        for what, waiting in (
            ("items up the chain", machine.untaken),
            ("no-ops", machine.no_ops),
            ("outputs", active._output_gate._held),
            ("inputs", active._batch),
        ):
            if waiting:
                found.append(f"{server} has {what}: {waiting}")
        gone = [identity for identity in machine.server.subscribers if not self.hosts[identity[0]].up]
        gone += [identity for identity in machine.server.publishers if not self._is_publisher(identity)]
        if gone:
            found.append(f"{server} counts on {gone}, who are gone")
        for replica in [] if found else replicas:
            host = self.hosts[replica.port.node]
            loaded, _ = Journal(MemoryStore(host.tables), server, self.layout).load()
            if replica.machine is None or loaded.written() != replica.machine.written():
                found.append(f"the disk of {host.name} has another state of {server}")
            elif replica.machine.written() != machine.written():
                found.append(f"the replicas of {server} have different states")
        return found

    def _is_publisher(self, identity: tuple[str, int]) -> bool:
        host = self.hosts[identity[0]]
        publisher = self.client(host).module._publisher if host.up else None
        return publisher is not None and publisher.identity == identity

    def _check_numbers(self) -> None:
        for place in self.layout.servers:
            active = self.active(place.name)
            if active is None or active.machine is None:
                continue
            for topic in active.machine.server.own:
                for number in range(1, active.machine.server.clock[topic] + 1):
                    if (topic, number) not in self.service.events and (
                        topic,
                        number,
                    ) not in self.service.no_ops:
                        self.problems.append(f"{(topic, number)} is neither an event nor a no-op")
        for name, event in self.events.items():
            if not event.accepted and not event.refused and self.hosts[event.client].up:
                self.problems.append(f"{name} was not published")

    def _check_shown(self) -> None:
        """All that was published after the application was told that it has joined."""
        for watch in self.watches.values():
            if watch.ended or watch.broken or not self.hosts[watch.client].up:
                continue
            shown = {event for event, _ in watch.shown}
            for name, event in self.events.items():
                since = watch.joined.get(event.topic)
                if event.accepted and since is not None and since < event.step and name not in shown:
                    self.problems.append(f"{watch.client} {watch.key} was not shown {name} {event.number}")

    def _check_order(self) -> None:
        places = [
            {event: place for place, (event, late) in enumerate(watch.shown) if not late}
            for watch in self.watches.values()
            if not watch.broken  # the servers had given it up, and it did not know
        ]
        for left, right in combinations(places, 2):
            common = [event for event in left if event in right]
            order = [right[event] for event in common]
            if order != sorted(order):
                self.problems.append(f"two subscribers see {common} in different orders")

    def _check_causes(self) -> None:
        for watch in self.watches.values():
            later: set[str] = set()
            if watch.broken:
                continue
            for event, late in reversed(watch.shown):
                if late:
                    continue
                if swapped := later & self.events[event].knows:
                    self.problems.append(f"{watch.client} sees {event} before {sorted(swapped)}")
                later.add(event)


def run(seed: int, *, long: bool = False, trace: bool = False) -> list[str]:
    return World(seed, long=long, trace=trace).run()


def replay(seed: int, *, long: bool = False) -> str:
    return f"python tests/support/sequencer_network.py {seed}{' --long' if long else ''} --trace"


if __name__ == "__main__":
    for problem in run(int(sys.argv[1]), long="--long" in sys.argv, trace="--trace" in sys.argv):
        print(problem)
