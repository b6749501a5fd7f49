"""The file of `tidings plan --sites`: the sites by name, their sequencers' addresses, and their clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, field

from tidings.core.errors import ConnectionFailed, PipelineError
from tidings.drivers.address import Address, parse_address
from tidings.scenarios.file.schema import Name, Table
from tidings.spark.plan.sites import FIRST_PORT, PlannedSite, PlannedSites


class SiteTable(Table, frozen=True, kw_only=True):
    """`[[site]]`: addresses are HOST:PORT; `clients` are those whose site is not in the table of subscriptions."""

    name: Name
    node: str | None = None
    standby: str | None = None
    witness: str | None = None
    clients: tuple[str, ...] = ()


class SitesFile(Table, frozen=True, kw_only=True):
    sites: Annotated[tuple[SiteTable, ...], Meta(min_length=1)] = field(name="site")


def sites_of(path: Path, file: SitesFile) -> PlannedSites:
    """Return the sites of a file; PipelineError names the file, the site and what is wrong."""
    of_client: dict[str, str] = {}
    for table in file.sites:
        for client in table.clients:
            if client in of_client:
                first = of_client[client]
                raise PipelineError(f"{path}: client {client!r} is listed at {first!r} and at {table.name!r}")
            of_client[client] = table.name
    try:
        return PlannedSites(tuple(map(_site, file.sites)), of_client)
    except PipelineError as error:
        raise PipelineError(f"{path}: {error}") from None


def _site(table: SiteTable) -> PlannedSite:
    if (table.standby is None) != (table.witness is None):
        raise PipelineError(f"site {table.name!r}: give both a standby and a witness, or neither")
    return PlannedSite(
        table.name,
        _address(table, "node", table.node),
        _address(table, "standby", table.standby),
        _address(table, "witness", table.witness),
    )


def _address(table: SiteTable, key: str, text: str | None) -> Address | None:
    try:
        return None if text is None else parse_address(text, default_port=FIRST_PORT)
    except ConnectionFailed as error:
        raise PipelineError(f"site {table.name!r}: {key}: {error}") from None
