"""Brokers as real processes of this machine: started, waited for, killed, started again, and never left behind.

Each is one `tidings broker`, which ends with its stdin.
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

from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.labels import Label, label_text
from tidings.drivers.address import Address, Transport, url
from tidings.drivers.processes.listening import ListeningProcess
from tidings.drivers.processes.sequencers import SequencerProcesses
from tidings.drivers.sockets.guaranteed import DEFAULT_DELTA, DEFAULT_WINDOW
from tidings.scenarios.file.decode import number
from tidings.scenarios.file.schema import BernoulliLoss, GilbertLoss, Loss, NoLoss
from tidings.scenarios.file.topology import Topology, labels, neighbourhoods, neighbours

FREE_PORTS = range(15_000, 32_000)
"""Below the ports that systems give to outgoing connections, which could take one while its broker is down."""


class GuaranteedNetwork(NamedTuple):
    """What all brokers of a guaranteed network share."""

    delta: int = DEFAULT_DELTA
    window: int = DEFAULT_WINDOW
    data: Path | None = None
    """Where they keep their state. None: in a directory that goes when the network ends."""


class GuaranteedPlace(NamedTuple):
    """What one broker of a guaranteed network is told besides."""

    label: Label
    reach: Mapping[str, tuple[Address, Label]]
    """Every broker within delta + 1 links."""
    shared: GuaranteedNetwork

    def flags(self, *, new: bool) -> list[str]:
        delta, window, data = self.shared
        flags = ["--mode", "guaranteed", "--delta", str(delta), "--window", str(window)]
        flags += ["--data", str(data), "--label", label_text(self.label)]
        for name, (address, label) in self.reach.items():
            flags += ["--neighbour", f"{name}={address}@{label_text(label)}"]
        return [*flags, "--new"] if new else flags


class EpidemicNetwork(NamedTuple):
    """What all brokers of an epidemic network share."""

    recovery: RecoverySettings
    loss: Loss | None = None
    """What they say to each other is lost like this, on purpose."""


class EpidemicPlace(NamedTuple):
    """What one broker of an epidemic network is told besides."""

    label: str
    around: Mapping[str, Address]
    shared: EpidemicNetwork

    def flags(self, *, new: bool) -> list[str]:
        """`new` or not: it keeps nothing."""
        recovery, loss = self.shared
        flags = ["--mode", "epidemic", "--label", self.label]
        flags += ["--recovery-settings", msgspec.json.encode(recovery).decode()]
        if loss is not None:
            flags += ["--loss", loss_text(loss)]
        for name, address in self.around.items():
            flags += ["--neighbour", f"{name}={address}"]
        return flags


class BrokerProcess(ListeningProcess):
    """One broker's process. `address` has the true port once it is started."""

    def __init__(
        self,
        name: str,
        address: Address,
        around: Mapping[str, Address] | None = None,
        transport: Transport = "tcp",
        place: GuaranteedPlace | EpidemicPlace | None = None,
        *,
        new: bool = False,
        sequencers: Sequence[Address] = (),
    ) -> None:
        super().__init__(name, address)
        self.around = dict(around or {})
        """The brokers beside it."""
        self.transport = transport
        self.place = place
        """In a network that is not best effort."""
        self.new = new
        """The network is new. When a broker of it starts again, it is not."""
        self.sequencers = tuple(sequencers)

    @property
    def url(self) -> str:
        return url(self.address, self.transport)

    async def start(self) -> None:
        """Start it and wait until it listens; ConnectionFailed says why it does not."""
        await self.start_listening(self._command())
        self.new = False

    def _command(self) -> list[str]:
        command = [sys.executable, "-P", "-m", "tidings.cli.main", "broker", "--json", "--stop-on-eof"]
        command += ["--name", self.name, "--listen", str(self.address), "--transport", self.transport]
        if self.sequencers:
            command += ["--sequencers", ",".join(map(str, self.sequencers))]
        if self.place is not None:
            return command + self.place.flags(new=self.new)
        for name, address in self.around.items():
            command += ["--neighbour", f"{name}={address}"]
        return command


class BrokerNetwork:
    """All brokers of a topology. `async with` starts them and, whatever happens inside, ends them.

    Best effort, unless `guaranteed` or `epidemic` says otherwise. A data directory without any state makes a new
    network.
    """

    def __init__(
        self,
        topology: Topology,
        addresses: Mapping[str, Address],
        *,
        transport: Transport = "tcp",
        guaranteed: GuaranteedNetwork | None = None,
        epidemic: EpidemicNetwork | None = None,
        ordering: SequencerProcesses | None = None,
    ) -> None:
        self.topology = topology
        self.ordering = ordering
        """The sequencers beside the brokers, which tell their clients of them."""
        self._own_data: tempfile.TemporaryDirectory[str] | None = None
        if guaranteed is not None and guaranteed.data is None:
            self._own_data = tempfile.TemporaryDirectory(prefix="tidings-")
            guaranteed = guaranteed._replace(data=Path(self._own_data.name))
        places: Mapping[str, GuaranteedPlace | EpidemicPlace] = {}
        if guaranteed is not None:
            places = _places(topology, addresses, guaranteed)
        elif epidemic is not None:
            places = _epidemic_places(topology, addresses, epidemic)
        new = guaranteed is not None and not _has_state(guaranteed.data)
        self.brokers = {
            name: BrokerProcess(
                name,
                addresses[name],
                {peer: addresses[peer] for peer in around},
                transport,
                places.get(name),
                new=new,
                sequencers=() if ordering is None else ordering.addresses,
            )
            for name, around in neighbours(topology).items()
        }

    def __getitem__(self, name: str) -> BrokerProcess:
        return self.brokers[name]

    async def start(self) -> None:
        """Returns once all listen; if one does not, none is left running and its reason is raised."""
        if self.ordering is not None:
            await self.ordering.start()
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
        if self.ordering is not None:
            await self.ordering.stop()
        if self._own_data is not None:
            self._own_data.cleanup()

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


def _places(
    topology: Topology, addresses: Mapping[str, Address], shared: GuaranteedNetwork
) -> dict[str, GuaranteedPlace]:
    return {
        name: GuaranteedPlace(
            labels[name],
            {peer: (addresses[peer], label) for peer, label in labels.items() if peer != name},
            shared,
        )
        for name, labels in neighbourhoods(topology, shared.delta + 1).items()
    }


def _epidemic_places(
    topology: Topology, addresses: Mapping[str, Address], shared: EpidemicNetwork
) -> dict[str, EpidemicPlace]:
    label_of = labels(topology)
    return {
        name: EpidemicPlace(label_of[name], {peer: addresses[peer] for peer in around}, shared)
        for name, around in neighbours(topology).items()
    }


def _has_state(data: Path | None) -> bool:
    """A broker that is without its state where others have theirs has lost it."""
    return data is not None and data.is_dir() and any(data.glob("*.db"))


def free_addresses(names: Iterable[str], host: str = "127.0.0.1") -> dict[str, Address]:
    """An address for each name that nobody listens on, by TCP or UDP, at the moment."""
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
    """As the flag `--loss` takes it."""
    match loss:
        case BernoulliLoss():
            return number(loss.rate)
        case GilbertLoss():
            return f"{number(loss.rate)}:{number(loss.burst)}"
        case NoLoss():
            return "0"
