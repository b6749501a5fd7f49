"""A small network of sequencer servers, publishers and subscribers whose every step is chosen by a scheduler.

Links of the chain are reliable and FIFO. All else (requests, answers, notifications) waits in a bag from which the
scheduler picks, and may be lost or repeated where the scenario says so. Three schedulers: `run_random`, uniform;
`run_priorities`, which runs what has the highest of random priorities and lowers some of them at random moments (PCT:
it finds orders that need one message to be late for long); `explore`, which tries all, each state once.

`World.violations` says what is wrong once the network is quiet. It checks the property (two subscribers see the same
two events in the same order), exactly-once for what is published after a subscription returned, that nothing is
buffered, and the five invariants of the design.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from random import Random
from typing import Any

import pytest
from msgspec import Struct

from tidings.core.events.timestamp import Timestamp
from tidings.core.kernel import Node, RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.ordering.groups import SequencingGroups
from tidings.core.ordering.messages import AnswersTaken, Create, CreateRelay, EventStamps, SubscribeWalk
from tidings.core.ordering.publisher import EventStamped, OrderedPublisher
from tidings.core.ordering.server.server import NoOps, SequencerServer
from tidings.core.ordering.stamps import Chain
from tidings.core.ordering.subscriber import (
    OrderedEvent,
    OrderedSubscriber,
    Patience,
    TopicsJoined,
)
from tidings.core.ordering.waiting import NO_OP
from tidings.core.structures.range_set import RangeSet

CHAIN_MESSAGES = (CreateRelay, AnswersTaken, SubscribeWalk)
MAX_STEPS = 4000
NO_CHANCE = Random(0)
"""The machines are deterministic."""
Operation = tuple[Any, ...]
Action = tuple[Any, ...]
Number = tuple[int, int]
"""(topic, number)"""
NOTHING: Action = ("nothing",)


@dataclass(frozen=True)
class Scenario:
    """What there is and what its clients do, each its own script, one operation after the other.

    Operations: ("publish", topic, count), ("crash",), ("subscribe", topic), ("unsubscribe", topic),
    ("change", topics to join, topics to leave). A client's next operation may come at any time, but for a
    subscriber's, which waits until it has joined what it asked for.
    """

    subscribers: Mapping[str, Sequence[int]]
    """With the topics that they have before anything else happens."""
    scripts: Mapping[str, Sequence[Operation]]
    starts: tuple[int, ...] = (0, 1, 2, 3)
    topics: int = 4
    threshold: int = 2
    serial: bool = False
    losses: int = 0
    """So many datagrams at most are lost."""
    repeats: int = 0
    """So many datagrams and notifications at most come twice."""
    lost_events: int = 0
    """So many notifications at most are lost: the service is unreliable."""
    patience: Patience | None = None
    fifo_chain: bool = True
    runs: bool = True
    """Events that were published together come together; False: each by itself."""
    prompt_publishers: bool = False
    """Their requests and answers arrive at once. For small state spaces: nothing is missed by it, an operation may
    be late instead of its request, and a notification instead of the answer before it."""


class LoggedServer(SequencerServer):
    """Notes what it processes, in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log: list[Hashable] = []

    def _create(self, message: Create, requests: Any) -> None:
        self.log.append((message.topic, self.clock[message.topic], message.count))
        super()._create(message, requests)

    def _relay(self, message: CreateRelay) -> None:
        self.log.append((message.topic, message.base, message.count))
        super()._relay(message)

    def _walk(self, walk: SubscribeWalk) -> None:
        self.log.append((walk.subscriber, walk.version))
        super()._walk(walk)


class WorldPort:
    """One node's port; facts are handled by the world at once."""

    def __init__(self, world: World, node: str) -> None:
        self.node = node
        self.random: RandomSource = NO_CHANCE
        self.timers: dict[TimerName, int] = {}
        self._world = world

    @property
    def now(self) -> int:
        return self._world.now

    def send(self, to: str, message: Message) -> None:
        self._world.send(self.node, to, message)

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        self.timers[name] = at

    def cancel_timer(self, name: TimerName) -> None:
        self.timers.pop(name, None)

    def emit(self, fact: object) -> None:
        self._world.on_fact(self.node, fact)


@dataclass
class Window:
    """One subscription of a subscriber to a topic, from when it was joined."""

    topic: int
    start: int
    ended: bool = False
    seen: list[int] = field(default_factory=list)


