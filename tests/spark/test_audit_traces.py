"""An audit in stages, of many small random traces cut into tiny chunks and buckets: the verdicts, witnesses and metrics
are those of the checkers on the whole trace. In this process: the same functions run on Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shared_traces
from arrow_types import TEXTS, held_as
from breadth import few
from random_traces import random_trace, write_trace
from tidings.core.errors import PipelineError, TraceError
from tidings.core.structures.histogram import rounded as rounded_one
from tidings.lab.seeds import blocks
from tidings.scenarios.trace import checkers
from tidings.scenarios.trace.checkers import GUARANTEES, check_all
from tidings.scenarios.trace.metrics import metrics, rounded
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import TABLES, DeliveredRow, PublishedRow, SubscribedRow
from tidings.spark.audit import order as audit_order
from tidings.spark.audit.auditing import AuditRequest, AuditSizes, audit_trace, buckets
from tidings.spark.audit.checks import checks_of
from tidings.spark.audit.files import chunks, trace_files
from tidings.spark.audit.stages import HereStages

SEEDS = range(80)
SEEDS_PER_TEST = 40


def audited(directory: Path, guarantees: tuple[str, ...], sizes: AuditSizes):
    return audit_trace(HereStages(), directory, AuditRequest(guarantees), sizes)


@pytest.mark.parametrize(
    "seeds", few(blocks(SEEDS, SEEDS_PER_TEST), 1), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}"
)
def test_an_audit_says_what_the_checkers_say(seeds: range, tmp_path: Path) -> None:
    broken: Counter[str] = Counter()
    for seed in seeds:
        random = Random(seed)
        if seed % 2:
            trace = (shared_traces.broken_rows if seed % 4 > 1 else shared_traces.correct_rows)(
                random
            ).trace()
        else:
            trace = random_trace(random, broken=seed % 4 > 0)
        directory = write_trace(trace, tmp_path, rows_per_group=random.choice((1, 3, 50)))
        sizes = AuditSizes(random.choice((1, 5, 40)), random.choice((1, 9, 60)), random.choice((0, 100)))
        found = audited(directory, tuple(GUARANTEES), sizes)
        assert found.verdicts == check_all(trace, GUARANTEES), seed
        assert audited(directory, (), sizes).verdicts == check_all(trace), seed
        broken.update(verdict.guarantee for verdict in found.verdicts if not verdict.holds)
        check_metrics(trace, found.quantities.metrics, exact=sizes.exact_rows > 0)
    assert all(broken[name] for name in GUARANTEES), broken


def check_metrics(trace: Trace, found, *, exact: bool) -> None:
    wanted = metrics(trace)
    for name in (
        "published",
        "delivered",
        "expected",
        "expired",
        "delivery_ratio",
        "duplicates",
        "out_of_order",
    ):
        assert getattr(found, name) == getattr(wanted, name), name
    if wanted.latency_ms is None:
        assert found.latency_ms is None
        return
    for name in ("mean", "std", "max", *(("p50", "p99") if exact else ())):
        value = getattr(wanted.latency_ms, name)
        assert getattr(found.latency_ms, name) == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_an_audit_that_forgets_the_order_between_buckets_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above can fail: without edges nothing lies on a cycle."""
    random = Random(3)
    traces = [random_trace(random, broken=True) for _ in range(20)]
    wanted = [check_all(trace, ["total_order"])[0].violations for trace in traces]
    assert any(wanted)
    monkeypatch.setattr(audit_order, "components", lambda edges, size: np.full(size, -1))
    found = []
    for trace in traces:
        directory = write_trace(trace, tmp_path)
        found.append(audited(directory, ("total_order",), AuditSizes(5, 5)).verdicts[0].violations)
    assert not any(found)


def test_the_guaranteed_mode_asks_for_what_it_promises(tmp_path: Path) -> None:
    for seed in range(8):
        trace = random_trace(Random(seed), broken=True)
        found = audit_trace(
            HereStages(), write_trace(trace, tmp_path), AuditRequest(mode="guaranteed"), AuditSizes(4, 4)
        )
        fifo = checkers.fifo(trace, orders=frozenset({"none", "fifo", "causal"}))
        once, *others = check_all(trace)
        in_time = [verdict for verdict in others if verdict.guarantee == "expiry"]
        others = [verdict for verdict in others if verdict.guarantee not in ("fifo", "expiry")]
        assert found.verdicts == [once, fifo, *others, checkers.gap_free(trace), *in_time], seed


