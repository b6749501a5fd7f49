"""Defines the six trace tables: their exact schemas and the types of their rows.

Simulated and live runs write these tables; checkers, audits and reports read nothing else. Row types list their
fields in column order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa


class PublishedRow(NamedTuple):
    """One publication. `attributes` maps names to texts (see `core/events/text.py`), sorted by name."""

    event_id: str
    source: str
    sequence: int
    topic: str
    attributes: Sequence[tuple[str, str | None]]
    size_bytes: int
    at_ns: int
    confirmed_ns: int | None = None


class SubscribedRow(NamedTuple):
    """One subscription of one subscriber. The guarantees hold from `accepted_ns`, if it was accepted."""

    subscriber: str
    subscription: str
    topics: Sequence[str]
    filter: str | None
    order: str
    requested_ns: int
    accepted_ns: int | None = None
    cancelled_ns: int | None = None


class DeliveredRow(NamedTuple):
    """One notification. `position` numbers the subscriber's notifications from 0, as its application saw them."""

    subscriber: str
    subscription: str
    position: int
    event_id: str
    at_ns: int
    out_of_order: bool = False
    recovered_by: str | None = None


class TrafficRow(NamedTuple):
    """Counts the messages of one kind over one directed link, summed over the run."""

    kind: str
    from_: str
    to: str
    messages: int
    bytes: int
    dropped: int


class Fault(NamedTuple):
    """One injected fault; without `until_ns` it never ended."""

    kind: str
    target: str
    at_ns: int
    until_ns: int | None = None


class NodeRow(NamedTuple):
    """One node of the network. `parent` is a client's broker, or a broker's parent in the tree."""

    node: str
    kind: str
    parent: str | None = None
    label: str | None = None
    site: str | None = None


def _column(name: str, kind: Any, *, nullable: bool = False) -> Any:
    return pa.field(name, kind, nullable=nullable)


_TEXT = pa.string()
_LONG = pa.int64()

SCHEMAS: Mapping[str, Any] = {
    "published": pa.schema(
        [
            _column("event_id", _TEXT),
            _column("source", _TEXT),
            _column("sequence", _LONG),
            _column("topic", _TEXT),
            _column("attributes", pa.map_(_TEXT, pa.field("value", _TEXT, nullable=True))),
            _column("size_bytes", _LONG),
            _column("at_ns", _LONG),
            _column("confirmed_ns", _LONG, nullable=True),
        ]
    ),
    "subscribed": pa.schema(
        [
            _column("subscriber", _TEXT),
            _column("subscription", _TEXT),
            _column("topics", pa.list_(pa.field("element", _TEXT, nullable=False))),
            _column("filter", _TEXT, nullable=True),
            _column("order", _TEXT),
            _column("requested_ns", _LONG),
            _column("accepted_ns", _LONG, nullable=True),
            _column("cancelled_ns", _LONG, nullable=True),
        ]
    ),
    "delivered": pa.schema(
        [
            _column("subscriber", _TEXT),
            _column("subscription", _TEXT),
            _column("position", _LONG),
            _column("event_id", _TEXT),
            _column("at_ns", _LONG),
            _column("out_of_order", pa.bool_()),
            _column("recovered_by", _TEXT, nullable=True),
        ]
    ),
    "traffic": pa.schema(
        [
            _column("kind", _TEXT),
            _column("from", _TEXT),
            _column("to", _TEXT),
            _column("messages", _LONG),
            _column("bytes", _LONG),
            _column("dropped", _LONG),
        ]
    ),
    "faults": pa.schema(
        [
            _column("kind", _TEXT),
            _column("target", _TEXT),
            _column("at_ns", _LONG),
            _column("until_ns", _LONG, nullable=True),
        ]
    ),
    "nodes": pa.schema(
        [
            _column("node", _TEXT),
            _column("kind", _TEXT),
            _column("parent", _TEXT, nullable=True),
            _column("label", _TEXT, nullable=True),
            _column("site", _TEXT, nullable=True),
        ]
    ),
}
"""Schema by table name, in the fixed order of the tables."""

TABLES = tuple(SCHEMAS)


def table_text(directory: Path | str | None, name: str) -> str:
    """Return how messages name a table; a trace that was not read from disk has no directory."""
    return f"trace table {name!r}" if directory is None else f"trace table {Path(directory, name)}.parquet"


def arrow_table(name: str, columns: Sequence[Sequence[Any]]) -> Any:
    """Return the columns of table `name` as a pyarrow table with its exact schema."""
    schema = SCHEMAS[name]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
