"""Reads the topology file of `tidings up`: `[overlay]` as in scenario files, and where the processes listen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidings.core.errors import ScenarioError
from tidings.core.overlay.modes import BEST_EFFORT
from tidings.drivers.address import Address
from tidings.scenarios.file.check import check_scenario
from tidings.scenarios.file.modes import check_available
from tidings.scenarios.file.schema import Mode, Overlay, Recovery, Scenario, Table, TreeShape
from tidings.scenarios.file.toml_file import read_toml
from tidings.scenarios.file.topology import Topology, build_topology

MAX_PORT = 65_535
MAX_PROCESSES = 200
DEFAULT_BROKERS = 5


class Up(Table, frozen=True, kw_only=True):
    """`[up]`: broker number i, in the order of the topology, listens on `base_port + i`."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    base_port: Annotated[int, Meta(ge=1, le=MAX_PORT)] = 7400
    transport: Literal["tcp", "udp"] = "tcp"
    loss: str | int | float | None = None
    """For tests in mode epidemic: lose messages between brokers, as RATE[:BURST]."""
    order: Literal["total", "causal"] | None = None
    """Also run sequencers, on the ports after those of the brokers."""
    order_topics: tuple[str, ...] = ()


class TopologyFile(Table, frozen=True, kw_only=True):
    """The whole file. `seed` affects only random shapes, `recovery` only mode epidemic."""

    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 7
    overlay: Overlay = Overlay()
    recovery: Recovery | None = None
    up: Up = Up()


def read_topology_file(path: Path, mode: Mode | None = None) -> tuple[Topology, Overlay, Up]:
    """Return the topology, the overlay (in `mode`, if given) and where it listens; ScenarioError names file and key.

    Without a mode in the file, it is guaranteed, as in a scenario file.
    """
    topology, file = read_network_file(path, mode)
    return topology, file.overlay, file.up


def read_network_file(path: Path, mode: Mode | None = None) -> tuple[Topology, TopologyFile]:
    """Return the topology and everything in the file; otherwise as `read_topology_file`."""
    file = read_toml(path, TopologyFile)
    if mode is not None:
        file = msgspec.structs.replace(file, overlay=msgspec.structs.replace(file.overlay, mode=mode))
    try:
        return make_topology(file), file
    except ScenarioError as error:
        raise type(error)(f"{path}: {error}") from None


def make_topology(file: TopologyFile) -> Topology:
    check_scenario(Scenario(seed=file.seed, overlay=file.overlay))
    check_available(file.overlay.mode, "overlay.mode")
    topology = build_topology(file.overlay, file.seed)
    check_size(len(topology.brokers))
    return topology


def tree(brokers: int) -> Topology:
    """Return a binary tree of so many brokers, for use without a file."""
    check_size(brokers)
    shape = TreeShape(brokers=brokers, children=2)
    return build_topology(Overlay(mode=BEST_EFFORT, shape=shape), seed=0)


def check_size(brokers: int) -> None:
    if brokers > MAX_PROCESSES:
        raise ScenarioError(
            f"{brokers} brokers are too many processes for one machine; use at most {MAX_PROCESSES}"
        )


def addresses(topology: Topology, up: Up) -> dict[str, Address]:
    """Return the address that each broker listens on."""
    return addresses_from(up.host, up.base_port, topology.brokers)


def addresses_from(host: str, first_port: int, names: Sequence[str]) -> dict[str, Address]:
    """Return addresses with consecutive ports."""
    last = first_port + len(names) - 1
    if last > MAX_PORT:
        raise ScenarioError(
            f"{len(names)} processes need ports {first_port} to {last}, but the last port is {MAX_PORT}"
        )
    return {name: Address(host, first_port + index) for index, name in enumerate(names)}
