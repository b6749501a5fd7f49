"""What the demo says of a run: counted from its trace and archives, told when it does not hold, and on one page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from source_archives import make_archive
from tidings.demo import archives as demo_archives
from tidings.demo.archives import ArchivesResult, audit_archives
from tidings.demo.plots import latency_plot, received_plot, waiting_of, waiting_plot
from tidings.demo.report import Figure, page
from tidings.demo.result import DemoResult, fault_results, order_given_by, site_members, subscriber_results
from tidings.demo.scene import Happening
from tidings.demo.story import SCENARIO
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import load_scenario
from tidings.scenarios.trace.checkers import check_all
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.tables import DeliveredRow, Fault, PublishedRow, SubscribedRow

S = 1_000_000_000
PLAN = expand(load_scenario(SCENARIO))
CUT = PLAN.faults[1].target


def trace(*, missing: bool = False, repeated: bool = False) -> Trace:
    """Event n is published at second n. Everybody gets it 10 ms later; the ledger of Rome gets 4 to 6 at 7 s."""
    events = [
        PublishedRow(f"shop-oslo:{n}", "shop-oslo", n, "/orders/oslo", [("amount", "450")], 1, n * S, n * S)
        for n in range(1, 9)
    ]
    deliveries = []
    for one in PLAN.subscribers:
        got = [
            (n, (7 if one.name == "ledger-rome" and n in (4, 5, 6) else n) * S + S // 100)
            for n in range(1, 9)
        ]
        got.sort(key=lambda item: (item[1], item[0]))
        if missing and one.name == "ledger-paris":
            got = [item for item in got if item[0] != 3]
        if repeated and one.name == "ledger-oslo":
            got.append(got[-1])
        deliveries += [
            DeliveredRow(one.name, "s0", position, f"shop-oslo:{n}", at)
            for position, (n, at) in enumerate(got)
        ]
    return Trace.from_rows(
        published=events,
        subscribed=[
            SubscribedRow(one.name, "s0", ["/**"], None, one.order, 0, 1) for one in PLAN.subscribers
        ],
        delivered=deliveries,
        faults=[Fault("crash", "paris1", 1 * S, 2 * S), Fault("partition", CUT, 4 * S, 6 * S)],
    )


def result_of(found: Trace, **changed: object) -> DemoResult:
    result = DemoResult(
        published=8,
        subscribers=subscriber_results(PLAN, found.coded),
        faults=fault_results(PLAN, found),
        verdicts=check_all(found),
        archives=ArchivesResult({"oslo2": 8, "paris2": 8}, 8, [], on_spark=True),
        order_given_by={"server": "oslo1"},
        sites=site_members(PLAN),
        timeline=[Happening(None, "It <begins>."), Happening(3.0, "Killed paris1.")],
        out="/tmp/x",
        report="/tmp/x/report.html",
    )
    return msgspec.structs.replace(result, **changed)


def test_each_subscriber_is_counted_from_the_trace() -> None:
    result = result_of(trace())
    assert result.holds
    assert {(one.expected, one.received, one.missing, one.repeated) for one in result.subscribers} == {
        (8, 8, 0, 0)
    }
    rome = next(one for one in result.subscribers if one.name == "ledger-rome")
    assert (rome.site, rome.asks_for) == ("Rome", "everything")
    assert rome.latency_p50_ms == pytest.approx(10.0)
    assert rome.latency_max_ms == pytest.approx(3010.0)


@pytest.mark.parametrize(
    ("broken", "name", "counts"),
    [("missing", "ledger-paris", (8, 7, 1, 0)), ("repeated", "ledger-oslo", (8, 8, 0, 1))],
)
def test_what_is_missing_or_repeated_is_seen(broken: str, name: str, counts: tuple[int, ...]) -> None:
    result = result_of(trace(**{broken: True}))
    assert not result.holds
    one = next(one for one in result.subscribers if one.name == name)
    assert (one.expected, one.received, one.missing, one.repeated) == counts


def test_a_fault_is_told_with_what_waited_for_its_end() -> None:
    crash, cut = fault_results(PLAN, trace())
    assert (crash.short, crash.published, crash.waited, crash.caught_up_s) == ("paris1 killed", 1, 0, 0.0)
    assert (cut.short, cut.published, cut.waited) == ("Rome cut off", 2, 2)
    assert cut.caught_up_s == pytest.approx(1.01)


def test_an_archive_with_too_little_in_it_is_seen() -> None:
    short = ArchivesResult({"oslo2": 8, "paris2": 7}, 8, [], on_spark=True)
    result = result_of(trace(), archives=short)
    assert not result.holds
    assert ("no event missing", "-", "8 and 7 of 8") in result.checks()


def test_a_run_without_faults_or_events_shows_nothing() -> None:
    assert not result_of(trace(), faults=[]).holds
    assert not result_of(trace(), published=0).holds


def test_who_gives_the_order_is_who_said_so() -> None:
    roles = {"order:oslo1": "active", "order:paris1": "standby", "order:rome1": "witness"}
    assert order_given_by({"ordering": {"servers": {"one": {"roles": roles}}}}) == {"one": "oslo1"}
    assert order_given_by({}) == {}


def test_what_waits_rises_with_publications_and_falls_with_deliveries() -> None:
    coded = trace().coded
    at_s, waiting = waiting_of(coded, coded.subscriptions.subscriber_names.index("ledger-rome"))
    assert waiting[-1] == 0
    assert max(waiting) == 4  # 4 to 6, and 7 itself
    assert list(at_s) == sorted(at_s)


# --- The page


def test_the_page_needs_nothing_else_and_takes_no_text_for_markup() -> None:
    found = trace()
    result = result_of(found)
    drawn = [
        Figure(str(number), "what it shows", plot(result, found.coded))
        for number, plot in enumerate((received_plot, waiting_plot, latency_plot))
    ]
    text = page(result, drawn)
    assert text.count("<svg") == 3
    assert "It &lt;begins&gt;." in text and "<begins>" not in text
    assert not any(word in text for word in ("<script", "<link", "<img", "src=", "@import", "url(http"))
    assert "Nothing was lost" in text
    for one in result.subscribers:
        assert one.name in text
    assert "tidings sim /tmp/x/demo.toml" in text


def test_a_run_in_which_nothing_arrived_has_a_page_too() -> None:
    found = trace()
    nothing = replace(found, delivered=found.delivered.slice(0, 0))
    result = result_of(nothing)
    assert not result.holds
    assert all(one.missing == 8 and one.latency_p50_ms is None for one in result.subscribers)
    drawn = [plot(result, nothing.coded) for plot in (received_plot, waiting_plot, latency_plot)]
    assert all(svg.startswith("<svg") for svg in drawn)
    assert "Nothing was lost" not in page(result, [])


def test_the_page_says_what_does_not_hold_and_why_plots_and_spark_are_left_out() -> None:
    left_out = ArchivesResult({"oslo2": 8, "paris2": 8}, 8, [], on_spark=False, why_not="no Java")
    result = result_of(trace(repeated=True), archives=left_out)
    text = page(result, [])
    assert "Not everything that was promised holds" in text and "Nothing was lost" not in text
    assert "VIOLATED 1 times" in text
    assert "is delivered again" in text
    assert "left out" in text and "no Java" in text
    assert "matplotlib" in text


# --- The audit of the archives


def test_without_java_the_archives_are_audited_here_and_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for broker in demo_archives.RECORDED_AT:
        make_archive(tmp_path / broker, [3, 2])
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = audit_archives(tmp_path, 5, spark=True, progress=lambda share: None)
    assert found.holds and not found.on_spark
    assert "apt-get install" in found.why_not
    assert [verdict.guarantee for verdict in found.verdicts] == ["intact", "exactly_once", "total_order"]
    wanted = audit_archives(tmp_path, 6, spark=False, progress=lambda share: None)
    assert not wanted.holds and not wanted.why_not
