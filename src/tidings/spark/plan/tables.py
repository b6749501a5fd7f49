"""Reads tables of subscriptions and of weights: Parquet, CSV or JSON lines.

Subscriptions have the columns (client, topic) or (client, topics), and `site` if there are several; `subscriber` is
another name for `client`. Text is UTF-8. Rows are counted from 1, without the header.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from tidings.core.errors import PipelineError, TopicError
from tidings.core.events.topics import TopicPattern
from tidings.spark.plan.sites import two_sites

STDIN = Path("-")
CLIENT_COLUMNS = ("client", "subscriber")
LISTED = "topics"
TOPIC_COLUMNS = ("topic", LISTED)
KINDS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}


@dataclass(frozen=True)
class SubscriptionColumns:
    """The names of the columns that matter; `site` may be missing."""

    client: str
    topic: str
    site: str | None


def kind_of(name: str) -> str:
    """Return the type by the suffix of the name; a directory without one has Parquet parts, stdin is CSV."""
    path = Path(name)
    if path == STDIN:
        return "csv"
    kind = KINDS.get(path.suffix.lower())
    if kind is not None:
        return kind
    if path.is_dir():
        if not _parts(path):
            raise PipelineError(f"{name} is neither a table nor a trace: the directory has no Parquet files")
        return "parquet"
    if "://" not in name and not path.exists():
        raise PipelineError(f"no such file: {name}")
    known = ", ".join(KINDS)
    raise PipelineError(f"{name}: unknown type of table; the name must end in one of {known}")


def _parts(directory: Path) -> list[Path]:
    """Return the Parquet files in a directory and in its `column=value` directories, and nothing else."""
    try:
        entries = sorted(entry for entry in directory.iterdir() if not entry.name.startswith((".", "_")))
    except OSError as error:
        raise PipelineError(f"cannot read {directory}: {error.strerror}") from None
    found = [entry for entry in entries if entry.suffix == ".parquet" and entry.is_file()]
    for entry in entries:
        if "=" in entry.name and entry.is_dir():
            found += _parts(entry)
    return found


def read_table(path: Path) -> pa.Table:
    kind = kind_of(str(path))
    if path != STDIN and not path.exists():
        raise PipelineError(f"no such file: {path}")
    try:
        table = _read(path, kind)
        _check_text(path, table)
    except (OSError, pa.ArrowException) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PipelineError(f"cannot read {path} as {kind}: {first}") from None
    return table


def _read(path: Path, kind: str) -> pa.Table:
    if kind == "parquet":
        return pq.read_table((_parts(path) if path.is_dir() else []) or path)
    if kind == "csv":
        return _read_csv(path)
    if path.stat().st_size == 0:  # no lines, no rows
        return pa.table({"client": pa.array([], pa.string()), "topic": pa.array([], pa.string())})
    return pyarrow.json.read_json(path)


def _read_csv(path: Path) -> pa.Table:
    text = dict.fromkeys((*CLIENT_COLUMNS, *TOPIC_COLUMNS, "site"), pa.string())
    options = pyarrow.csv.ConvertOptions(
        check_utf8=False,  # `_check_text` does that for all types
        column_types=text,
        strings_can_be_null=False,
    )
    return pyarrow.csv.read_csv(sys.stdin.buffer if path == STDIN else path, convert_options=options)


def _check_text(path: Path, table: pa.Table) -> None:
    """Check that all text is UTF-8, which no reader does; PipelineError names the first bad row and column."""
    try:
        names = table.column_names
    except UnicodeDecodeError:
        raise PipelineError(f"{path}: the names of the columns are not UTF-8") from None
    for name, column in zip(names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException:
            _find_bad_text(path, name, column)
            raise


def _find_bad_text(path: Path, name: str, column: Any) -> None:
    for row, value in enumerate(column, 1):
        try:
            value.as_py()
        except UnicodeDecodeError:
            raise PipelineError(f"{path}: row {row}: column {name!r} is not UTF-8") from None


def columns_of(where: str, names: Sequence[str]) -> SubscriptionColumns:
    """Find the columns that matter; PipelineError names missing and ambiguous ones."""
    client = _one_of(where, names, CLIENT_COLUMNS)
    topic = _one_of(where, names, TOPIC_COLUMNS)
    missing = [name for name, found in (("client", client), ("topic", topic)) if found is None]
    if client is None or topic is None:
        has = ", ".join(names) or "none"
        raise PipelineError(f"{where}: missing column {' and column '.join(missing)}; the columns are {has}")
    return SubscriptionColumns(client, topic, _one_of(where, names, ("site",)))


def _one_of(where: str, names: Sequence[str], wanted: Sequence[str]) -> str | None:
    found = [name for name in names if name in wanted]
    if len(found) > 1:
        both = " and ".join(map(repr, found))
        raise PipelineError(f"{where}: has the columns {both}: keep one of them")
    return found[0] if found else None


def no_list(where: str, kind: str) -> PipelineError:
    """Return the error for a column `topics` of text: it cannot be split, since a comma may be part of a topic."""
    return PipelineError(
        f"{where}: column {LISTED!r} is {kind}, not a list: write one row per topic, in a column 'topic', or lists as "
        "JSON lines or Parquet"
    )


def flat_rows(where: str, table: pa.Table, sites: Mapping[str, str] | None = None) -> pa.Table:
    """Return (row, client, topic, site): a row per topic, with site null where none is given."""
    columns = columns_of(where, table.column_names)
    rows = pa.array(range(1, table.num_rows + 1), pa.int64())
    clients = _text(where, table, columns.client)
    topics = table.column(columns.topic).combine_chunks()
    given = None if columns.site is None else _text(where, table, columns.site, nullable=True)
    if _is_list(topics.type):
        parents = pc.list_parent_indices(topics)
        rows, clients = rows.take(parents), clients.take(parents)
        given = None if given is None else given.take(parents)
        topics = pc.list_flatten(topics)
    elif columns.topic == LISTED and not pa.types.is_null(topics.type):
        raise no_list(where, str(topics.type))
    topics = _checked(where, topics, "topic", rows)
    listed = listed_sites(clients, sites or {})
    site = listed if given is None else _agreed(where, rows, clients, given, listed)
    return pa.table({"row": rows, "client": clients, "topic": topics, "site": site})


def _is_list(kind: Any) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def listed_sites(clients: Any, of_client: Mapping[str, str]) -> Any:
    """Return the sites of clients that are known beside the table, null where none is."""
    known = pa.array(list(of_client), pa.string())
    sites = pa.array(list(of_client.values()), pa.string())
    return sites.take(pc.index_in(clients, value_set=known))


def _agreed(where: str, rows: Any, clients: Any, given: Any, listed: Any) -> Any:
    """Return the table's sites, or for clients without one the listed site. PipelineError if both differ."""
    given = pc.if_else(pc.equal(given, ""), pa.scalar(None, pa.string()), given)
    # Where one of them is null the comparison is null, too, and not selected.
    other = pc.indices_nonzero(pc.not_equal(given, listed))
    if len(other):
        row, *details = (column[other[0].as_py()].as_py() for column in (rows, clients, given, listed))
        raise two_sites(f"{where}: row {row}", *details)
    return pc.coalesce(given, listed)


