"""Starts the processes of a live scenario and applies faults to them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from tidings.core.errors import ConnectionFailed
from tidings.drivers.address import Address
from tidings.drivers.processes.brokers import BrokerProcess, free_addresses
from tidings.drivers.processes.child import ChildProcess
from tidings.drivers.processes.control import cut_line
from tidings.drivers.processes.listening import ListeningProcess
from tidings.drivers.processes.sequencers import SequencerProcess
from tidings.scenarios.file.expand import RunPlan
from tidings.scenarios.file.faults import PlannedFault, struck_nodes
from tidings.scenarios.file.schema import CrashFault, PauseFault
from tidings.scenarios.live import facts as words
from tidings.scenarios.live import process as scenario_process
from tidings.scenarios.live.facts import ClientWork

MAX_CLIENT_PROCESSES = 16
READ_BYTES = 256 * 1024
LEAVE_TIMEOUT_S = 10.0

CreateTask = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""`create_task` of a task group: an exception in the task ends the run."""


class ClientProcess(ChildProcess):
    """Runs some of the publishers and subscribers in a process; passes its reports to `take`."""

    def __init__(self, name: str, take: Callable[[words.Report], None]) -> None:
        super().__init__(name)
        self.ready = asyncio.Event()
        self._take = take
        self._reading: asyncio.Task[None] | None = None

    async def start(self, work: ClientWork, create_task: CreateTask) -> None:
        self.ready.clear()
        stdout = await self.spawn([sys.executable, "-P", "-m", scenario_process.__name__])
        self._reading = create_task(self._read(stdout))
        self.tell(words.line_of(work))

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stdout.read(READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")  # a line cut short by kill -9 stays in `rest`
            for line in lines:
                fact = words.decode_fact(line)
                if isinstance(fact, words.ReadyReport):
                    self.ready.set()
                self._take(fact)

    async def wait(self) -> None:
        """Wait until it has ended and all its reports are in the ledger."""
        await super().wait()
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def leave(self) -> None:
        """Let it close its connections, report what has arrived, and end."""
        self.close_stdin()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.wait()
        except TimeoutError:
            await self.stop()


class ScenarioProcess:
    """A process of the run: down while any crash lasts, stopped while any pause lasts."""

    def __init__(self, process: ChildProcess, create_task: CreateTask) -> None:
        self.process = process
        self.leaving = False
        """True once the run is over and the process is expected to end."""
        self._lives = 0
        self._killed_life = 0
        self._create_task = create_task
        self._crashes = 0
        self._pauses = 0
        self._changing = asyncio.Lock()

    async def launch(self) -> None:
        """Start the process."""
        raise NotImplementedError

    def lose_state(self) -> None:
        """Delete what was on its disk."""
        raise NotImplementedError

    def before_crash(self) -> None:
        """The process is about to be killed."""

    def after_crash(self) -> None:
        """The process has ended, and all its reports have been read."""

    async def start(self) -> None:
        self._lives += 1
        await self.launch()
        self._create_task(self._watch(self._lives))

    async def _watch(self, life: int) -> None:
        process = self.process
        await process.wait()
        if not self.leaving and self._killed_life < life:
            last = process.last_error_line
            raise ConnectionFailed(
                f"{process.name} ended unexpectedly ({process.ending})" + (f": {last}" if last else "")
            )

    async def crash(self, *, keep_state: bool) -> None:
        """Kill it with kill -9. It stays down until the last overlapping crash is over."""
        self._crashes += 1
        async with self._changing:
            if self.process.running:
                self._killed_life = self._lives
                self.before_crash()
                self.process.kill()
                await self.process.wait()
                self.after_crash()
                if not keep_state:
                    self.lose_state()

    async def restart(self) -> None:
        self._crashes -= 1
        async with self._changing:
            if not self._crashes and not self.process.running:
                await self.start()
                if self._pauses:
                    self.process.pause()

    async def pause(self) -> None:
        self._pauses += 1
        self.process.pause()

    async def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            self.process.resume()


class ProcessFactory:
    """Decides where the processes run: all on this machine's loopback. Tests use others."""

    reachable = True
    """Whether this process can connect to the brokers."""

    def addresses(self, servers: Iterable[str]) -> dict[str, Address]:
        """Return addresses for brokers and the sequencers beside them."""
        return free_addresses(servers)

    def prefix(self, process: str) -> tuple[str, ...]:
        """Return the words to put before the command of that broker or client process."""
        return ()

    def cut(self, server: ListeningProcess, peers: frozenset[str]) -> None:
        """Cut the server off from exactly these peers from now on."""
        server.tell(cut_line(peers))


class ServerMember(ScenarioProcess):
    """A broker, or a sequencer beside one."""

    def __init__(
        self,
        process: BrokerProcess | SequencerProcess,
        create_task: CreateTask,
        stage: ProcessFactory,
        lose_disk: Callable[[], None],
    ) -> None:
        super().__init__(process, create_task)
        self.server = process
        self._stage = stage
        self._lose_disk = lose_disk
        self._cut: frozenset[str] = frozenset()

    async def launch(self) -> None:
        await self.server.start()
        if self._cut:
            self._stage.cut(self.server, self._cut)

    def lose_state(self) -> None:
        self._lose_disk()

    def cut(self, peers: frozenset[str]) -> None:
        """Cut it off from exactly these peers; reconnect it to others."""
        if peers != self._cut:
            self._cut = peers
            self._stage.cut(self.server, peers)


class ClientMember(ScenarioProcess):
    """A client process. `work(keeps_state)` returns what it has to do; `on_crash` gets the time of the kill."""

    def __init__(
        self,
        process: ClientProcess,
        create_task: CreateTask,
        work: Callable[[bool], ClientWork],
        clock: Callable[[], int],
        on_crash: Callable[[int], None],
    ) -> None:
        super().__init__(process, create_task)
        self.client = process
        self._work = work
        self._clock = clock
        self._on_crash = on_crash
        self._killed_ns = 0
        self._keeps_state = True

    async def launch(self) -> None:
        await self.client.start(self._work(self._keeps_state), self._create_task)
        self._keeps_state = True

    def lose_state(self) -> None:
        self._keeps_state = False

    def before_crash(self) -> None:
        self._killed_ns = self._clock()

    def after_crash(self) -> None:
        self._on_crash(self._killed_ns)


class ProcessGroup:
    """Holds all processes by node, and applies faults and cuts to them."""

    def __init__(self, servers: Mapping[str, ServerMember], clients: Mapping[str, ClientMember]) -> None:
        self.servers = servers
        self.clients = clients
        self._partitions: list[PlannedFault] = []

    async def begin(self, planned: PlannedFault) -> None:
        match planned.fault:
            case CrashFault(state=state):
                keep = state == "kept"
                await asyncio.gather(*(member.crash(keep_state=keep) for member in self._struck(planned)))
            case PauseFault():
                await asyncio.gather(*(member.pause() for member in self._struck(planned)))
            case _:
                self._partitions.append(planned)
                self._cut()

    async def end(self, planned: PlannedFault) -> None:
        match planned.fault:
            case CrashFault():
                await asyncio.gather(*(member.restart() for member in self._struck(planned)))
            case PauseFault():
                await asyncio.gather(*(member.resume() for member in self._struck(planned)))
            case _:
                self._partitions.remove(planned)
                self._cut()

    def _struck(self, planned: PlannedFault) -> list[ScenarioProcess]:
        return [self.servers[name] if name in self.servers else self.clients[name] for name in planned.nodes]

    def _cut(self) -> None:
        cuts = [planned.unheard() for planned in self._partitions]
        for name, member in self.servers.items():
            member.cut(frozenset().union(*(unheard.get(name, ()) for unheard in cuts)))

    async def leave(self) -> None:
        """End all processes: clients first, while brokers can still take what they send last."""
        for member in (*self.clients.values(), *self.servers.values()):
            member.leaving = True
        await asyncio.gather(*(process.leave() for process in self.client_processes))
        await asyncio.gather(*(member.process.stop() for member in self.servers.values()))

    async def stop(self) -> None:
        """Stop whatever still runs, in case the run was cut short."""
        members = {id(member): member for member in (*self.clients.values(), *self.servers.values())}
        await asyncio.gather(*(member.process.stop() for member in members.values()))

    @property
    def ready(self) -> bool:
        """True if every client process has connected, also after a restart."""
        return all(process.ready.is_set() for process in self.client_processes)

    @property
    def client_processes(self) -> list[ClientProcess]:
        return list(dict.fromkeys(member.client for member in self.clients.values()))


def client_groups(plan: RunPlan) -> list[tuple[str, ...]]:
    """Return the clients of each process: a client that a fault hits has its own, the others share the rest."""
    both = [*(one.name for one in plan.subscribers), *(one.name for one in plan.publishers)]
    names = list(dict.fromkeys(both))
    struck = struck_nodes(plan.faults)
    alone = [name for name in names if name in struck]
    others = [name for name in names if name not in struck]
    shared = min(len(others), max(1, MAX_CLIENT_PROCESSES - len(alone)))
    groups: Sequence[Iterable[str]] = [others[index::shared] for index in range(shared)]
    return [*((name,) for name in alone), *map(tuple, groups)]
