"""Opening a bus: to a network by its URL, or to a whole network inside the process. Either has an order, if asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from weakref import WeakSet

from tidings.bus.bus import Bus
from tidings.bus.host import ApplicationHost
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
"""Scheme -> module and function; imported only where it is used."""
LATER_SCHEMES = ("peers",)
SEQUENCER = "sequencer"
"""The only one of an embedded network."""


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
    """A bus at the network of that URL; it connects when it is opened, as `async with connect(...) as bus`.

    `name` identifies this client for ever and must be unique; without one a new name is drawn. With several
    addresses, `tidings://host1:port1,host2:port2`, it goes to the next whenever it loses its broker.

    `nats://`, `nats+jetstream://`, `mqtt://` and `redis://` use an existing broker. For total or causal order there,
    `sequencer` is the address of one of the sequencers (`host:port`, without a port 7500), or of several; tidings' own
    brokers tell theirs.
    Over a service that may lose events `order_patience` says how long ordered subscriptions wait for one.
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
    """`connect` for a client that goes on where an earlier one of its name ended (bus/overlay.py), or that reaches
    its broker in another way."""
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or scheme not in (*SCHEMES, *ADAPTERS):
        raise _scheme_problem(url, scheme if separator else "")
    who = name or client_name()
    given = [sequencer] if isinstance(sequencer, str) else list(sequencer or ())
    addresses = [
        parse_address(text.removeprefix("tidings://"), default_port=SEQUENCER_PORT) for text in given
    ]
    encrypted = SCHEMES[scheme][1] if scheme in SCHEMES else tls_ca is not None

    def sequencing(told: Sequence[str] = ()) -> Sequencing | None:
        found = addresses or [parse_address(text) for text in told]
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
    """A whole network in this process, and a bus at its first broker. `connect` gives more buses, closed with it."""

    def __init__(
        self, network: LocalNetwork, ordering: LocalOrdering | None, patience: Patience | None
    ) -> None:
        name = client_name()
        super().__init__(_local_sequencing(ordering, name), patience=patience)
        attach_locally(self, network, network.brokers[0], name)
        self.network = network
        self.ordering = ordering
        self._others: WeakSet[Bus] = WeakSet()
        self._no_ops: NoOpPublisher | None = None

    async def open(self) -> None:
        self.network.start()
        await self.network.linked()
        if self.ordering is not None:
            self.ordering.start()
            self._no_ops = NoOpPublisher(self._speaker, self.ordering.layout, self._no_ops_published)
        await super().open()

    async def close(self) -> None:
        for other in list(self._others):  # or they would wait for answers that never come
            await other.close()
        if self._no_ops is not None:
            await self._no_ops.close()
        await super().close()
        if self.ordering is not None:
            self.ordering.stop()
        self.network.stop()

    def connect(self, at: str | None = None, *, name: str | None = None) -> Bus:
        """Another client, at the broker named `at` (the last one without a name)."""
        who = name or client_name()
        other = Bus(_local_sequencing(self.ordering, who), patience=self._patience)
        attach_locally(other, self.network, self.network.brokers[-1] if at is None else at, who)
        self._others.add(other)
        return other

    def _speaker(self) -> Bus:
        """For no-ops, which must not wait behind what waits for a number."""
        return attach_locally(Bus(), self.network, self.network.brokers[0], client_name())

    def publish_no_ops(self, fact: PublishNoOps) -> None:
        """The numbers of a client that is gone."""
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
) -> Embedded:
    """A network of so many brokers in this process, as `async with embedded() as bus`: no sockets, no set-up.

    `mode` is "best-effort"; or "guaranteed", then with `delta`; or "epidemic", which repairs by gossip what is lost:
    `recovery` says how, and `loss` is the share of the messages between brokers that gets lost, on purpose. What a
    network keeps ends with it.

    Subscriptions with order "total" or "causal" work at once. `order_topics` are the topics (or patterns) that are
    numbered apart, in order of precedence; one counter for all is the default. Without `causal` only total order is
    kept, with smaller timestamps. `order_patience` as in `connect`; mode "guaranteed" needs none.
    """
    check_available(mode)
    network = local_network(
        brokers, shape=shape, seed=seed, mode=mode, delta=delta, recovery=recovery, loss=loss
    )
    layout = single(SEQUENCER, order_topics, causal=causal)
    ordering = LocalOrdering(layout, lambda fact: bus.publish_no_ops(fact))
    bus = Embedded(network, ordering, order_patience)
    return bus