class World:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now = 0
        names = [f"m{position}" for position in range(len(scenario.starts))]
        self.chain = Chain(names, scenario.starts, scenario.topics)
        self.ports: dict[str, WorldPort] = {}
        self.links: dict[tuple[str, str], deque[Message]] = {}
        self.bag: list[tuple[Any, ...]] = []
        """("datagram", from, to, message), ("event", subscriber, stamp, event), ("dead", server, publisher)."""
        self.prompt: deque[tuple[str, str, Message]] = deque()
        """(to, from, message): arrives before anything else happens."""
        self.problems: list[str] = []
        self.shown: dict[str, list[tuple[Number, bool]]] = {name: [] for name in scenario.subscribers}
        self.windows: dict[str, dict[int, Window]] = {name: {} for name in scenario.subscribers}
        self.past: list[tuple[str, Window]] = []
        self.in_service: dict[str, set[int]] = {name: set() for name in scenario.subscribers}
        self.arrived: dict[str, set[Number]] = {name: set() for name in scenario.subscribers}
        self.stamps: dict[Number, Timestamp] = {}
        self.no_ops: set[Number] = set()
        self.named: dict[str, Number] = {}
        self.order: list[str] = []
        """The events, as they were published."""
        self.due: dict[tuple[str, str], int] = {}
        """(subscriber, event) that must be shown, and the topic."""
        self.crashed: set[str] = set()
        self._marks: dict[str, int] = {}
        """Of the state of nodes that nothing has happened to since."""
        self.budget = {"losses": 0, "repeats": 0, "lost_events": 0}
        self.servers = {name: self._server(name) for name in names}
        self.subscribers = {name: self._subscriber(name) for name in scenario.subscribers}
        self.publishers = {
            name: self._publisher(name) for name in scenario.scripts if name not in scenario.subscribers
        }
        parts = {**self.servers, **self.subscribers, **self.publishers}
        self.nodes = {name: Node([part]) for name, part in parts.items()}
        self.scripts = {name: deque(script) for name, script in scenario.scripts.items()}
        self._begin()

    def _server(self, name: str) -> LoggedServer:
        return LoggedServer(self._port(name), self.chain, threshold=self.scenario.threshold)

    def _subscriber(self, name: str) -> OrderedSubscriber:
        scenario = self.scenario
        return OrderedSubscriber(
            self._port(name), self.chain, threshold=scenario.threshold, patience=scenario.patience
        )

    def _publisher(self, name: str) -> OrderedPublisher:
        return OrderedPublisher(self._port(name), self.chain, serial=self.scenario.serial, window=3)

    def _port(self, name: str) -> WorldPort:
        self.ports[name] = WorldPort(self, name)
        return self.ports[name]

    def _begin(self) -> None:
        """The subscriptions that are there from the beginning; nothing goes wrong meanwhile."""
        scripts, self.scripts = self.scripts, {}
        for name, topics in self.scenario.subscribers.items():
            if topics:
                self._operate(name, ("change", tuple(topics), ()))
                while actions := self.actions():
                    self.act(actions[0])
        self.scripts = scripts
        self.budget = {name: getattr(self.scenario, name) for name in self.budget}

    # --- What nodes do

    def send(self, sender: str, to: str, message: Message) -> None:
        if isinstance(message, CHAIN_MESSAGES) and self.scenario.fifo_chain:
            self.links.setdefault((sender, to), deque()).append(message)
        elif self.scenario.prompt_publishers and isinstance(message, Create | EventStamps):
            self.prompt.append((to, sender, message))
        else:
            self.bag.append(("datagram", sender, to, message))

    def on_fact(self, node: str, fact: object) -> None:
        if isinstance(fact, EventStamped):
            assert isinstance(fact.event, tuple)
            for offset, event in enumerate(fact.event):
                number = (fact.stamp.topic, fact.stamp.number + offset)
                self.named[event] = number
                if number in self.stamps:
                    self.problems.append(f"two events have the number {number}")
            self._notify(fact.stamp, fact.event, fact.count)
            if node in self.publishers:
                self.publishers[node].published(fact.receipt, fact.count)
        elif isinstance(fact, NoOps):
            for offset in range(fact.count):
                self.no_ops.add((fact.stamp.topic, fact.stamp.number + offset))
            self._notify(fact.stamp, NO_OP, fact.count)
        elif isinstance(fact, OrderedEvent):
            self._show(node, fact)
        elif isinstance(fact, TopicsJoined):
            for topic, clock in zip(fact.topics, fact.clocks, strict=True):
                self.windows[node][topic] = Window(topic, clock)

    def _notify(self, stamp: Timestamp, event: object, count: int) -> None:
        """As one run, or event by event, as the scenario says."""
        for offset in range(count):
            self.stamps.setdefault((stamp.topic, stamp.number + offset), stamp.at(stamp.number + offset))
        size = count if self.scenario.runs else 1
        for name, topics in self.in_service.items():
            if stamp.topic in topics:
                for first in range(stamp.number, stamp.number + count, size):
                    self.bag.append(("event", name, stamp.at(first), event, size))

    def _show(self, subscriber: str, fact: OrderedEvent) -> None:
        window = self.windows[subscriber].get(fact.stamp.topic)
        for number in range(fact.stamp.number, fact.stamp.number + fact.count):
            self.shown[subscriber].append(((fact.stamp.topic, number), fact.out_of_order))
            if window is None:
                self.problems.append(f"{subscriber} is shown {number} of a topic that it has not")
            else:
                window.seen.append(number)

    # --- What the scheduler may do

    def actions(self) -> list[Action]:
        """Everything that can happen next but timers; those are for when nothing else can."""
        found: list[Action] = [("op", name) for name in self.scripts if self._is_ready(name)]
        found += [("chain", *link) for link, queue in self.links.items() if queue]
        seen = set()
        for position, item in enumerate(self.bag):
            if item not in seen:  # two that are alike make one choice
                seen.add(item)
                found.append(("bag", position))
        return found

    def choices(self) -> list[Action]:
        """As many of the actions as exploration must try here.

        Notifications of a subscriber that will do nothing more but listen touch nobody else: they wait until all
        else is done, and then each such subscriber has its turn. All orders at each of them are still tried.
        """
        actions = self.actions()
        passive = {
            name
            for name, subscriber in self.subscribers.items()
            if subscriber.settled and not self.scripts.get(name)
        }
        of: dict[str, list[Action]] = {}
        for action in actions:
            item = self.bag[action[1]] if action[0] == "bag" else action
            of.setdefault(item[1] if item[0] == "event" and item[1] in passive else "", []).append(action)
        return of.get("") or (of[min(of)] if of else [])

    def _is_ready(self, name: str) -> bool:
        if not self.scripts[name] or name in self.crashed:
            return False
        subscriber = self.subscribers.get(name)
        return subscriber is None or subscriber.settled or self.scripts[name][0][0] == "unsubscribe"

    def act(self, action: Action) -> None:
        if action[0] == "op":
            self._operate(action[1], self.scripts[action[1]].popleft())
        elif action[0] == "chain":
            sender, to = action[1:]
            self._receive(to, sender, self.links[sender, to].popleft())
        elif action[0] == "bag":
            self._take(self.bag.pop(action[1]))
        self._receive_prompt()

    def _receive_prompt(self) -> None:
        while self.prompt:
            self._receive(*self.prompt.popleft())

    def _take(self, item: tuple[Any, ...]) -> None:
        kind, *rest = item
        if kind == "datagram":
            sender, to, message = rest
            self._receive(to, sender, message)
        elif kind == "event":
            name, stamp, event, count = rest
            if stamp.topic in self.windows[name] and event is not NO_OP:
                self.arrived[name].update((stamp.topic, stamp.number + offset) for offset in range(count))
            self._marks.pop(name, None)
            self.subscribers[name].receive(stamp, event, count)
        else:
            server, publisher = rest
            self._marks.pop(server, None)
            self.servers[server].publisher_dead(publisher)

    def _receive(self, to: str, sender: str, message: Message) -> None:
        if to not in self.crashed:
            self._marks.pop(to, None)
            self.nodes[to].receive(sender, message)

    def spoil(self, random: Random) -> bool:
        """Lose or repeat something, if the scenario allows; False if nothing was."""
        if not self.bag:
            return False
        position = random.randrange(len(self.bag))
        kind = self.bag[position][0]
        fate = random.choice(("losses" if kind == "datagram" else "lost_events", "repeats"))
        if kind == "dead" or not self.budget[fate]:
            return False
        self.budget[fate] -= 1
        if fate == "repeats":
            self.bag.append(self.bag[position])
        else:
            del self.bag[position]
        return True

    def run(self, *, without: Callable[[tuple[Any, ...]], bool] = lambda item: False) -> World:
        """Until nothing happens: scripts, chain and bag in order, but not what is to stay in the bag."""
        while True:
            ready = [
                action for action in self.actions() if action[0] != "bag" or not without(self.bag[action[1]])
            ]
            if not ready:
                return self
            self.act(ready[0])

    def fire_timer(self) -> bool:
        """The earliest timer; False if there is none."""
        timers = [
            (at, node, name)
            for node, port in self.ports.items()
            if node not in self.crashed
            for name, at in port.timers.items()
        ]
        if not timers:
            return False
        at, node, name = min(timers, key=lambda timer: (timer[0], timer[1], str(timer[2])))
        self.now = max(self.now, at)
        del self.ports[node].timers[name]
        self._marks.pop(node, None)
        self.nodes[node].timer(name)
        self._receive_prompt()
        return True

    def _operate(self, name: str, operation: Operation) -> None:
        self._marks.pop(name, None)
        kind, *rest = operation
        if kind == "publish":
            topic, count = rest if len(rest) == 2 else (rest[0], 1)
            self._publish(name, topic, count)
        elif kind == "crash":
            self.crashed.add(name)
            for event in [event for event in self.due if event[1].startswith(f"{name}:")]:
                del self.due[event]
            self.bag += [("dead", server, self.publishers[name].identity) for server in self.servers]
        else:
            add, remove = rest if kind == "change" else ((rest, ()) if kind == "subscribe" else ((), rest))
            self._change(name, tuple(add), tuple(remove))

    def _publish(self, name: str, topic: int, count: int) -> None:
        events = [f"{name}:{topic}:{len(self.order) + offset}" for offset in range(count)]
        self.order += events
        for event in events:
            for subscriber, windows in self.windows.items():
                if topic in windows:
                    self.due[subscriber, event] = topic
        assert self.publishers[name].publish(topic, tuple(events), count)

    def _change(self, name: str, add: tuple[int, ...], remove: tuple[int, ...]) -> None:
        self.in_service[name].update(add)
        self.in_service[name].difference_update(remove)
        for topic in remove:
            window = self.windows[name].pop(topic, None)
            if window is not None:
                self.past.append((name, window))
            for key in [key for key, due in self.due.items() if key[0] == name and due == topic]:
                del self.due[key]
        self.subscribers[name].change(add, remove)

    # --- What must hold

    def violations(self) -> list[str]:
        """Once the network is quiet."""
        found = list(self.problems)
        for check in (
            self._order,
            self._once,
            self._buffers,
            self._chain_order,
            self._symmetry,
            self._numbers,
        ):
            found += check()
        return found + self._windows()

    def _order(self) -> Iterable[str]:
        """The property."""
        for (one, shown), (other, others) in combinations(self.shown.items(), 2):
            position = {number: at for at, (number, late) in enumerate(others) if not late}
            common = [number for number, late in shown if not late and number in position]
            for earlier, later in combinations(common, 2):
                if position[earlier] > position[later]:
                    yield f"{one} saw {earlier} before {later}, {other} after it"

    def _once(self) -> Iterable[str]:
        for name, shown in self.shown.items():
            for number, times in Counter(number for number, _ in shown).items():
                if times > 1:
                    yield f"{name} saw {number} {times} times"
        for name, event in self.due:
            named = self.named.get(event)
            if named not in [shown for shown, _ in self.shown[name]] and not self._is_lost(name, named):
                yield f"{name} never saw {event}, which is {named}"

    def _is_lost(self, name: str, number: Number | None) -> bool:
        return self.scenario.lost_events > 0 and number not in self.arrived[name]

    def _buffers(self) -> Iterable[str]:
        for name, subscriber in self.subscribers.items():
            if subscriber.buffered:
                yield f"{name} has {subscriber.buffered} events in its buffer"
            if not subscriber.settled:
                yield f"{name} waits for its subscription"
        for name, publisher in self.publishers.items():
            if name not in self.crashed and publisher.unstamped:
                yield f"{name} waits for {publisher.unstamped} stamps"

    def _chain_order(self) -> Iterable[str]:
        """Invariants 1 and 2: one order of all operations extends what servers process and what stamps say."""
        graph: dict[Hashable, set[Hashable]] = {}
        operation_of: dict[Number, Hashable] = {}
        for server in self.servers.values():
            for earlier, later in zip([None, *server.log], server.log, strict=False):
                graph.setdefault(later, set()).update(() if earlier is None else (earlier,))
        for operation in graph:
            if isinstance(operation, tuple) and len(operation) == 3:
                topic, base, count = operation
                operation_of |= {(topic, number): operation for number in range(base + 1, base + count + 1)}
        for number, stamp in self.stamps.items():
            for entry in zip(stamp.index, stamp.values, strict=True):
                if entry[1]:
                    graph[operation_of[number]].add(operation_of[entry])
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            yield f"no order extends what the servers saw and the stamps say: {error.args[1]}"

    def _symmetry(self) -> Iterable[str]:
        """Invariant 3."""
        members = {
            topic: server.groups.members(topic) for server in self.servers.values() for topic in server.own
        }
        for one, other in combinations(members, 2):
            if (one in members[other]) != (other in members[one]):
                yield f"of the topics {one} and {other} only one has the other in its group"

    def _numbers(self) -> Iterable[str]:
        """Invariant 4."""
        for server in self.servers.values():
            for topic in server.own:
                for number in range(1, server.clock[topic] + 1):
                    if (topic, number) not in self.stamps:
                        yield f"number {number} of topic {topic} became no event"

    def _windows(self) -> list[str]:
        """Invariant 5: what a subscriber saw of a topic, with the no-ops, is contiguous from its walk's value on."""
        if self.scenario.lost_events:
            return []
        current = [(name, window) for name, windows in self.windows.items() for window in windows.values()]
        found = []
        for name, window in current + self.past:
            ends = [*window.seen]
            if (name, window) in current:
                ends += [number for topic, number in self.stamps if topic == window.topic]
            expected = {
                number
                for number in range(window.start + 1, max(ends, default=0) + 1)
                if (window.topic, number) not in self.no_ops
            }
            seen = {number for number in window.seen if (window.topic, number) not in self.no_ops}
            if seen != expected:
                found.append(f"{name} saw {sorted(seen)} of topic {window.topic}, not {sorted(expected)}")
        return found

    def fingerprint(self) -> Hashable:
        """Equal for two worlds only if they have the same future, and the same past as far as it is checked."""
        for name, node in self.nodes.items():
            if name not in self._marks:
                self._marks[name] = hash(frozen(vars(node.parts[0])))
        state = [self._marks[name] for name in self.nodes]
        queues = [(link, tuple(queue)) for link, queue in sorted(self.links.items()) if queue]
        left = [(name, len(script)) for name, script in self.scripts.items()]
        seen = [tuple(shown) for shown in self.shown.values()]
        bag = frozenset(Counter(self.bag).items())
        windows = frozen([[vars(window) for window in of.values()] for of in self.windows.values()])
        return hash((tuple(state), tuple(queues), tuple(left), tuple(seen), bag, windows, frozen(self.due)))


