"""Random networks with faults whose events expire: what campaigns demand still holds, and nothing is shown too late."""

from __future__ import annotations

from random import Random
from types import ModuleType
from typing import Any

import pytest
from msgspec import structs

from breadth import examples
from tidings.lab import campaign, epidemic_campaign, order_campaign
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import Scenario
from tidings.scenarios.trace.checkers import expiry
from tidings.scenarios.trace.memory import MemoryWriter
from tidings.scenarios.trace.metrics import metrics

SEEDS = range(examples(24))


def expiring(text: str) -> Scenario:
    """The scenario, with publishers of which most let their events expire, soon or late."""
    scenario = parse_scenario(text)
    random = Random(f"{scenario.seed}:expiry")
    limits = [random.choice((0.0, 30.0, 300.0, 3_000.0)) for _ in scenario.publishers]
    publishers = [
        structs.replace(publisher, expires_ms=limit)
        for publisher, limit in zip(scenario.publishers, limits, strict=True)
    ]
    return structs.replace(scenario, publishers=tuple(publishers))


@pytest.mark.parametrize(
    "module", [campaign, order_campaign, epidemic_campaign], ids=lambda module: module.__name__
)
def test_campaigns_hold_where_events_expire(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[MemoryWriter] = []

    class KeptWriter(MemoryWriter):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            written.append(self)

    monkeypatch.setattr(module, "parse_scenario", expiring)
    monkeypatch.setattr(module, "MemoryWriter", KeptWriter)
    expired = 0
    for seed in SEEDS:
        result = module.run_seed(seed)
        assert not result.problems, result
        trace = written.pop().trace()
        assert str(expiry(trace)) == "expiry: holds", seed
        expired += metrics(trace).expired
    assert expired > 0
