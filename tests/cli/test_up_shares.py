"""Durable subscribers and groups as real processes, under load: kill -9 and SIGSTOP of workers, kill -9 of the queue's
broker. The checkers are those of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidings.drivers.sockets.loop import run
from tidings.scenarios.checking import verdicts
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.live.run import run_live
from tidings.scenarios.trace.reader import Trace

WORKERS = "".join(
    f"""
[[subscriber]]
name = "w{number}"
at = "{at}"
topics = ["/jobs"]
group = "workers"
work_ms = {{ kind = "uniform", low = 0, high = 15 }}
max_unacked = 8
"""
    for number, at in enumerate(("b1", "b1", "b2", "b2"))
)

SCENARIO = f"""
seed = 5
duration_s = 7.0
settle_s = 15.0

[overlay]
mode = "guaranteed"
shape = {{ kind = "chain", brokers = 3 }}

[[publisher]]
name = "p"
at = "b0"
topics = ["/jobs"]
rate_hz = 150.0
start_s = 0.3
attributes = {{ x = {{ kind = "int", low = 0, high = 9 }} }}
{WORKERS}
[[subscriber]]
name = "first"
at = "b2"
topics = ["/jobs"]
durable = "ledger"
order = "fifo"
unsubscribe_at_s = 3.0

[[subscriber]]
name = "second"
at = "b0"
topics = ["/jobs"]
durable = "ledger"
order = "fifo"
subscribe_at_s = 4.0

[[fault]]
kind = "crash"
nodes = ["w0"]
at_s = 1.0
until_s = 2.0

[[fault]]
kind = "crash"
nodes = ["w2"]
at_s = 1.5
until_s = 1.6

[[fault]]
kind = "crash"
nodes = ["b1"]
at_s = 3.0
until_s = 3.5

[[fault]]
kind = "pause"
nodes = ["w1"]
at_s = 4.0
until_s = 5.0

[[fault]]
kind = "crash"
nodes = ["second"]
at_s = 5.0
until_s = 5.2
"""


@pytest.mark.slow
def test_workers_are_killed_and_every_job_is_done_once(tmp_path: Path) -> None:
    scenario = parse_scenario(SCENARIO)
    summary = run(run_live(scenario, tmp_path, lambda share: None, lambda notice: None))
    found = verdicts(scenario, tmp_path)
    assert {"durable", "group"} <= {verdict.guarantee for verdict in found}
    assert all(verdict.holds for verdict in found), [str(verdict) for verdict in found]
    trace = Trace.read(tmp_path)
    published = {row["event_id"] for row in trace.published.to_pylist()}
    rows: list[dict[str, Any]] = trace.delivered.to_pylist()
    for names in (("w0", "w1", "w2", "w3"), ("first", "second")):
        done = [row["event_id"] for row in rows if row["subscriber"] in names and row["done_ns"] is not None]
        assert len(done) == len({*done}) and {*done} <= published
        assert len(done) > 0.95 * len(published)  # what was published before they were attached is not theirs
    assert len({row["subscriber"] for row in rows}) == 6
    attached = [row["subscriber"] for row in trace.subscribed.to_pylist()]
    assert [attached.count(name) for name in ("w0", "w1", "w2", "w3", "first", "second")] == [
        2,
        1,
        2,
        1,
        1,
        2,
    ]
    assert summary["delivery_ratio"] == 1.0 and summary["duplicates"] == 0


LEASES = """
seed = 5
duration_s = 8.0
settle_s = 15.0
overlay.shape = { kind = "chain", brokers = 2 }

[[publisher]]
name = "p"
at = "b0"
topics = ["/jobs"]
rate_hz = 50.0

[[subscriber]]
name = "first"
at = "b1"
topics = ["/jobs"]
durable = "ledger"
keep_for_s = 1.0
unsubscribe_at_s = 2.5

[[subscriber]]
name = "second"
at = "b1"
topics = ["/jobs"]
durable = "ledger"
keep_for_s = 1.0
subscribe_at_s = 6.0

[[subscriber]]
name = "w"
at = "b1"
topics = ["/jobs"]
group = "workers"
keep_for_s = 1.0

