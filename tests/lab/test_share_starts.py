"""Durable subscriptions and groups that begin with history keep their promises, whatever fails at the seam; and the
campaign finds planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from breadth import few
from tidings.core.events.subscription import Interest
from tidings.core.overlay.guaranteed.archive_fence import ArchiveFence
from tidings.core.overlay.guaranteed.attachments import Attachments
from tidings.core.overlay.guaranteed.held_share import HeldShare
from tidings.core.overlay.guaranteed.share_history import HistoryPosition, HistoryRows, ShareHistories
from tidings.core.structures.highest import Highest
from tidings.lab.seeds import blocks
from tidings.lab.share_campaign import replay_command, run_seed
from tidings.lab.share_scenarios import share_scenario
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.virtual.archive import SimulatedShareArchive

SEEDS = range(1_000)
SEEDS_PER_TEST = 50
SEEDS_FOR_A_BUG = range(200)


@pytest.mark.parametrize(
    "seeds", few(blocks(SEEDS, SEEDS_PER_TEST), 1), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}"
)
@pytest.mark.parametrize("kind", ["home", "far", "moves"])
def test_history_and_live_events_are_done_once(seeds: range, kind: str) -> None:
    far, moves = kind == "far", kind == "moves"
    results = [
        run_seed(seed, far=far, race=far and seed % 2 == 0, moves=moves, starts=True) for seed in seeds
    ]
    failed = [str(result) for result in results if result.failed]
    assert not failed, "\n".join(failed)
    assert sum(result.delivered for result in results) > 50 * len(seeds)


def test_scenarios_begin_in_the_past() -> None:
    plans = [parse_scenario(share_scenario(seed, starts=True)) for seed in range(100)]
    members = [each for plan in plans for each in plan.subscribers if each.durable or each.group]
    assert {each.start for each in members} == {"new", "earliest"}
    begun = [each for each in members if each.start == "earliest"]
    assert {each.order for each in begun} == {"none", "fifo"}
    assert any(each.filter for each in begun) and any(each.group_by for each in begun)
    assert "--starts" in replay_command(3, starts=True)


def pass_the_fence_too_early(patch: pytest.MonkeyPatch) -> None:
    """The archive is not waited for."""
    patch.setattr(ArchiveFence, "is_passed", lambda self, fence: True)


def take_live_events_at_once(patch: pytest.MonkeyPatch) -> None:
    """Live events do not wait for the history, of which the rest is then dropped."""
    patch.setattr(HeldShare, "reads_history", property(lambda self: False))
    patch.setattr(
        "tidings.core.overlay.guaranteed.share_history._position",
        lambda share: None,
    )


def use_a_record_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """What is on its way for the archive's record alone is missing; and the fence's refusal is ignored."""

    def none(self: Attachments, interest: Interest) -> None: ...

    patch.setattr(Attachments, "_archive_record", none)
    patch.setattr(ArchiveFence, "raise_for", lambda self, client, subscription: self._delivery.last_serial)


def skip_a_row(patch: pytest.MonkeyPatch) -> None:
    """One event of each answer is left out."""
    real = SimulatedShareArchive._rows

    def rows(self: SimulatedShareArchive, selects: Callable[[Any], bool], at: HistoryPosition) -> HistoryRows:
        found = real(self, selects, at)
        return found._replace(stretches=found.stretches[:1] + found.stretches[2:])

    patch.setattr(SimulatedShareArchive, "_rows", rows)


def admit_everything(patch: pytest.MonkeyPatch) -> None:
    """What the history had comes again, live."""
    real = Highest.get
    patch.setattr(
        Highest, "get", lambda self, key, default=None: 0 if default == 0 else real(self, key, default)
    )


def end_too_early(patch: pytest.MonkeyPatch) -> None:
    """The history ends where it is when the fence is passed, not at the archive's end."""
    real = ShareHistories._on_rows

    def on_rows(self: ShareHistories, reading: Any, settled: bool, answer: HistoryRows) -> None:
        real(self, reading, settled, answer._replace(end=answer.next) if settled else answer)

    patch.setattr(ShareHistories, "_on_rows", on_rows)


def keep_an_old_fence(patch: pytest.MonkeyPatch) -> None:
    """After a restart, the history ends where the archive ended before."""
    real = ShareHistories._subscribe

    def subscribe(self: ShareHistories, reading: Any) -> bool:
        found = real(self, reading)
        if found:
            reading.position = replace(reading.position, stop=reading.end)
            reading.fence = None
        return found

    patch.setattr(ShareHistories, "_subscribe", subscribe)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    pass_the_fence_too_early: "is missing between history and live events",
    take_live_events_at_once: "is missing between history and live events",
    use_a_record_of_its_own: "is missing between history and live events",
    skip_a_row: "is missing between history and live events",
    admit_everything: "is delivered again at the seam",
    end_too_early: "is missing between history and live events",
    keep_an_old_fence: "is missing between history and live events",
}


@pytest.mark.parametrize(("plant", "found"), BUGS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    problems: list[str] = []
    for seed in SEEDS_FOR_A_BUG:
        problems += run_seed(seed, starts=True).problems
        if any(found in problem for problem in problems):
            return
    raise AssertionError(f"not found; instead: {problems[:5]}")
