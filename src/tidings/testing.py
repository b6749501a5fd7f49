"""The simulator for tests of your own application: a seeded network in virtual time, behind the ordinary API.

    async def scenario(net):
        async with net.connect("b0") as publisher, net.connect("b4") as subscriber:
            async with subscriber.subscribe("/news/**") as stream:
                net.crash("b1")
                await publisher.publish("/news/bbc", {"size": 12})
                await asyncio.sleep(60)                       # takes no time
                assert not len(stream)

    tidings.testing.simulate(scenario, seed=7, brokers=5, delay_ms=20, loss=0.01)

With `mode="guaranteed"` the brokers use connections that break and recover, and lose nothing. With `mode="epidemic"`
they repair losses by gossip.
`scenario` runs on an event loop whose clock is the simulator's: when all coroutines wait, the network's next message
or timer happens at once. The same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tidings.bus.bus import Bus
from tidings.bus.embedded import AUTO, check_loss, recovery_of
from tidings.bus.memory_archive import MemoryArchive
from tidings.bus.sequencing import LocalSequencing
from tidings.bus.service import EventService
from tidings.bus.virtual_sequencers import SimulatedOrdering, simulated_layout
from tidings.core.client.reliable_session import ReliableClient
from tidings.core.client.session import BestEffortClient
from tidings.core.errors import ConnectionFailed
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import OrderName
from tidings.core.kernel import Node
from tidings.core.messages import PublishFailed
from tidings.core.ordering.layout import EVERYTHING
from tidings.core.ordering.subscriber import Patience
from tidings.core.overlay.brokers import AnyBroker
from tidings.core.overlay.epidemic.settings import Algorithm, RecoverySettings
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.modes import MODES
from tidings.drivers.virtual.brokers import BrokerMaker
from tidings.drivers.virtual.network import SimulatedNetwork
from tidings.drivers.virtual.node import SimulatedNode
from tidings.drivers.virtual.schedule import Schedule
from tidings.scenarios.file.brokers import broker_specs
from tidings.scenarios.file.links import LOCAL, LinkSpec
from tidings.scenarios.file.modes import check_available
from tidings.scenarios.file.schema import (
    MAX_BROKERS,
    MAX_DELAY_MS,
    BernoulliLoss,
    ConstantDelay,
    Mode,
    NoLoss,
    Overlay,
    TreeShape,
)
from tidings.scenarios.file.topology import build_topology

Result = TypeVar("Result")

NS_PER_S = 1_000_000_000
LONGEST_WAIT_NS = 3_600 * NS_PER_S
"""A test counts as hung when no coroutine has run, and none has a timeout, for this long in virtual time."""
LONGEST_START_NS = 10 * NS_PER_S
GOODBYE_S = 0.001
"""How long a closing client of a guaranteed network waits for its last messages to arrive."""


def _check_arguments(
    brokers: int, delay_ms: float, loss: float, duplicate: float, mode: str, delta: int
) -> None:
    """Raise ValueError for impossible arguments, NotYetAvailable for a mode that is not implemented yet."""
    check_available(mode)
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    if not isinstance(brokers, int) or not 1 <= brokers <= MAX_BROKERS:
        raise ValueError(f"brokers must be a whole number from 1 to {MAX_BROKERS:,}, not {brokers!r}")
    if not isinstance(delta, int) or delta < 0:
        raise ValueError(f"delta must be a whole number of at least 0, not {delta!r}")
    if not isinstance(delay_ms, int | float) or not 0 <= delay_ms <= MAX_DELAY_MS:  # also rejects nan
        raise ValueError(f"delay_ms must be a number from 0 to {MAX_DELAY_MS:,.0f}, not {delay_ms!r}")
    if not isinstance(duplicate, int | float) or not 0 <= duplicate <= 1:
        raise ValueError(f"duplicate must be a number from 0 to 1, not {duplicate!r}")
    check_loss(loss)


class TestNetwork:
    """A simulated tree of brokers `b0`, `b1`, ..., with a method for each fault. `simulate` makes it."""

    __test__ = False  # pytest would collect it because of its name

    def __init__(
        self,
        seed: int,
        brokers: int,
        delay_ms: float,
        loss: float,
        duplicate: float,
        mode: Mode = "best-effort",
        delta: int = 2,
        recovery: Algorithm | RecoverySettings = AUTO,
        order_topics: Sequence[str] = (EVERYTHING,),
        causal: bool = True,
        order_patience: Patience | None = None,
    ) -> None:
        _check_arguments(brokers, delay_ms, loss, duplicate, mode, delta)
        settings = recovery_of(recovery, mode)
        overlay = Overlay(mode=mode, shape=TreeShape(brokers=brokers), delta=delta)
        topology = build_topology(overlay, seed)
        self.guaranteed = mode == "guaranteed"
        self.brokers = topology.brokers
        """The brokers' names."""
        self._between = LinkSpec(
            delay_ms=ConstantDelay(value=delay_ms),
            loss=BernoulliLoss(rate=loss) if loss else NoLoss(),
            duplicate=duplicate,
            reorder=0.0,
            bandwidth_mbps=0.0,
        )
        self._network = SimulatedNetwork(seed, self._spec, streams=self.guaranteed)
        layout = simulated_layout(self.brokers, tuple(order_topics), causal=causal)
        self._ordering = SimulatedOrdering(self._network, layout, self._plain_bus)
        self._order_patience = order_patience
        self._clients = 0
        self._connections: dict[str, _SimulatedConnection] = {}
        """Those that are open, or were, by the client's name."""
        self._archives: dict[str, MemoryArchive] = {}
        self._cuts: dict[tuple[str, str], Callable[[str, str], bool]] = {}
        make_broker = BrokerMaker(broker_specs(topology, overlay, settings))
        make_broker.layout, make_broker.want_order = layout, self._ordering.want
        make_broker.on_made = self._on_made
        for name in self.brokers:
            self._network.add(name, make_broker)
        self._network.start()
        self._wait_for_links()

    def _on_made(self, broker: AnyBroker) -> None:
        archive = self._archives.get(broker.name) if isinstance(broker, GuaranteedBroker) else None
        if archive is not None:
            archive.watch(broker)

    def _wait_for_links(self) -> None:
        """Let the brokers connect before the scenario begins, so that subscriptions can complete at once."""
        schedule = self._network.schedule
        while self._unlinked() and schedule.next_at is not None and schedule.now < LONGEST_START_NS:
            self._network.run(schedule.next_at)

    def _unlinked(self) -> bool:
        protocols = (self._network.nodes[name].protocol for name in self.brokers)
        return any(node.sessions.unreachable() for node in protocols if isinstance(node, GuaranteedBroker))

    @property
    def now_s(self) -> float:
        """The virtual time since the start, in seconds."""
        return self._network.schedule.now / NS_PER_S

    @property
    def schedule(self) -> Schedule:
        """The simulator's queue of what happens when."""
        return self._network.schedule

    def connect(self, at: str = "b0", *, name: str | None = None) -> Bus:
        """Return a client of a broker, to use with `async with`. The link between them has no delay and no loss.

        Args:
            at: The broker's name.
            name: The client's name, unique in the network; None makes one up.
        """
        if at not in self.brokers:
            raise ConnectionFailed(f"there is no broker {at!r}; the brokers are {', '.join(self.brokers)}")
        self._clients += 1
        who = name or f"client-{self._clients}"
        self._ordering.place(who, at)
        sequencing = LocalSequencing(self._ordering, who)
        return self._link(Bus(lambda: sequencing, patience=self._order_patience), at, who, sequencing)

    async def keep_archive(self, at: str = "b0", *topics: str, order: OrderName = "none") -> None:
        """Keep all events of a broker in memory from now on, so that its clients' subscriptions can `start` with them.

        Args:
            at: The broker's name; the network must be guaranteed.
            topics: Topic patterns; without any, every topic.
            order: "total" or "causal" for subscriptions with that order.
        """
        if not self.guaranteed:
            raise ValueError("keep_archive requires mode 'guaranteed'")
        recorder = self.connect(at, name=f"{at}/archive")
        archive = MemoryArchive(at, recorder, lambda: self._network.nodes[at].protocol, *topics, order=order)
        await archive.open()
        self._archives[at] = archive

    def _plain_bus(self, at: str, name: str) -> Bus:
        return self._link(Bus(), at, name)

    def _link(self, bus: Bus, at: str, name: str, sequencing: LocalSequencing | None = None) -> Bus:
        kind = _ReliableConnection if self.guaranteed else _SimulatedConnection
        bus.connection = kind(self._network, at, name, bus, self._connections, sequencing)
        bus.archive = self._archives.get(at)
        return bus

    def move(self, client: EventService, to: str) -> None:
        """Connect a client of a guaranteed network to another broker, as a client with several addresses does when its
        broker is gone. What waited for it at the old one does not come; its streams say so (`Stream.gaps`).

        Args:
            client: The client, inside its `async with`.
            to: The broker's name.
        """
        self._check(to)
        connection = client.connection if isinstance(client, Bus) else None
        if not isinstance(connection, _ReliableConnection):
            raise ValueError("only a client of a guaranteed network moves, and only its own network moves it")
        connection.move(to)
        self._ordering.place(connection.name, to)

    def crash(self, broker: str, *, keep_state: bool = True) -> None:
        """Crash a broker, and the sequencer on the same machine if there is one (`restart` and `pause` likewise); or
        kill a client, by its name. What a client had in hand is lost to it, and all that waits for it ends with
        `ConnectionFailed`. It comes back with `connect` under its name.

        Args:
            broker: The broker's name, or a client's.
            keep_state: False also erases the broker's disk.
        """
        if self._network.has_client(broker) and broker not in self.brokers:
            if not self._network.nodes[broker].up:
                raise ValueError(f"client {broker!r} is not connected")
            self._connections[broker].crash()
            return
        self._check(broker, up=True)
        for name in self._ordering.machine(broker):
            self._network.crash(name, keep_state=keep_state)

    def restart(self, broker: str) -> None:
        """Restart a crashed broker."""
        self._check(broker, up=False)
        for name in self._ordering.machine(broker):
            self._network.restart(name)

    def pause(self, broker: str) -> None:
        """Stop a broker from doing or answering anything until `resume`."""
        self._check(broker, paused=False)
        for name in self._ordering.machine(broker):
            self._network.pause(name)

    def resume(self, broker: str) -> None:
        """Let a paused broker continue, with everything that has arrived meanwhile."""
        self._check(broker, paused=True)
        for name in self._ordering.machine(broker):
            self._network.resume(name)

    def cut(self, a: str, b: str) -> None:
        """Let no message pass between two brokers, nor between the nodes on their machines, until `heal(a, b)`."""
        self._check(a)
        self._check(b)
        pair = (min(a, b), max(a, b))
        if pair not in self._cuts:
            self._cuts[pair] = lambda source, target: self._seats(source, target) == pair
            self._network.sever(self._cuts[pair])

    def heal(self, a: str, b: str) -> None:
        """Let a link that was `cut` carry messages again."""
        severed = self._cuts.pop((min(a, b), max(a, b)), None)
        if severed is not None:
            self._network.mend(severed)

    def _check(self, broker: str, *, up: bool | None = None, paused: bool | None = None) -> None:
        """Raise ValueError unless the broker exists and is in this state, so that a test's mistake shows at once."""
        if broker not in self.brokers:
            raise ValueError(f"there is no broker {broker!r}; the brokers are {', '.join(self.brokers)}")
        node = self._network.nodes[broker]
        if up is not None and node.up != up:
            raise ValueError(f"broker {broker!r} is {'up' if node.up else 'down'}")
        if paused is not None and node.paused != paused:
            raise ValueError(f"broker {broker!r} is {'' if node.paused else 'not '}paused")

    def _spec(self, source: str, target: str) -> LinkSpec:
        one, other = self._seats(source, target)
        return self._between if one != other and one in self.brokers and other in self.brokers else LOCAL

    def _seats(self, source: str, target: str) -> tuple[str, str]:
        """Return the brokers on whose machines two nodes run, in alphabetical order."""
        one, other = self._ordering.seat(source), self._ordering.seat(target)
        return min(one, other), max(one, other)