PRIVATE = ("port", "_chain", "log")
PLAIN = frozenset((int, str, bool, type(None), range))


def frozen(value: Any) -> Hashable:
    """The value as tuples; dictionaries keep their order, which may decide what happens first."""
    kind = type(value)
    if kind in PLAIN or isinstance(value, Struct):
        return value  # type: ignore[no-any-return]
    if kind is dict:
        return tuple([(key, frozen(item)) for key, item in value.items() if key not in PRIVATE])
    if kind in (list, tuple, deque, RangeSet):
        return tuple([item if type(item) in PLAIN else frozen(item) for item in value])
    if kind in (set, frozenset):
        return frozenset(value)
    if hasattr(value, "__slots__"):
        return tuple([frozen(getattr(value, name)) for name in value.__slots__])
    return frozen(vars(value)) if vars(value) else value


def finish(world: World, choose: Callable[[World, list[Action]], Action]) -> list[str]:
    """Run until nothing happens any more, then check."""
    for _ in range(MAX_STEPS):
        actions = world.actions()
        if actions:
            world.act(choose(world, actions))
        elif not world.fire_timer():
            return world.violations()
    return [*world.violations(), "the network does not become quiet"]


def run_random(scenario: Scenario, seed: int) -> list[str]:
    """Every choice uniform; timers fire now and then though something else could happen."""
    random = Random(seed)

    def choose(world: World, actions: list[Action]) -> Action:
        if random.random() < 0.15 and world.spoil(random):
            actions = world.actions()
        if random.random() < 0.05:
            world.fire_timer()
            actions = world.actions()
        return random.choice(actions) if actions else NOTHING

    return finish(World(scenario), choose)


