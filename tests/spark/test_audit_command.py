"""`tidings audit` as its users see it, without Spark: exit codes, output, files, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from random_traces import random_trace, write_trace
from tidings.cli import main
from tidings.scenarios.trace.checkers import GUARANTEES, check_all
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DeliveredRow, PublishedRow, SubscribedRow
from tidings.spark.audit import report as audit_report

PUBLISHED = [
    PublishedRow("p:0", "p", 0, "/a", [], 1, 10),
    PublishedRow("q:0", "q", 0, "/a", [], 1, 20),
]
SUBSCRIBED = [SubscribedRow(name, "x", ["/a"], None, "total", 0, 0) for name in ("s", "t")]
DELIVERED = [
    DeliveredRow("s", "x", 0, "p:0", 30),
    DeliveredRow("s", "x", 1, "q:0", 30),
    DeliveredRow("t", "x", 0, "q:0", 30),
    DeliveredRow("t", "x", 1, "p:0", 30),
]


def disagreeing(directory: Path) -> Path:
    """Two subscribers that see two events in different orders."""
    rows = {"published": PUBLISHED, "subscribed": SUBSCRIBED, "delivered": DELIVERED}
    nodes = [("b0", "broker", None, None, None), ("b1", "broker", "b0", None, None)]
    traffic = [("publish", "b0", "b1", 3, 300, 1), ("publish", "p", "b0", 2, 200, 0)]
    return write_trace(Trace.from_rows(**rows, nodes=nodes, traffic=traffic), directory)


def agreeing(directory: Path) -> Path:
    rows = {"published": PUBLISHED, "subscribed": SUBSCRIBED, "delivered": DELIVERED[:2]}
    return write_trace(Trace.from_rows(**rows), directory)


def audit(*arguments: object) -> int:
    return main.run(["audit", "--here", "--quiet", *map(str, arguments)])


def test_exit_codes_say_whether_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = agreeing(tmp_path / "good"), disagreeing(tmp_path / "bad")
    assert audit(good) == 0
    assert audit(good, bad) == 1
    output = capsys.readouterr().out
    assert "VIOLATED" in output
    assert (
        "subscriber s sees p:0 (position 0) before q:0 (1), subscriber t sees q:0 (0) before p:0 (1)"
        in output
    )
    assert "1.50 messages between brokers per event" in output
    assert audit(good, "--mode", "guaranteed") == 1  # t got nothing
    assert audit(bad, "--guarantee", "exactly_once") == 0


def test_json_is_one_object_with_all_that_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(disagreeing(tmp_path), "--json") == 1
    captured = capsys.readouterr()
    assert not captured.err
    found = json.loads(captured.out)
    assert found["holds"] is False
    assert found["archives"] is None
    (trace,) = found["traces"]
    once, total = trace["verdicts"]
    assert (once["guarantee"], once["holds"]) == ("exactly_once", True)
    assert total["violations"] == 1
    assert total["witnesses"][0]["subscribers"] == ["s", "t"]
    assert trace["metrics"]["delivered"] == 4
    assert trace["metrics"]["latency_ms"]["max"] == 2e-05
    assert trace["traffic"]["overhead"] == 1.5


def test_the_report_has_tables_a_page_and_plots(tmp_path: Path) -> None:
    out = tmp_path / "out"
    trace = random_trace(Random(8), broken=True)
    written = write_trace(trace, tmp_path / "random")
    assert audit(written, disagreeing(tmp_path / "bad"), "--out", out) == 1
    verdicts = pq.read_table(out / "verdicts.parquet").to_pylist()
    wanted = check_all(trace)
    assert [(row["guarantee"], row["violations"]) for row in verdicts if row["of"] == str(written)] == [
        (verdict.guarantee, verdict.violations) for verdict in wanted
    ]
    texts = [row["text"] for row in pq.read_table(out / "witnesses.parquet").to_pylist()]
    assert [text for verdict in wanted for text in (str(witness) for witness in verdict.witnesses)] == texts[
        :-1
    ]
    latency = pq.read_table(out / "latency.parquet").to_pylist()
    assert sum(row["delivered"] for row in latency if row["of"] == str(written)) == len(trace.delivered)
    last = latency[-1]
    assert (last["subscriber"], last["expected"], last["delivery_ratio"]) == ("t", 2, 1.0)
    assert (last["p50_ms"], last["max_ms"]) == (1e-05, 2e-05)
    page = (out / "report.md").read_text()
    for name in ("latency", "delivery_ratio", "deliveries"):
        assert f"![2-{name}](2-{name}.png)" in page
        assert (out / f"2-{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"2-{name}.svg").read_text()[:2000]
    assert "Not everything holds" in page


def test_many_traces_have_tables_and_the_first_have_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_report, "MAX_PLOTTED", 1)
    out = tmp_path / "out"
    paths = [agreeing(tmp_path / str(number)) for number in range(3)]
    assert audit(*paths, "--out", out) == 0
    assert sorted(path.name for path in out.glob("*latency.png")) == ["1-latency.png"]
    assert len({row["of"] for row in pq.read_table(out / "verdicts.parquet").to_pylist()}) == 3


def test_an_empty_trace_holds_with_a_remark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = write_trace(Trace.from_rows(), tmp_path / "trace")
    assert audit(written, "--out", tmp_path / "out") == 0
    assert "note: nothing was published and nothing delivered" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "no such directory"),
        (["."], "is neither a trace"),
        (["partly"], "has no table 'delivered' (delivered.parquet)"),
        (["odd"], "odd/subscribed.parquet: subscription s/x has order 'Total'; known: none, fifo"),
        (["good", "-g", "totl_order"], "unknown guarantee 'totl_order'; did you mean 'total_order'?"),
        (["good", "-g", "speed"], f"unknown guarantee 'speed'; known guarantees: {', '.join(GUARANTEES)}"),
        (["good", "--mode", "guaranteed", "-g", "fifo"], "exclude each other"),
        (["good", "--master", "local"], "exclude each other"),
        (["good", "--out", "good/nodes.parquet"], "nodes.parquet: File exists"),
        ([], "missing argument"),
    ],
)
def test_bad_input_is_told_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    agreeing(tmp_path / "good")
    (agreeing(tmp_path / "partly") / "delivered.parquet").unlink()
    odd = [row._replace(order="Total") for row in SUBSCRIBED]
    write_trace(Trace.from_rows(published=PUBLISHED, subscribed=odd, delivered=DELIVERED), tmp_path / "odd")
    assert audit(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not captured.out
