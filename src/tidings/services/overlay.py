"""Opening a bus: to a broker by its URL, or to a whole network inside the process."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import get_args

from tidings.model.errors import ConnectionFailed
from tidings.net.address import Transport, parse_address
from tidings.net.client import ClientConnection
from tidings.net.epidemic import EPIDEMIC
from tidings.net.guaranteed import DEFAULT_DELTA, GUARANTEED
from tidings.net.local import LocalConnection, LocalEpidemic, LocalNetwork
from tidings.net.security import Tls
from tidings.protocol.labels import parse_label
from tidings.protocol.recovery.settings import Algorithm, RecoverySettings
from tidings.scenario.schema import (
    BernoulliLoss,
    ChainShape,
    Mode,
    Overlay,
    RandomShape,
    StarShape,
    TreeShape,
)
from tidings.scenario.topology import Topology, build_topology, labels, neighbourhoods, neighbours
from tidings.services.bus import Bus

SCHEMES: dict[str, tuple[Transport, bool]] = {
    "tidings": ("tcp", False),
    "tidings+tls": ("tcp", True),
    "tidings+udp": ("udp", False),
}
MODES: tuple[Mode, ...] = ("best-effort", "guaranteed", "epidemic")
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
AUTO = "auto"
LATER_SCHEMES = ("nats", "mqtt", "redis", "peers")


def connect(
    url: str = "tidings://127.0.0.1:7400",
    *,
    name: str | None = None,
    token: str = "",
    tls_ca: str | Path | None = None,
    timeout_s: float = 5.0,
) -> Bus:
    """A bus at the broker of that URL; it connects when it is opened, as `async with connect(...) as bus`.

    `name` identifies this client for ever and must be unique; without one a new name is drawn. With several
    addresses, `tidings://host1:port1,host2:port2`, it goes to the next whenever it loses its broker.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ConnectionFailed(_scheme_problem(url, scheme if separator else ""))
    transport, encrypted = SCHEMES[scheme]
    addresses = [parse_address(text) for text in rest.rstrip("/").split(",")]
    bus = Bus()
    bus.connection = ClientConnection(
        addresses,
        name or client_name(),
        emit=bus.on_fact,
        on_connection=bus.on_connection,
        transport=transport,
        tls=Tls(authority=tls_ca) if encrypted else None,
        token=token,
        incarnation=None if name else 0,  # a name that was never used before has no earlier life
        lasting=name is not None,
        connect_timeout_seconds=timeout_s,
    )
    return bus


def _scheme_problem(url: str, scheme: str) -> str:
    known = ", ".join(f"{name}://" for name in SCHEMES)
    if scheme in LATER_SCHEMES:
        return f"{url!r}: {scheme}:// is not yet available; available: {known}"
    return f"{url!r} is no URL of a broker: it starts with one of {known}"


def client_name() -> str:
    """A name that no other client has."""
    return f"client-{secrets.token_hex(6)}"


class Embedded(Bus):
    """A whole network in this process, and a bus at its first broker. `connect` gives more buses."""

    def __init__(self, network: LocalNetwork) -> None:
        super().__init__()
        self.network = network
        self.connection = LocalConnection(network, network.brokers[0], client_name(), self.on_fact)

    async def open(self) -> None:
        self.network.start()
        await self.network.linked()
        await super().open()

    async def close(self) -> None:
        await super().close()
        self.network.stop()

    def connect(self, at: str | None = None, *, name: str | None = None) -> Bus:
        """Another client, at the broker named `at` (the last one without a name)."""
        broker = self.network.brokers[-1] if at is None else at
        if broker not in self.network.brokers:
            raise ConnectionFailed(
                f"there is no broker {broker!r}; there are {', '.join(self.network.brokers)}"
            )
        bus = Bus()
        bus.connection = LocalConnection(self.network, broker, name or client_name(), bus.on_fact)
        return bus


def embedded(
    brokers: int = 5,
    *,
    shape: str = "tree",
    seed: int = 0,
    mode: Mode = "best-effort",
    delta: int = DEFAULT_DELTA,
    recovery: str | RecoverySettings = AUTO,
    loss: float = 0.0,
) -> Embedded:
    """A network of so many brokers in this process, as `async with embedded() as bus`: no sockets, no set-up.

    `mode` is "best-effort"; or "guaranteed", then with `delta`; or "epidemic", which repairs by gossip what is lost:
    `recovery` says how, and `loss` is the share of the messages between brokers that gets lost, on purpose. What a
    network keeps ends with it.
    """
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
    topology = build_topology(Overlay(mode=mode, shape=shapes[shape](brokers=brokers)), seed)
    if mode == GUARANTEED:
        return Embedded(LocalNetwork(neighbourhoods(topology, delta + 1), delta=delta, seed=seed))
    if mode == EPIDEMIC:
        epidemic = _epidemic(topology, settings, loss)
        return Embedded(LocalNetwork(neighbours(topology), epidemic=epidemic, seed=seed))
    return Embedded(LocalNetwork(neighbours(topology), seed=seed))


def _epidemic(topology: Topology, settings: RecoverySettings, loss: float) -> LocalEpidemic:
    label_of = {name: parse_label(text) for name, text in labels(topology).items()}
    return LocalEpidemic(settings, label_of, BernoulliLoss(rate=loss) if loss else None)


def recovery_of(recovery: str | RecoverySettings, mode: Mode) -> RecoverySettings:
    """The settings, of which a name is the algorithm; ValueError if it is unknown, or the mode recovers nothing."""
    if recovery != AUTO and mode != EPIDEMIC:
        raise ValueError(f"recovery is for mode {EPIDEMIC!r}, not {mode!r}")
    if isinstance(recovery, RecoverySettings):
        return recovery
    if recovery not in ALGORITHMS:
        raise ValueError(f"recovery {recovery!r} is not one of {', '.join(ALGORITHMS)}, nor RecoverySettings")
    return RecoverySettings(algorithm=recovery)  # type: ignore[arg-type]


def check_loss(loss: float) -> None:
    if not 0 <= loss < 1:
        raise ValueError(f"loss is a share of at least 0 and below 1, not {loss}")