class _ConnectedClient(BestEffortClient):
    """Tells its bus when the broker goes away, and fails publications while it is away, as over TCP."""

    def __init__(self, node: SimulatedNode, broker: str, bus: Bus, schedule: Schedule) -> None:
        super().__init__(node, broker, incarnation=node.programs)
        self._bus = bus
        self._broker = broker
        self._schedule = schedule
        self._connected = True
        self.flush = self._flush

    def link_up(self, peer: str) -> None:
        self._connected = True
        super().link_up(peer)

    def link_down(self, peer: str) -> None:
        self._connected = False
        super().link_down(peer)
        self._bus.on_connection(False, f"the connection to {peer} was lost")

    def _flush(self, *, full_only: bool = False) -> list[Stretch]:
        published = self.session.flush(full_only=full_only)
        connected = self._connected and not self._bus.connection.closed
        for stretch in () if connected else published:
            for sequence in range(stretch.first, stretch.last + 1):
                failed = PublishFailed(sequence, f"there is no connection to {self._broker}")
                self._schedule.at(self._schedule.now, self.receive, self._broker, failed)
        return published


class _ConnectedReliableClient(ReliableClient):
    """A client of a guaranteed broker that tells its bus when the connection comes and goes."""

    def __init__(self, node: SimulatedNode, broker: str, bus: Bus) -> None:
        super().__init__(node, broker, incarnation=node.programs, acknowledges=False, gathers=True)
        self._bus = bus

    def link_up(self, peer: str) -> None:
        super().link_up(peer)
        self._bus.on_connection(True, "")

    def link_down(self, peer: str) -> None:
        super().link_down(peer)
        self._bus.on_connection(False, f"the connection to {peer} was lost")