[[fault]]
kind = "crash"
nodes = ["w"]
at_s = 2.0
until_s = 5.0
"""


@pytest.mark.slow
def test_leases_end_and_the_next_ones_begin_anew(tmp_path: Path) -> None:
    scenario = parse_scenario(LEASES)
    summary = run(run_live(scenario, tmp_path, lambda share: None, lambda notice: None))
    found = verdicts(scenario, tmp_path)
    assert all(verdict.holds for verdict in found), [str(verdict) for verdict in found]
    rows: list[dict[str, Any]] = Trace.read(tmp_path).subscribed.to_pylist()
    for names in (("first", "second"), ("w",)):
        before, after = (row for row in rows if row["subscriber"] in names)
        assert before["life"] != after["life"]
        assert before["cancelled_ns"] == before["detached_ns"] + 1_000_000_000 < after["accepted_ns"]
    assert summary["delivery_ratio"] < 1.0 and summary["duplicates"] == 0


def unkept(mode: str, faults: str = "") -> str:
    """Workers of a network without a guarantee, beside a subscriber of everything."""
    workers = "".join(
        f"""
[[subscriber]]
name = "w{number}"
at = "{at}"
topics = ["/jobs"]
group = "workers"
work_ms = {{ kind = "uniform", low = 0, high = 15 }}
"""
        for number, at in enumerate(("b0", "b1", "b2", "b2"))
    )
    return f"""
seed = 5
duration_s = 5.0
settle_s = 10.0
overlay.mode = "{mode}"
overlay.shape = {{ kind = "chain", brokers = 3 }}
[[publisher]]
name = "p"
at = "b0"
topics = ["/jobs"]
rate_hz = 100.0
start_s = 1.0
attributes = {{ x = {{ kind = "int", low = 0, high = 9 }} }}
[[subscriber]]
name = "all"
at = "b1"
{workers}{faults}"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
def test_without_a_guarantee_each_job_has_one_worker(tmp_path: Path, mode: str) -> None:
    scenario = parse_scenario(unkept(mode))
    summary = run(run_live(scenario, tmp_path, lambda share: None, lambda notice: None))
    found = {verdict.guarantee: verdict for verdict in verdicts(scenario, tmp_path)}
    assert all(verdict.holds for verdict in found.values()), [str(verdict) for verdict in found.values()]
    rows: list[dict[str, Any]] = Trace.read(tmp_path).delivered.to_pylist()
    done = [row["event_id"] for row in rows if row["subscriber"] != "all" and row["done_ns"] is not None]
    assert len(done) == len({*done}) == len([row for row in rows if row["subscriber"] == "all"]) > 300
    assert len({row["subscriber"] for row in rows}) == 5
    assert summary["duplicates"] == 0
    assert {row["share_of"] for row in Trace.read(tmp_path).subscribed.to_pylist()} == {"workers", None}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
def test_without_a_guarantee_workers_and_their_broker_are_killed(tmp_path: Path, mode: str) -> None:
    faults = "".join(
        f"[[fault]]\nkind = '{kind}'\nnodes = ['{node}']\nat_s = {at}\nuntil_s = {until}\n"
        for kind, node, at, until in (
            ("crash", "w0", 1.5, 2.5),
            ("pause", "w1", 2.0, 3.0),
            ("crash", "b2", 3.0, 3.5),
        )
    )
    scenario = parse_scenario(unkept(mode, faults))
    run(run_live(scenario, tmp_path, lambda share: None, lambda notice: None))
    found = verdicts(scenario, tmp_path)
    assert all(verdict.holds for verdict in found), [str(verdict) for verdict in found]
    trace = Trace.read(tmp_path)
    rows: list[dict[str, Any]] = trace.delivered.to_pylist()
    assert {row["attempt"] for row in rows} == {1}
    attached = [row["subscriber"] for row in trace.subscribed.to_pylist()]
    assert [attached.count(f"w{number}") for number in range(4)] == [2, 1, 1, 1]
    late = [row["subscriber"] for row in rows if row["at_ns"] > 4_000_000_000]
    assert {"w0", "w1"} <= {*late}, "whoever came back works again"
