"""The ordered subscriptions of a network that runs, as its sequencers tell them in their status.

A broker tells where the sequencers are, a sequencer where the others are; each tells the subscriptions of the servers
that it speaks for, by entries of the layout that is in force. All have to be asked, and all have to answer.
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
"""A bus at that URL, not open yet."""


async def fetch_rows(url: str, make_bus: MakeBus, of_client: Mapping[str, str]) -> pa.Table:
    """As of `plan_tables.flat_rows`. ConnectionFailed: a sequencer does not answer."""
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
            raise PipelineError(f"{url} knows of no sequencers: nobody asks for an order there")
    return _rows(url, asked, of_client)


async def _status(bus: ApplicationHost) -> dict[str, Any]:
    service = bus.without_order()
    async with service:
        return await service.status()


def _others(url: str, status: dict[str, Any], asked: Mapping[str, Any], *, tls: bool) -> list[str]:
    nodes = status["nodes"]
    if not isinstance(nodes, Mapping):
        raise PipelineError(f"{url}: sequencer {status['sequencer']} has too many nodes to tell them")
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
        told = status.get("subscriptions")
        if not isinstance(told, list):
            raise PipelineError(
                f"{url}: sequencer {node} has {told or 'an unknown number of'} subscriptions, too many for its status: "
                "plan from a table of them, or from a trace"
            )
        for one in told:
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
        raise PipelineError(f"{url}: nobody speaks for sequencer server {silent[0]} now; try again")
