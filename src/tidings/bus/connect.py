"""Opens a bus at the network of a URL, with ordered streams."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from tidings.bus.host import ApplicationHost
from tidings.bus.ordered_service import OrderedService
from tidings.bus.overlay import SCHEMES, broker_bus, client_name
from tidings.bus.sequencing import Sequencing
from tidings.bus.service import EventService
from tidings.core.client.reliable_session import ResumePoints
from tidings.core.errors import AddressError, NotYetAvailable
from tidings.core.ordering.subscriber import Patience
from tidings.drivers.address import SEQUENCER_PORT, parse_address
from tidings.drivers.sockets.client import Opener
from tidings.drivers.sockets.security import Tls

ADAPTERS = {
    "nats": ("tidings.drivers.adapters.nats", "nats_service"),
    "nats+jetstream": ("tidings.drivers.adapters.nats", "nats_service"),
    "mqtt": ("tidings.drivers.adapters.mqtt", "mqtt_service"),
    "redis": ("tidings.drivers.adapters.redis", "redis_service"),
}
"""Scheme -> module and function, imported on first use."""
LATER_SCHEMES = ("peers",)


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
