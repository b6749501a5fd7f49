"""Makes buses at brokers of the overlay, by their addresses."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from tidings.bus.bus import Bus
from tidings.bus.sequencing import Sequencing
from tidings.core.client.reliable_session import ResumePoints
from tidings.core.ordering.subscriber import Patience
from tidings.drivers.address import Transport, parse_address
from tidings.drivers.sockets.client import ClientConnection, Opener
from tidings.drivers.sockets.security import Tls

SCHEMES: dict[str, tuple[Transport, bool]] = {
    "tidings": ("tcp", False),
    "tidings+tls": ("tcp", True),
    "tidings+udp": ("udp", False),
}


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
