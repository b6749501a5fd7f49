"""Persist before send, simulated: nodes crash before they commit, before they send or when a part has left, and keep
the guarantees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidings.core.messages import Message
from tidings.core.store import MemoryStore
from tidings.drivers.virtual import crash_points
from tidings.drivers.virtual.crash_points import CrashPoints, Point
from tidings.drivers.virtual.node import SimulatedNode
from tidings.lab import campaign, order_campaign
from tidings.lab.random_scenarios import random_scenario
from tidings.lab.seeds import CampaignResult
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.simulate import Simulation
from tidings.scenarios.trace.memory import MemoryWriter

WITH_CRASH_POINTS = range(2, 100, 4)
CAMPAIGNS = [campaign, order_campaign]
Run = Callable[[int], CampaignResult]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[CrashPoints]:
    """Those of all runs."""
    found: list[CrashPoints] = []
    init = CrashPoints.__init__

    def noted(self: CrashPoints, *arguments: Any) -> None:
        init(self, *arguments)
        found.append(self)

    monkeypatch.setattr(CrashPoints, "__init__", noted)
    return found


@pytest.mark.parametrize("module", CAMPAIGNS)
def test_all_points_are_met_and_nothing_is_lost(module: Any, made: list[CrashPoints]) -> None:
    """Of nodes that keep a store and, with an order, of subscribers that tell their brokers how far they have come."""
    kinds = 2 if module is order_campaign else 1
    results = [module.run_seed(seed) for seed in WITH_CRASH_POINTS[:8]]
    assert not [str(result) for result in results if result.failed]
    assert len(made) == len(results) * kinds
    for kind in range(kinds):
        for point in Point:
            assert sum(points.crashes[point] for points in made[kind::kinds]) > 2


@pytest.mark.parametrize("module", CAMPAIGNS)
def test_a_seed_with_crash_points_replays_its_run(module: Any) -> None:
    assert module.run_seed(6) == module.run_seed(6)


@pytest.mark.parametrize("module", CAMPAIGNS)
def test_who_sends_before_what_it_wrote_is_committed_is_found_out(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: what a handler sends goes past the outbox."""

    def put_out_at_once(
        self: SimulatedNode, to: str, send: Callable[[Message], None], message: Message
    ) -> None:
        send(message)

    monkeypatch.setattr(SimulatedNode, "_put_out", put_out_at_once)
    assert any(module.run_seed(seed).failed for seed in WITH_CRASH_POINTS)


def test_nothing_leaves_before_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment at which a message goes to its link, nothing that the node wrote waits any more."""
    monkeypatch.setattr(crash_points, "SHARE", 0.0)
    simulation = Simulation(expand(parse_scenario(random_scenario(6))), MemoryWriter())
    names = simulation.plan.topology.brokers
    CrashPoints(simulation.network, names, simulation.duration_ns)
    put_out, sent = SimulatedNode._put_out, 0

    def watched(self: SimulatedNode, to: str, send: Callable[[Message], None], message: Message) -> None:
        def check(message: Message) -> None:
            nonlocal sent
            sent += 1
            assert self._store is not None and not self._store.pending
            send(message)

        put_out(self, to, check, message)

    monkeypatch.setattr(SimulatedNode, "_put_out", watched)
    simulation.run()
    assert sent > 100


def test_a_store_in_memory_keeps_what_was_committed() -> None:
    tables: dict[str, dict[bytes, bytes]] = {}
    told: list[str] = []
    store = MemoryStore(tables, lambda: told.append("pending"))
    store.write([("log", b"a", b"1"), ("log", b"b", b"2")])
    assert told and store.pending
    assert store.read("log") == [(b"a", b"1"), (b"b", b"2")]
    assert MemoryStore(tables).read("log") == []
    store.commit()
    assert not store.pending
    store.write([("log", b"a", None), ("log", b"a", b"3")])
    crashed = MemoryStore(tables)
    assert crashed.read("log") == [(b"a", b"1"), (b"b", b"2")]
    store.commit()
    assert MemoryStore(tables).read("log") == store.read("log") == [(b"b", b"2"), (b"a", b"3")]
    assert (store.count("log"), store.size_bytes("log")) == (2, 4)
