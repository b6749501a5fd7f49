"""One run of a sweep and what is kept of it, without Spark: runs that die, records that are torn, the statistics."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.core.errors import PipelineError
from tidings.spark.sweep import run as sweep_run
from tidings.spark.sweep.driver import run_ids
from tidings.spark.sweep.grid import Grid, load_grid
from tidings.spark.sweep.isolation import RunDied, RunTimedOut, isolated
from tidings.spark.sweep.records import opened_records
from tidings.spark.sweep.results import flat, statistics, write_results
from tidings.spark.sweep.run import RECORD, RunItem, SweepJob, failed, run_item

FOREVER_SECONDS = 600
GRID = """
seeds = [4, 5]
[scenario]
duration_s = 1.0
settle_s = 1.0
overlay = { mode = "best-effort", shape = { kind = "chain", brokers = 3 } }
publisher = [{ name = "p0", at = "b0" }]
subscriber = [{ name = "s0", at = "b2" }]
[grid]
network.loss = [{ kind = "none" }, { kind = "bernoulli", rate = 0.5 }]
"""


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return load_grid(path)


def job_of(grid: Grid, out: Path, mark: str, **others: Any) -> SweepJob:
    flags = {"check": False, "keep_traces": False, "timeout_s": None, **others}
    return SweepJob(dict(grid.document), str(out), mark, **flags)


def record_of(run_id: str, **others: Any) -> dict[str, Any]:
    summary = json.dumps({"seed": 1, "delivered": 2, "wall_s": 0.5})
    given = {"checked": False, "summary": summary, "violations": [], "error": None, "wall_s": 0.5}
    return {"id": run_id, **given, **others}


def table_of(*records: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(records), schema=RECORD)


def test_an_isolated_run_tells_its_result() -> None:
    here = os.getpid()
    told = isolated(lambda: {"pid": os.getpid()}, FOREVER_SECONDS)
    assert told["pid"] != here


def test_a_large_result_comes_whole() -> None:
    assert isolated(lambda: {"text": "x" * 3_000_000})["text"] == "x" * 3_000_000


def test_a_run_that_dies_is_told_from_one_that_is_late() -> None:
    def killed() -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def ended() -> dict[str, Any]:
        os._exit(9)

    def late() -> dict[str, Any]:
        time.sleep(FOREVER_SECONDS)
        return {}

    with pytest.raises(RunDied, match="killed by SIGKILL, perhaps because memory ran out"):
        isolated(killed)
    with pytest.raises(RunDied, match="ended with code 9"):
        isolated(ended)
    with pytest.raises(RunTimedOut, match=r"timed out after 0\.05 s"):
        isolated(late, 0.05)


def test_a_run_ends_when_its_worker_is_gone(tmp_path: Path) -> None:
    """The worker forks the run and is killed; the run sees that somebody else is its parent."""
    started, ended = tmp_path / "started", tmp_path / "ended"

    def run() -> dict[str, Any]:
        started.write_text(str(os.getpid()))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            pass  # busy, as a simulation is
        ended.write_text("it went on for a minute")
        return {}

    worker = os.fork()
    if worker == 0:
        try:
            isolated(run)
        finally:
            os._exit(0)
    wait_until(lambda: started.exists() and started.read_text() != "")
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    wait_until(lambda: not runs(int(started.read_text())))
    assert not ended.exists()


def wait_until(condition: Any, seconds: float = 50) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(process: int) -> bool:
    """An ended process that nobody waits for is still listed, as a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_run_is_what_sim_makes_of_the_scenario(grid: Grid, tmp_path: Path) -> None:
    from tidings.scenarios.simulate import run_scenario
    from tidings.spark.sweep.grid import scenario_at

    with opened_records(tmp_path / "out") as records:
        job = job_of(grid, tmp_path / "out", records.mark, check=True, keep_traces=True)
        (record,) = run_item(job, RunItem("abc", grid.values(1), 5))
    summary = json.loads(record["summary"])
    expected = run_scenario(scenario_at(grid.document, grid.values(1), 5), tmp_path / "here")
    assert {**summary, "wall_s": None} == {**expected, "wall_s": None}
    assert (record["error"], record["violations"], record["checked"]) == (None, [], True)
    kept = tmp_path / "out" / "traces" / "abc"
    assert sorted(path.name for path in kept.iterdir()) == sorted(
        path.name for path in (tmp_path / "here").iterdir()
    )
    assert [path.name for path in kept.parent.iterdir()] == ["abc"]
    assert json.loads((tmp_path / "out" / "done" / "abc.json").read_text()) == record


