"""Reads the subscriptions of a trace as a table: those in force when most were.

Subscriptions come and go in a run and are never all in force together. Each is a client of its own, as it is for the
sequencers. If some asked for total or causal order, the others do not count: no stamps are made for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.errors import PipelineError
from tidings.core.events.subscription import Order
from tidings.core.ordering.layout import EVERYTHING
from tidings.spark.plan.tables import counted, read_table

TRACE_COLUMNS = ("subscriber", "subscription", "topics", "order", "accepted_ns", "cancelled_ns")
ORDERED = ("total", "causal")


@dataclass(frozen=True)
class TraceTables:
    flat: pa.Table
    """As of `tables.flat_rows`."""
    weights: dict[str, float] | None
    """Publications by topic, if the trace has them."""


def trace_directory(path: Path) -> Path | None:
    """Return the directory of the trace that the path names: itself, or the parent of its table of subscriptions."""
    if path.is_dir() and (path / "subscribed.parquet").exists():
        return path
    if path.name == "subscribed.parquet" and path.exists():
        return path.parent
    return None


def read_trace(directory: Path, of_client: Mapping[str, str]) -> TraceTables:
    where = directory / "subscribed.parquet"
    table = read_table(where)
    missing = [name for name in TRACE_COLUMNS if name not in table.column_names]
    if missing:
        raise PipelineError(
            f"{where}: missing column {missing[0]}; the columns are {', '.join(table.column_names)}"
        )
    rows = [
        {**found, "row": number}
        for number, found in enumerate(table.select(list(TRACE_COLUMNS)).to_pylist(), 1)
        if found["accepted_ns"] is not None
    ]
    unknown = next((found for found in rows if found["order"] not in (None, *Order)), None)
    if unknown is not None:
        raise PipelineError(
            f"{where}: row {unknown['row']} has order {unknown['order']!r}; known: {', '.join(Order)}"
        )
    ordered = [found for found in rows if found["order"] in ORDERED]
    sites = {**_sites(directory), **of_client}
    published = directory / "published.parquet"
    weights = counted(read_table(published).column("topic").to_pylist()) if published.exists() else None
    return TraceTables(_flat(_busiest(ordered or rows), sites), weights)


def _busiest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the subscriptions in force at the first moment with the most."""
    changes = [(found["accepted_ns"], 1) for found in rows]
    changes += [(found["cancelled_ns"], -1) for found in rows if found["cancelled_ns"] is not None]
    most = now = at = 0
    for moment, change in sorted(changes):  # at one moment, ends come before beginnings
        now += change
        if now > most:
            most, at = now, moment
    return [
        found
        for found in rows
        if found["accepted_ns"] <= at and (found["cancelled_ns"] is None or found["cancelled_ns"] > at)
    ]


def _flat(rows: list[dict[str, Any]], sites: Mapping[str, str]) -> pa.Table:
    pairs = [(found, topic) for found in rows for topic in found["topics"] or [EVERYTHING]]
    return pa.table(
        {
            "row": pa.array([found["row"] for found, _ in pairs], pa.int64()),
            "client": pa.array(
                [f"{found['subscriber']} {found['subscription']}" for found, _ in pairs], pa.string()
            ),
            "topic": pa.array([topic for _, topic in pairs], pa.string()),
            "site": pa.array([sites.get(found["subscriber"]) for found, _ in pairs], pa.string()),
        }
    )


def _sites(directory: Path) -> dict[str, str]:
    """Return the site of each node: its own, or that of its parent broker."""
    path = directory / "nodes.parquet"
    if not path.exists():
        return {}
    table = read_table(path)
    if not {"node", "parent", "site"} <= {*table.column_names}:
        return {}
    nodes = table.filter(pc.is_valid(table.column("node"))).select(["node", "parent", "site"]).to_pylist()
    own = {node["node"]: node["site"] for node in nodes if node["site"] is not None}
    hung = {node["node"]: own[node["parent"]] for node in nodes if node["parent"] in own}
    return {**hung, **own}