def run_priorities(scenario: Scenario, seed: int, *, changes: int = 3, depth: int = 60) -> list[str]:
    """PCT: what has the highest priority runs; at `changes` of the first `depth` steps it becomes the lowest."""
    random = Random(seed)
    priority: dict[Hashable, float] = {}
    lowered_at = {random.randrange(depth) for _ in range(changes)}
    step = 0

    def name_of(world: World, action: Action) -> Hashable:
        return world.bag[action[1]] if action[0] == "bag" else action

    def choose(world: World, actions: list[Action]) -> Action:
        nonlocal step
        step += 1
        if random.random() < 0.1 and world.spoil(random):
            actions = world.actions()
            if not actions:
                return NOTHING
        for action in actions:
            priority.setdefault(name_of(world, action), random.random())
        best = max(actions, key=lambda action: priority[name_of(world, action)])
        if step in lowered_at:
            priority[name_of(world, best)] = -float(step)
            best = max(actions, key=lambda action: priority[name_of(world, action)])
        return best

    return finish(World(scenario), choose)


@dataclass
class Exploration:
    states: int
    ends: int
    violations: list[str]
    """Of the first bad end; empty if there is none."""
    path: tuple[Action, ...] = ()
    """How it came to it: `replay` plays it again."""
    complete: bool = True


