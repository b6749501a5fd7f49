"""Workers and brokers are killed at random under load: every event is done by one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.lab.chaos import chaos_scenario, main, run_chaos
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import CrashFault
from tidings.scenarios.trace.reader import Trace


def test_nobody_is_killed_while_it_is_down() -> None:
    for seed in range(20):
        faults = parse_scenario(chaos_scenario(seed, 60.0)).faults
        assert len(faults) > 40
        until: dict[str, float] = {}
        for fault in faults:
            assert isinstance(fault, CrashFault)
            (name,) = fault.nodes
            assert until.get(name, 0.0) < fault.at_s
            until[name] = fault.until_s or 60.0


@pytest.mark.slow
@pytest.mark.processes
def test_every_event_is_done_by_one_worker_whoever_is_killed(tmp_path: Path) -> None:
    assert run_chaos(1, 20.0, tmp_path) == []
    trace = Trace.read(tmp_path)
    done = [row for row in trace.delivered.to_pylist() if row["done_ns"] is not None]
    assert len(done) > 2_000
    assert len({row["subscriber"] for row in done}) == 8
    assert any(row["attempt"] > 1 for row in done)  # some had work in their hands


def test_too_short(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seconds", "1"])
    assert "--seconds" in capsys.readouterr().err