def test_a_run_that_raises_dies_or_is_late_is_a_record(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*run: Any) -> dict[str, Any]:
        raise ZeroDivisionError("planted")

    def dies(*run: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def lasts(*run: Any) -> dict[str, Any]:
        time.sleep(FOREVER_SECONDS)
        raise AssertionError

    with opened_records(tmp_path / "out") as records:
        item = RunItem("abc", grid.values(0), 4)
        for planted, timeout_s, message in (
            (breaks, None, "ZeroDivisionError: planted"),
            (dies, None, "killed by SIGKILL"),
            (lasts, 0.05, "timed out after 0.05 s"),
        ):
            monkeypatch.setattr(sweep_run, "run_scenario", planted)
            job = job_of(grid, tmp_path / "out", records.mark, timeout_s=timeout_s, keep_traces=True)
            (record,) = run_item(job, item)
            assert message in record["error"]
            assert record["summary"] is None
        assert list((tmp_path / "out" / "traces").iterdir()) == []


def test_without_a_shared_directory_only_the_driver_keeps_records(grid: Grid, tmp_path: Path) -> None:
    item = RunItem("abc", grid.values(0), 4)
    with opened_records(tmp_path / "out"):
        (record,) = run_item(job_of(grid, tmp_path / "out", "another sweep's"), item)
        assert record["error"] is None
        assert list((tmp_path / "out" / "done").iterdir()) == []
        (record,) = run_item(job_of(grid, tmp_path / "elsewhere", "", keep_traces=True), item)
        assert "to keep traces, all machines must share it" in record["error"]
    assert not (tmp_path / "elsewhere").exists()


def test_records_survive_and_the_better_one_counts(tmp_path: Path) -> None:
    with opened_records(tmp_path) as records:
        records.add(table_of(record_of("a"), failed("b", "planted", 1.0)))
        assert records.finished(["a", "b", "c"], checked=False, with_trace=False) == {"a"}
        assert records.finished(["a"], checked=True, with_trace=False) == set()
        assert records.finished(["a"], checked=False, with_trace=True) == set()
        records.add(table_of(failed("a", "later", 1.0), record_of("b", checked=True)))
        assert records.finished(["a", "b"], checked=True, with_trace=False) == {"b"}
    sweep_run.keep(tmp_path / "done" / "c.json", record_of("c", violations=["fifo: planted"]))
    (tmp_path / "done" / "d.json").write_text('{"id": "d", "chec')
    (tmp_path / "done" / "e.json").write_text('{"id": "e"}')
    (tmp_path / "done" / ".f.json.0").write_text("half")
    with opened_records(tmp_path) as records:
        found = records.finished(list("abcdef"), checked=False, with_trace=False)
        assert found == {"a", "b", "c"}
        ((first, second),) = records.batches(["c", "a"])
        assert (first["violations"], second["error"]) == (["fifo: planted"], None)
    (part,) = (tmp_path / "done").iterdir()
    assert pq.read_table(part).num_rows == 3


def test_two_sweeps_do_not_share_a_directory(tmp_path: Path) -> None:
    with opened_records(tmp_path):
        with pytest.raises(PipelineError, match="another sweep is writing there"):
            with opened_records(tmp_path):
                pass
    with opened_records(tmp_path):
        pass


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    with opened_records(tmp_path) as records:
        records.add(table_of(record_of("a")))
    (part,) = (tmp_path / "done").iterdir()
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(PipelineError, match=f"cannot read {part}; remove it"):
        with opened_records(tmp_path):
            pass


def test_statistics_are_those_of_student() -> None:
    from scipy import stats  # half a second for who collects tests

    generator = np.random.default_rng(3)
    points = [0] * 7 + [2] * 2 + [3]
    values = generator.normal(5.0, 2.0, len(points))
    holes = [None if index == 1 else float(value) for index, value in enumerate(values)]
    table = pa.table(
        {"point": points, "p": [1.0] * 10, "seed": list(range(10)), "x": holes, "word": ["a"] * 10}
    )
    rows = {row["point"]: row for row in statistics(table, ["p"]).to_pylist()}
    assert {row["metric"] for row in rows.values()} == {"x"}
    for point, sample in ((0, np.delete(values[:7], 1)), (2, values[7:9])):
        row = rows[point]
        low, high = stats.t.interval(0.95, len(sample) - 1, sample.mean(), stats.sem(sample))
        assert row["n"] == len(sample)
        for key, expected in (
            ("mean", sample.mean()),
            ("std", sample.std(ddof=1)),
            ("low", low),
            ("high", high),
        ):
            assert math.isclose(row[key], expected, rel_tol=1e-9), key
    alone = {"point": 3, "metric": "x", "n": 1, "mean": values[9]}
    assert rows[3] == alone | dict.fromkeys(("std", "low", "high"))
    assert set(rows) == {0, 2, 3}


def test_a_summary_is_flattened() -> None:
    summary = {
        "seed": 3,
        "wall_s": 1.0,
        "latency_ms": {"p50": 2.0},
        "a": {"b": {"c": None}},
        "d": [1, {"e": 2}],
    }
    assert flat(summary) == {"latency_ms_p50": 2.0, "a_b_c": None, "d": '[1, {"e": 2}]'}


def test_failures_come_with_a_scenario_and_a_command(grid: Grid, tmp_path: Path) -> None:
    out = tmp_path / "out of"
    ids = run_ids(grid)
    with opened_records(out) as records:
        records.add(table_of(record_of(ids[0]), record_of(ids[1], violations=["fifo: a", "gap_free: b"])))
        records.add(table_of(record_of(ids[2]), failed(ids[3], "planted", 1.0)))
        results = write_results(grid, ids, records, out, check=True)
    runs = pq.read_table(out / "runs.parquet")
    assert runs.equals(results.runs)
    assert runs.column_names == ["id", "point", "network.loss", "seed", "delivered", "wall_s", "error"]
    assert runs["id"].to_pylist() == ids
    assert runs["network.loss"][3].as_py() == '{"kind": "bernoulli", "rate": 0.5}'
    assert runs["error"].to_pylist() == [None, "fifo: a; gap_free: b", None, "planted"]
    assert runs["delivered"].to_pylist() == [2, 2, 2, None]
    failures = pq.read_table(out / "failures.parquet").to_pylist()
    assert [(row["point"], row["seed"], row["id"]) for row in failures] == [(0, 5, ids[1]), (1, 5, ids[3])]
    command = shlex.split(failures[1]["replay"])
    assert command[:2] == ["tidings", "sim"] and command[3:6] == ["--seed", "5", "--out"]
    assert command[-1] == "--check"
    written = tomllib.loads(Path(command[2]).read_text())
    assert written["network"]["loss"] == {"kind": "bernoulli", "rate": 0.5}
    assert written["seed"] == 5
