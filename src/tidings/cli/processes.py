"""Brokers as real processes of this machine: started, waited for, killed, started again, and never left behind.

Each is one `tidings broker`. It holds the other end of a pipe to us, and ends when that closes: so none
survives its parent, even one that is killed. Only processes that were started here are ever signalled.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from tidings.model.errors import ConnectionFailed
from tidings.net.address import Address, Transport, url
from tidings.scenario.topology import Topology, neighbours

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
KEPT_ERROR_LINES = 20
FREE_PORTS = range(15_000, 32_000)
"""Below the ports that systems give to outgoing connections, which could take one while its broker is down."""


class BrokerProcess:
    """One broker's process. `address` has the true port once it is started."""

    def __init__(
        self,
        name: str,
        address: Address,
        around: Mapping[str, Address] | None = None,
        transport: Transport = "tcp",
    ) -> None:
        self.name = name
        self.address = address
        self.around = dict(around or {})
        self.transport = transport
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._errors: deque[str] = deque(maxlen=KEPT_ERROR_LINES)

    @property
    def url(self) -> str:
        return url(self.address, self.transport)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def last_error_line(self) -> str:
        """The last thing that it said on stderr."""
        return _plain(self._errors[-1]) if self._errors else ""

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "still running"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def start(self) -> None:
        """Start it and wait until it listens; ConnectionFailed says why it does not."""
        self._errors.clear()
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if not key.startswith("TIDINGS_")},
            start_new_session=True,  # Ctrl-C is for us; we tell them
        )
        assert process.stdout is not None
        self._reader = asyncio.create_task(self._read_errors())
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await process.stdout.readline()
        except TimeoutError:
            await self.stop()
            raise ConnectionFailed(f"{self.name} did not listen within {READY_TIMEOUT_S:.0f} s") from None
        if not line:
            await self.wait()
            raise ConnectionFailed(f"{self.name} did not start: {self.last_error_line or self.ending}")
        port = json.loads(line)["url"].rpartition(":")[2]
        self.address = Address(self.address.host, int(port))

    def _command(self) -> list[str]:
        command = [sys.executable, "-P", "-m", "tidings.cli.main", "broker", "--json", "--stop-on-eof"]
        command += ["--name", self.name, "--listen", str(self.address), "--transport", self.transport]
        for name, address in self.around.items():
            command += ["--neighbour", f"{name}={address}"]
        return command

    async def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._errors.append(line.decode(errors="backslashreplace").rstrip())

    def kill(self) -> None:
        """kill -9: no goodbye."""
        self._signal(signal.SIGKILL)

    async def wait(self) -> None:
        """Until it has ended and all that it said has been read."""
        if self._process is not None:
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL to who has not ended some seconds later."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


class BrokerNetwork:
    """All brokers of a topology. `async with` starts them and, whatever happens inside, ends them."""

    def __init__(
        self, topology: Topology, addresses: Mapping[str, Address], *, transport: Transport = "tcp"
    ) -> None:
        self.topology = topology
        self.brokers = {
            name: BrokerProcess(name, addresses[name], {peer: addresses[peer] for peer in around}, transport)
            for name, around in neighbours(topology).items()
        }

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    async def start(self) -> None:
        """Returns once all listen; if one does not, none is left running and its reason is raised."""
        tasks = [asyncio.create_task(broker.start()) for broker in self.brokers.values()]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.stop()
            raise

    async def stop(self) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))

    async def kill(self, name: str) -> None:
        """kill -9 one broker; returns once it is gone."""
        self.brokers[name].kill()
        await self.brokers[name].wait()

    async def restart(self, name: str) -> None:
        """Start one that is gone, at the same address; returns once it listens."""
        await self.brokers[name].start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def free_addresses(names: Iterable[str], host: str = "127.0.0.1") -> dict[str, Address]:
    """An address for each name that nobody listens on, by TCP or UDP, at the moment."""
    ports = iter(random.sample(FREE_PORTS, len(FREE_PORTS)))
    return {name: Address(host, next(port for port in ports if _is_free(host, port))) for name in names}


def _is_free(host: str, port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def _plain(line: str) -> str:
    """What an error line of a child says, without its wrapping."""
    try:
        return str(json.loads(line)["error"])
    except (ValueError, TypeError, KeyError):
        return line.removeprefix("tidings: ")
