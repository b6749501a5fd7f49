"""`tidings audit` of traces with durable subscriptions, groups and starts, and of older traces, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from random_traces import random_trace, write_trace
from shared_traces import Rows
from tidings.cli import main
from tidings.scenarios.trace.checkers import GUARANTEES, check_all
from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DEFAULTS, TABLES, DeliveredRow, PublishedRow, SubscribedRow
from tidings.spark.audit.auditing import AuditRequest, AuditSizes, audit_trace, buckets
from tidings.spark.audit.stages import HereStages

PUBLISHED = [PublishedRow(f"p:{n}", "p", n, "/a", [("k", "x")], 1, 10 * n, 10 * n + 1) for n in (1, 2, 3)]


def shared_rows() -> Rows:
    """A durable subscription, a group by value and a start, all of them correct."""
    asked = (["/a"], None, "none", 0, 1, None)
    return Rows(
        list(PUBLISHED),
        [
            SubscribedRow("d", "x", *asked, None, "billing"),
            SubscribedRow("g", "x", *asked, "workers", None, "k"),
            SubscribedRow("h", "x", *asked, "workers", None, "k"),
            SubscribedRow("l", "x", ["/a"], None, "none", 12, 15, None, start="earliest"),
        ],
        [
            DeliveredRow(name, "x", number, f"p:{number + 1}", 50 + number, attempt=1, done_ns=done)
            for name, done in (("d", 60), ("g", 60), ("l", None))
            for number in range(3)
        ],
    )


def audited(rows: Rows, directory: Path, *arguments: str) -> int:
    write_trace(rows.trace(), directory)
    return main.run(["audit", "--here", "--quiet", str(directory), *arguments])


def test_they_are_checked_where_the_trace_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audited(shared_rows(), tmp_path, "--json") == 0
    (trace,) = json.loads(capsys.readouterr().out)["traces"]
    names = [verdict["guarantee"] for verdict in trace["verdicts"]]
    assert names == ["exactly_once", "durable", "group", "seam"]
    assert trace["metrics"]["expected"] == 3 + 3 + 2
    assert trace["verdicts"][1]["counts"] == {"expected": 3, "done": 3, "repeated": 0}


def test_each_violation_is_told_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shared_rows()
    rows.delivered.append(DeliveredRow("h", "x", 0, "p:2", 70, attempt=2, done_ns=71))
    rows.delivered[2] = rows.delivered[2]._replace(done_ns=None)
    rows.delivered[7:9] = [rows.delivered[8]._replace(position=1)]
    assert audited(rows, tmp_path, "--mode", "guaranteed") == 1
    said = " ".join(capsys.readouterr().out.split())
    for sentence in (
        "durable: event p:3 of durable billing was never done: delivered to d",
        "group: event p:2, attempt 2 of group workers, at position 0 of subscriber h, is done again",
        "seam: event p:2, selected by subscription l/x, is missing between history and live events",
    ):
        assert sentence in said


def lease_rows(keep_for_ns: int) -> Rows:
    """Two shares of one name: the first ended with p:2 undone, at the latest 15 ns after its holder had gone."""
    asked = (["/a"], None, "none")
    rest = {"durable": "billing", "keep_for_ns": keep_for_ns}
    return Rows(
        list(PUBLISHED),
        [
            SubscribedRow("d", "x", *asked, 0, 1, 20, detached_ns=14, life="1", **rest),
            SubscribedRow("e", "x", *asked, 27, 29, life="2", **rest),
        ],
        [
            DeliveredRow("d", "x", 0, "p:1", 12, attempt=1, done_ns=13),
            DeliveredRow("e", "x", 0, "p:3", 32, attempt=1, done_ns=33),
        ],
    )


@pytest.mark.parametrize(("keep_for_ns", "broken"), [(15, False), (16, True)])
def test_a_lease_is_judged_as_by_the_checkers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keep_for_ns: int, broken: bool
) -> None:
    rows = lease_rows(keep_for_ns)
    assert audited(rows, tmp_path, "--mode", "guaranteed", "--json") == broken
    (trace,) = json.loads(capsys.readouterr().out)["traces"]
    found = {verdict["guarantee"]: verdict["violations"] for verdict in trace["verdicts"]}
    for verdict in check_all(rows.trace(), [*found]):
        assert found[verdict.guarantee] == verdict.violations
    assert found["durable"] == broken
    assert trace["metrics"]["expected"] == metrics(rows.trace()).expected == 2


def test_a_fault_of_the_trace_excuses_an_early_end(tmp_path: Path) -> None:
    trace = lease_rows(16).trace()
    tables = {name: [(*row.values(),) for row in getattr(trace, name).to_pylist()] for name in TABLES}
    tables["faults"] = [("crash", "b0", 12, 13)]
    write_trace(Trace.from_rows(**tables), tmp_path)
    assert main.run(["audit", "--here", "--quiet", str(tmp_path), "--mode", "guaranteed"]) == 0


def test_what_waits_for_somebody_to_attach_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = shared_rows()
    rows.subscribed[0] = rows.subscribed[0]._replace(detached_ns=51)
    del rows.delivered[1:3]
    assert audited(rows, tmp_path, "--mode", "guaranteed") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 on their way when the subscription was cancelled or nobody was attached any more" in said


def test_groups_need_not_be_complete_where_delivery_is_not_promised(tmp_path: Path) -> None:
    rows = shared_rows()
    del rows.delivered[5]
    assert audited(rows, tmp_path) == 0
    assert audited(rows, tmp_path, "--mode", "guaranteed") == 1


def test_an_older_trace_is_audited_as_before(tmp_path: Path) -> None:
    for seed in range(6):
        directory = write_trace(random_trace(Random(seed), broken=seed % 2 > 0), tmp_path)
        for name, columns in DEFAULTS.items():
            path = directory / f"{name}.parquet"
            pq.write_table(pq.read_table(path).drop_columns(list(columns)), path, row_group_size=3)
        found = audit_trace(HereStages(), directory, AuditRequest(tuple(GUARANTEES)), AuditSizes(5, 9))
        assert found.verdicts == check_all(Trace.read(directory), GUARANTEES)


@pytest.mark.parametrize(
    ("starts", "bounds"),
    [(None, (0, 1, 2, 3)), ([True, False, True, True], (0, 2, 3)), ([True, False, False, False], (0,))],
)
def test_a_family_goes_to_one_bucket(starts: list[bool] | None, bounds: tuple[int, ...]) -> None:
    assert buckets([5, 5, 5, 5], 5, starts) == bounds


@pytest.mark.parametrize(
    ("summary", "faults", "code"),
    [
        ({"mode": "guaranteed", "virtual_s": 1.0}, [], 1),
        ({"mode": "guaranteed", "virtual_s": 1.0}, [("crash", "g", 1, 2)], 1),
        ({"mode": "guaranteed", "virtual_s": 1.0}, [("crash", "b0", 1, 2)], 0),
        ({"mode": "guaranteed", "virtual_s": 1.0}, [("pause", "g", 1, 2)], 0),
        ({"mode": "guaranteed", "virtual_s": 1.0, "settled_s": 0.5}, [], 0),
        ({"mode": "guaranteed"}, [], 0),
    ],
)
def test_a_mark_without_a_departure_is_found_where_only_clients_fail(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    summary: dict[str, object],
    faults: list[tuple[str, str, int, int]],
    code: int,
) -> None:
    rows = shared_rows()
    place = next(place for place, row in enumerate(rows.delivered) if row.subscriber == "g")
    rows.delivered[place] = rows.delivered[place]._replace(attempt=2)
    trace = Trace.from_rows(
        published=rows.published,
        subscribed=rows.subscribed,
        delivered=rows.delivered,
        faults=faults,
        nodes=[
            ("b0", "broker", None, None, None),
            *((name, "subscriber", "b0", None, None) for name in "dghl"),
        ],
    )
    write_trace(trace, tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert main.run(["audit", "--here", "--quiet", str(tmp_path)]) == code
    assert (
        "is marked although too few holders went away" in " ".join(capsys.readouterr().out.split())
    ) == bool(code)
