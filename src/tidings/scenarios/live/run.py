"""Runs a scenario in wall time, with real processes over loopback (`tidings up --scenario`).

The plan is the simulator's. Brokers, sequencers, publishers and subscribers are processes. A crash is kill -9, a
pause is SIGSTOP, links and partitions are cut at the sockets of brokers and sequencers. Whatever happens, no process
is left behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import monotonic_ns, perf_counter, time_ns
from typing import Any

import msgspec

from tidings.bus.connect import connect
from tidings.bus.host import ApplicationHost
from tidings.core.errors import ConnectionFailed, ScenarioError
from tidings.drivers.address import Address
from tidings.drivers.processes.brokers import BrokerArchive, BrokerNetwork, BrokerProcess
from tidings.drivers.processes.topology_file import check_size
from tidings.drivers.sockets.guaranteed import store_path
from tidings.scenarios.file.brokers import recovery_settings
from tidings.scenarios.file.expand import RunPlan, expand
from tidings.scenarios.file.faults import PlannedFault, struck_nodes
from tidings.scenarios.file.modes import check_available
from tidings.scenarios.file.order_nodes import host_of, order_node
from tidings.scenarios.file.ordering import ORDERS
from tidings.scenarios.file.schema import (
    LinkFault,
    LossFault,
    Network,
    NoLoss,
    Scenario,
    SlowFault,
)
from tidings.scenarios.file.times import NS_PER_S, nanoseconds
from tidings.scenarios.live.facts import ClientWork, Go, Interval, PublisherWork
from tidings.scenarios.live.ledger import RunLedger
from tidings.scenarios.live.observer import Observer
from tidings.scenarios.live.processes import (
    ClientMember,
    ClientProcess,
    ProcessFactory,
    ProcessGroup,
    ServerMember,
    client_groups,
)
from tidings.scenarios.live.sequencers import LiveOrdering, process_status
from tidings.scenarios.simulate import write_nodes
from tidings.scenarios.summary import summary_of, write_summary
from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter

START_IN_NS = 200_000_000
"""Between 'all ready' and the common start, so that every process learns of it in time."""
READY_TIMEOUT_S = 60.0
LINKS_TIMEOUT_S = 30.0
TICK_S = 0.1
QUIET_S = 2.0
"""The network has settled once nothing was under way for this long."""

Progress = Callable[[float], None]
"""Called with the share of the run that is over."""
Notice = Callable[[str], None]


# --- What wall time cannot do


def check_wall_time(plan: RunPlan, notice: Notice) -> None:
    """Raise ScenarioError, naming the key, if the scenario needs virtual time."""
    scenario = plan.scenario
    check_available(scenario.overlay.mode, "overlay.mode")
    check_size(len(plan.topology.brokers))
    for key, value in _link_keys(scenario):
        if value:
            raise ScenarioError(f"{key}: not available in real time{_except(key)}; use `tidings sim`")
    for index, subscriber in enumerate(scenario.subscribers):
        if subscriber.start != "new" and subscriber.order in ORDERS:
            raise ScenarioError(
                f'subscriber[{index}].start: "{subscriber.start}" with order "{subscriber.order}" is not available in '
                "real time, where a broker's archive has no order; use `tidings sim`"
            )
    for index, fault in enumerate(scenario.faults):
        if isinstance(fault, SlowFault | LossFault):
            kind = "slow" if isinstance(fault, SlowFault) else "loss"
            raise ScenarioError(
                f'fault[{index}].kind: "{kind}" is not available in real time; use `tidings sim`'
            )
        if isinstance(fault, LinkFault) and fault.direction == "forward":
            raise ScenarioError(
                f'fault[{index}].direction: "forward" is not available in real time, which cuts both directions; '
                "use `tidings sim`"
            )
    if scenario.network.delay_ms != Network().delay_ms or any(link.delay_ms for link in scenario.links):
        notice("delay_ms is ignored: messages travel over loopback")


def _except(key: str) -> str:
    return " except in epidemic mode" if key == "network.loss" else ""


def _link_keys(scenario: Scenario) -> Iterator[tuple[str, bool]]:
    """Yield the keys that loopback cannot provide, each with whether the scenario sets it."""
    tables: list[tuple[str, Any]] = [("network", scenario.network)]
    tables += [(f"link[{index}]", link) for index, link in enumerate(scenario.links)]
    for name, table in tables:
        # Epidemic brokers drop outgoing datagrams at one rate for all links.
        possible = name == "network" and scenario.overlay.mode == "epidemic"
        yield f"{name}.loss", not possible and not isinstance(table.loss, NoLoss | None)
        yield f"{name}.duplicate", bool(table.duplicate)
        yield f"{name}.reorder", bool(table.reorder)
        yield f"{name}.bandwidth_mbps", bool(table.bandwidth_mbps)


# --- The run


class Conductor:
    """Starts all processes, keeps time, applies faults and records what is reported."""

    def __init__(
        self,
        plan: RunPlan,
        writer: TraceWriter,
        data: Path,
        progress: Progress,
        stage: ProcessFactory | None = None,
        observer: Observer | None = None,
    ) -> None:
        scenario = plan.scenario
        self.plan = plan
        self.writer = writer
        self.guaranteed = scenario.overlay.mode == "guaranteed"
        patient = plan.ordering is not None and not plan.ordering.buffer_events
        self.ledger = RunLedger(
            writer, plan.subscribers, keeps=self.guaranteed, resumes=self.guaranteed and patient
        )
        self.duration_ns = nanoseconds(scenario.duration_s)
        self.settle_ns = nanoseconds(scenario.settle_s)
        self.settled_ns = 0
        self.ended_ns = 0
        self._progress = progress
        self._observer = observer or Observer()
        self._go: Go | None = None
        self._lives: dict[str, int] = {}
        self._data = data
        self._stage = stage or ProcessFactory()
        brokers = self._order_brokers = () if plan.ordering is None else plan.ordering.brokers
        addresses = self._stage.addresses([*plan.topology.brokers, *map(order_node, brokers)])
        self._network = self._make_network(addresses)
        self.ordering = self._make_ordering(addresses)
        self._tasks: asyncio.TaskGroup
        self._cast: ProcessGroup

    def _make_network(self, addresses: Mapping[str, Address]) -> BrokerNetwork:
        scenario, loss = self.plan.scenario, self.plan.scenario.network.loss
        return BrokerNetwork(
            self.plan.topology,
            addresses,
            scenario.overlay,
            recovery_settings(scenario.recovery),
            data=self._data,
            loss=None if isinstance(loss, NoLoss) else loss,
            sequencers=[addresses[order_node(name)] for name in self._order_brokers],
            archives={
                archive.broker: BrokerArchive(self._data / "archives" / archive.broker, archive.topics)
                for archive in self.plan.archives
            },
        )

    def _make_ordering(self, addresses: Mapping[str, Address]) -> LiveOrdering | None:
        if self.plan.ordering is None:
            return None
        services = {name: broker.url for name, broker in self._network.brokers.items()}
        return LiveOrdering(self.plan.ordering, addresses, services, self._data)

    async def run(self) -> None:
        """Run the whole scenario; afterwards the trace is complete but not closed."""
        try:
            async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._cast = self._make_cast(tasks)
                stack.push_async_callback(self._cast.stop)
                await self._start_servers()
                async with self._observer.beside(*self._reachable()):
                    await self._start_clients()
                    await self._course()
                await self._write_traffic()
                await self._cast.leave()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the first caused the others
        write_nodes(self.plan, self.writer)

    def _make_cast(self, tasks: asyncio.TaskGroup) -> ProcessGroup:
        servers = {
            name: ServerMember(process, tasks.create_task, self._stage, partial(self._lose_disk, name))
            for name, process in self._network.brokers.items()
        }
        if self.ordering is not None:
            for name, sequencer in self.ordering.processes.items():
                lose_disk = partial(self.ordering.lose_disk, name)
                servers[name] = ServerMember(sequencer, tasks.create_task, self._stage, lose_disk)
        for name, server in servers.items():
            server.process.prefix = self._stage.prefix(host_of(name))
        clients: dict[str, ClientMember] = {}
        for number, names in enumerate(client_groups(self.plan)):
            label = names[0] if len(names) == 1 else f"client process {number}"
            process = ClientProcess(label, self.ledger.take)
            process.prefix = self._stage.prefix(label)
            clients |= dict.fromkeys(names, self._make_member(process, names, tasks))
        return ProcessGroup(servers, clients)

    def _make_member(
        self, process: ClientProcess, names: tuple[str, ...], tasks: asyncio.TaskGroup
    ) -> ClientMember:
        def on_crash(at_ns: int) -> None:
            for name in names:
                self.ledger.crashed(name, at_ns)

        return ClientMember(process, tasks.create_task, self._work_maker(names), lambda: self._now, on_crash)

    def _lose_disk(self, name: str) -> None:
        store = store_path(self._data, name).name
        for path in self._data.iterdir():
            if path.name.startswith(store):  # with its journals
                path.unlink()

    def _work_maker(self, names: tuple[str, ...]) -> Callable[[bool], ClientWork]:
        """Return a function that tells what the process's clients have to do, called whenever it starts."""
        chosen = frozenset(names)
        publishers = [plan for plan in self.plan.publishers if plan.name in chosen]
        subscribers = [plan.name for plan in self.plan.subscribers if plan.name in chosen]
        addresses = {name: broker.address for name, broker in self._network.brokers.items()}

        def make(keeps_state: bool) -> ClientWork:
            works = tuple(
                PublisherWork(plan, self._absences(plan.name), self._life_of(plan.name))
                for plan in publishers
            )
            return ClientWork(
                self.plan.scenario.seed,
                self.duration_ns,
                addresses,
                works,
                tuple(
                    self.ledger.work(name, keep_resume_points=keeps_state and self.guaranteed)
                    for name in subscribers
                ),
                self._go,
                None if self.ordering is None else self.ordering.work,
            )

        return make

    def _absences(self, name: str) -> tuple[Interval, ...]:
        return tuple(
            (planned.at_ns, planned.until_ns)
            for planned in self.plan.faults
            if name in struck_nodes([planned])
        )

    def _life_of(self, name: str) -> int:
        """Return 0 on the first call for a name, then 1, and so on."""
        life = self._lives.get(name, 0)
        self._lives[name] = life + 1
        return life

    # --- Phases

    async def _start_servers(self) -> None:
        await asyncio.gather(*(member.start() for member in self._cast.servers.values()))
        if self._stage.reachable:
            await self._until_linked()

    def _reachable(self) -> tuple[dict[str, str], list[str]]:
        brokers = {name: broker.url for name, broker in self._network.brokers.items()}
        return brokers, [] if self.ordering is None else list(map(str, self.ordering.work.nodes.values()))

    async def _start_clients(self) -> None:
        members = dict.fromkeys(self._cast.clients.values())
        await asyncio.gather(*(member.start() for member in members))
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await asyncio.gather(*(member.client.ready.wait() for member in members))
        except TimeoutError:
            raise ConnectionFailed(f"not all clients connected within {READY_TIMEOUT_S:.0f} s") from None
        self._go = Go(time_ns() + START_IN_NS, monotonic_ns() + START_IN_NS)
        for member in members:
            member.client.tell(msgspec.json.encode(self._go) + b"\n")
        self._observer.on_start(self.ledger)

    async def _until_linked(self) -> None:
        """Wait until the network is up: the scenario's time excludes the start of its processes."""
        try:
            async with asyncio.timeout(LINKS_TIMEOUT_S), AsyncExitStack() as stack:
                for broker in self._network.brokers.values():
                    bus = await stack.enter_async_context(connect(broker.url).without_order())
                    await linked(bus, broker)
                if self.ordering is not None:
                    await self.ordering.until_ready()
        except TimeoutError:
            raise ConnectionFailed(
                f"not all brokers and sequencers connected to each other within {LINKS_TIMEOUT_S:.0f} s"
            ) from None

    async def _course(self) -> None:
        strikes = [self._tasks.create_task(self._strike(planned)) for planned in self.plan.faults]
        while self._now < self.duration_ns:
            await self._tick()
        await asyncio.gather(*strikes)
        began_ns = self._now
        self._observer.on_published(began_ns)
        await self._settle(began_ns)
        self.ended_ns = self._now
        self._observer.on_settled(self.ended_ns)
        self.settled_ns = self.ended_ns - began_ns

    async def _settle(self, began_ns: int) -> None:
        quiet_since = began_ns
        while self._now < began_ns + self.settle_ns:
            await self._tick()
            if self.ledger.under_way or not self._cast.ready:
                quiet_since = self._now
            elif self._now - quiet_since >= QUIET_S * NS_PER_S:
                return

    async def _strike(self, planned: PlannedFault) -> None:
        await self._until(planned.at_ns)
        await self._cast.begin(planned)
        began_ns = self._now
        self._observer.on_fault(planned, began_ns)
        await self._until(planned.until_ns)
        await self._cast.end(planned)
        ended_ns = self._now
        self.writer.faults(planned.kind, planned.target, began_ns, ended_ns)
        self._observer.on_repair(planned, ended_ns)

    @property
    def _now(self) -> int:
        assert self._go is not None
        return self._go.now

    async def _until(self, at_ns: int) -> None:
        await asyncio.sleep(max(0, at_ns - self._now) / NS_PER_S)

    async def _tick(self) -> None:
        await asyncio.sleep(TICK_S)
        self._observer.on_tick(self._now)
        self._progress(max(0.0, min(1.0, self._now / (self.duration_ns + self.settle_ns))))

    # --- The rest of the trace

    async def _write_traffic(self) -> None:
        """Write what brokers and sequencers received over the connections open at the end: they count no others."""
        if not self._stage.reachable:
            return
        known = {*self._cast.servers, *self._cast.clients}
        found = await asyncio.gather(*map(process_status, self._network.brokers.values()))
        statuses = dict(zip(self._network.brokers, found, strict=True))
        if self.ordering is not None:
            self.ordering.statuses = await self.ordering.ask()
            statuses |= self.ordering.statuses
        for name, status in statuses.items():
            sessions = status.get("sessions")
            for session in sessions if isinstance(sessions, list) else ():
                if session["peer"] in known:
                    self.writer.traffic("session", session["peer"], name, 0, session["received_bytes"], 0)


