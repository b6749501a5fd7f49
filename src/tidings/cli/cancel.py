"""`tidings cancel`: ends a durable subscription or a group for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.confirmation import Yes, confirm
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

Subscription = Annotated[
    str,
    typer.Argument(
        metavar="SUBSCRIPTION", help="Name of the durable subscription or group.", show_default=False
    ),
]


def cancel(
    url: Url,
    subscription: Subscription,
    yes: Yes = False,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """End a durable subscription or a group for good.

    What waits for it is dropped, and whoever is attached is told.
    """
    from tidings.cli.shared.running import run

    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    confirm(f"Cancel {subscription!r}? What waits for it is dropped.", yes=yes)
    run(end(bus, subscription))
    if json:
        print_json({"cancelled": subscription})
    else:
        print_line(f"cancelled {subscription}")


async def end(bus: ApplicationHost, subscription: str) -> None:
    service = bus.without_order()
    async with service:
        await service.cancel_durable(subscription)
