"""`tidings status`: what a broker says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidings.cli.options import ClientName, ConnectTimeout, Json, TlsAuthority, TokenFile, Url, make_bus
from tidings.cli.output import print_json, print_table

if TYPE_CHECKING:
    from tidings.services.bus import Bus


def status(
    url: Url,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Show a broker's neighbours, sessions and counters."""
    from tidings.cli.running import run

    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    found = run(fetch(bus))
    if json:
        print_json(found)
    else:
        show(url, found)


async def fetch(bus: Bus) -> dict[str, Any]:
    async with bus:
        return await bus.status()


def show(url: str, found: dict[str, Any]) -> None:
    """One table of what is single, one for each list of like things."""
    neighbours = found.get("neighbours")
    sessions = found.get("sessions")
    single = [(key, value) for key, value in found.items() if not isinstance(value, dict | list)]
    print_table(
        url, ("what", "value"), [(key.replace("_", " "), _shown(key, value)) for key, value in single]
    )
    if isinstance(neighbours, dict) and neighbours:
        print_rows("neighbours", [{"neighbour": peer, **fields} for peer, fields in neighbours.items()])
    if isinstance(sessions, list) and sessions:
        print_rows("sessions", sessions)


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    headings = [column.replace("_", " ") for column in columns]
    print_table(title, headings, [[row.get(column) for column in columns] for row in rows])


def _shown(key: str, value: object) -> object:
    """An incarnation is a name, not an amount."""
    return str(value) if key == "incarnation" else value
