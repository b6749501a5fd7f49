"""Audits on a real Spark: many small traces as tasks of one job, and traces in stages over several partitions."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from random_traces import random_trace, write_trace
from shared_traces import broken_rows
from tidings.core.errors import PipelineError
from tidings.scenarios.trace.checkers import GUARANTEES, check_all
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import PublishedRow, SubscribedRow
from tidings.spark.audit import run as audit_run
from tidings.spark.audit.archive import audit_archives
from tidings.spark.audit.auditing import AuditRequest, AuditSizes, audit_trace
from tidings.spark.audit.on_spark import spark_stages
from tidings.spark.audit.run import Engine, audit

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

ALL = AuditRequest(tuple(GUARANTEES))


def test_small_traces_are_one_task_each(tmp_path: Path, spark: Any) -> None:
    traces = [random_trace(Random(seed), broken=seed % 2 > 0) for seed in range(6)]
    paths = [write_trace(trace, tmp_path / str(seed)) for seed, trace in enumerate(traces)]
    shares: list[float] = []
    report = audit(paths, ALL, master="local", progress=shares.append)
    assert report.engine == Engine("spark", "--master local")
    assert [found.directory for found in report.traces] == list(map(str, paths))
    assert [found.verdicts for found in report.traces] == [check_all(trace, GUARANTEES) for trace in traces]
    assert shares[-1] == 1.0


def test_what_is_large_goes_to_spark(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_trace(Random(3), broken=False)
    path = write_trace(trace, tmp_path)
    small = audit([path], ALL)
    monkeypatch.setattr(audit_run, "LOCAL_ROWS", len(trace.delivered) - 1)
    large = audit([path], ALL)
    assert (small.engine.name, large.engine.name) == ("local", "spark")
    assert f"{len(trace.delivered):,} deliveries" in large.engine.why
    assert large.traces == small.traces


def test_stages_over_partitions_say_what_the_checkers_say(tmp_path: Path, spark: Any) -> None:
    """Large enough traces that every guarantee is broken in some bucket, and that the second look is needed."""
    before = spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch")
    with spark_stages(spark) as stages:
        shared = broken_rows(Random(5)).trace()
        plain = [
            random_trace(Random(seed), broken=broken, events=60, subscribers=12)
            for seed, broken in ((1, True), (4, False))
        ]
        for seed, trace in enumerate([*plain, shared]):
            path = write_trace(trace, tmp_path / str(seed), rows_per_group=40)
            found = audit_trace(
                stages, path, ALL, AuditSizes(len(trace.delivered) // 2, len(trace.delivered) // 3)
            )
            assert found.verdicts == check_all(trace, GUARANTEES)
    assert spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == before


def test_a_mistake_in_the_trace_is_told_by_the_driver(tmp_path: Path, spark: Any) -> None:
    asked = [SubscribedRow("s", "x", ["/a"], "x >", "none", 0, 0)]
    published = [PublishedRow("p:0", "p", 0, "/a", [], 1, 10)]
    path = write_trace(Trace.from_rows(published=published, subscribed=asked), tmp_path)
    with pytest.raises(PipelineError, match=r"subscribed\.parquet: subscription s/x: "):
        audit([path], AuditRequest(), master="local")
    asked = [SubscribedRow("s", "x", ["/a"], None, "totally", 0, 0)]
    write_trace(Trace.from_rows(published=published, subscribed=asked), tmp_path)
    with pytest.raises(PipelineError, match="subscription s/x has order 'totally'; known: none, fifo"):
        audit([path], AuditRequest(), master="local")


def test_archives_go_through_spark(tmp_path: Path, spark: Any) -> None:
    from archive_events import make_events
    from tidings.storage.archive import Archive

    for name in ("one", "other"):
        with Archive.open(tmp_path / name) as archive:
            archive.append(make_events(0, 40), 1)
    with Archive.open(tmp_path / "other") as archive:
        archive.append(make_events(6, 1), 1)
    with spark_stages(spark) as stages:
        found = audit_archives(stages, [tmp_path / "one", tmp_path / "other"], chunk_rows=25)
    assert found.events == [40, 41]
    again = next(verdict for verdict in found.verdicts if verdict.guarantee == "exactly_once")
    assert [witness.positions for witness in again.witnesses] == [(6, 40)]
