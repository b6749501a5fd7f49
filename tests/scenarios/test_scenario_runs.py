"""Whole runs of scenarios: the shipped ones, the promises of the summary, determinism, memory, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidings.core.errors import NotYetAvailable, ScenarioError
from tidings.core.events.subscription import make_interest
from tidings.core.events.text import attribute_value
from tidings.core.structures.histogram import Histogram
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import load_scenario, parse_scenario
from tidings.scenarios.file.schema import Scenario
from tidings.scenarios.simulate import Simulation, run_scenario
from tidings.scenarios.trace.checkers import exactly_once, fifo, gap_free, total_order
from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.trace.writer import TraceWriter

SCENARIOS = Path(__file__).parents[2] / "scenarios"
LONG = ("thousand", "workload")
"""More than five seconds; these run below with less to do."""
QUICK = sorted(path.stem for path in SCENARIOS.glob("*.toml") if path.stem not in LONG)
LOSSLESS = ("chain", "tree")
GUARANTEED = ("partitions", "work_queue")
REPAIRED = ("epidemic",)
ORDERED = ("ordering",)

KEYS = {
    *("seed", "published", "delivered", "expected", "delivery_ratio", "duplicates", "out_of_order"),
    *("latency_ms", "overhead", "gossip_messages", "utility", "messages", "bytes", "virtual_s", "wall_s"),
    "trace_sha256",
}


def run(scenario: Scenario, out: Path) -> tuple[dict[str, Any], Trace]:
    summary = run_scenario(scenario, out)
    assert json.loads((out / "summary.json").read_text()) == summary
    return summary, Trace.read(out)


def run_text(text: str, out: Path) -> tuple[dict[str, Any], Trace]:
    return run(parse_scenario(text), out)


def check_summary(summary: dict[str, Any], trace: Trace) -> None:
    """The running count of the simulator agrees with what the trace says."""
    assert summary.keys() >= KEYS
    assert summary["latency_ms"].keys() == {"mean", "std", "p50", "p99", "max"}
    assert summary["utility"].keys() == {"push", "pull"}
    counted = metrics(trace)
    assert summary["published"] == counted.published == trace.published.num_rows
    assert summary["delivered"] == counted.delivered == trace.delivered.num_rows
    assert summary["duplicates"] == counted.duplicates
    assert summary["out_of_order"] == counted.out_of_order
    owed = gap_free(trace, strict_end=True).counts
    assert summary["expected"] == owed["expected"]
    assert summary["delivery_ratio"] == (owed["delivered"] / owed["expected"] if owed["expected"] else 1.0)
    if counted.latency_ms is not None:
        for name in ("mean", "std", "max"):
            expected = getattr(counted.latency_ms, name)
            assert summary["latency_ms"][name] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert summary["messages"] == sum(trace.traffic["messages"].to_pylist())
    assert summary["bytes"] == sum(trace.traffic["bytes"].to_pylist())


def recount(trace: Trace) -> tuple[int, int]:
    """(expected, delivered of these), event by event and subscription by subscription."""
    got = Counter((row["subscription"], row["event_id"]) for row in trace.delivered.to_pylist())
    expected = delivered = 0
    for row in trace.subscribed.to_pylist():
        interest = make_interest(tuple(row["topics"]), row["filter"])
        if row["accepted_ns"] is None:
            continue
        for event in trace.published.to_pylist():
            in_force = row["accepted_ns"] <= event["at_ns"] < (row["cancelled_ns"] or 2**63)
            attributes = {name: attribute_value(text) for name, text in event["attributes"]}
            if in_force and selects(interest, event["topic"], attributes):
                expected += 1
                delivered += got[row["subscription"], event["event_id"]] > 0
    return expected, delivered


def selects(interest: Any, topic: str, attributes: dict[str, Any]) -> bool:
    if not any(pattern.matches(topic) for pattern in interest.topics):
        return False
    return interest.pattern is None or interest.pattern.matches({**attributes, "topic": topic})


# --- The shipped scenarios


@pytest.mark.parametrize("name", QUICK)
def test_a_shipped_scenario_delivers_nothing_twice_and_sums_up_what_it_did(name: str, tmp_path: Path) -> None:
    summary, trace = run(load_scenario(SCENARIOS / f"{name}.toml"), tmp_path)
    assert exactly_once(trace).holds, exactly_once(trace)
    check_summary(summary, trace)
    assert summary["published"] > 0
    assert summary["delivered"] > 0
    if name in GUARANTEED:
        assert summary["delivery_ratio"] == 1.0
        assert fifo(trace).holds
        assert gap_free(trace, strict_end=True).holds
        assert summary["out_of_order"] == summary["duplicates"] == 0
    elif name in ORDERED:
        assert summary["delivery_ratio"] == 1.0
        assert total_order(trace).holds
        assert gap_free(trace, strict_end=True).holds
        assert summary["out_of_order"] == summary["duplicates"] == 0
    elif name in REPAIRED:
        assert summary["delivery_ratio"] == 1.0
        assert 0 < summary["recovered"] < summary["delivered"]
        assert summary["duplicates"] == 0
    elif name in LOSSLESS:
        assert summary["delivery_ratio"] == 1.0
        assert gap_free(trace, strict_end=True).holds
    else:
        assert 0.5 < summary["delivery_ratio"] < 1.0


def test_lossless_means_that_no_link_lost_anything() -> None:
    for name in LOSSLESS:
        text = (SCENARIOS / f"{name}.toml").read_text()
        assert "[[fault]]" not in text
        assert "loss" not in text.split("[[publisher]]")[0].replace("lossless", "")


@pytest.mark.parametrize("name", LONG)
def test_a_large_shipped_scenario_runs_with_all_its_brokers(name: str, tmp_path: Path) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    assert scenario.workload is not None
    smaller = msgspec.structs.replace(
        scenario,
        duration_s=4.0,
        workload=msgspec.structs.replace(
            scenario.workload, topics=10, topics_per_subscriber=1, subscribers=100, publishers=10
        ),
    )
    summary, trace = run(smaller, tmp_path)
    assert summary["brokers"] == {"thousand": 1000, "workload": 200}[name]
    assert exactly_once(trace).holds
    assert gap_free(trace, strict_end=True).holds
    assert summary["delivery_ratio"] == 1.0
    assert summary["expected"] > 50
    check_summary(summary, trace)


def test_a_naive_recount_agrees(tmp_path: Path) -> None:
    for name in ("tree", "faults"):
        scenario = msgspec.structs.replace(load_scenario(SCENARIOS / f"{name}.toml"), seed=99)
        summary, trace = run(scenario, tmp_path / name)
        expected, delivered = recount(trace)
        assert (summary["expected"], summary["delivery_ratio"]) == (expected, delivered / expected)


# --- Determinism and memory


HASH = """
import sys
from pathlib import Path
from tidings.scenarios.file.load import load_scenario
from tidings.scenarios.simulate import run_scenario
import msgspec
for name in ("lossy", "faults", "tree"):
    scenario = msgspec.structs.replace(load_scenario(Path(sys.argv[1]) / f"{name}.toml"), seed=int(sys.argv[3]))
    scenario = msgspec.structs.replace(scenario, duration_s=min(scenario.duration_s, 40.0))
    print(run_scenario(scenario, Path(sys.argv[2]) / name)["trace_sha256"])
