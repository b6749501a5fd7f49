"""Subscribers of scenarios that miss events: their order goes on, and the trace has both stretches."""

from __future__ import annotations

from functools import partial

import pytest

from tidings.core.facts import OrderGap
from tidings.core.overlay.guaranteed import broker
from tidings.core.overlay.guaranteed.spill import SpillLimits
from tidings.scenarios.actor import Actor
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.checkers import exactly_once, gap_free, total_order
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.reader import Trace

ONE_ENTRY = 'servers = [{ node = "b1", topics = ["/**"] }]'
CAUSAL = 'servers = [{ node = "b1", topics = ["/c", "/a"] }, { node = "b3", topics = ["/b"] }]\ncausal = true'
TOTAL = 'servers = [{ node = "b1", topics = ["/c", "/a"] }, { node = "b3", topics = ["/b"] }]'
ORDERINGS = [
    pytest.param(ONE_ENTRY, id="one-entry"),
    pytest.param(CAUSAL, id="causal"),
    pytest.param(TOTAL, id="total"),
]


SCENARIO = """
duration_s = 40.0
settle_s = 20.0
[network]
delay_ms = { kind = "uniform", low = 1, high = 50 }
[overlay]
mode = "guaranteed"
shape = { kind = "chain", brokers = 5 }
[ordering]
ORDERING
[[publisher]]
name = "p"
at = "b0"
topics = ["/a", "/b", "/c"]
rate_hz = 12.0
[[publisher]]
name = "q"
at = "b4"
topics = ["/a", "/b", "/c"]
rate_hz = 12.0
[[subscriber]]
name = "s"
at = "b2"
order = "total"
[[subscriber]]
name = "t"
at = "b1"
order = "total"
[[subscriber]]
name = "u"
at = "b2"
order = "total"
topics = ["/b"]
[[fault]]
kind = "crash"
nodes = ["b2"]
state = "kept"
at_s = 2.0
until_s = 8.0
"""


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker keeps ten events for whoever is away."""
    monkeypatch.setattr(broker, "SpillLimits", partial(SpillLimits, entries=10))


def run(ordering: str, faults: str = "") -> Trace:
    writer = MemoryWriter()
    simulation = Simulation(expand(parse_scenario(SCENARIO.replace("ORDERING", ordering) + faults)), writer)
    simulation.run()
    for publisher in simulation.publishers:
        publisher.close()
    assert simulation.ordering is not None and not simulation.ordering.broken
    return writer.trace()


def check(trace: Trace) -> None:
    for verdict in (exactly_once(trace), total_order(trace), gap_free(trace)):
        assert verdict.holds, verdict


def stretches(trace: Trace, name: str) -> int:
    return sum(row["subscriber"] == name for row in trace.subscribed.to_pylist())


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_both_stretches_are_judged_and_in_order(ordering: str) -> None:
    trace = run(ordering)
    assert stretches(trace, "s") > 1
    check(trace)


@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize("at_s", [8.2, 9.0, 11.0, 13.5])
def test_a_subscriber_that_crashes_meanwhile_learns_of_the_gap_again(ordering: str, at_s: float) -> None:
    faults = f'[[fault]]\nkind = "crash"\nnodes = ["s"]\nat_s = {at_s}\nuntil_s = {at_s + 1}\n'
    trace = run(ordering, faults)
    assert stretches(trace, "s") > 1
    check(trace)


def test_a_gap_that_the_trace_does_not_show_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(self: Actor, fact: OrderGap) -> None:
        if fact.ticket is not None:
            fact.ticket.done()

    monkeypatch.setattr(Actor, "_on_gap", ignore)
    with pytest.raises(AssertionError):
        check(run(ONE_ENTRY))