class _SimulatedConnection:
    """Connects a bus to a simulated broker."""

    def __init__(
        self,
        network: SimulatedNetwork,
        broker: str,
        name: str,
        bus: Bus,
        opened: dict[str, _SimulatedConnection],
        sequencing: LocalSequencing | None,
    ) -> None:
        self._opened = opened
        self._sequencing = sequencing
        self._network = network
        self._broker = broker
        self._name = name
        self._bus = bus
        self.closed = False
        self._client: BestEffortClient | ReliableClient | None = None

    @property
    def client(self) -> BestEffortClient | ReliableClient:
        if self._client is None:
            raise ConnectionFailed("not connected")
        return self._client

    @property
    def now(self) -> int:
        return self._network.schedule.now

    async def open(self) -> None:
        if not self._network.nodes[self._broker].up:
            raise ConnectionFailed(f"cannot reach {self._broker}: it is down")
        network, name = self._network, self._name
        if name not in network.nodes:
            node = network.add(name, self._make, self._bus.on_fact)
            network.attach(name, self._broker)
            node.start()
        elif network.has_client(name) and not network.nodes[name].up:
            network.replace(name, self._make, self._bus.on_fact, broker=self._broker)
        else:
            raise ConnectionFailed(f"the client name {name!r} is already in use")
        self._opened[name] = self

    def _make(self, node: SimulatedNode) -> Node:
        self._client = _ConnectedClient(node, self._broker, self._bus, self._network.schedule)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            self._client = None
            if not self.closed:
                self._network.crash(self._name, keep_state=False)

    def crash(self) -> None:
        """The client's process dies."""
        self.closed = True
        self._network.crash(self._name, keep_state=False)
        if self._sequencing is not None:
            self._sequencing.detach()
        self._bus.on_connection(False, f"client {self._name!r} crashed")