def explore(
    scenario: Scenario,
    *,
    max_states: int = 20_000,
    symptom: str = "",
    world_of: Callable[[Scenario], World] = World,
) -> Exploration:
    """All orders, depth first, each state once, up to the first end with a violation that has the symptom.

    What servers logged is no part of a state, so the invariants 1 and 2 are checked along one way to each end.
    """
    seen: set[Hashable] = set()
    prefixes: list[tuple[Action, ...]] = [()]
    ends = 0
    while prefixes:
        path = prefixes.pop()
        world = replay(scenario, path, world_of)
        while True:
            mark = world.fingerprint()
            if mark in seen:
                break
            seen.add(mark)
            if len(seen) > max_states:
                return Exploration(len(seen), ends, [], complete=False)
            actions = world.choices()
            if not actions:
                ends += 1
                violations = finish(world, lambda world, actions: actions[0])
                if any(symptom in violation for violation in violations):
                    return Exploration(len(seen), ends, violations, path)
                break
            prefixes += [(*path, action) for action in actions[1:]]
            path = (*path, actions[0])
            world.act(actions[0])
    return Exploration(len(seen), ends, [])


def replay(
    scenario: Scenario, path: Sequence[Action], world_of: Callable[[Scenario], World] = World
) -> World:
    world = world_of(scenario)
    for action in path:
        world.act(action)
    return world


