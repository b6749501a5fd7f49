"""Durable subscribers in total and causal order as real processes: kill -9 of their broker, of a sequencer and of
whoever holds them. The checkers are those of the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.drivers.sockets.loop import run
from tidings.scenarios.checking import verdicts
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.live.run import run_live
from tidings.scenarios.trace.reader import Trace

PUBLISHERS = "".join(
    f"""
[[publisher]]
name = "p{number}"
at = "b{number}"
topics = ["/a", "/b/{number}"]
rate_hz = 60.0
start_s = 0.3
"""
    for number in range(3)
)


def scenario_text(order: str) -> str:
    """A durable subscription that moves from one holder to the next, one that stays, and a plain subscriber."""
    return f"""
seed = 7
duration_s = 7.0
settle_s = 20.0

[overlay]
mode = "guaranteed"
shape = {{ kind = "chain", brokers = 4 }}
{PUBLISHERS}
[[subscriber]]
name = "plain"
at = "b0"
order = "{order}"

[[subscriber]]
name = "first"
at = "b3"
durable = "ledger"
order = "{order}"
unsubscribe_at_s = 2.5

[[subscriber]]
name = "second"
at = "b1"
durable = "ledger"
order = "{order}"
subscribe_at_s = 4.0

[[subscriber]]
name = "holder"
at = "b3"
topics = ["/a", "/b/*"]
durable = "audit"
order = "{order}"
work_ms = {{ kind = "uniform", low = 0, high = 6 }}
max_unacked = 20

[[fault]]
kind = "crash"
nodes = ["b3"]
at_s = 2.0
until_s = 2.4

[[fault]]
kind = "crash"
nodes = ["b3"]
at_s = 4.5
until_s = 5.0

[[fault]]
kind = "crash"
nodes = ["holder"]
at_s = 3.2
until_s = 3.4

[[fault]]
kind = "crash"
nodes = ["second"]
at_s = 5.5
until_s = 5.7

[[fault]]
kind = "crash"
nodes = ["b0"]
at_s = 3.5
until_s = 3.8
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["total", "causal"])
def test_their_order_survives_kills_of_brokers_sequencers_and_holders(tmp_path: Path, order: str) -> None:
    scenario = parse_scenario(scenario_text(order))
    summary = run(run_live(scenario, tmp_path, lambda share: None, lambda notice: None))
    trace = Trace.read(tmp_path)
    found = {verdict.guarantee: verdict for verdict in verdicts(scenario, tmp_path)}
    assert {"exactly_once", "total_order", "durable"} <= found.keys()
    broken = [str(verdict) for verdict in found.values() if not verdict.holds]
    assert not broken, broken
    rows = trace.subscribed.to_pylist()
    assert {row["order"] for row in rows if row["durable"] is not None} == {order}
    assert summary["published"] > 500
    done = [row for row in trace.delivered.to_pylist() if row["done_ns"] is not None]
    assert len(done) > 1_000