def test_a_trace_from_before_events_expired_is_audited(tmp_path: Path) -> None:
    directory = write_trace(random_trace(Random(5), broken=False), tmp_path)
    path = directory / "published.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["expires_ns"]), path)
    found = audit_trace(HereStages(), directory, AuditRequest(tuple(GUARANTEES)), AuditSizes(4, 4))
    assert found.verdicts == check_all(Trace.read(directory), GUARANTEES)
    assert found.quantities.metrics.expired == 0


def test_what_expired_has_a_line_of_its_own(tmp_path: Path) -> None:
    published = [PublishedRow(f"p:{n}", "p", n, "/a", [], 1, 10, 11, 15 if n else None) for n in range(3)]
    delivered = [DeliveredRow("s", "x", 0, "p:0", 12), DeliveredRow("s", "x", 1, "p:1", 16)]
    subscribed = [SubscribedRow("s", "x", ["/a"], None, "none", 0, 1)]
    trace = Trace.from_rows(published=published, subscribed=subscribed, delivered=delivered)
    found = audit_trace(HereStages(), write_trace(trace, tmp_path), AuditRequest(mode="guaranteed"))
    assert [str(verdict) for verdict in found.verdicts if not verdict.holds] == [
        "expiry: 1 violation, first: event p:1 at position 1 of subscriber s is shown 1 ns after it expired"
    ]
    assert (found.quantities.metrics.expired, found.quantities.missing.deliveries) == (1, 0)
    assert not any("did not arrive" in remark for remark in found.remarks)


def test_what_a_killed_publisher_had_not_confirmed_is_not_missed(tmp_path: Path) -> None:
    published = [
        PublishedRow("p:0", "p", 0, "/a", [], 1, 10, 11),
        PublishedRow("p:1", "p", 1, "/a", [], 1, 20, None),
    ]
    rows = {
        "published": published,
        "subscribed": [SubscribedRow("s", "x", ["/a"], None, "none", 0, 0)],
        "delivered": [DeliveredRow("s", "x", 0, "p:0", 12)],
    }
    for target, violations in (("b1,p", 0), ("b1", 1)):
        directory = write_trace(Trace.from_rows(**rows, faults=[("crash", target, 15, None)]), tmp_path)
        found = audit_trace(HereStages(), directory, AuditRequest(mode="guaranteed"))
        assert found.verdicts[-1].guarantee == "gap_free"
        assert found.verdicts[-1].violations == violations


def test_an_empty_trace_holds_and_says_so(tmp_path: Path) -> None:
    found = audited(write_trace(Trace.from_rows(), tmp_path), tuple(GUARANTEES), AuditSizes())
    assert found.holds
    assert found.remarks == ["nothing was published and nothing delivered"]


def test_a_table_may_be_many_files(tmp_path: Path) -> None:
    trace = random_trace(Random(5), broken=True)
    write_trace(trace, tmp_path / "whole")
    parts = write_trace(trace, tmp_path / "parts")
    (parts / "delivered.parquet").unlink()
    middle = len(trace.delivered) // 2
    for name, rows in (("part-0", trace.delivered[:middle]), ("part-1", trace.delivered[middle:])):
        write_table(rows, parts / "delivered.parquet" / f"{name}.parquet")
    assert audited(parts, tuple(GUARANTEES), AuditSizes(4, 4)).verdicts == check_all(trace, GUARANTEES)


def write_table(table, path: Path) -> None:
    import pyarrow.parquet as pq

    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns("position"), "no columns 'position'"),
        (lambda table: table.append_column("more", table["position"]), "unknown column 'more'"),
        (lambda table: table.set_column(2, "position", table["event_id"]), "'position' is string, not int64"),
    ],
)
def test_a_table_of_another_shape_is_told(tmp_path: Path, change, message: str) -> None:
    directory = write_trace(random_trace(Random(6), broken=False), tmp_path)
    trace = Trace.read(directory)
    write_table(change(trace.delivered), directory / "delivered.parquet")
    with pytest.raises(TraceError, match=message) as told:
        trace_files(directory)
    assert "delivered.parquet" in str(told.value)


def test_nulls_and_a_filter_that_is_none_are_told(tmp_path: Path) -> None:
    trace = random_trace(Random(6), broken=False)
    directory = write_trace(trace, tmp_path)
    nulls = pa.nulls(len(trace.delivered), pa.int64())
    assert len(nulls)
    write_table(
        trace.delivered.set_column(2, pa.field("position", pa.int64()), nulls),
        directory / "delivered.parquet",
    )
    with pytest.raises(PipelineError, match="'position' has nulls"):
        audited(directory, (), AuditSizes())
    asked = [SubscribedRow("s", "x", ["/a"], "x >", "none", 0, 0)]
    published = [PublishedRow("p:0", "p", 0, "/a", [], 1, 10)]
    write_trace(Trace.from_rows(published=published, subscribed=asked), directory)
    with pytest.raises(TraceError, match=r"subscribed\.parquet: subscription s/x: "):
        audited(directory, (), AuditSizes())