# --- Scripts


def is_event(item: tuple[Any, ...]) -> bool:
    return bool(item[0] == "event")


def operate(world: World, name: str, *operations: Operation) -> None:
    """The client does this, and everything happens that follows from it, but that events stay on their way."""
    world.scripts[name].extend(operations)
    world.run(without=is_event)


def notify(world: World, subscriber: str, *numbers: tuple[int, int]) -> None:
    """The service notifies it of these events, in this order."""
    for number in numbers:
        on_their_way = [
            (item[1], item[2].topic, item[2].number) if is_event(item) else None for item in world.bag
        ]
        world.act(("bag", on_their_way.index((subscriber, *number))))


# --- Rules taken away, and flaws put back


def take_shortcuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server sends straight to the next one that is needed, past those between."""

    def climb(self: SequencerServer, message: CreateRelay | AnswersTaken | SubscribeWalk, last: str) -> None:
        if isinstance(message, AnswersTaken):
            self.port.send(last, message)
        else:
            needed = max(rank for rank in message.index if rank < self.own.start)
            self.port.send(self._chain.server_of(needed), message)

    monkeypatch.setattr(SequencerServer, "_climb", climb)
    monkeypatch.setattr(SequencerServer, "_is_from_below", lambda self, sender: True)


def forget_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rule 1."""
    monkeypatch.setattr(SequencingGroups, "_leave", lambda self, topic, other: None)


def forget_ghosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rule 2."""
    monkeypatch.setattr(SequencingGroups, "_add_ghosts", lambda self, topic, ghosts: None)


def forget_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rule 3."""
    monkeypatch.setattr(OrderedSubscriber, "_fence", lambda self, walk, before: None)


def forget_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rule 4."""

    def is_next(self: OrderedSubscriber, queue: Any) -> bool:
        for position, (rank, value) in enumerate(zip(queue.index, queue.values, strict=True)):
            if rank not in self._under_way and self.clock[rank] < value:
                queue.position = position
                return False
        return True

    monkeypatch.setattr(OrderedSubscriber, "_is_next", is_next)


def forget_no_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dead publisher did not publish stays a gap."""
    monkeypatch.setattr(SequencerServer, "publisher_dead", lambda self, publisher: None)
