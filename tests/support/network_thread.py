"""A chain of live guaranteed brokers in a thread of their own, for tests that block: `b0`, `b1`, ..."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tidings.drivers.processes.brokers import free_addresses
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings
from tidings.drivers.sockets.loop import loop_factory
from tidings.scenarios.file.schema import ChainShape, Overlay
from tidings.scenarios.file.topology import build_topology, neighbourhoods

Result = TypeVar("Result")
SECONDS = 60.0


class NetworkThread:
    def __init__(self, data: Path, brokers: int = 3) -> None:
        topology = build_topology(Overlay(mode="guaranteed", shape=ChainShape(brokers=brokers)), 0)
        self._around = neighbourhoods(topology, 2)
        self._addresses = free_addresses(topology.brokers)
        self._data = data
        self._servers: dict[str, BrokerServer] = {}
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brokers", daemon=True)

    def url(self, name: str) -> str:
        return f"tidings://{self._addresses[name]}"

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def __enter__(self) -> Self:
        self._thread.start()
        for name in self._around:
            self.start(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._servers):
            self.stop(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def start(self, name: str) -> None:
        self.run(self._start(name))

    async def _start(self, name: str) -> None:
        labels = dict(self._around[name])
        label = labels.pop(name)
        settings = GuaranteedSettings(label, labels, delta=1, data=self._data, new=True)
        neighbours = {peer: self._addresses[peer] for peer in labels}
        server = BrokerServer(name, self._addresses[name], neighbours, mode="guaranteed", guaranteed=settings)
        await server.start()
        self._servers[name] = server

    def stop(self, name: str) -> None:
        self.run(self._servers.pop(name).stop())