"""


def trace_hashes(out: Path, seed: int, hash_seed: str) -> list[str]:
    command = [sys.executable, "-c", HASH, str(SCENARIOS), str(out), str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()


def test_one_seed_is_one_trace_whatever_the_hash_seed(tmp_path: Path) -> None:
    first = trace_hashes(tmp_path / "1", 4, "1")
    assert len(set(first)) == 3
    assert trace_hashes(tmp_path / "2", 4, "12345") == first
    other = trace_hashes(tmp_path / "3", 5, "1")
    assert all(left != right for left, right in zip(first, other, strict=True))


GROWING = """
duration_s = {duration_s}
settle_s = 2.0
[network]
delay_ms = {{ kind = "uniform", low = 1, high = 20 }}
loss = {{ kind = "bernoulli", rate = 0.05 }}
duplicate = 0.05
[overlay]
mode = "best-effort"
shape = {{ kind = "tree", brokers = 7, degree = 3 }}
[[publisher]]
name = "p"
at = "b0"
rate_hz = 100.0
attributes = {{ x = {{ kind = "int", low = 0, high = 9 }} }}
[[subscriber]]
name = "s"
at = "b6"
filter = "x > 4"
[[subscriber]]
name = "t"
at = "b5"
order = "fifo"
"""


def peak_bytes(duration_s: float, out: Path) -> int:
    plan = expand(parse_scenario(GROWING.format(duration_s=duration_s)))
    tracemalloc.start()
    try:
        with TraceWriter(out, rows_per_group=256) as writer:
            simulation = Simulation(plan, writer)
            simulation.run()
            peak = tracemalloc.get_traced_memory()[1]
            assert simulation.close()["published"] > 90 * duration_s
        return peak
    finally:
        tracemalloc.stop()


def test_a_longer_run_needs_no_more_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The latencies fill their histogram, which is bounded but large: here it is full from the start.
    monkeypatch.setattr("tidings.scenarios.virtual.tally.Histogram", lambda: Histogram(64))
    peak_bytes(5.0, tmp_path / "warm")
    short = peak_bytes(20.0, tmp_path / "short")
    long = peak_bytes(100.0, tmp_path / "long")
    # 8,000 more events and 12,000 more deliveries: 250 kB is 12 bytes for each, less than any object.
    assert long < short + 250_000, (short, long)


# --- Clients


TREE = """
duration_s = 20.0
settle_s = 8.0
[overlay]
mode = "best-effort"
shape = { kind = "chain", brokers = 3 }
[[publisher]]
name = "p"
at = "b0"
topics = ["/a", "/b", "/c"]
rate_hz = 50.0
"""


def subscriptions(trace: Trace, subscriber: str) -> list[dict[str, Any]]:
    return [row for row in trace.subscribed.to_pylist() if row["subscriber"] == subscriber]


def test_a_subscriber_that_changes_its_topics_has_one_line_per_subscription(tmp_path: Path) -> None:
    summary, trace = run_text(
        TREE
        + """