def test_an_order_that_nobody_knows_is_told(tmp_path: Path) -> None:
    """Nothing would be promised, and everything would hold."""
    asked = [SubscribedRow("s", "x", ["/a"], None, order, 0, 0) for order in ("none", "Total")]
    asked[1] = asked[1]._replace(subscriber="t")
    directory = write_trace(Trace.from_rows(subscribed=asked), tmp_path)
    for guarantees in ((), ("total_order",)):
        with pytest.raises(TraceError) as told:
            audited(directory, guarantees, AuditSizes())
        assert str(told.value) == (
            f"trace table {tmp_path / 'subscribed.parquet'}: subscription t/x has order 'Total'; "
            "known: none, fifo, causal, total"
        )


def test_attributes_that_cannot_be_read_and_a_repeated_subscription_are_told_with_their_table(
    tmp_path: Path,
) -> None:
    published = [
        PublishedRow(f"p:{n}", "p", n, "/a", [("x", text)], 1, n) for n, text in enumerate(("1", '"1'))
    ]
    asked = SubscribedRow("s", "x", ["/a"], "x = 1", "none", 0, 0)
    directory = write_trace(Trace.from_rows(published=published, subscribed=[asked]), tmp_path)
    with pytest.raises(PipelineError, match="event p:1: the attribute text '\"1' starts with") as told:
        audited(directory, (), AuditSizes())
    assert str(told.value).startswith(f"trace table {tmp_path / 'published.parquet'}: ")
    write_trace(Trace.from_rows(published=published, subscribed=[asked, asked]), tmp_path)
    with pytest.raises(TraceError, match="subscription s/x is listed twice") as told:
        audited(directory, (), AuditSizes())
    assert str(told.value).startswith(f"trace table {tmp_path / 'subscribed.parquet'}: ")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_other_types_of_arrow_for_the_same_content_are_welcome(tmp_path: Path, text) -> None:
    for seed in range(3):
        trace = random_trace(Random(seed), broken=True)
        directory = write_trace(trace, tmp_path)
        for name in TABLES:
            write_table(held_as(getattr(trace, name), text), directory / f"{name}.parquet")
        assert audited(directory, tuple(GUARANTEES), AuditSizes(4, 4)).verdicts == check_all(
            trace, GUARANTEES
        )


def test_buckets_hold_whole_subscribers_and_chunks_all_rows(tmp_path: Path) -> None:
    random = Random(1)
    for _ in range(200):
        deliveries = [random.choice((0, 1, 5, 30)) for _ in range(random.randrange(12))]
        bounds = buckets(deliveries, 10)
        assert bounds[0] == 0
        assert list(bounds) == sorted(set(bounds))
        for low, high in zip(bounds, (*bounds[1:], len(deliveries)), strict=True):
            assert sum(deliveries[low:high]) <= 10 or high - low == 1 or sum(deliveries[low : high - 1]) == 0
    trace = random_trace(Random(5), broken=False)
    groups = trace_files(write_trace(trace, tmp_path)).delivered
    for rows in (1, 4, 1000):
        cut = chunks(groups, rows)
        assert [number for chunk in cut for part in chunk for number in part.groups] == list(
            range(len(groups))
        )
        assert sum(part.rows for chunk in cut for part in chunk) == len(trace.delivered)


def test_rounding_keeps_eleven_bits() -> None:
    random = Random(2)
    values = [random.randrange(2 ** random.randrange(1, 52)) for _ in range(1000)] + [0, 1, 2047, 2048, 2**50]
    assert rounded(np.array(values)).tolist() == [rounded_one(value) for value in values]
    assert rounded(-np.array(values)).tolist() == [-rounded_one(value) for value in values]


def test_checks_without_names_are_those_promised() -> None:
    assert [check.guarantee for check in checks_of(["none"])] == ["exactly_once"]
    assert [check.guarantee for check in checks_of(["causal", "fifo"])] == [
        "exactly_once",
        "fifo",
        "total_order",
        "causal_order",
    ]
    with pytest.raises(PipelineError, match="did you mean 'total_order'"):
        checks_of([], ["totalorder"])
