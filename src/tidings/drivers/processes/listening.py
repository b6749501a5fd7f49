"""A child process that serves: once it listens, it prints one line with its URL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence

from tidings.core.errors import ConnectionFailed
from tidings.drivers.address import Address
from tidings.drivers.processes.child import ChildProcess

READY_TIMEOUT_S = 30.0


class ListeningProcess(ChildProcess):
    """A child process that listens on `address`, which has the actual port once it is started."""

    def __init__(self, name: str, address: Address) -> None:
        super().__init__(name)
        self.address = address

    async def start(self) -> None:
        """Start the process and wait until it listens; ConnectionFailed says why it does not."""
        raise NotImplementedError

    async def start_listening(self, command: Sequence[str]) -> None:
        stdout = await self.spawn(command)
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await stdout.readline()
        except TimeoutError:
            await self.stop()
            raise ConnectionFailed(f"{self.name} did not listen within {READY_TIMEOUT_S:.0f} s") from None
        if not line:
            await self.wait()
            raise ConnectionFailed(f"{self.name} did not start: {self.last_error_line or self.ending}")
        port = json.loads(line)["url"].rpartition(":")[2]
        self.address = Address(self.address.host, int(port))


async def start_all(processes: Iterable[ListeningProcess], stop: Callable[[], Awaitable[None]]) -> None:
    """Start all and wait until they listen; if one fails, stop all and raise its reason."""
    tasks = [asyncio.create_task(process.start()) for process in processes]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stop()
        raise