def _text(where: str, table: pa.Table, name: str, *, nullable: bool = False) -> Any:
    column = table.column(name).combine_chunks()
    rows = pa.array(range(1, table.num_rows + 1), pa.int64())
    return _as_text(where, column, name) if nullable else _checked(where, column, name, rows)


def _checked(where: str, column: Any, name: str, rows: Any) -> Any:
    text = _as_text(where, column, name)
    missing = pc.indices_nonzero(pc.equal(pc.fill_null(text, ""), ""))
    if len(missing):
        raise PipelineError(f"{where}: row {rows[missing[0].as_py()]} has no {name}")
    return text


def _as_text(where: str, column: Any, name: str) -> Any:
    try:
        return column.cast(pa.string())
    except pa.ArrowException:
        raise PipelineError(f"{where}: column {name!r} is {column.type}, not text") from None


def check_topics(where: str, flat: pa.Table) -> list[str]:
    """Return the distinct topics of flat rows; PipelineError names the row of a malformed one."""
    found: list[str] = pc.unique(flat.column("topic")).to_pylist()
    for text in found:
        try:
            TopicPattern(text)
        except TopicError as error:
            row = flat.column("row")[pc.index(flat.column("topic"), text).as_py()].as_py()
            raise PipelineError(f"{where}: row {row}: {error}") from None
    return found


def read_weights(path: Path) -> dict[str, float]:
    """Return how much is published on each topic: from (topic, weight), or by counting a trace's publications."""
    table = read_table(path)
    names = table.column_names
    wanted = ("topic",) if "event_id" in names else ("topic", "weight")
    for name in wanted:
        if _one_of(str(path), names, (name,)) is None:
            raise PipelineError(
                f"{path}: missing column {name}; the columns are {', '.join(names) or 'none'}"
            )
    topics = _text(str(path), table, "topic").to_pylist()
    if "weight" not in names:
        return counted(topics)
    weights = _numbers(path, table.column("weight").combine_chunks())
    summed: dict[str, float] = {}
    for row, (topic, weight) in enumerate(zip(topics, weights, strict=True), 1):
        if weight is None or not 0 <= weight < float("inf"):
            raise PipelineError(f"{path}: row {row}: weight {weight} of {topic!r} must be a number from 0")
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
