"""Runs the points of several studies as one Spark job, longest first, and resumes where an earlier call stopped."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import pyarrow as pa

from tidings.spark.session import spark_session
from tidings.spark.tasks import run_tasks
from tidings.studies.keeping import keep, kept, key_of
from tidings.studies.study import STUDIES, Point, Row, Study, study_at

Progress = Callable[[float], None]
RESULT = pa.schema([("path", pa.string()), ("result", pa.string()), ("error", pa.string())])
APP = "tidings reproduce"


@dataclass(frozen=True, slots=True)
class Task:
    """One point to run in a worker."""

    target: str
    point: Point
    path: str
    """Where to keep its result; on a cluster without a shared directory the driver does so."""
    cost: float


@dataclass(frozen=True, slots=True)
class Failure:
    point: Point
    error: str
    """One line that says what went wrong, followed by the traceback."""

    @property
    def reason(self) -> str:
        return self.error.partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a study's points; the table holds those that ran."""

    study: Study
    table: pa.Table
    points: int
    kept: int
    """How many points had run before."""
    failures: tuple[Failure, ...]
    cpu_s: float


def run_studies(
    studies: Sequence[Study],
    out: Path,
    *,
    quick: bool,
    master: str | None = None,
    progress: Progress = lambda share: None,
) -> list[Outcome]:
    """Run the points that have not run yet; results of single points go to `out/NAME/points`."""
    planned = {study.name: plan(study, out, quick) for study in studies}
    finished = {
        task.path for tasks in planned.values() for task in tasks if kept(Path(task.path)) is not None
    }
    due = [task for tasks in planned.values() for task in tasks if task.path not in finished]
    due.sort(key=lambda task: -task.cost)
    errors = run_due(due, master, progress) if due else {}
    return [outcome_of(study, planned[study.name], finished, errors) for study in studies]


def plan(study: Study, out: Path, quick: bool) -> list[Task]:
    directory = (out / study.name / "points").absolute()
    directory.mkdir(parents=True, exist_ok=True)
    target = STUDIES[study.name]
    return [
        Task(target, point, str(directory / f"{key_of(study, point)}.json"), study.cost(point))
        for point in study.points(quick)
    ]


def run_due(due: Sequence[Task], master: str | None, progress: Progress) -> dict[str, str]:
    """Run the tasks, keep their results in files, and return the errors by path."""
    with spark_session(master, app=APP) as session:
        rows = run_tasks(session, run_task, due, RESULT, progress).to_pylist()
    for row in rows:
        path = Path(row["path"])
        if row["error"] is None and kept(path) is None:
            keep(path, json.loads(row["result"]))
    return {row["path"]: row["error"] for row in rows if row["error"] is not None}


def run_task(task: Task) -> list[Row]:
    """Run a task in the worker. A failed point yields a row with the error, so that the others continue."""
    try:
        result = run_point(study_at(task.target), task.point)
        path = Path(task.path)
        if path.parent.is_dir():
            keep(path, result)
        return [{"path": task.path, "result": json.dumps(result), "error": None}]
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}\n{traceback.format_exc()}"
        return [{"path": task.path, "result": None, "error": text}]


def run_point(study: Study, point: Point) -> dict[str, Any]:
    start_s = process_time()
    rows = study.run(dict(point))
    checked = pa.Table.from_pylist(rows, schema=study.schema).to_pylist()
    return {"study": study.name, "point": point, "cpu_s": process_time() - start_s, "rows": checked}


def outcome_of(study: Study, tasks: Sequence[Task], finished: set[str], errors: Mapping[str, str]) -> Outcome:
    rows: list[Row] = []
    failures: list[Failure] = []
    cpu_s = 0.0
    for task in tasks:
        result = kept(Path(task.path))
        if result is None:
            failures.append(Failure(task.point, errors.get(task.path, "its result was removed")))
            continue
        rows += result["rows"]
        cpu_s += result["cpu_s"]
    table = pa.Table.from_pylist(rows, schema=study.schema)
    before = sum(task.path in finished for task in tasks)
    return Outcome(study, table, len(tasks), before, tuple(failures), cpu_s)
