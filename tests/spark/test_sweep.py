"""Sweeps on a real Spark: every run once, killed in the middle or not, and what the command prints."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_cluster import QUICK_JVM
from tidings.cli.main import run
from tidings.scenarios.simulate import run_scenario
from tidings.spark.sweep.driver import run_ids
from tidings.spark.sweep.grid import load_grid, scenario_at
from tidings.spark.sweep.results import flat

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

WAIT_SECONDS = 200.0
POLL_SECONDS = 0.05
GRID = """
seeds = { first = 4, count = 2 }
[scenario]
duration_s = 1.0
settle_s = 1.0
overlay = { mode = "best-effort", shape = { kind = "chain", brokers = 3 } }
publisher = [{ name = "p0", at = "b0", rate_hz = 30 }]
subscriber = [{ name = "s0", at = "b2" }]
[grid]
network.loss = [{ kind = "none" }, { kind = "bernoulli", rate = 0.5 }]
publisher.p0.size_bytes = [1, 2]
"""
UNSETTLED = """
[scenario]
duration_s = 1.0
network = { delay_ms = { kind = "constant", value = 100 } }
overlay = { shape = { kind = "chain", brokers = 3 } }
publisher = [{ name = "p0", at = "b0", rate_hz = 30 }]
subscriber = [{ name = "s0", at = "b2" }]
[grid]
settle_s = [0.0, 10.0]
"""
RESUMED = """
seeds = 3
[scenario]
settle_s = 1.0
overlay = { mode = "best-effort", shape = { kind = "chain", brokers = 3 } }
publisher = [{ name = "p0", at = "b0" }]
subscriber = [{ name = "s0", at = "b2" }]
[grid]
duration_s = [1, 2]
"""
ENDLESS = RESUMED.replace("[1, 2]", "[1, 1e9, 2]")
"""One task at a time comes as far as the seeds of the first point, and never to those of the last."""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return path


def table(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def test_a_sweep_is_what_its_runs_are(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path, GRID), tmp_path / "out"
    assert run(["sweep", str(path), "--out", str(out), "--check", "--keep-traces", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["ran"], told["kept"], told["failed"]) == (8, 8, 0, 0)
    grid = load_grid(path)
    rows = table(out / "runs.parquet")
    assert [(row["point"], row["seed"]) for row in rows] == [(p, seed) for p in range(4) for seed in (4, 5)]
    for row in rows:
        scenario = scenario_at(grid.document, grid.values(row["point"]), row["seed"])
        expected = flat(run_scenario(scenario, tmp_path / "here"))
        assert {name: row[name] for name in expected} == expected
        assert (row["publisher.p0.size_bytes"], row["error"]) == (1 + row["point"] % 2, None)
        kept = json.loads((out / "traces" / row["id"] / "summary.json").read_text())
        assert kept["trace_sha256"] == row["trace_sha256"]
    ratios = [row for row in table(out / "metrics.parquet") if row["metric"] == "delivery_ratio"]
    assert [(row["point"], row["n"]) for row in ratios] == [(point, 2) for point in range(4)]
    assert ratios[3]["mean"] == sum(row["delivery_ratio"] for row in rows[6:]) / 2
    assert table(out / "failures.parquet") == []
    assert told["points"][3]["metrics"]["delivery_ratio"]["mean"] == ratios[3]["mean"]

    # More seeds: what is done stays. The same again: nothing runs, for which Spark is not even asked.
    path.write_text(GRID.replace("count = 2", "count = 3"))
    assert run(["sweep", str(path), "--out", str(out), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["runs"], again["ran"], again["kept"]) == (12, 4, 8)
    assert [row for row in table(out / "runs.parquet") if row["seed"] < 6] == rows
    assert run(["sweep", str(path), "--out", str(out), "--master", "nowhere"]) == 0
    text = capsys.readouterr().out
    assert "12 runs (12 of them done before), 0 failed" in text
    assert "size_bytes" in text and "delivery ratio" in text


def test_a_violation_is_a_failure_that_can_be_replayed(
    spark: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, out = written(tmp_path, UNSETTLED), tmp_path / "out"
    arguments = ["sweep", str(path), "--out", str(out)]
    assert run(arguments) == 0
    capsys.readouterr()
    assert run([*arguments, "--check"]) == 1  # the runs were not checked: they run again
    text = capsys.readouterr().out
    assert "failed: point 0 (settle_s = 0.0), seed 7: gap_free: " in text
    assert "2 runs, 1 failed" in text
    (failure,) = table(out / "failures.parquet")
    assert failure["message"].startswith("gap_free: ")
    command = shlex.split(failure["replay"])
    assert command[0] == "tidings"
    assert run(command[1:]) == 1
    assert failure["message"] in capsys.readouterr().out


def test_a_sweep_killed_in_the_middle_goes_on(
    spark: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    done = done_before_kill(written(tmp_path, ENDLESS), out)
    path = written(tmp_path, RESUMED)
    assert run(["sweep", str(path), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["ran"], told["kept"]) == (6, 3, 3)
    rows = table(out / "runs.parquet")
    assert [(row["id"], row["wall_s"]) for row in rows[:3]] == done  # with the time that they took then
    assert run(["sweep", str(path), "--out", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 6
    assert [untimed(row) for row in rows] == [untimed(row) for row in table(whole / "runs.parquet")]
    assert metrics_of(out) == metrics_of(whole)


def done_before_kill(path: Path, out: Path) -> list[tuple[str, float]]:
    """Starts the sweep as users do, and kills it when some of the runs are done: these, with their times."""
    command = [sys.executable, "-m", "tidings.cli.main", "sweep", str(path), "--out", str(out)]
    command += ["--master", "local[1,3]"]
    log = path.with_name("log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "JDK_JAVA_OPTIONS": QUICK_JVM},
        )
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found := list((out / "done").glob("[0-9a-f]*.json"))) < 3:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(POLL_SECONDS)
    finally:
        process.kill()
        process.wait()
    records = {record["id"]: record["wall_s"] for record in (json.loads(file.read_text()) for file in found)}
    return [(run_id, records[run_id]) for run_id in run_ids(load_grid(path))[:3]]


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "wall_s"}


def metrics_of(out: Path) -> list[dict[str, Any]]:
    return [row for row in table(out / "metrics.parquet") if row["metric"] != "wall_s"]


def test_bad_input_ends_before_spark_starts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, GRID.replace("rate = 0.5", "rate = 5"))
    assert run(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    message = capfd.readouterr().err
    assert message.count("\n") == 1
    assert "network.loss.rate: must be below 1, not 5" in message and "point 2 " in message
    assert not (tmp_path / "out").exists()
    path.write_text(GRID)
    (tmp_path / "file").write_text("")
    assert run(["sweep", str(path), "--out", str(tmp_path / "file")]) == 2
    assert os.fspath(tmp_path / "file") in capfd.readouterr().err
