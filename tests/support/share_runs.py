"""Simulated runs with durable subscribers and groups, whose traces agree with the simulator's own counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.checkers import causal_order, durable, group, total_order
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.metrics import metrics

HEAD = """
seed = 11
duration_s = 10.0
settle_s = 20.0
overlay.shape = { kind = "chain", brokers = 3 }
[[publisher]]
name = "p0"
at = "b0"
topics = ["/jobs"]
rate_hz = 20.0
start_s = 0.5
arrival = "periodic"
attributes = { x = { kind = "int", low = 0, high = 3 } }
"""
WORK = "work_ms = { kind = 'uniform', low = 10, high = 80 }\n"
Row = dict[str, Any]


def subscriber(name: str, rest: str, at: str = "b2") -> str:
    return f"[[subscriber]]\nname = '{name}'\nat = '{at}'\ntopics = ['/jobs']\n{rest}\n"


def fault(kind: str, node: str, at_s: float, until_s: float) -> str:
    return f"[[fault]]\nkind = '{kind}'\nnodes = ['{node}']\nat_s = {at_s}\nuntil_s = {until_s}\n"


class Run:
    def __init__(self, text: str, ordered: str = "") -> None:
        writer = MemoryWriter()
        simulation = Simulation(expand(parse_scenario(HEAD + text)), writer)
        simulation.run()
        self.summary = simulation.tally.metrics()
        self.waiting = [one.waiting for one in simulation.subscribers if one.waiting]
        trace = writer.trace()
        counted = metrics(trace)
        assert (counted.expected, counted.delivered) == (self.summary.expected, self.summary.delivered)
        assert (counted.delivery_ratio, counted.duplicates) == (
            self.summary.delivery_ratio,
            self.summary.duplicates,
        )
        assert counted.latency_ms is not None and self.summary.latency_ms is not None
        assert counted.latency_ms.mean == pytest.approx(self.summary.latency_ms.mean)
        for check in (durable, group):
            assert check(trace, complete=not self.waiting).holds, str(check(trace))
        for check_order in (total_order, causal_order) if ordered == "causal" else (total_order,):
            assert check_order(trace, orders=frozenset({ordered})).holds, str(check_order(trace))
        self.published: list[Row] = trace.published.to_pylist()
        self.subscribed: list[Row] = trace.subscribed.to_pylist()
        self.delivered: list[Row] = trace.delivered.to_pylist()

    def done(self, subscribers: Iterable[str]) -> Counter[str]:
        chosen = {*subscribers}
        return Counter(
            row["event_id"]
            for row in self.delivered
            if row["subscriber"] in chosen and row["done_ns"] is not None
        )

    def jobs(self, since_ns: int = 0) -> Counter[str]:
        return Counter(
            row["event_id"] for row in self.published if row["topic"] == "/jobs" and row["at_ns"] >= since_ns
        )

    def rows(self, name: str) -> list[Row]:
        """Return what that subscriber saw, in order; the trace has the rows in the order of their ends."""
        found = [row for row in self.delivered if row["subscriber"] == name]
        return sorted(found, key=lambda row: row["position"])
