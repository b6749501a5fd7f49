"""Subscribers that start with history, in simulated scenarios and as real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tidings.core.errors import ScenarioError
from tidings.scenarios.checking import verdicts
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.live.run import check_wall_time, run_live
from tidings.scenarios.simulate import Simulation, run_scenario
from tidings.scenarios.trace.checkers import seam
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.reader import Trace

HEAD = """
seed = 7
duration_s = {duration_s}
settle_s = 30.0
overlay.shape = {{ kind = "chain", brokers = 3 }}
[[publisher]]
name = "p0"
at = "b0"
topics = ["/a", "/b"]
rate_hz = 20.0
start_s = 1.0
arrival = "periodic"
attributes = {{ x = {{ kind = "int", low = 0, high = 3 }} }}
"""
LATE = "subscribe_at_s = 5.0\nstart = 'earliest'\n"
Row = dict[str, Any]


def subscriber(name: str, rest: str = "", at: str = "b2") -> str:
    return f"[[subscriber]]\nname = '{name}'\nat = '{at}'\n{rest}\n"


def crash(node: str, at_s: float, until_s: float, state: str = "kept") -> str:
    times = f"at_s = {at_s}\nuntil_s = {until_s}\n"
    return f"[[fault]]\nkind = 'crash'\nnodes = ['{node}']\nstate = '{state}'\n{times}"


def scenario_text(text: str, duration_s: float = 10.0) -> str:
    return HEAD.format(duration_s=duration_s) + text


class Run:
    def __init__(self, text: str) -> None:
        writer = MemoryWriter()
        simulation = Simulation(expand(parse_scenario(scenario_text(text))), writer)
        simulation.run()
        self.trace = writer.trace()
        verdict = seam(self.trace, whole=True)
        assert verdict.holds, str(verdict)
        counted, summary = metrics(self.trace), simulation.tally.metrics()
        assert (counted.expected, counted.delivered) == (summary.expected, summary.delivered)
        assert counted.delivery_ratio == 1.0 and counted.duplicates == 0
        self.subscribed: list[Row] = self.trace.subscribed.to_pylist()
        self.published: list[Row] = self.trace.published.to_pylist()

    def seen(self, subscription: str) -> list[str]:
        rows = [row for row in self.trace.delivered.to_pylist() if row["subscription"] == subscription]
        return [row["event_id"] for row in sorted(rows, key=lambda row: row["position"])]

    def events(self, topics: Iterable[str] = ("/a", "/b")) -> list[str]:
        return [row["event_id"] for row in self.published if row["topic"] in topics]


def test_history_comes_first_then_live_events() -> None:
    run = Run(subscriber("s0", LATE) + subscriber("s1", "order = 'fifo'\n" + LATE))
    assert run.seen("s0#0") == run.seen("s1#0") == run.events()
    assert [row["start"] for row in run.subscribed] == ["earliest", "earliest"]
    assert all(row["requested_ns"] == 5_000_000_000 < row["accepted_ns"] for row in run.subscribed)


def test_one_archive_serves_narrower_subscribers() -> None:
    run = Run(subscriber("s0", "topics = ['/a']\nfilter = 'x > 1'\n" + LATE) + subscriber("s1", LATE))
    wanted = {row["event_id"] for row in run.published if row["topic"] == "/a" and row["attributes"]}
    seen = run.seen("s0#0")
    assert 0 < len(seen) < len(wanted) and wanted.issuperset(seen)
    assert run.seen("s1#0") == run.events()


def test_a_start_from_the_beginning_misses_nothing() -> None:
    run = Run(subscriber("s0", "start = 'earliest'\n"))
    assert run.seen("s0#0") == run.events()


@pytest.mark.parametrize("order", ["total", "causal"])
def test_an_order_across_publishers_holds_at_the_seam(order: str) -> None:
    other = "[[publisher]]\nname = 'p1'\nat = 'b1'\ntopics = ['/a', '/b']\nrate_hz = 20.0\nstart_s = 1.0\n"
    ordered = f"order = '{order}'\n"
    causal = "[ordering]\ncausal = true\n" if order == "causal" else ""
    late = subscriber("s0", ordered + LATE) + subscriber("s1", ordered + LATE)
    run = Run(causal + other + late + subscriber("s2", ordered))
    assert sorted(run.seen("s0#0")) == sorted(run.events())
    if order == "total":
        assert run.seen("s0#0") == run.seen("s1#0") == run.seen("s2#0")


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_the_archive_outlives_its_broker(state: str) -> None:
    run = Run(subscriber("s0", LATE) + crash("b2", 5.0, 6.0, state))
    assert run.seen("s0#0") == run.events()
    assert run.subscribed[0]["accepted_ns"] > 6_000_000_000


def test_a_crashed_subscriber_starts_with_history_again() -> None:
    run = Run(subscriber("s0", LATE) + crash("s0", 6.0, 7.0))
    assert [row["start"] for row in run.subscribed] == ["earliest", "earliest"]
    assert [row["cancelled_ns"] for row in run.subscribed] == [6_000_000_000, None]
    assert run.seen("s0#0") == run.events()[: len(run.seen("s0#0"))]
    assert run.seen("s0#1") == run.events()


def test_who_leaves_in_the_middle_of_its_history_leaves() -> None:
    run = Run(subscriber("s0", LATE + "unsubscribe_at_s = 5.01\n"))
    seen = run.seen("s0#0")
    assert 0 < len(seen) < len(run.events()) and seen == run.events()[: len(seen)]


@pytest.mark.parametrize("share", ["durable = 'd'\norder = 'fifo'\n", "durable = 'd'\n", "group = 'g'\n"])
def test_durable_subscribers_and_groups_begin_with_history(share: str) -> None:
    faults = crash("b2", 5.1, 5.6) + crash("s0", 6.0, 6.5) + crash("b2", 7.0, 7.1)
    run = Run(subscriber("s0", share + LATE) + faults)
    assert {row["start"] for row in run.subscribed} == {"earliest"}
    done = [row["event_id"] for row in run.trace.delivered.to_pylist() if row["done_ns"] is not None]
    assert sorted(done) == sorted(run.events())
    assert done == run.events() or not share.startswith("durable")


def test_members_of_a_group_share_the_history() -> None:
    rest = "group = 'g'\nmax_unacked = 2\nwork_ms = { kind = 'constant', value = 20 }\n" + LATE
    run = Run(subscriber("s0", rest) + subscriber("s1", rest) + subscriber("s2", rest))
    seen = [event for number in range(3) for event in run.seen(f"s{number}#0")]
    assert sorted(seen) == sorted(run.events())
    assert all(run.seen(f"s{number}#0") for number in range(3))


def test_other_scenarios_have_no_archive() -> None:
    plan = expand(parse_scenario(scenario_text(subscriber("s0"))))
    assert plan.archives == ()
    plan = expand(parse_scenario(scenario_text(subscriber("s0", LATE) + subscriber("s1", at="b1"))))
    assert [(archive.node, archive.topics, archive.order) for archive in plan.archives] == [
        ("archive:b2", ("/**",), "none")
    ]


def test_the_trace_names_the_node_that_records(tmp_path: Path) -> None:
    scenario = parse_scenario(scenario_text(subscriber("s0", LATE)))
    run_scenario(scenario, tmp_path)
    nodes = {row["node"]: row for row in Trace.read(tmp_path).nodes.to_pylist()}
    assert (nodes["archive:b2"]["kind"], nodes["archive:b2"]["parent"]) == ("archive", "b2")
    found = verdicts(scenario, tmp_path)
    assert "seam" in [verdict.guarantee for verdict in found] and all(verdict.holds for verdict in found)


# --- As real processes


def test_an_order_across_publishers_needs_virtual_time() -> None:
    plan = expand(parse_scenario(scenario_text(subscriber("s0", "order = 'total'\n" + LATE))))
    with pytest.raises(ScenarioError) as raised:
        check_wall_time(plan, lambda notice: None)
    assert str(raised.value) == (
        'subscriber[0].start: "earliest" with order "total" is not available in real time, '
        "where a broker's archive has no order; use `tidings sim`"
    )


@pytest.mark.processes
def test_history_from_a_real_archive_whose_broker_is_killed(tmp_path: Path) -> None:
    late = "subscribe_at_s = 3.0\nstart = 'earliest'\n"
    text = subscriber("s0", late) + subscriber("s1", "topics = ['/a']\nfilter = 'x > 1'\n" + late)
    text += subscriber("d0", "durable = 'd'\norder = 'fifo'\n" + late)
    text += subscriber("w0", "group = 'g'\n" + late) + subscriber("w1", "group = 'g'\n" + late)
    faults = crash("b2", 3.05, 3.5) + crash("s0", 6.0, 6.5) + crash("d0", 5.0, 5.5)
    scenario = parse_scenario(scenario_text(text + faults, 8.0))
    summary = asyncio.run(run_live(scenario, tmp_path, lambda share: None, lambda notice: None))
    assert summary["duplicates"] == 0  # what was under way when s0 was killed counts as expected, too
    trace = Trace.read(tmp_path)
    found = [*verdicts(scenario, tmp_path), seam(trace, whole=True)]
    assert {"durable", "group", "seam"} <= {verdict.guarantee for verdict in found}
    assert all(verdict.holds for verdict in found), found
    rows = trace.subscribed.to_pylist()
    assert {row["start"] for row in rows} == {"earliest"}
    published = [row["event_id"] for row in trace.published.to_pylist()]
    last = [row["subscription"] for row in rows if row["subscriber"] == "s0"][-1]
    seen = [row["event_id"] for row in trace.delivered.to_pylist() if row["subscription"] == last]
    assert sorted(seen) == sorted(published)
