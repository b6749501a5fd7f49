"""`tidings subscriptions`: lists durable subscriptions and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidings.cli.shared.durable_rows import print_durable
from tidings.cli.shared.options import (
    ClientName,
    ConnectTimeout,
    Json,
    TlsAuthority,
    TokenFile,
    Url,
    make_bus,
)
from tidings.cli.shared.output import print_json, print_line

if TYPE_CHECKING:
    from tidings.bus.host import ApplicationHost


def subscriptions(
    url: Url,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """List the network's durable subscriptions and groups.

    Shows who is attached, how many events wait, and how long one that nobody is attached to is kept.

    If a broker cannot be reached, only the names of what it keeps are shown.
    """
    from tidings.cli.shared.running import run

    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    rows = run(fetch_rows(bus))
    if json:
        print_json(rows)
    elif rows:
        print_durable("", rows)
    else:
        print_line("no durable subscriptions and no groups")


async def fetch_rows(bus: ApplicationHost) -> list[dict[str, Any]]:
    service = bus.without_order()  # the broker answers even if its sequencers do not
    async with service:
        return await service.durable_subscriptions()