[[subscriber]]
name = "s"
at = "b2"
topics = ["/a"]
subscribe_at_s = 1.0
changes = [ { at_s = 5.0, add = ["/b"] }, { at_s = 9.0, remove = ["/a"] } ]
unsubscribe_at_s = 15.0
""",
        tmp_path,
    )
    rows = subscriptions(trace, "s")
    assert [row["topics"] for row in rows] == [["/a"], ["/a", "/b"], ["/b"]]
    assert [row["requested_ns"] for row in rows] == [10**9, 5 * 10**9, 9 * 10**9]
    assert [row["cancelled_ns"] for row in rows] == [5 * 10**9, 9 * 10**9, 15 * 10**9]
    assert all(row["requested_ns"] <= row["accepted_ns"] < row["cancelled_ns"] for row in rows)
    assert trace.delivered["position"].to_pylist() == list(range(trace.delivered.num_rows))
    assert exactly_once(trace).holds
    assert gap_free(trace, strict_end=True).holds
    assert summary["delivery_ratio"] == 1.0
    topics = dict(
        zip(trace.published["event_id"].to_pylist(), trace.published["topic"].to_pylist(), strict=True)
    )
    shown = Counter((row["subscription"], topics[row["event_id"]]) for row in trace.delivered.to_pylist())
    assert shown.keys() == {("s#0", "/a"), ("s#1", "/a"), ("s#1", "/b"), ("s#2", "/b")}
    check_summary(summary, trace)


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_a_publisher_that_crashes_comes_back_as_another_incarnation(state: str, tmp_path: Path) -> None:
    faults = "".join(
        f'[[fault]]\nkind = "crash"\nnodes = ["p"]\nstate = "{state}"\nat_s = {at}\nuntil_s = {at + 2}\n'
        for at in (5, 12)
    )
    summary, trace = run_text(TREE + '[[subscriber]]\nname = "s"\nat = "b2"\n' + faults, tmp_path)
    assert sorted(set(trace.published["source"].to_pylist())) == ["p", "p~1", "p~2"]
    at_s = [at_ns / 1e9 for at_ns in trace.published["at_ns"].to_pylist()]
    assert not [at for at in at_s if 5 <= at < 7 or 12 <= at < 14]
    assert exactly_once(trace).holds, exactly_once(trace)
    assert gap_free(trace, strict_end=True).holds
    assert None not in trace.published["confirmed_ns"].to_pylist()
    check_summary(summary, trace)


def test_a_subscriber_that_crashes_asks_again_and_misses_what_came_meanwhile(tmp_path: Path) -> None:
    summary, trace = run_text(
        TREE
        + """
