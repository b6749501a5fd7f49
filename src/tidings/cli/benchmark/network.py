"""Runs the network that `tidings bench` measures: a row of broker processes, and the CPU time of each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.core.errors import ConnectionFailed
from tidings.drivers.address import Transport, url
from tidings.drivers.processes.brokers import BrokerNetwork, free_addresses
from tidings.drivers.processes.sequencers import NODES, SequencerProcesses, three_nodes
from tidings.drivers.processes.topology_file import check_size
from tidings.drivers.sockets.guaranteed import DEFAULT_WINDOW
from tidings.scenarios.file.schema import ChainShape, Mode, Overlay
from tidings.scenarios.file.topology import build_topology

if TYPE_CHECKING:
    from tidings.drivers.address import Address

START_ATTEMPTS = 3
IN_USE = "the port is in use"


def row_of_brokers(brokers: int, mode: Mode, transport: Transport, *, ordered: bool) -> BrokerNetwork:
    """Run a row of brokers on free ports, with sequencers if `ordered`; delete its data at the end."""
    check_size(brokers)
    overlay = Overlay(mode=mode, shape=ChainShape(brokers=brokers), window=DEFAULT_WINDOW)
    topology = build_topology(overlay, seed=0)
    addresses = free_addresses([*topology.brokers, *NODES])
    return BrokerNetwork(
        topology,
        addresses,
        overlay,
        transport=transport,
        ordering=_sequencers(topology.brokers, addresses, mode, transport) if ordered else None,
    )


@asynccontextmanager
async def running_row(
    brokers: int, mode: Mode, transport: Transport, *, ordered: bool
) -> AsyncIterator[BrokerNetwork]:
    """Start the row; retry on other ports if a port was taken between our check and the broker's listen."""
    for left in reversed(range(START_ATTEMPTS)):
        network = row_of_brokers(brokers, mode, transport, ordered=ordered)
        try:
            await network.__aenter__()
            break
        except ConnectionFailed as error:
            if not left or IN_USE not in str(error):
                raise
    try:
        yield network
    finally:
        await network.__aexit__(None, None, None)


def _sequencers(
    brokers: tuple[str, ...], addresses: Mapping[str, Address], mode: Mode, transport: Transport
) -> SequencerProcesses:
    """Return the sequencers. If events may be lost, total order needs the larger timestamps of causal order."""
    return SequencerProcesses(
        three_nodes((), causal=mode != "guaranteed"),
        {node: addresses[node] for node in NODES},
        [url(addresses[name], transport) for name in brokers],
        None,
    )


def cpu_seconds(network: BrokerNetwork | None) -> dict[str, float]:
    """Return the CPU time of each process so far, if the system reports it; empty for a network that is not ours."""
    if network is None:
        return {}
    sequencers = {} if network.ordering is None else network.ordering.processes
    used = {name: _used_s(process.pid) for name, process in (network.brokers | sequencers).items()}
    return {name: seconds for name, seconds in used.items() if seconds is not None}


def _used_s(pid: int | None) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
