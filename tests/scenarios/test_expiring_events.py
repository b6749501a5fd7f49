"""Scenarios whose events expire: what comes too late is not shown, counted as expired, and never as lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidings.core.errors import ScenarioError
from tidings.core.events.payload import TypedPayload
from tidings.scenarios.checking import verdicts
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.simulate import run_scenario
from tidings.scenarios.trace.checkers import gap_free
from tidings.scenarios.trace.metrics import metrics
from tidings.scenarios.trace.reader import Trace
from tidings.scenarios.virtual import clients

SCENARIO = """
seed = {seed}
duration_s = 6.0
settle_s = 8.0
[overlay]
mode = "{mode}"
shape = {{ kind = "chain", brokers = 3 }}
[network]
delay_ms = {{ kind = "uniform", low = 5.0, high = 40.0 }}
loss = {{ kind = "bernoulli", rate = {loss} }}
[[publisher]]
name = "fast"
at = "b0"
rate_hz = 20.0
expires_ms = {expires_ms}
[[publisher]]
name = "slow"
at = "b0"
rate_hz = 5.0
[[subscriber]]
name = "near"
at = "b0"
order = "{order}"
subscribe_at_s = 0.0
[[subscriber]]
name = "far"
at = "b2"
order = "{order}"
[[fault]]
kind = "partition"
at_s = 2.0
until_s = 4.0
groups = [["b0"], ["b1", "b2"]]
"""


def play(out: Path, **options: Any) -> tuple[dict[str, Any], Trace]:
    values = {"seed": 1, "mode": "guaranteed", "order": "none", "expires_ms": 500.0, "loss": 0.0} | options
    scenario = parse_scenario(SCENARIO.format(**values))
    summary = run_scenario(scenario, out)
    assert json.loads((out / "summary.json").read_text())["expired"] == summary["expired"]
    found = verdicts(scenario, out)
    assert [str(verdict) for verdict in found if not verdict.holds] == []
    assert any(verdict.guarantee == "expiry" for verdict in found) == (values["expires_ms"] > 0)
    return summary, Trace.read(out)


@pytest.mark.parametrize("order", ["none", "fifo", "total", "causal"])
@pytest.mark.parametrize("mode", ["guaranteed", "best-effort", "epidemic"])
def test_what_comes_too_late_is_expired_and_not_lost(tmp_path: Path, mode: str, order: str) -> None:
    for seed in (1, 2, 3):
        out = tmp_path / str(seed)
        summary, trace = play(
            out, seed=seed, mode=mode, order=order, loss=0.0 if mode == "guaranteed" else 0.05
        )
        found = metrics(trace)
        assert summary["expired"] == found.expired > 0
        assert (summary["expected"], summary["delivered"]) == (found.expected, found.delivered)
        assert summary["delivery_ratio"] == pytest.approx(found.delivery_ratio)
        if mode == "guaranteed":
            assert summary["delivery_ratio"] == 1.0
            assert gap_free(trace, strict_end=True).counts["expired"] == summary["expired"]


def test_without_a_limit_nothing_expires(tmp_path: Path) -> None:
    summary, trace = play(tmp_path, expires_ms=0.0)
    assert summary["expired"] == 0
    assert trace.published["expires_ns"].null_count == len(trace.published)


def test_the_column_says_when(tmp_path: Path) -> None:
    _, trace = play(tmp_path)
    for row in trace.published.to_pylist():
        assert row["expires_ns"] == (row["at_ns"] + 500_000_000 if row["source"] == "fast" else None)
        assert row["size_bytes"] == 128


def test_a_subscriber_that_ignores_expiry_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake: events carry no time to expire, so nobody checks it. The trace has it, and the checker."""
    monkeypatch.setattr(clients, "scenario_payload", lambda data, *_: TypedPayload(data))
    scenario = parse_scenario(
        SCENARIO.format(seed=1, mode="guaranteed", order="none", expires_ms=500.0, loss=0.0)
    )
    run_scenario(scenario, tmp_path)
    broken = [verdict for verdict in verdicts(scenario, tmp_path) if not verdict.holds]
    assert [verdict.guarantee for verdict in broken] == ["expiry"]
    assert "ns after it expired" in str(broken[0])


@pytest.mark.parametrize(
    ("value", "words"),
    [("-1.0", "publisher[0].expires_ms"), ('"1s"', "publisher[0].expires_ms"), ("1e99", "expires_ms")],
)
def test_what_is_no_time_to_expire_names_the_key(value: str, words: str) -> None:
    text = SCENARIO.format(seed=1, mode="guaranteed", order="none", expires_ms=value, loss=0.0)
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text)
    assert "publisher[0].expires_ms" in str(caught.value)
