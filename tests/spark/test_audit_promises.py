"""An audit checks what the mode of the run promises, says where it ran, and why something may be missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from random_traces import write_trace
from tidings.cli import main
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DeliveredRow, PublishedRow, SubscribedRow, arrow_table
from tidings.scenarios.trace.writer import TraceWriter
from tidings.spark.audit import run as audit_run
from tidings.spark.audit.stages import HereStages, Piece

SCENARIO = """
seed = 3
duration_s = 5.0
settle_s = 5.0
[overlay]
mode = "{mode}"
shape = {{ kind = "chain", brokers = 3 }}
[[publisher]]
name = "p"
at = "b0"
topics = ["/a"]
rate_hz = 10.0
[[subscriber]]
name = "s"
at = "b2"
"""
PUBLISHED = [PublishedRow(f"p:{number}", "p", number, "/a", [], 1, 10 + number, 20) for number in range(4)]


def simulated(directory: Path, mode: str) -> Path:
    """A run of a small network, with its summary."""
    file = directory / "scenario.toml"
    file.write_text(SCENARIO.format(mode=mode))
    assert main.run(["sim", str(file), "--out", str(directory / "run"), "--quiet"]) == 0
    return directory / "run"


def without_row(trace: Path, row: int) -> None:
    """One delivery gone; the positions after it close up, as they do when nothing came."""
    path = trace / "delivered.parquet"
    rows = pq.read_table(path).to_pylist()
    schema = pq.read_schema(path)
    del rows[row]
    for position, left in enumerate(rows):
        left["position"] = position
    columns = [[left[name] for left in rows] for name in schema.names]
    pq.write_table(arrow_table("delivered", columns), path)


def audited(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main.run(["audit", "--quiet", "--json", *map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


def guarantees(found: dict[str, Any]) -> dict[str, bool]:
    return {verdict["guarantee"]: verdict["holds"] for verdict in found["traces"][0]["verdicts"]}


def test_a_guaranteed_run_is_checked_for_what_its_mode_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulated(tmp_path, "guaranteed")
    code, found = audited(capsys, run)
    assert (code, found["traces"][0]["mode"]) == (0, "guaranteed")
    assert guarantees(found) == {"exactly_once": True, "fifo": True, "gap_free": True}
    without_row(run, 7)
    code, found = audited(capsys, run)
    assert code == 1
    assert guarantees(found) == {"exactly_once": True, "fifo": True, "gap_free": False}
    code, found = audited(capsys, run, "--mode", "asked")
    assert code == 0
    assert guarantees(found) == {"exactly_once": True}
    assert (
        "although the mode was guaranteed: check it with --mode guaranteed"
        in found["traces"][0]["remarks"][-1]
    )


def test_best_effort_holds_beside_a_loss_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulated(tmp_path, "best-effort")
    without_row(run, 7)
    assert main.run(["audit", str(run), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "expected deliveries did not arrive. No verdict covers that. Mode best-effort does not" in printed
    assert "audited in this process (" in printed
    code, found = audited(capsys, run, "-g", "gap_free")
    assert code == 1
    expected = found["traces"][0]["metrics"]["expected"]
    assert found["traces"][0]["remarks"] == [f"1 of {expected} expected deliveries did not arrive"]


def test_what_is_missing_and_was_not_owed_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {
        "published": [*PUBLISHED[:3], PUBLISHED[3]._replace(confirmed_ns=None)],
        "subscribed": [
            SubscribedRow("s", "x", ["/a"], None, "none", 0, 0, None),
            SubscribedRow("t", "x", ["/a"], None, "none", 0, 0, 13),
            SubscribedRow("u", "x", ["/a"], None, "none", 0, None),
        ],
        "delivered": [
            *(DeliveredRow("s", "x", number, f"p:{number}", 30) for number in range(3)),
            DeliveredRow("t", "x", 0, "p:0", 30),
        ],
        "faults": [("crash", "p", 15, None)],
    }
    trace = write_trace(Trace.from_rows(**rows), tmp_path)
    code, found = audited(capsys, trace, "--mode", "guaranteed")
    assert code == 0
    assert found["traces"][0]["missing"] == {"deliveries": 3, "in_flight": 2, "unconfirmed": 1}
    assert found["traces"][0]["remarks"] == [
        "1 of 3 subscriptions were never accepted: no deliveries were expected",
        "3 of 7 expected deliveries did not arrive; none of these are gaps. Not required: 2 on their way "
        "when the subscription was cancelled and 1 never confirmed to their publisher",
    ]
    _, found = audited(capsys, trace)
    assert found["traces"][0]["mode"] is None
    assert "the trace does not record its mode" in found["traces"][0]["remarks"][-1]


def test_a_new_trace_does_not_keep_the_summary_of_the_old_one(tmp_path: Path) -> None:
    run = simulated(tmp_path, "guaranteed")
    TraceWriter(run).close()
    assert not (run / "summary.json").exists()


def test_the_engine_follows_size_and_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(Trace.from_rows(published=PUBLISHED), tmp_path)
    _, found = audited(capsys, trace)
    assert found["engine"] == {
        "name": "local",
        "why": "0 deliveries: faster than Spark up to 10,000,000",
    }
    _, found = audited(capsys, trace, "--here")
    assert found["engine"] == {"name": "local", "why": "--here"}
    limit = audit_run.LOCAL_ROWS
    names = [audit_run.choose_engine(rows, None, here=False).name for rows in (limit, limit + 1)]
    assert names == ["local", "spark"]
    assert audit_run.choose_engine(1, "local[2]", here=False).name == "spark"
    assert audit_run.choose_engine(limit + 1, None, here=True).name == "local"


def test_progress_is_told_piece_by_piece() -> None:
    shares: list[float] = []
    stage = HereStages().map(lambda item: [Piece(item % 2, item, "", b"")], range(4))
    stage.to_reducers(2, lambda reducer, pieces: pieces).collect(shares.append)
    assert shares == [0.125, 0.25, 0.375, 0.5, 0.75, 1.0, 1.0]
