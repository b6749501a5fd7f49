"""The demo as users run it: processes, faults, archives, Spark, the report; and what is left when it is cut short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command import tidings

PATIENCE_S = 280
COMMAND = [sys.executable, "-m", "tidings.cli.main", "demo"]


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(PATIENCE_S + 20)
def test_the_demo_shows_what_it_claims(tmp_path: Path) -> None:
    out = tmp_path / "new" / "demo"
    done = subprocess.run(
        [*COMMAND, "--out", out, "--json"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["holds"] is True
    for subscriber in found["subscribers"]:
        assert subscriber["received"] == subscriber["expected"] > 0
        assert subscriber["missing"] == subscriber["repeated"] == 0
    assert {fault["kind"] for fault in found["faults"]} == {"crash", "partition"}
    assert all(fault["waited"] for fault in found["faults"])  # a site that is cut off does wait
    assert {verdict["guarantee"] for verdict in found["verdicts"]} >= {
        "exactly_once",
        "total_order",
        "gap_free",
    }
    archives = found["archives"]
    assert archives["on_spark"] is True
    assert set(archives["events"].values()) == {found["published"]}
    assert {verdict["guarantee"] for verdict in archives["verdicts"]} == {
        "intact",
        "exactly_once",
        "total_order",
    }
    page = Path(found["report"]).read_text(encoding="utf-8")
    assert f"{found['published']:,}" in page
    assert page.count("<svg") == 3
    assert sorted(path.name for path in out.iterdir()) == ["archives", "demo.toml", "report.html", "trace"]


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_stopped_half_way_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert demo.stdout is not None
    while "publishers start" not in (line := demo.stdout.readline()):
        assert line, demo.communicate()
    children = [int(pid) for pid in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()]
    assert len(children) == 18
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 128 + number
    assert errors == ("" if number is signal.SIGINT else "tidings: stopped by SIGTERM\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    done = tidings("demo", "--out", tmp_path)
    assert done.returncode == 2
    assert "--out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
