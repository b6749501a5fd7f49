"""`tidings status`: shows the state that a broker or a sequencer reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidings.cli.shared.durable_rows import BRIEF, print_durable
from tidings.cli.shared.options import (
    ClientName,
    ConnectTimeout,
    Json,
    TlsAuthority,
    TokenFile,
    Url,
    make_bus,
)
from tidings.cli.shared.output import print_json, print_table

if TYPE_CHECKING:
    from tidings.bus.host import ApplicationHost


def status(
    url: Url,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Show the state of a broker or a sequencer."""
    from tidings.cli.shared.running import run

    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    found = run(fetch(bus))
    if json:
        print_json(found)
    else:
        show(url, found)


async def fetch(bus: ApplicationHost) -> dict[str, Any]:
    service = bus.without_order()  # the broker answers even if its sequencers do not
    async with service:
        return await service.status()


def show(url: str, found: dict[str, Any]) -> None:
    """Print one table of single values, and one for each collection."""
    single = [(key, value) for key, value in found.items() if not isinstance(value, dict | list)]
    print_table(
        url, ("what", "value"), [(key.replace("_", " "), _shown(key, value)) for key, value in single]
    )
    for key, value in with_stalls_apart(found).items():
        rows = rows_of(key, value)
        if rows and key == "durable":
            print_durable("durable subscriptions and groups", value, BRIEF)
        elif rows:
            print_rows(key.replace("_", " "), rows)


def with_stalls_apart(found: dict[str, Any]) -> dict[str, Any]:
    """Move subscribers that wait for an event from a sequencer's servers into a table of their own."""
    servers = found.get("servers")
    if not isinstance(servers, Mapping) or not all(
        isinstance(fields, Mapping) for fields in servers.values()
    ):
        return found
    plain = {
        server: {key: value for key, value in fields.items() if key != "stalled"}
        for server, fields in servers.items()
    }
    stalled = [
        {"server": server, **stall}
        for server, fields in servers.items()
        for stall in fields.get("stalled", ())
    ]
    return {**found, "servers": plain, "stalled_subscribers": stalled}


def rows_of(key: str, value: object) -> list[dict[str, Any]]:
    """Return the rows of a collection: of named tables, of tables, or of single values."""
    if isinstance(value, Mapping):
        heading = key.removesuffix("s")
        return [{heading: name, **_row(fields)} for name, fields in value.items()]
    return [_row(item) for item in value] if isinstance(value, list) else []


def _row(item: object) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {key: _cell(value) for key, value in item.items()}
    return {"value": _cell(item)}


def _cell(value: object) -> object:
    """Format a value for one cell, including what is nested deeper."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_cell(inner)}" for key, inner in value.items()) or None
    if isinstance(value, list):
        return ", ".join(str(_cell(inner)) for inner in value) or None
    return value


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    headings = [column.replace("_", " ") for column in columns]
    print_table(title, headings, [[_shown(column, row.get(column)) for column in columns] for row in rows])


def _shown(key: str, value: object) -> object:
    """Return the value to show: an incarnation is a name, not an amount."""
    return str(value) if key == "incarnation" else value
