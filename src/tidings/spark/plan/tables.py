"""Reads tables of subscriptions and of weights: Parquet, CSV or JSON lines, by their columns.

Subscriptions are (client, topic) or (client, topics), with `site` if clients are at several; `subscriber` is another
name for `client`. Rows are counted from 1, without a heading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from tidings.model.errors import PipelineError, TopicError
from tidings.model.topics import TopicPattern

CLIENT_COLUMNS = ("client", "subscriber")
TOPIC_COLUMNS = ("topic", "topics")
KINDS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}


@dataclass(frozen=True)
class Columns:
    """What the columns that matter are called; `site` may be missing."""

    client: str
    topic: str
    site: str | None


def kind_of(name: str) -> str:
    """By the end of the name; a directory without one has Parquet parts."""
    path = Path(name)
    if not path.suffix and path.is_dir():
        return "parquet"
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        known = ", ".join(KINDS)
        raise PipelineError(f"{name}: no table of a known type; the name ends in one of {known}")
    return kind


def read_table(path: Path) -> pa.Table:
    kind = kind_of(str(path))
    if not path.exists():
        raise PipelineError(f"there is no file {path}")
    try:
        if kind == "parquet":
            return pq.read_table(path)
        if kind == "csv":
            return _read_csv(path)
        if path.stat().st_size == 0:  # no lines, no rows
            return pa.table({"client": pa.array([], pa.string()), "topic": pa.array([], pa.string())})
        return pyarrow.json.read_json(path)
    except (OSError, pa.ArrowException) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PipelineError(f"cannot read {path} as {kind}: {first}") from None


def _read_csv(path: Path) -> pa.Table:
    text = dict.fromkeys((*CLIENT_COLUMNS, "topic", "site"), pa.string())
    options = pyarrow.csv.ConvertOptions(column_types=text, strings_can_be_null=False)
    return pyarrow.csv.read_csv(path, convert_options=options)


def columns_of(where: str, names: Sequence[str]) -> Columns:
    """PipelineError names the columns that are missing."""
    client = next((name for name in CLIENT_COLUMNS if name in names), None)
    topic = next((name for name in TOPIC_COLUMNS if name in names), None)
    missing = [name for name, found in (("client", client), ("topic", topic)) if found is None]
    if client is None or topic is None:
        has = ", ".join(names) or "none"
        raise PipelineError(f"{where}: there is no column {' and no column '.join(missing)}; it has {has}")
    return Columns(client, topic, "site" if "site" in names else None)


def flat_rows(where: str, table: pa.Table, sites: Mapping[str, str] | None = None) -> pa.Table:
    """(row, client, topic, site): a row for each topic, site null where nothing is said of it."""
    columns = columns_of(where, table.column_names)
    rows = pa.array(range(1, table.num_rows + 1), pa.int64())
    clients = _text(where, table, columns.client)
    topics = table.column(columns.topic).combine_chunks()
    given = None if columns.site is None else _text(where, table, columns.site, nullable=True)
    if pa.types.is_list(topics.type) or pa.types.is_large_list(topics.type):
        parents = pc.list_parent_indices(topics)
        rows, clients = rows.take(parents), clients.take(parents)
        given = None if given is None else given.take(parents)
        topics = pc.list_flatten(topics)
    topics = _checked(where, topics, "topic", rows)
    flat = pa.table({"row": rows, "client": clients, "topic": topics})
    return flat.append_column("site", with_sites(clients, given, sites or {}))


def with_sites(clients: Any, given: Any, of_client: Mapping[str, str]) -> Any:
    """The table's sites; for clients without one, what else is known of them."""
    known = pa.array(list(of_client), pa.string())
    told = pa.array(list(of_client.values()), pa.string())
    listed = told.take(pc.index_in(clients, value_set=known))
    if given is None:
        return listed
    filled = pc.if_else(pc.equal(given, ""), pa.scalar(None, pa.string()), given)
    return pc.coalesce(filled, listed)


def _text(where: str, table: pa.Table, name: str, *, nullable: bool = False) -> Any:
    column = table.column(name).combine_chunks()
    rows = pa.array(range(1, table.num_rows + 1), pa.int64())
    return _as_text(where, column, name) if nullable else _checked(where, column, name, rows)


def _checked(where: str, column: Any, name: str, rows: Any) -> Any:
    text = _as_text(where, column, name)
    if text.null_count:
        row = rows.take(pc.indices_nonzero(pc.is_null(text)))[0].as_py()
        raise PipelineError(f"{where}: row {row} has no {name}")
    return text


def _as_text(where: str, column: Any, name: str) -> Any:
    try:
        return column.cast(pa.string())
    except pa.ArrowException:
        raise PipelineError(f"{where}: column {name!r} is {column.type}, not text") from None


def check_topics(where: str, flat: pa.Table) -> list[str]:
    """The different topics of flat rows; PipelineError names the row of one that is not well formed."""
    found: list[str] = pc.unique(flat.column("topic")).to_pylist()
    for text in found:
        try:
            TopicPattern(text)
        except TopicError as error:
            row = flat.column("row")[pc.index(flat.column("topic"), text).as_py()].as_py()
            raise PipelineError(f"{where}: row {row}: {error}") from None
    return found


def read_weights(path: Path) -> dict[str, float]:
    """Topic -> how much is published on it: (topic, weight), or a trace's table of publications, which are counted."""
    table = read_table(path)
    names = table.column_names
    wanted = ("topic",) if "event_id" in names else ("topic", "weight")
    for name in wanted:
        if name not in names:
            raise PipelineError(f"{path}: there is no column {name}; it has {', '.join(names) or 'none'}")
    topics = _text(str(path), table, "topic").to_pylist()
    if "weight" not in names:
        return counted(topics)
    weights = _numbers(path, table.column("weight").combine_chunks())
    summed: dict[str, float] = {}
    for row, (topic, weight) in enumerate(zip(topics, weights, strict=True), 1):
        if weight is None or not 0 <= weight < float("inf"):
            raise PipelineError(f"{path}: row {row}: weight {weight} of {topic!r} is no weight")
        summed[topic] = summed.get(topic, 0.0) + weight
    return summed


def _numbers(path: Path, column: Any) -> list[float | None]:
    try:
        found: list[float | None] = column.cast(pa.float64()).to_pylist()
    except pa.ArrowException:
        raise PipelineError(f"{path}: column 'weight' is {column.type}, not numbers") from None
    return found


def counted(topics: Sequence[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for topic in topics:
        weights[topic] = weights.get(topic, 0.0) + 1.0
    return weights
