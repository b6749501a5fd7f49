"""Runs brokers as processes on this machine: starts, kills and restarts them, and leaves none behind.

Each process is a `tidings broker` that ends when its stdin closes.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from tidings.core.overlay.brokers import BrokerSpec
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.labels import label_text
from tidings.core.overlay.modes import BEST_EFFORT, EPIDEMIC, GUARANTEED
from tidings.drivers.address import Address, Transport, url
from tidings.drivers.processes.listening import ListeningProcess, start_all
from tidings.drivers.processes.sequencers import SequencerProcesses
from tidings.scenarios.file.brokers import broker_specs
from tidings.scenarios.file.decode import number
from tidings.scenarios.file.schema import BernoulliLoss, GilbertLoss, Loss, NoLoss, Overlay
from tidings.scenarios.file.topology import Topology, neighbours

FREE_PORTS = range(15_000, 32_000)
"""Below the ephemeral ports: an outgoing connection could otherwise take a broker's port while the broker is down."""


class BrokerArchive(NamedTuple):
    """Where a broker records its archive, what, and how much of it is kept, as users write it."""

    directory: Path
    topics: tuple[str, ...]
    retain_size: str | None = None
    retain_age: str | None = None


class BrokerProcess(ListeningProcess):
    """One broker's process. Once started, `address` has the actual port."""

    def __init__(
        self,
        name: str,
        address: Address,
        spec: BrokerSpec = BrokerSpec(),  # noqa: B008 - immutable
        transport: Transport = "tcp",
        *,
        around: Sequence[str] = (),
        data: Path | None = None,
        loss: Loss | None = None,
        new: bool = False,
        sequencers: Sequence[Address] = (),
        archive: BrokerArchive | None = None,
    ) -> None:
        super().__init__(name, address)
        self.archive = archive
        self.spec = spec
        self.around = tuple(around)
        """Its neighbours in the tree."""
        self.transport = transport
        self.new = new
        """True if the network is new; False when a broker restarts."""
        self.sequencers = tuple(sequencers)
        self.data = data
        self._loss = loss

    @property
    def url(self) -> str:
        return url(self.address, self.transport)

    async def start(self) -> None:
        """Start the process and wait until it listens; ConnectionFailed says why it does not."""
        await self.start_listening(self._command())
        self.new = False

    def _command(self) -> list[str]:
        command = [sys.executable, "-P", "-m", "tidings.cli.main", "broker", "--json", "--stop-on-eof"]
        command += ["--name", self.name, "--listen", str(self.address), "--transport", self.transport]
        if self.sequencers:
            command += ["--sequencers", ",".join(map(str, self.sequencers))]
        return command + self._mode_flags() + self._archive_flags() + self._neighbour_flags()

    def _archive_flags(self) -> list[str]:
        if self.archive is None:
            return []
        archive = self.archive
        flags = ["--archive", str(archive.directory)]
        for topic in archive.topics:
            flags += ["--archive-topic", topic]
        for flag, value in (("--retain-size", archive.retain_size), ("--retain-age", archive.retain_age)):
            flags += [] if value is None else [flag, value]
        return flags

    def _mode_flags(self) -> list[str]:
        spec = self.spec
        flags = ["--mode", spec.mode]
        if spec.label is not None:
            flags += ["--label", label_text(spec.label)]
        if spec.mode == GUARANTEED:
            flags += ["--delta", str(spec.delta), "--window", str(spec.window), "--data", str(self.data)]
            return [*flags, "--new"] if self.new else flags
        if spec.mode == EPIDEMIC:
            flags += ["--recovery-settings", msgspec.json.encode(spec.recovery).decode()]
            return flags if self._loss is None else [*flags, "--loss", loss_text(self._loss)]
        return flags

    def _neighbour_flags(self) -> list[str]:
        labels = self.spec.labels
        flags = []
        for name, address in self.spec.neighbours.items():
            at = f"@{label_text(labels[name])}" if name in labels else ""
            flags += ["--neighbour", f"{name}={address}{at}"]
        return flags


class BrokerNetwork:
    """All brokers of a topology. `async with` starts them and, whatever happens inside, stops them.

    Guaranteed brokers keep their state in the directory `data`; None is a temporary one that is deleted with the
    network. A directory without any state makes a new network. `loss` is applied between epidemic brokers. The brokers
    know the `sequencers`: those of `ordering`, which start and stop with the network, or others.
    """

    def __init__(
        self,
        topology: Topology,
        addresses: Mapping[str, Address],
        overlay: Overlay = Overlay(mode=BEST_EFFORT),  # noqa: B008 - immutable
        recovery: RecoverySettings = RecoverySettings(),  # noqa: B008 - immutable
        *,
        data: Path | None = None,
        loss: Loss | None = None,
        transport: Transport = "tcp",
        ordering: SequencerProcesses | None = None,
        sequencers: Sequence[Address] = (),
        archives: Mapping[str, BrokerArchive] = {},
    ) -> None:
        self.topology = topology
        self.ordering = ordering
        """Its own sequencers."""
        self._own_data: tempfile.TemporaryDirectory[str] | None = None
        if overlay.mode == GUARANTEED and data is None:
            self._own_data = tempfile.TemporaryDirectory(prefix="tidings-")
            data = Path(self._own_data.name)
        where = {name: str(addresses[name]) for name in topology.brokers}
        specs = broker_specs(topology, overlay, recovery, where)
        self.brokers = {
            name: BrokerProcess(
                name,
                addresses[name],
                specs[name],
                transport,
                around=around,
                data=data,
                loss=loss,
                new=not _has_state(data),
                sequencers=sequencers if ordering is None else ordering.addresses,
                archive=archives.get(name),
            )
            for name, around in neighbours(topology).items()
        }

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    async def start(self) -> None:
        """Start all and wait until they listen; if one fails, stop all and raise its reason."""
        if self.ordering is not None:
            await self.ordering.start()
        await start_all(self.brokers.values(), self.stop)

    async def stop(self) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))
        if self.ordering is not None:
            await self.ordering.stop()
        if self._own_data is not None:
            self._own_data.cleanup()

    async def kill(self, name: str) -> None:
        """Kill one broker (kill -9) and wait until it has ended."""
        self.brokers[name].kill()
        await self.brokers[name].wait()

    async def restart(self, name: str) -> None:
        """Restart a broker that has ended, at the same address, and wait until it listens."""
        await self.brokers[name].start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _has_state(data: Path | None) -> bool:
    """Return True if any broker has state here: then a broker without state has lost it, and is not new."""
    return data is not None and data.is_dir() and any(data.glob("*.db"))


def free_addresses(names: Iterable[str], host: str = "127.0.0.1") -> dict[str, Address]:
    """Return for each name an address that nobody listens on at the moment, by TCP or UDP."""
    ports = iter(random.sample(FREE_PORTS, len(FREE_PORTS)))
    return {name: Address(host, next(port for port in ports if is_free(host, port))) for name in names}


def is_free(host: str, port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def loss_text(loss: Loss) -> str:
    """Return the loss as the flag `--loss` takes it."""
    match loss:
        case BernoulliLoss():
            return number(loss.rate)
        case GilbertLoss():
            return f"{number(loss.rate)}:{number(loss.burst)}"
        case NoLoss():
            return "0"
