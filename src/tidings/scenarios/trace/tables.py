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
    expires_ns: int | None = None


class SubscribedRow(NamedTuple):
    """One subscription of one subscriber. The guarantees hold from `accepted_ns`, if it was accepted.

    Each attachment to a durable subscription (`durable`, its name) or to a group (`share_of`, its name) is a row. Such
    a row has `cancelled_ns` only if the durable subscription or group itself was cancelled; `detached_ns` says when
    its subscriber went, in order or not. `start` is None for what starts with new events.

    `keep_for_ns` is how long the durable subscription or group is kept while nobody is attached, if that was said.
    `life` tells it from others that had or will have its name: one that ended, and the next one.
    """

    subscriber: str
    subscription: str
    topics: Sequence[str]
    filter: str | None
    order: str
    requested_ns: int
    accepted_ns: int | None = None
    cancelled_ns: int | None = None
    share_of: str | None = None
    durable: str | None = None
    group_by: str | None = None
    start: str | None = None
    detached_ns: int | None = None
    keep_for_ns: int | None = None
    life: str | None = None


class DeliveredRow(NamedTuple):
    """One notification. `position` numbers the subscriber's notifications from 0, as its application saw them.

    `attempt` is above 1 if the durable subscription or group had sent the event before. `done_ns` is when the
    application acknowledged it, and None if that never happened or did not count.
    """

    subscriber: str
    subscription: str
    position: int
    event_id: str
    at_ns: int
    out_of_order: bool = False
    recovered_by: str | None = None
    attempt: int = 1
    done_ns: int | None = None


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
            _column("expires_ns", _LONG, nullable=True),
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
            _column("share_of", _TEXT, nullable=True),
            _column("durable", _TEXT, nullable=True),
            _column("group_by", _TEXT, nullable=True),
            _column("start", _TEXT, nullable=True),
            _column("detached_ns", _LONG, nullable=True),
            _column("keep_for_ns", _LONG, nullable=True),
            _column("life", _TEXT, nullable=True),
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
            _column("attempt", _LONG),
            _column("done_ns", _LONG, nullable=True),
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

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "subscribed": dict.fromkeys(
        ("share_of", "durable", "group_by", "start", "detached_ns", "keep_for_ns", "life")
    ),
    "delivered": {"attempt": 1, "done_ns": None},
    "published": {"expires_ns": None},
}
"""Table -> its last columns with the values that they have if nothing is said. Older traces lack these columns, and a
row with nothing but these values has the hash that it had without them."""


def table_text(directory: Path | str | None, name: str) -> str:
    """Return how messages name a table; a trace that was not read from disk has no directory."""
    return f"trace table {name!r}" if directory is None else f"trace table {Path(directory, name)}.parquet"


def arrow_table(name: str, columns: Sequence[Sequence[Any]]) -> Any:
    """Return the columns of table `name` as a pyarrow table with its exact schema."""
    schema = SCHEMAS[name]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
