"""The tables of a sweep: a row per run, the statistics of each point, and failures with commands to replay them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import stdtrit

from tidings.spark.sweep.grid import Grid, canonical, document_at
from tidings.spark.sweep.records import SweepRecords, write_table, write_text
from tidings.spark.sweep.run import Record
from tidings.spark.sweep.toml_text import toml_text

MAX_SCENARIO_FILES = 1_000
"""Further failed runs have no file to replay them, but are in the table."""
CONFIDENCE = 0.95
OWN_COLUMNS = ("id", "point", "seed", "wall_s", "error")
FAILURES = pa.schema(
    [
        ("point", pa.int64()),
        ("seed", pa.int64()),
        ("id", pa.string()),
        ("message", pa.string()),
        ("replay", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SweepResults:
    """The tables as they were written."""

    runs: pa.Table
    metrics: pa.Table
    failures: pa.Table

    def statistics(self, points: int) -> list[dict[str, Any]]:
        """Return the statistics of the first points, without the values of the grid."""
        columns = self.metrics.select(["point", "metric", "n", "mean", "std", "low", "high"])
        return list(columns.filter(pc.less(columns["point"], points)).to_pylist())


def write_results(
    grid: Grid, ids: Sequence[str], records: SweepRecords, out: Path, *, check: bool
) -> SweepResults:
    parameters = parameter_columns(grid)
    runs, failed = _runs(grid, ids, records, parameters)
    found = SweepResults(
        runs,
        with_parameters(statistics(runs, parameters.column_names), parameters),
        with_parameters(_failures(grid, failed, out, check=check), parameters),
    )
    write_table(found.runs, out / "runs.parquet")
    write_table(found.metrics, out / "metrics.parquet")
    write_table(found.failures, out / "failures.parquet")
    return found


def parameter_columns(grid: Grid) -> pa.Table:
    """Return a row per point: its number and its values; values that are not plain are JSON."""
    names = grid.parameters
    points = [[value for _path, value in grid.values(point)] for point in range(grid.points)]
    columns = [_parameter([values[index] for values in points]) for index in range(len(names))]
    return pa.table([pa.array(range(grid.points), pa.int64()), *columns], names=["point", *names])


def _parameter(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return pa.array([float(value) for value in values], pa.float64())
    for kind, arrow in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64()), (str, pa.string())):
        if kinds == {kind}:
            return pa.array(values, arrow)
    return pa.array([value if isinstance(value, str) else canonical(value) for value in values], pa.string())


@dataclass(frozen=True, slots=True)
class _Failed:
    id: str
    point: int
    seed: int
    message: str


def _runs(
    grid: Grid, ids: Sequence[str], records: SweepRecords, parameters: pa.Table
) -> tuple[pa.Table, list[_Failed]]:
    tables: list[pa.Table] = []
    failed: list[_Failed] = []
    index = 0
    for batch in records.batches(ids):
        places = [divmod(index + row, len(grid.seeds)) for row in range(len(batch))]
        index += len(batch)
        points, seeds = [point for point, _ in places], [grid.seeds[place] for _, place in places]
        tables.append(_batch(batch, points, seeds, parameters))
        for record, point, seed in zip(batch, points, seeds, strict=True):
            if (message := message_of(record)) is not None:
                failed.append(_Failed(record["id"], point, seed, message))
    return _typed(pa.concat_tables(tables, promote_options="permissive")), failed


def message_of(record: Record) -> str | None:
    """Return what is wrong with a run, or None."""
    return record["error"] or "; ".join(record["violations"] or ()) or None


def _batch(batch: list[Record], points: list[int], seeds: list[int], parameters: pa.Table) -> pa.Table:
    values = parameters.drop_columns(["point"]).take(pa.array(points, pa.int64()))
    metrics = [flat(json.loads(record["summary"])) if record["summary"] else {} for record in batch]
    names = list(dict.fromkeys(name for found in metrics for name in found))
    columns = {
        "id": pa.array([record["id"] for record in batch], pa.string()),
        "point": pa.array(points, pa.int64()),
        **dict(zip(values.column_names, values.columns, strict=True)),
        "seed": pa.array(seeds, pa.int64()),
        **{
            name: pa.array([found.get(name) for found in metrics])
            for name in names
            if name not in values.column_names
        },
        "wall_s": pa.array([record["wall_s"] for record in batch], pa.float64()),
        "error": pa.array([message_of(record) for record in batch], pa.string()),
    }
    return pa.table(columns)


def flat(summary: dict[str, Any]) -> dict[str, Any]:
    """Flatten a summary: `latency_ms.p50` becomes `latency_ms_p50`; lists become JSON."""
    return dict(item for item in _flat(summary, "") if item[0] not in OWN_COLUMNS)


def _flat(table: dict[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}_")
        else:
            yield f"{above}{key}", canonical(value) if isinstance(value, list) else value


def _typed(runs: pa.Table) -> pa.Table:
    """Make columns without values numeric, and move our last columns to the end."""
    fields = [
        pa.field(item.name, pa.float64()) if pa.types.is_null(item.type) else item for item in runs.schema
    ]
    last = ["wall_s", "error"]
    names = [item.name for item in fields if item.name not in last]
    return runs.cast(pa.schema(fields)).select([*names, *last])


def statistics(runs: pa.Table, parameters: Sequence[str]) -> pa.Table:
    """Return, for each point and metric, the number of runs that have it, mean, deviation, and interval of the mean.

    `low` and `high` enclose the mean of all possible runs with 95 % confidence, by Student's t. A single run has
    neither an interval nor a deviation.
    """
    apart = {*parameters, "point", "seed"}
    point = runs["point"].to_numpy()
    parts = [
        _statistics_of(item.name, point, runs[item.name])
        for item in runs.schema
        if item.name not in apart and (pa.types.is_integer(item.type) or pa.types.is_floating(item.type))
    ]
    return pa.concat_tables(parts).sort_by([("point", "ascending")])


def _statistics_of(name: str, point: np.ndarray[Any, Any], column: pa.ChunkedArray) -> pa.Table:
    values = column.cast(pa.float64()).to_numpy()  # null becomes nan
    known = np.isfinite(values)
    point, values = point[known], values[known]
    n = np.bincount(point)
    some = np.flatnonzero(n)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(point, values) / n
        squares = np.bincount(point, (values - mean[point]) ** 2) if len(values) else mean
        std = np.sqrt(squares / (n - 1))[some]
        half = stdtrit(n[some] - 1, (1 + CONFIDENCE) / 2) * std / np.sqrt(n[some])
    mean, several = mean[some], n[some] > 1
    return pa.table(
        {
            "point": pa.array(some, pa.int64()),
            "metric": pa.array([name] * len(some), pa.string()),
            "n": pa.array(n[some], pa.int64()),
            "mean": pa.array(mean, pa.float64()),
            "std": pa.array(std, pa.float64(), mask=~several),
            "low": pa.array(mean - half, pa.float64(), mask=~several),
            "high": pa.array(mean + half, pa.float64(), mask=~several),
        }
    )


def with_parameters(table: pa.Table, parameters: pa.Table) -> pa.Table:
    """Insert the values of each row's point before the table's other columns."""
    values = parameters.drop_columns(["point"]).take(table["point"])
    others = table.drop_columns(["point"])
    return pa.table(
        [table["point"], *values.columns, *others.columns],
        names=["point", *values.column_names, *others.column_names],
    )


def _failures(grid: Grid, failed: Sequence[_Failed], out: Path, *, check: bool) -> pa.Table:
    rows = []
    for number, run in enumerate(failed):
        replay = None
        if number < MAX_SCENARIO_FILES:
            path = out / "scenarios" / f"{run.id}.toml"
            path.parent.mkdir(exist_ok=True)
            write_text(path, toml_text(document_at(grid.document, grid.values(run.point), run.seed)))
            replay = replay_command(path, run.seed, out / "replays" / run.id, check=check)
        rows.append(
            {"point": run.point, "seed": run.seed, "id": run.id, "message": run.message, "replay": replay}
        )
    return pa.Table.from_pylist(rows, schema=FAILURES)


def replay_command(scenario: Path, seed: int, out: Path, *, check: bool) -> str:
    flags = ["--check"] if check else []
    return shlex.join(["tidings", "sim", str(scenario), "--seed", str(seed), "--out", str(out), *flags])
