"""The sites of a plan: where topics can be numbered, and where each client is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidings.core.errors import PipelineError
from tidings.core.ordering.layout import MAX_SERVERS
from tidings.drivers.address import Address

ONLY = "s0"
"""The only site, where none is named."""
FIRST_PORT = 7500
SHOWN = 5


@dataclass(frozen=True)
class PlannedSite:
    """A site, and the addresses of its sequencer, standby and witness, if known."""

    name: str
    node: Address | None = None
    standby: Address | None = None
    witness: Address | None = None


@dataclass(frozen=True)
class PlannedSites:
    """The listed sites; `of_client` is for clients whose site is not in the table."""

    listed: tuple[PlannedSite, ...]
    of_client: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < len(self.listed) <= MAX_SERVERS:
            raise PipelineError(f"{len(self.listed)} sites: expected 1 to {MAX_SERVERS}")
        for name in self.names:
            if self.names.count(name) > 1:
                raise PipelineError(f"site {name!r} is listed twice")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.listed)

    @property
    def default(self) -> str | None:
        """The site of clients for which none is given."""
        return self.listed[0].name if len(self.listed) == 1 else None

    def nodes(self, used: Iterable[int]) -> dict[str, Address]:
        """Return the addresses of these sites' nodes; unknown ones are made up, on this machine."""
        found: dict[str, Address] = {}
        for number in used:
            site = self.listed[number]
            found[site.name] = site.node or Address(port=FIRST_PORT + number)
            if site.standby is not None and site.witness is not None:
                found[standby_of(site)] = site.standby
                found[witness_of(site)] = site.witness
        return found

    def made_up(self, used: Iterable[int]) -> bool:
        return any(self.listed[number].node is None for number in used)


def standby_of(site: PlannedSite) -> str:
    return f"{site.name}-standby" if site.standby is not None and site.witness is not None else ""


def witness_of(site: PlannedSite) -> str:
    return f"{site.name}-witness" if site.standby is not None and site.witness is not None else ""


def found_sites(names: Iterable[str]) -> PlannedSites:
    """Return the sites that a table names, or one for all if it names none."""
    named = sorted(set(names))
    return PlannedSites(tuple(map(PlannedSite, named or [ONLY])))


def unknown_site(where: str, site: str, sites: PlannedSites) -> PipelineError:
    shown = ", ".join(sites.names[:SHOWN]) + (", ..." if len(sites.names) > SHOWN else "")
    return PipelineError(f"{where}: site {site!r} is not listed; known sites: {shown}")


def two_sites(where: str, client: str, site: str, listed: str) -> PipelineError:
    return PipelineError(
        f"{where}: client {client!r} is at site {site!r}, but the --sites file says {listed!r}"
    )


def no_site(where: str, client: str) -> PipelineError:
    return PipelineError(
        f"{where}: client {client!r} has no site: fill in the column 'site', or list the client in the --sites file"
    )
