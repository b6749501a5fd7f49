"""The sequencers of `tidings up --order`: three processes, of which any one may fail."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tidings.core.ordering.layout import EVERYTHING, Layout, ServerPlacement
from tidings.drivers.address import Address, url
from tidings.drivers.processes.layout_file import layout_text
from tidings.drivers.processes.listening import ListeningProcess, start_all

NODES = ("s0", "s1", "s2")
"""The primary, its standby and the witness."""
LAYOUT_FILE = "layout.toml"


def three_nodes(topics: Iterable[str], *, causal: bool) -> Layout:
    """Return a layout of one server for all topics, with a standby and a witness."""
    primary, standby, witness = NODES
    place = ServerPlacement(primary, tuple(topics) or (EVERYTHING,), standby=standby, witness=witness)
    return Layout([place], causal=causal)


class SequencerProcess(ListeningProcess):
    """One sequencer's process."""

    def __init__(self, name: str, address: Address, layout_file: Path, data: Path, service: str) -> None:
        super().__init__(name, address)
        self._layout_file = layout_file
        self._data = data
        self._service = service
        self.lost_its_disk = False
        """True if its state is gone: it must not start as new, or it would assign the same numbers again."""

    @property
    def url(self) -> str:
        return url(self.address)

    async def start(self) -> None:
        """Start the process and wait until it listens; ConnectionFailed says why it does not."""
        command = [sys.executable, "-P", "-m", "tidings.cli.main", "sequencer", "--json", "--stop-on-eof"]
        command += ["--name", self.name, "--layout", str(self._layout_file), "--data", str(self._data)]
        command += ["--service", self._service]
        await self.start_listening([*command, "--not-new"] if self.lost_its_disk else command)


class SequencerProcesses:
    """All nodes of a layout. Without `data`, their state is deleted when they stop."""

    def __init__(
        self, layout: Layout, addresses: Mapping[str, Address], services: Sequence[str], data: Path | None
    ) -> None:
        self.layout = layout
        self._addresses = dict(addresses)
        self._own_data: tempfile.TemporaryDirectory[str] | None = None
        if data is None:
            self._own_data = tempfile.TemporaryDirectory(prefix="tidings-order-")
            data = Path(self._own_data.name)
        self._data = data
        self.processes = {
            node: SequencerProcess(
                node, addresses[node], data / LAYOUT_FILE, data, services[number % len(services)]
            )
            for number, node in enumerate(layout.nodes)
        }

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(self._addresses.values())

    async def start(self) -> None:
        """Start all and wait until they listen; if one fails, stop all and raise its reason."""
        self._write_layout()
        await start_all(self.processes.values(), self.stop)

    def _write_layout(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        (self._data / LAYOUT_FILE).write_text(layout_text(self.layout, self._addresses))

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self.processes.values()))
        if self._own_data is not None:
            self._own_data.cleanup()
