"""Makes buses of the overlay: at a broker by its address, or on a whole network inside the process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from tidings.bus.bus import Bus
from tidings.bus.sequencing import Sequencing
from tidings.core.client.reliable_session import ResumePoints
from tidings.core.errors import ConnectionFailed
from tidings.core.ordering.subscriber import Patience
from tidings.core.overlay.epidemic.settings import Algorithm, RecoverySettings
from tidings.core.overlay.modes import EPIDEMIC, MODES
from tidings.drivers.address import Transport, parse_address
from tidings.drivers.local.network import LocalConnection, LocalNetwork
from tidings.drivers.sockets.client import ClientConnection, Opener
from tidings.drivers.sockets.guaranteed import DEFAULT_WINDOW
from tidings.drivers.sockets.security import Tls
from tidings.scenarios.file.brokers import broker_specs
from tidings.scenarios.file.schema import (
    BernoulliLoss,
    ChainShape,
    Mode,
    Overlay,
    RandomShape,
    StarShape,
    TreeShape,
)
from tidings.scenarios.file.topology import build_topology

SCHEMES: dict[str, tuple[Transport, bool]] = {
    "tidings": ("tcp", False),
    "tidings+tls": ("tcp", True),
    "tidings+udp": ("udp", False),
}
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
AUTO: Algorithm = "auto"
ShapeName = Literal["tree", "random", "chain", "star"]


def broker_bus(
    scheme: str,
    addresses: str,
    name: str,
    *,
    lasting: bool = True,
    token: str = "",
    tls_ca: str | Path | None = None,
    timeout_s: float = 5.0,
    incarnation: int | None = None,
    resume_points: ResumePoints | None = None,
    opener: Opener | None = None,
    find_order: Callable[[Sequence[str]], Sequencing | None] = lambda announced: None,
    patience: Patience | None = None,
) -> Bus:
    """Return a bus, not yet open, at a broker; with several addresses, `host1:port1,host2:port2`, at any of them.

    A name that is not `lasting` was never used before and never will be again. `incarnation` and `resume_points` are
    for a client that resumes where an earlier one ended: it publishes as that one, and does not get again what that one
    got. `find_order` is called with the sequencers' addresses that the broker announces.
    """
    transport, encrypted = SCHEMES[scheme]
    bus = Bus(lambda: find_order(connection.sequencers), patience=patience)
    bus.connection = connection = ClientConnection(
        [parse_address(text) for text in addresses.split(",")],
        name,
        emit=bus.on_fact,
        on_connection=bus.on_connection,
        transport=transport,
        tls=Tls(authority=tls_ca) if encrypted else None,
        token=token,
        incarnation=incarnation if lasting else 0,
        acknowledges=False,
        lasting=lasting,
        resume_points=resume_points,
        opener=opener,
        connect_timeout_seconds=timeout_s,
    )
    return bus


def client_name() -> str:
    """Return a random name that no other client has."""
    return f"client-{secrets.token_hex(6)}"


def local_bus(network: LocalNetwork, broker: str, name: str) -> Bus:
    """Return a bus at a broker of this process."""
    return attach_locally(Bus(), network, broker, name)


def attach_locally(bus: Bus, network: LocalNetwork, broker: str, name: str) -> Bus:
    if broker not in network.brokers:
        raise ConnectionFailed(f"there is no broker {broker!r}; the brokers are {', '.join(network.brokers)}")
    bus.connection = LocalConnection(network, broker, name, bus.on_fact)
    return bus


def local_network(
    brokers: int,
    *,
    shape: ShapeName,
    seed: int,
    mode: Mode,
    delta: int,
    recovery: Algorithm | RecoverySettings,
    loss: float,
) -> LocalNetwork:
    """Return a network of brokers in this process, not started; raises ValueError for impossible arguments."""
    shapes = {"tree": TreeShape, "random": RandomShape, "chain": ChainShape, "star": StarShape}
    if shape not in shapes:
        raise ValueError(f"shape {shape!r} is not one of {', '.join(shapes)}")
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    if brokers < 1:
        raise ValueError(f"brokers must be at least 1, not {brokers}")
    if delta < 0:
        raise ValueError(f"delta must be at least 0, not {delta}")
    settings = recovery_of(recovery, mode)
    check_loss(loss)
    if loss and mode != EPIDEMIC:
        raise ValueError(f"loss requires mode {EPIDEMIC!r}; this network has mode {mode!r}")
    overlay = Overlay(mode=mode, shape=shapes[shape](brokers=brokers), delta=delta, window=DEFAULT_WINDOW)
    specs = broker_specs(build_topology(overlay, seed), overlay, settings)
    return LocalNetwork(specs, loss=BernoulliLoss(rate=loss) if loss else None, seed=seed)


def recovery_of(recovery: Algorithm | RecoverySettings, mode: Mode) -> RecoverySettings:
    """Return the recovery settings, given as such or as an algorithm's name; ValueError if unknown or not allowed."""
    if recovery != AUTO and mode != EPIDEMIC:
        raise ValueError(f"recovery requires mode {EPIDEMIC!r}; this network has mode {mode!r}")
    if isinstance(recovery, RecoverySettings):
        return recovery
    if recovery not in ALGORITHMS:
        raise ValueError(
            f"unknown recovery {recovery!r}; use RecoverySettings or one of {', '.join(ALGORITHMS)}"
        )
    return RecoverySettings(algorithm=recovery)


def check_loss(loss: float) -> None:
    if not 0 <= loss < 1:
        raise ValueError(f"loss must be a number from 0 to below 1, not {loss}")
