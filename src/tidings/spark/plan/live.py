"""Fetches the ordered subscriptions of a running network from the status of its sequencers.

A broker reports where a sequencer is, a sequencer where the others are. Each sequencer reports the subscriptions of the
servers that it speaks for, by entries of the current layout. All must be asked, and all must answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from tidings.bus.host import ApplicationHost
from tidings.core.errors import PipelineError
from tidings.drivers.address import parse_address
from tidings.drivers.address import url as url_of
from tidings.spark.plan.tables import listed_sites

MakeBus = Callable[[str], ApplicationHost]
"""Returns a bus for a URL, not opened yet."""


async def fetch_rows(url: str, make_bus: MakeBus, of_client: Mapping[str, str]) -> pa.Table:
    """Return rows as of `tables.flat_rows`. ConnectionFailed: a sequencer does not answer."""
    asked: dict[str, dict[str, Any]] = {}
    to_ask = [url]
    tls = url.startswith("tidings+tls://")
    while to_ask:
        status = await _status(make_bus(to_ask.pop()))
        if "sequencer" in status:
            asked[str(status["sequencer"])] = status
            to_ask = _others(url, status, asked, tls=tls)
        elif status.get("sequencers"):
            to_ask = [url_of(parse_address(str(status["sequencers"][0])), tls=tls)]
        else:
            raise PipelineError(f"{url} has no sequencers: its network does not order events")
    return _rows(url, asked, of_client)


async def _status(bus: ApplicationHost) -> dict[str, Any]:
    service = bus.without_order()
    async with service:
        return await service.status()


def _others(url: str, status: dict[str, Any], asked: Mapping[str, Any], *, tls: bool) -> list[str]:
    nodes = status["nodes"]
    if not isinstance(nodes, Mapping):
        raise PipelineError(
            f"{url}: sequencer {status['sequencer']} has too many nodes to list in its status"
        )
    unknown = [node for node, fields in nodes.items() if node not in asked and not fields["address"]]
    if unknown:
        raise PipelineError(
            f"{url}: sequencer {status['sequencer']} does not know where sequencer {unknown[0]} is"
        )
    waiting = [fields["address"] for node, fields in nodes.items() if node not in asked]
    return [url_of(parse_address(str(address)), tls=tls) for address in waiting]


def _rows(url: str, asked: Mapping[str, dict[str, Any]], of_client: Mapping[str, str]) -> pa.Table:
    _check_spoken_for(url, asked)
    pairs: dict[tuple[str, str, str], None] = {}
    for node, status in asked.items():
        found = status.get("subscriptions")
        if not isinstance(found, list):
            raise PipelineError(
                f"{url}: sequencer {node} has {found or 'an unknown number of'} subscriptions, too many for its "
                "status: plan from a table or a trace instead"
            )
        for one in found:
            client = f"{one['subscriber']} {one['incarnation']}"
            pairs.update(dict.fromkeys((client, str(one["subscriber"]), topic) for topic in one["topics"]))
    holders = pa.array([holder for _, holder, _ in pairs], pa.string())
    return pa.table(
        {
            "row": pa.array(range(1, len(pairs) + 1), pa.int64()),
            "client": pa.array([client for client, _, _ in pairs], pa.string()),
            "topic": pa.array([topic for _, _, topic in pairs], pa.string()),
            "site": listed_sites(holders, of_client),
        }
    )


def _check_spoken_for(url: str, asked: Mapping[str, dict[str, Any]]) -> None:
    roles: dict[str, set[str]] = {}
    for status in asked.values():
        servers = status["servers"]
        if isinstance(servers, Mapping):
            for server, fields in servers.items():
                roles.setdefault(server, set()).add(fields["role"])
    silent = [server for server, found in roles.items() if "active" not in found]
    if silent:
        raise PipelineError(
            f"{url}: sequencer server {silent[0]} has no active node at the moment; try again"
        )
