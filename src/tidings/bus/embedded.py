"""A whole network inside the process, and buses at its brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args
from weakref import WeakSet

from tidings.bus.bus import Bus
from tidings.bus.memory_archive import MemoryArchive
from tidings.bus.no_op_publisher import NoOpPublisher
from tidings.bus.overlay import client_name
from tidings.bus.sequencing import LocalSequencing, Sequencing
from tidings.core.errors import ConnectionFailed
from tidings.core.ordering.layout import EVERYTHING, single
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.core.ordering.subscriber import Patience
from tidings.core.overlay.epidemic.settings import Algorithm, RecoverySettings
from tidings.core.overlay.modes import EPIDEMIC, MODES
from tidings.drivers.local.network import LocalConnection, LocalNetwork
from tidings.drivers.local.ordering import LocalOrdering
from tidings.drivers.sockets.guaranteed import DEFAULT_DELTA, DEFAULT_WINDOW
from tidings.scenarios.file.brokers import broker_specs
from tidings.scenarios.file.modes import check_available
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

ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
AUTO: Algorithm = "auto"
ShapeName = Literal["tree", "random", "chain", "star"]
SEQUENCER = "sequencer"
"""The only sequencer of an embedded network."""


class Embedded(Bus):
    """A bus at the first broker of a whole network in this process. Closing it closes the network.

    `connect` returns more buses, which are closed with it.
    """

    def __init__(
        self,
        network: LocalNetwork,
        ordering: LocalOrdering | None,
        patience: Patience | None,
        *,
        archive: bool = False,
    ) -> None:
        name = client_name()
        super().__init__(_local_sequencing(ordering, name), patience=patience)
        attach_locally(self, network, network.brokers[0], name)
        self.network = network
        self.ordering = ordering
        self._others: WeakSet[Bus] = WeakSet()
        self._no_ops: NoOpPublisher | None = None
        if archive:
            first = network.brokers[0]
            recorder = attach_locally(Bus(), network, first, f"{first}/archive")
            self.archive = MemoryArchive(first, recorder, lambda: network.node(first))

    async def open(self) -> None:
        self.network.start()
        await self.network.linked()
        if self.archive is not None:
            await self.archive.open()
        if self.ordering is not None:
            self.ordering.start()
            self._no_ops = NoOpPublisher(self._no_op_client, self.ordering.layout, self._no_ops_published)
        await super().open()

    async def close(self) -> None:
        for other in list(self._others):  # otherwise they would wait for answers that never come
            await other.close()
        if self._no_ops is not None:
            await self._no_ops.close()
        if self.archive is not None:
            await self.archive.close()
        await super().close()
        if self.ordering is not None:
            self.ordering.stop()
        self.network.stop()

    def connect(self, at: str | None = None, *, name: str | None = None) -> Bus:
        """Return another client of this network, to use with `async with`.

        Args:
            at: The broker to connect to, from "b0" on; None is the last one.
            name: The client's name; None draws a random one.
        """
        who = name or client_name()
        other = Bus(_local_sequencing(self.ordering, who), patience=self._patience)
        broker = self.network.brokers[-1] if at is None else at
        attach_locally(other, self.network, broker, who)
        if self.archive is not None and self.archive.broker == broker:
            other.archive = self.archive
        self._others.add(other)
        return other

    def _no_op_client(self) -> Bus:
        """Make a client for no-ops, which must not queue behind publications that wait for a number."""
        return attach_locally(Bus(), self.network, self.network.brokers[0], client_name())

    def publish_no_ops(self, fact: PublishNoOps) -> None:
        """Publish no-ops for the numbers of a client that is gone."""
        if self._no_ops is not None:
            self._no_ops.add(fact)

    def _no_ops_published(self, server: str, number: int) -> None:
        assert self.ordering is not None
        self.ordering.sequencer(SEQUENCER).sequencer.no_ops_published(server, number)


def _local_sequencing(ordering: LocalOrdering | None, name: str) -> Callable[[], Sequencing | None]:
    return lambda: None if ordering is None else LocalSequencing(ordering, name)


def embedded(
    brokers: int = 5,
    *,
    shape: ShapeName = "tree",
    seed: int = 0,
    mode: Mode = "best-effort",
    delta: int = DEFAULT_DELTA,
    recovery: Algorithm | RecoverySettings = AUTO,
    loss: float = 0.0,
    order_topics: Sequence[str] = (EVERYTHING,),
    causal: bool = True,
    order_patience: Patience | None = None,
    archive: bool = False,
) -> Embedded:
    """Return a bus on a whole network in this process: `async with embedded() as bus`. No sockets, no set-up.

    Everything is kept in memory and ends with the network. Subscriptions with order "total" or "causal" work at once.

    Args:
        brokers: How many brokers, named b0, b1, and so on.
        shape: How they are linked: "tree", "random", "chain" or "star".
        seed: Decides what is random: the shape "random", losses and gossip.
        mode: "best-effort", "guaranteed" (loses nothing) or "epidemic" (repairs losses by gossip).
        delta: How many adjacent failed brokers mode "guaranteed" bypasses.
        recovery: How mode "epidemic" repairs losses: the name of an algorithm, or `RecoverySettings`.
        loss: The share of messages between brokers to lose on purpose, from 0 to below 1; mode "epidemic" only.
        order_topics: Topics or topic patterns that are numbered separately, in order of precedence. By default
            one counter numbers all topics.
        causal: False keeps total order only, with smaller timestamps.
        order_patience: As in `connect`; mode "guaranteed" needs none.
        archive: True keeps all events of broker b0 in memory, so that its clients' subscriptions can `start` with them;
            mode "guaranteed" only.

    Raises:
        ValueError: An argument is out of range.
    """
    check_available(mode)
    if archive and mode != "guaranteed":
        raise ValueError(f"archive=True requires mode 'guaranteed', not {mode!r}")
    network = local_network(
        brokers, shape=shape, seed=seed, mode=mode, delta=delta, recovery=recovery, loss=loss
    )
    layout = single(SEQUENCER, order_topics, causal=causal)
    ordering = network.ordering = LocalOrdering(layout, lambda fact: bus.publish_no_ops(fact))
    bus = Embedded(network, ordering, order_patience, archive=archive)
    return bus


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
