"""One run of a sweep, in a worker: simulate, check, keep the trace, record that it is done.

The result of a run is a record of one shape, whether it succeeded or not: `summary` is its summary.json, `violations`
lists what the checkers found, and `error` says why there is no summary. The record goes back to the driver, and before
that into a file of its own, so that it survives the driver. On a cluster that needs a directory that all machines
share; without one only the driver keeps records, as they arrive.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

from tidings.core.errors import TidingsError
from tidings.scenarios.checking import verdicts
from tidings.scenarios.simulate import run_scenario
from tidings.spark.sweep.grid import Values, scenario_at
from tidings.spark.sweep.isolation import RunDied, RunTimedOut, isolated
from tidings.storage.files import replaced

RECORD = pa.schema(
    [
        ("id", pa.string()),
        ("checked", pa.bool_()),
        ("summary", pa.string()),
        ("violations", pa.list_(pa.string())),
        ("error", pa.string()),
        ("wall_s", pa.float64()),
    ]
)
DONE = "done"
TRACES = "traces"
ROOM = "tidings-run-"
MARK = ".sweep"
"""A file with a token of this sweep: a worker that reads it sees the driver's directory, not one of the same name."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunItem:
    id: str
    values: Values
    seed: int


@dataclass(frozen=True, slots=True)
class SweepJob:
    """What all runs of a sweep share."""

    document: Mapping[str, Any]
    out: str
    mark: str
    check: bool
    keep_traces: bool
    timeout_s: float | None


def run_item(job: SweepJob, item: RunItem) -> Iterable[Record]:
    """Return the record of the run, even if it failed, so that the others continue."""
    out = Path(job.out)
    shared = sees_driver(out, job.mark)
    if job.keep_traces and not shared:
        error = (
            f"{out} on this worker is not the sweep's directory: to keep traces, all machines must share it"
        )
        return [failed(item.id, error, 0.0)]
    record = run_apart(job, item)
    if shared:
        keep(out / DONE / f"{item.id}.json", record)
    return [record]


def run_apart(job: SweepJob, item: RunItem) -> Record:
    began_at = perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix=ROOM, dir=_room_at(job), ignore_cleanup_errors=True) as room:
            return isolated(partial(simulate, job, item, Path(room)), job.timeout_s)
    except (RunDied, RunTimedOut, OSError) as error:
        return failed(item.id, str(error), perf_counter() - began_at)


def _room_at(job: SweepJob) -> str | None:
    """Return where to simulate: traces to keep are written next to their final place, so that a rename suffices."""
    if not job.keep_traces:
        return None
    traces = Path(job.out) / TRACES
    traces.mkdir(exist_ok=True)
    return str(traces)


def simulate(job: SweepJob, item: RunItem, room: Path) -> Record:
    """Run in a process of its own."""
    began_at = perf_counter()
    try:
        return _simulate(job, item, room / "trace")
    except (TidingsError, OSError) as error:
        return failed(item.id, str(error), perf_counter() - began_at)
    except Exception as error:
        return failed(item.id, f"{type(error).__name__}: {error}", perf_counter() - began_at)


def _simulate(job: SweepJob, item: RunItem, trace: Path) -> Record:
    scenario = scenario_at(job.document, item.values, item.seed)
    trace.mkdir()
    summary = run_scenario(scenario, trace)
    found = verdicts(scenario, trace) if job.check else []
    if job.keep_traces:
        settle(trace, Path(job.out) / TRACES / item.id)
    return {
        "id": item.id,
        "checked": job.check,
        "summary": json.dumps(summary),
        "violations": [str(verdict) for verdict in found if not verdict.holds],
        "error": None,
        "wall_s": summary["wall_s"],
    }


def failed(run_id: str, error: str, wall_s: float) -> Record:
    reason = " ".join(error.split()) or "no reason given"
    return {
        "id": run_id,
        "checked": False,
        "summary": None,
        "violations": [],
        "error": reason,
        "wall_s": round(wall_s, 3),
    }


def settle(trace: Path, target: Path) -> None:
    """Move the trace to its place, replacing an earlier one."""
    shutil.rmtree(target, ignore_errors=True)
    trace.rename(target)


def sees_driver(out: Path, mark: str) -> bool:
    try:
        return (out / MARK).read_text(encoding="utf-8") == mark and (out / DONE).is_dir()
    except OSError:
        return False


def keep(path: Path, record: Record) -> None:
    """Write the record atomically. If the disk is full, the driver still gets the record."""
    with suppress(OSError), replaced(path) as draft:
        draft.write_text(json.dumps(record), encoding="utf-8")
