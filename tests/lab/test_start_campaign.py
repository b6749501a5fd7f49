"""Subscribers that start with history see everything once, whatever fails at the seam; and planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from breadth import few
from tidings.core.client.seam import Seam
from tidings.core.overlay.guaranteed.archive_fence import ArchiveFence
from tidings.core.overlay.guaranteed.attachments import Attachments
from tidings.lab.seeds import blocks
from tidings.lab.start_campaign import main, replay_command, run_seed, start_scenario
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import CrashFault, PauseFault
from tidings.scenarios.history_actor import HistoryActor

SEEDS = range(1_000)
SEEDS_PER_TEST = 50
SEEDS_FOR_A_BUG = range(100)


@pytest.mark.parametrize(
    "seeds", few(blocks(SEEDS, SEEDS_PER_TEST), 2), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}"
)
def test_history_and_live_events_are_contiguous(seeds: range) -> None:
    results = [run_seed(seed) for seed in seeds]
    failed = [str(result) for result in results if result.failed]
    assert not failed, "\n".join(failed)
    assert sum(result.delivered for result in results) > 40 * len(seeds)


def test_scenarios_have_everything_that_can_go_wrong() -> None:
    scenarios = [parse_scenario(start_scenario(seed)) for seed in range(200)]
    subscribers = [each for scenario in scenarios for each in scenario.subscribers]
    assert {each.order for each in subscribers} == {"none", "fifo", "total", "causal"}
    assert any(each.filter for each in subscribers) and any(each.unsubscribe_at_s for each in subscribers)
    names = {each.name for each in subscribers}
    struck = [fault for scenario in scenarios for fault in scenario.faults if hasattr(fault, "nodes")]
    of_clients = [fault for fault in struck if names.intersection(fault.nodes)]
    assert {type(fault) for fault in of_clients} >= {CrashFault, PauseFault}
    of_brokers = [fault for fault in struck if not names.intersection(fault.nodes)]
    assert {fault.state for fault in of_brokers if isinstance(fault, CrashFault)} == {"kept", "lost"}


def pass_the_fence_too_early(patch: pytest.MonkeyPatch) -> None:
    """The archive is not waited for."""
    patch.setattr(ArchiveFence, "is_passed", lambda self, fence: True)


def admit_everything(patch: pytest.MonkeyPatch) -> None:
    """What the history had comes again, live."""
    patch.setattr(Seam, "admits", lambda self, *place: True)


def go_live_at_once(patch: pytest.MonkeyPatch) -> None:
    """Live events do not wait for the history."""
    patch.setattr(
        HistoryActor, "_is_live", property(lambda self: True, lambda self, value: None), raising=False
    )


def use_a_record_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """What is on its way for the archive's record alone is missing; and the fence's refusal is ignored."""
    patch.setattr(Attachments, "_archive_record", lambda self, interest: None)
    patch.setattr(ArchiveFence, "raise_for", lambda self, client, subscription: self._delivery.last_serial)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    pass_the_fence_too_early: "missing between history and live events",
    admit_everything: "delivered again at the seam",
    go_live_at_once: "exactly_once",
    use_a_record_of_its_own: "missing between history and live events",
}


@pytest.mark.parametrize(("plant", "found"), BUGS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    problems: list[str] = []
    for seed in SEEDS_FOR_A_BUG:
        problems += run_seed(seed).problems
        if any(found in problem for problem in problems):
            return
    raise AssertionError(f"not found; instead: {problems[:5]}")


def test_a_failed_seed_names_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admit_everything(monkeypatch)
    seed = next(seed for seed in SEEDS_FOR_A_BUG if run_seed(seed).failed)
    assert main(["--seeds", f"{seed}:{seed + 1}", "--keep", str(tmp_path)]) == 1
    assert replay_command(seed) in capsys.readouterr().out
    assert (tmp_path / f"seed-{seed}.toml").read_text() == start_scenario(seed)
