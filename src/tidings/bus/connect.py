"""Opens a bus: at the network of a URL, or on a whole network inside this process. Both offer ordered streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from weakref import WeakSet

from tidings.bus.bus import Bus
from tidings.bus.host import ApplicationHost
from tidings.bus.memory_archive import MemoryArchive
from tidings.bus.no_op_publisher import NoOpPublisher
from tidings.bus.ordered_service import OrderedService
from tidings.bus.overlay import (
    AUTO,
    SCHEMES,
    ShapeName,
    attach_locally,
    broker_bus,
    client_name,
    local_network,
)
from tidings.bus.sequencing import LocalSequencing, Sequencing
from tidings.bus.service import EventService
from tidings.core.client.reliable_session import ResumePoints
from tidings.core.errors import AddressError, NotYetAvailable
from tidings.core.ordering.layout import EVERYTHING, single
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.core.ordering.subscriber import Patience
from tidings.core.overlay.epidemic.settings import Algorithm, RecoverySettings
from tidings.drivers.address import SEQUENCER_PORT, parse_address
from tidings.drivers.local.network import LocalNetwork
from tidings.drivers.local.ordering import LocalOrdering
from tidings.drivers.sockets.client import Opener
from tidings.drivers.sockets.guaranteed import DEFAULT_DELTA
from tidings.drivers.sockets.security import Tls
from tidings.scenarios.file.modes import check_available
from tidings.scenarios.file.schema import Mode

ADAPTERS = {
    "nats": ("tidings.drivers.adapters.nats", "nats_service"),
    "nats+jetstream": ("tidings.drivers.adapters.nats", "nats_service"),
    "mqtt": ("tidings.drivers.adapters.mqtt", "mqtt_service"),
    "redis": ("tidings.drivers.adapters.redis", "redis_service"),
}
"""Scheme -> module and function, imported on first use."""
LATER_SCHEMES = ("peers",)
SEQUENCER = "sequencer"
"""The only sequencer of an embedded network."""


def connect(
    url: str = "tidings://127.0.0.1:7400",
    *,
    name: str | None = None,
    token: str = "",
    tls_ca: str | Path | None = None,
    timeout_s: float = 5.0,
    sequencer: str | Sequence[str] | None = None,
    order_patience: Patience | None = None,
) -> ApplicationHost:
    """Return a bus for the network at a URL. It connects when opened: `async with connect(...) as bus`.

    Args:
        url: `tidings://host:port`, or `tidings+tls://` or `tidings+udp://`, for brokers of tidings. With several
            addresses, `tidings://host1:port1,host2:port2`, a client that loses its broker moves on to the next one.
            `nats://`, `nats+jetstream://`, `mqtt://` and `redis://` use an existing broker.
        name: Identifies this client across restarts; no two clients may share it. None draws a random name.
        token: The secret that the brokers and sequencers of tidings require, if they do.
        tls_ca: PEM file of the certificates to trust; None trusts the system's. For an adapter, it applies to the
            connection to the sequencers, which is encrypted if it is given.
        timeout_s: How long to wait for a connection (with an adapter, also for answers), in seconds.
        sequencer: Total and causal order over an adapter: the address of a sequencer (`host:port`, default port
            7500), or several. Brokers of tidings announce theirs.
        order_patience: How long ordered subscriptions wait for an event on a network that may lose some.

    Raises:
        ConnectionFailed: The URL is not valid, or the library of an adapter is not installed.
        NotYetAvailable: The scheme is `peers://`.
    """
    return connect_as(
        url,
        name,
        token=token,
        tls_ca=tls_ca,
        timeout_s=timeout_s,
        sequencer=sequencer,
        order_patience=order_patience,
    )


def connect_as(
    url: str,
    name: str | None,
    *,
    token: str = "",
    tls_ca: str | Path | None = None,
    timeout_s: float = 5.0,
    sequencer: str | Sequence[str] | None = None,
    order_patience: Patience | None = None,
    incarnation: int | None = None,
    resume_points: ResumePoints | None = None,
    opener: Opener | None = None,
) -> ApplicationHost:
    """`connect` for a client that resumes where an earlier one of its name ended (`incarnation`, `resume_points`: see
    `broker_bus`), or that reaches its broker in another way (`opener`)."""
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or scheme not in (*SCHEMES, *ADAPTERS):
        raise _scheme_problem(url, scheme if separator else "")
    who = name or client_name()
    given = [sequencer] if isinstance(sequencer, str) else list(sequencer or ())
    addresses = [
        parse_address(text.removeprefix("tidings://"), default_port=SEQUENCER_PORT) for text in given
    ]
    encrypted = SCHEMES[scheme][1] if scheme in SCHEMES else tls_ca is not None

    def sequencing(announced: Sequence[str] = ()) -> Sequencing | None:
        found = addresses or [parse_address(text) for text in announced]
        if not found:
            return None
        from tidings.bus.connected_sequencers import ConnectedSequencing  # most clients need none

        return ConnectedSequencing(
            found,
            who,
            token=token,
            tls=Tls(authority=tls_ca) if encrypted else None,
            timeout_s=timeout_s,
        )

    if scheme in SCHEMES:
        return broker_bus(
            scheme,
            rest.rstrip("/"),
            who,
            lasting=name is not None,
            token=token,
            tls_ca=tls_ca,
            timeout_s=timeout_s,
            incarnation=incarnation,
            resume_points=resume_points,
            opener=opener,
            find_order=sequencing,
            patience=order_patience,
        )
    module, function = ADAPTERS[scheme]
    inner: EventService = getattr(import_module(module), function)(url, name=who, timeout_s=timeout_s)
    return OrderedService(inner, sequencing, patience=order_patience)


def _scheme_problem(url: object, scheme: str) -> AddressError | NotYetAvailable:
    known = ", ".join(f"{name}://" for name in (*SCHEMES, *ADAPTERS))
    if scheme in LATER_SCHEMES:
        return NotYetAvailable(f"{url!r}: {scheme}:// is not yet available; available: {known}")
    return AddressError(f"{url!r} is not a broker's URL: it must start with one of {known}")


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
