"""The processes of a live scenario, and what faults do to them."""

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
"""Of a task group: what the task raises ends the run."""


class ClientProcess(ChildProcess):
    """One process with some of the publishers and subscribers; what it reports goes to `take`."""

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
            *lines, rest = (rest + chunk).split(b"\n")  # what kill -9 cut short stays in `rest`
            for line in lines:
                fact = words.decode_fact(line)
                if isinstance(fact, words.ReadyReport):
                    self.ready.set()
                self._take(fact)

    async def wait(self) -> None:
        """Until it has ended and all that it reported is in the books."""
        await super().wait()
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def leave(self) -> None:
        """Close its connections and end, all that came until then being reported."""
        self.close_stdin()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.wait()
        except TimeoutError:
            await self.stop()


class ScenarioProcess:
    """A process of the run: down while any crash lasts, standing still while any pause lasts."""

    def __init__(self, process: ChildProcess, create_task: CreateTask) -> None:
        self.process = process
        self.leaving = False
        """True once the run is over, and its end no surprise."""
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
        """What was on its disk is gone."""
        raise NotImplementedError

    def before_crash(self) -> None:
        """It is about to be killed."""

    def after_crash(self) -> None:
        """It is gone, and all that it said has been heard."""

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
                f"{process.name} ended by itself ({process.ending})" + (f": {last}" if last else "")
            )

    async def crash(self, *, keep_state: bool) -> None:
        """kill -9. Down until as many restarts as crashes: faults of a node may overlap."""
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
    """Where the processes run: all on this machine's loopback. Tests have others."""

    reachable = True
    """Can we connect to brokers ourselves?"""

    def addresses(self, servers: Iterable[str]) -> dict[str, Address]:
        """Of brokers, and of the sequencers beside them."""
        return free_addresses(servers)

    def prefix(self, process: str) -> tuple[str, ...]:
        """What the command of that broker, or client process, is run with."""
        return ()

    def cut(self, server: ListeningProcess, peers: frozenset[str]) -> None:
        """From now on nothing passes between the server and these, and all between it and others."""
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
        """Nothing passes between it and these, from now on; others hear it again."""
        if peers != self._cut:
            self._cut = peers
            self._stage.cut(self.server, peers)


class ClientMember(ScenarioProcess):
    """`work(keeps_state)` says what the process is to do from now on; `on_crash` is told when it was killed."""

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
    """All members by the nodes that they play, and the cuts between nodes."""

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
        """The clients first, so that what they end with is still taken."""
        for member in (*self.clients.values(), *self.servers.values()):
            member.leaving = True
        await asyncio.gather(*(process.leave() for process in self.client_processes))
        await asyncio.gather(*(member.process.stop() for member in self.servers.values()))

    async def stop(self) -> None:
        """End whatever runs still; for when the course was cut short."""
        members = {id(member): member for member in (*self.clients.values(), *self.servers.values())}
        await asyncio.gather(*(member.process.stop() for member in members.values()))

    @property
    def ready(self) -> bool:
        """No client that was started again is still on its way."""
        return all(process.ready.is_set() for process in self.client_processes)

    @property
    def client_processes(self) -> list[ClientProcess]:
        return list(dict.fromkeys(member.client for member in self.clients.values()))


def client_groups(plan: RunPlan) -> list[tuple[str, ...]]:
    """Who shares a process: whoever a fault strikes has its own, the others share the rest."""
    both = [*(one.name for one in plan.subscribers), *(one.name for one in plan.publishers)]
    names = list(dict.fromkeys(both))
    struck = struck_nodes(plan.faults)
    alone = [name for name in names if name in struck]
    others = [name for name in names if name not in struck]
    shared = min(len(others), max(1, MAX_CLIENT_PROCESSES - len(alone)))
    groups: Sequence[Iterable[str]] = [others[index::shared] for index in range(shared)]
    return [*((name,) for name in alone), *map(tuple, groups)]
