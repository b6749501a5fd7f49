"""`tidings sim` as users run it: what it writes and prints, that a seed is a seed, and its checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from command import process_of_tidings, tidings
from tidings.cli.main import run
from tidings.scenarios.trace.verdict import Verdict, Witness

TABLES = ("delivered", "faults", "nodes", "published", "subscribed", "traffic")
SCENARIO = """
duration_s = 2.0
settle_s = 1.0
[network]
loss = { kind = "bernoulli", rate = 0.05 }
[overlay]
mode = "best-effort"
shape = { kind = "random", brokers = 8, degree = 3 }
[[fault]]
kind = "crash"
nodes = ["b3"]
at_s = 1.0
until_s = 1.5
[[publisher]]
name = "p"
at = "b1"
rate_hz = 50.0
attributes = { x = { kind = "int" } }
[[subscriber]]
name = "s"
at = "b5"
filter = "x > 3"
order = "fifo"
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def test_it_writes_all_tables_and_the_summary(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    done = tidings("sim", scenario, "--out", out)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [*(f"{name}.parquet" for name in TABLES), "summary.json"]
    )
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["published"] == pq.read_table(out / "published.parquet").num_rows > 50
    assert "delivery ratio" in done.stdout
    assert summary["trace_sha256"] in done.stdout
    assert done.stderr == ""


def test_it_says_when_nothing_was_expected(tmp_path: Path) -> None:
    path = tmp_path / "vain.toml"
    path.write_text(SCENARIO.replace('filter = "x > 3"', 'filter = "x > 3 AND x < 3"'), encoding="utf-8")
    done = tidings("sim", path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "none: no event was published while" in done.stdout


def test_json_is_the_summary_and_nothing_else(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = tidings("sim", scenario, "--out", out, "--json", "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (out / "summary.json").read_text(encoding="utf-8")
    verdicts = [json.loads(line) for line in done.stderr.splitlines()]
    assert [verdict["guarantee"] for verdict in verdicts] == ["exactly_once", "fifo"]
    assert all(verdict["holds"] for verdict in verdicts)


def test_a_seed_gives_one_trace_under_any_hash_seed_and_another_gives_another(
    scenario: Path, tmp_path: Path
) -> None:
    def trace_hash(seed: int, hash_seed: str) -> str:
        out = tmp_path / f"{seed}-{hash_seed}"
        done = process_of_tidings(
            "sim", scenario, "--out", out, "--seed", seed, "--json", PYTHONHASHSEED=hash_seed
        )
        summary = json.loads(done.stdout)
        assert summary["seed"] == seed
        return str(summary["trace_sha256"])

    first = trace_hash(5, "0")
    assert trace_hash(5, "4242") == first
    assert trace_hash(6, "0") != first


def test_flags_may_stand_in_the_environment(scenario: Path, tmp_path: Path) -> None:
    done = process_of_tidings("sim", scenario, TIDINGS_SIM_OUT=str(tmp_path / "out"), TIDINGS_SIM_SEED="12")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))["seed"] == 12


def test_a_violated_guarantee_is_told_and_is_exit_code_1(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Verdict("fifo", False, 2, [Witness("s sees p:2 before p:1")])
    monkeypatch.setattr("tidings.cli.sim.verdicts", lambda *run: [Verdict("exactly_once", True, 0), broken])
    code = run(["sim", str(scenario), "--out", str(tmp_path / "out"), "--check", "--quiet"])
    assert code == 1
    assert "fifo: 2 violations, first: s sees p:2 before p:1" in capsys.readouterr().out


def test_a_reader_that_closes_the_pipe_is_no_error(scenario: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidings.cli.main", "sim", str(scenario), "--out", str(tmp_path / "out")]
    reading, writing = os.pipe()
    os.close(reading)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, env=environment)
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == b""