[[subscriber]]
name = "s"
at = "b2"
[[fault]]
kind = "crash"
nodes = ["s"]
at_s = 5.0
until_s = 8.0
""",
        tmp_path,
    )
    [row] = subscriptions(trace, "s")
    assert row["accepted_ns"] < 10**9
    at_s = [at_ns / 1e9 for at_ns in trace.delivered["at_ns"].to_pylist()]
    assert not [at for at in at_s if 5 <= at < 8]
    assert [at for at in at_s if at >= 8.1]
    assert exactly_once(trace).holds
    assert 0.8 < summary["delivery_ratio"] < 0.9
    check_summary(summary, trace)


def test_a_paused_subscriber_gets_everything_later(tmp_path: Path) -> None:
    summary, trace = run_text(
        TREE
        + """
[[subscriber]]
name = "s"
at = "b2"
order = "fifo"
[[fault]]
kind = "pause"
nodes = ["s"]
at_s = 5.0
until_s = 8.0
""",
        tmp_path,
    )
    assert summary["delivery_ratio"] == 1.0
    assert fifo(trace).holds
    assert summary["latency_ms"]["max"] == pytest.approx(3_000, abs=100)
    check_summary(summary, trace)


def test_clients_that_publish_and_subscribe_in_one_instant_agree_on_what_was_owed(tmp_path: Path) -> None:
    """At one broker acceptance takes no time: an event of the same instant is owed and comes, or neither."""
    summary, trace = run_text(
        """
duration_s = 4.0
settle_s = 6.0
[overlay]
mode = "best-effort"
shape = { kind = "chain", brokers = 1 }
[[publisher]]
name = "p"
at = "b0"
arrival = "periodic"
rate_hz = 4.0
[[publisher]]
name = "q"
at = "b0"
arrival = "periodic"
start_s = 2.0
rate_hz = 1.0
[[subscriber]]
name = "s"
at = "b0"
unsubscribe_at_s = 2.0
[[subscriber]]
name = "t"
at = "b0"
subscribe_at_s = 2.0
""",
        tmp_path,
    )
    assert gap_free(trace, strict_end=True).holds, gap_free(trace, strict_end=True)
    assert summary["delivery_ratio"] == 1.0
    check_summary(summary, trace)


# --- What cannot be run


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[overlay]\nmode = "peers"\n', "overlay.mode"),
        ('[overlay]\nmode = "peers"\n[workload]\norder = "total"\n', "overlay.mode"),
    ],
)
def test_what_this_version_does_not_run_is_said_before_anything_is_written(
    text: str, key: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(NotYetAvailable, match="not yet available") as refusal:
        run_text(text, out)
    assert key in str(refusal.value)
    assert not out.exists()


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    told: list[float] = []
    run_scenario(parse_scenario(TREE), tmp_path, told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_a_run_without_clients_has_a_summary(tmp_path: Path) -> None:
    summary, trace = run_text('[overlay]\nmode = "best-effort"\n', tmp_path)
    assert (summary["published"], summary["delivery_ratio"], summary["overhead"]) == (0, 1.0, 0.0)
    check_summary(summary, trace)


def test_a_scenario_error_is_one(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError):
        run_text('[overlay]\nmode = "odd"\n', tmp_path)
