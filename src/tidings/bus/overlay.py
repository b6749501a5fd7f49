"""The overlay as a service: a bus at a broker, by its address, and whole networks inside the process."""

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
    find_order: Callable[[Sequence[str]], Sequencing | None] = lambda told: None,
    patience: Patience | None = None,
) -> Bus:
    """A bus at a broker, not open yet; with several addresses, `host1:port1,host2:port2`, at any of them.

    A name that is not `lasting` nobody had before, or will have again. `incarnation` and `resume_points` are for a
    client that goes on where an earlier one ended: it publishes as that one, and is not shown again what that one was
    shown.
    `find_order` is given the addresses of the sequencers that the broker told.
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
    """A name that no other client has."""
    return f"client-{secrets.token_hex(6)}"


def local_bus(network: LocalNetwork, broker: str, name: str) -> Bus:
    """A bus at a broker of this process."""
    return attach_locally(Bus(), network, broker, name)


def attach_locally(bus: Bus, network: LocalNetwork, broker: str, name: str) -> Bus:
    if broker not in network.brokers:
        raise ConnectionFailed(f"there is no broker {broker!r}; there are {', '.join(network.brokers)}")
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
    """So many brokers in this process, not started; ValueError if that cannot be."""
    shapes = {"tree": TreeShape, "random": RandomShape, "chain": ChainShape, "star": StarShape}
    if shape not in shapes:
        raise ValueError(f"shape {shape!r} is unknown; known: {', '.join(shapes)}")
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(MODES)}")
    if brokers < 1:
        raise ValueError("a network has at least one broker")
    if delta < 0:
        raise ValueError("delta is at least 0")
    settings = recovery_of(recovery, mode)
    check_loss(loss)
    if loss and mode != EPIDEMIC:
        raise ValueError(f"loss is for mode {EPIDEMIC!r}, not {mode!r}")
    overlay = Overlay(mode=mode, shape=shapes[shape](brokers=brokers), delta=delta, window=DEFAULT_WINDOW)
    specs = broker_specs(build_topology(overlay, seed), overlay, settings)
    return LocalNetwork(specs, loss=BernoulliLoss(rate=loss) if loss else None, seed=seed)


def recovery_of(recovery: Algorithm | RecoverySettings, mode: Mode) -> RecoverySettings:
    """The settings, of which a name is the algorithm; ValueError if it is unknown, or the mode recovers nothing."""
    if recovery != AUTO and mode != EPIDEMIC:
        raise ValueError(f"recovery is for mode {EPIDEMIC!r}, not {mode!r}")
    if isinstance(recovery, RecoverySettings):
        return recovery
    if recovery not in ALGORITHMS:
        raise ValueError(f"recovery {recovery!r} is not one of {', '.join(ALGORITHMS)}, nor RecoverySettings")
    return RecoverySettings(algorithm=recovery)


def check_loss(loss: float) -> None:
    if not 0 <= loss < 1:
        raise ValueError(f"loss is a share of at least 0 and below 1, not {loss}")
