"""Runs a sweep: the scenario at every point of a grid, with every seed, one simulation per Spark task.

    DIR/runs.parquet, metrics.parquet, failures.parquet   the results (results.py)
    DIR/scenarios/<id>.toml                                of runs that failed
    DIR/traces/<id>/                                       with `keep_traces`
    DIR/done/                                              records of finished runs (records.py)

A run's id is a hash of its checked scenario, its seed and the version of tidings. A run with a record is not repeated,
even if the grid was changed in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tidings import __version__
from tidings.core.errors import PipelineError, ScenarioError, TidingsError
from tidings.spark.session import spark_session
from tidings.spark.sweep.grid import Grid
from tidings.spark.sweep.records import SweepRecords, opened_records
from tidings.spark.sweep.results import SweepResults, write_results
from tidings.spark.sweep.run import RECORD, RunItem, SweepJob, run_item
from tidings.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[float], None]

APP = "tidings sweep"
ID_DIGITS = 20
PART_RUNS = 1_000
"""Runs in a Spark job, or more where there are many cores: all items of a job are sent to each of its tasks."""
PART_RUNS_PER_CORE = 20
REASON_CHARACTERS = 500
CHECK_SHARE = 0.05
"""The share of checking the points in the progress."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    master: str | None = None
    check: bool = False
    keep_traces: bool = False
    run_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of a sweep: `ran` runs were run now, `kept` were done before."""

    grid: Grid
    out: Path
    ran: int
    kept: int
    results: SweepResults


def run_sweep(grid: Grid, out: Path, options: SweepOptions, progress: Progress = lambda share: None) -> Sweep:
    """Run what is not done yet, and write the tables. Every point is checked before anything runs."""
    out = out.absolute()
    ids = run_ids(grid, lambda share: progress(share * CHECK_SHARE))
    with opened_records(out) as records:
        finished = records.finished(ids, checked=options.check, with_trace=options.keep_traces)
        due = [index for index, run_id in enumerate(ids) if run_id not in finished]
        if due:
            job = SweepJob(
                dict(grid.document),
                str(out),
                records.mark,
                options.check,
                options.keep_traces,
                options.run_timeout_s,
            )
            items = _Items(grid, ids, due)
            _run(job, items, records, options.master, lambda s: progress(CHECK_SHARE + s * (1 - CHECK_SHARE)))
        results = write_results(grid, ids, records, out, check=options.check)
    progress(1.0)
    return Sweep(grid, out, len(due), len(ids) - len(due), results)


def run_ids(grid: Grid, progress: Progress = lambda share: None) -> list[str]:
    """Return the ids of all runs, by point and then by seed; ScenarioError for the first bad point."""
    ids: list[str] = []
    point_of: dict[bytes, int] = {}
    encoder = msgspec.json.Encoder(order="deterministic")
    for point in range(grid.points):
        scenario = msgspec.structs.replace(grid.scenario(point), seed=0)
        digest = hashlib.sha256(__version__.encode() + b"\n" + encoder.encode(scenario))
        same = point_of.setdefault(digest.digest(), point)
        if same != point:
            raise ScenarioError(
                f"{grid.name}: {grid.label(point)} is the same scenario as {grid.label(same)}"
            )
        for seed in grid.seeds:
            of_run = digest.copy()
            of_run.update(f"\n{seed}".encode())
            ids.append(of_run.hexdigest()[:ID_DIGITS])
        progress((point + 1) / grid.points)
    return ids


class _Items:
    """The runs still to do, built part by part."""

    def __init__(self, grid: Grid, ids: Sequence[str], due: Sequence[int]) -> None:
        self._grid = grid
        self._ids = ids
        self._due = due

    def __len__(self) -> int:
        return len(self._due)

    def parts(self, size: int) -> Iterator[list[RunItem]]:
        for first in range(0, len(self._due), size):
            yield [self._item(index) for index in self._due[first : first + size]]

    def _item(self, index: int) -> RunItem:
        point, place = divmod(index, len(self._grid.seeds))
        return RunItem(self._ids[index], self._grid.values(point), self._grid.seeds[place])


def _run(job: SweepJob, items: _Items, records: SweepRecords, master: str | None, progress: Progress) -> None:
    with spark_session(master, app=APP) as session:
        size = max(PART_RUNS, PART_RUNS_PER_CORE * session.sparkContext.defaultParallelism)
        before = 0
        for part in items.parts(size):

            def report(share: float, before: int = before, runs: int = len(part)) -> None:
                progress((before + share * runs) / len(items))

            records.add(_run_part(session, job, part, report))
            before += len(part)


def _run_part(session: SparkSession, job: SweepJob, part: list[RunItem], progress: Progress) -> pa.Table:
    """Run a part. A failed run yields a record like any other, so only Spark itself can fail here."""
    try:
        return run_tasks(session, partial(run_item, job), part, RECORD, progress)
    except TidingsError:
        raise
    except Exception as error:
        raise PipelineError(
            f"Spark failed; finished runs are kept, repeat the command to continue: {reason_of(error)}"
        ) from error


def reason_of(error: Exception) -> str:
    """Return the most useful line of Spark's message: the innermost cause, or else what was raised."""
    lines = [line.strip().lstrip(": ") for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    raised = [line for line in lines if "Exception: " in line or "Error: " in line]
    return (causes[-1:] or raised[:1] or lines[:1] or [type(error).__name__])[0][:REASON_CHARACTERS]