async def linked(bus: ApplicationHost, broker: BrokerProcess) -> None:
    """Wait until the broker is linked to all its neighbours."""
    present = False
    while not present:
        await asyncio.sleep(TICK_S)
        present = is_linked(await bus.status(), broker.around)


def is_linked(status: Mapping[str, Any], around: Iterable[str]) -> bool:
    if status["mode"] == "guaranteed":
        heard = {session["peer"] for session in status["sessions"]}
        return heard.issuperset(around) and not status["partitions"] and not status["recovering"]
    return all(status["neighbours"][peer]["present"] for peer in around)


async def run_live(
    scenario: Scenario,
    out: Path,
    progress: Progress,
    notice: Notice,
    stage: ProcessFactory | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Run the scenario in wall time, write `out/*.parquet` and `out/summary.json`, and return the summary."""
    plan = expand(scenario)
    check_wall_time(plan, notice)
    began_at = perf_counter()
    with tempfile.TemporaryDirectory(prefix="tidings-up-") as data, TraceWriter(out) as writer:
        conductor = Conductor(plan, writer, Path(data), progress, stage, observer)
        await conductor.run()
    return write_summary(out, summarise(conductor, out), began_at)


def summarise(conductor: Conductor, out: Path) -> dict[str, Any]:
    """Return the same fields as the simulator's summary; None for what is not counted in wall time."""
    trace = Trace.read(out)
    rest: dict[str, Any] = {
        "given_up": conductor.ledger.missed,
        "overhead": None,
        "recovered": len(trace.delivered) - trace.delivered["recovered_by"].null_count,
        "gossip_messages": None,
        "utility": {"push": None, "pull": None},
        "messages": None,
        "bytes": sum(trace.traffic["bytes"].to_pylist()),
        "virtual_s": conductor.ended_ns / NS_PER_S,
        "settled_s": conductor.settled_ns / NS_PER_S,
        "trace_sha256": conductor.writer.sha256,
    }
    if conductor.ordering is not None:
        ledger = conductor.ledger
        rest["ordering"] = conductor.ordering.summary(ledger.stamped, ledger.stamp_entries, ledger.broken)
    return summary_of(conductor.plan, metrics(trace), rest)