class _ReliableConnection(_SimulatedConnection):
    @property
    def name(self) -> str:
        return self._name

    def move(self, to: str) -> None:
        client = self.client
        assert isinstance(client, ReliableClient)
        if to != self._broker:
            self._broker = to
            self._network.move(self._name, to, lambda: client.moved(to))

    def _make(self, node: SimulatedNode) -> Node:
        self._client = _ConnectedReliableClient(node, self._broker, self._bus)
        return self._client

    async def close(self) -> None:
        if not self.closed:  # otherwise the broker might keep events that nobody wants any more
            await asyncio.sleep(GOODBYE_S)
        await super().close()


class _VirtualSelector(selectors.SelectSelector):
    """Advances virtual time instead of waiting for I/O."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule
        self._waits_since = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None:
            self._waits_since = self._schedule.now
        if timeout is None or timeout > 0:
            self._advance(timeout)
        return []

    def _advance(self, timeout: float | None) -> None:
        schedule = self._schedule
        next_at = schedule.next_at
        # Brokers that cannot reach each other retry for ever, but their retries wake no coroutine.
        waits_ns = schedule.now - self._waits_since
        if timeout is None and (next_at is None or waits_ns > LONGEST_WAIT_NS):
            raise RuntimeError("deadlock: every coroutine waits, and nothing in the network will wake one")
        limit = next_at if timeout is None else schedule.now + max(1, round(timeout * NS_PER_S))
        assert limit is not None
        schedule.run(limit if next_at is None else min(limit, next_at))


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, schedule: Schedule) -> None:
        super().__init__(_VirtualSelector(schedule))
        self._schedule = schedule

    def time(self) -> float:
        return self._schedule.now / NS_PER_S


def _check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "simulate() cannot run inside a running event loop: call it from a function that is not async, "
        "or in a thread: await asyncio.to_thread(simulate, scenario, ...)"
    )


def simulate(
    scenario: Callable[[TestNetwork], Awaitable[Result]],
    *,
    seed: int = 0,
    brokers: int = 5,
    delay_ms: float = 10.0,
    loss: float = 0.0,
    duplicate: float = 0.0,
    mode: Mode = "best-effort",
    delta: int = 2,
    recovery: Algorithm | RecoverySettings = AUTO,
    order_topics: Sequence[str] = (EVERYTHING,),
    causal: bool = True,
    order_patience: Patience | None = None,
) -> Result:
    """Run `scenario(network)` to its end in virtual time and return its result.

    Total and causal order work at once: the sequencer runs on the machine of b0 and, with three or more brokers, its
    standby on that of b1 and a witness on that of b2.
    In a running event loop, as in a notebook, use `await asyncio.to_thread(simulate, scenario, seed=7)`.

    Args:
        scenario: A coroutine function that takes the `TestNetwork`.
        seed: Decides everything random; the same seed gives the same run.
        brokers: How many brokers, in a tree.
        delay_ms: How long a message between two brokers takes.
        loss: The share of messages between brokers that is lost, from 0 to below 1.
        duplicate: The share of messages between brokers that arrives twice, from 0 to 1.
        mode: "best-effort", "guaranteed" or "epidemic".
        delta: How many adjacent failed brokers mode "guaranteed" bypasses.
        recovery: How mode "epidemic" repairs losses: the name of an algorithm, or `RecoverySettings`.
        order_topics: Topics that are numbered separately, as in `tidings.embedded`.
        causal: False keeps total order only, as in `tidings.embedded`.
        order_patience: How long ordered subscriptions wait for a lost event, as in `tidings.connect`.

    Raises:
        ValueError: An argument is out of range.
        RuntimeError: An event loop is running in this thread, or the scenario can never end.
    """
    _check_no_loop()
    network = TestNetwork(
        seed,
        brokers,
        delay_ms,
        loss,
        duplicate,
        mode,
        delta,
        recovery,
        order_topics,
        causal,
        order_patience,
    )

    async def main() -> Result:
        return await scenario(network)

    with asyncio.Runner(loop_factory=lambda: _VirtualLoop(network.schedule)) as runner:
        return runner.run(main())
