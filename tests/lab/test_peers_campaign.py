"""Random processes without brokers; and the lines of the paper's algorithm that must not be as printed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breadth import few
from tidings.core.overlay.peers.broadcast import Broadcast
from tidings.core.overlay.peers.holding import Holding
from tidings.core.overlay.peers.messages import Cast, ProcessRow
from tidings.core.overlay.peers.rows import ProcessRows
from tidings.lab.peers_campaign import replay_command, run_seed
from tidings.lab.seeds import blocks

SEEDS = range(500)
SEEDS_FOR_A_BUG = range(40)
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seeds", few(blocks(SEEDS, 50), 1), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_members_get_everything_once_and_agree_on_views(seeds: range) -> None:
    results = [run_seed(seed) for seed in seeds]
    failed = [str(result) for result in results if result.failed]
    assert not failed, "\n".join(failed)
    assert sum(result.delivered for result in results) > 50 * len(seeds)


def test_a_seed_replays_its_run() -> None:
    assert run_seed(3) == run_seed(3)
    assert replay_command(3) == "python -m tidings.lab.peers_campaign --seeds 3:4"


# --- The errata of the paper's appendix: each line as printed, restored alone


def collected_when_neighbours_have_it(patch: pytest.MonkeyPatch) -> None:
    """Line 56: neighbours, instead of all members."""
    members = ProcessRows.members

    def reached(self: ProcessRows, topic: str, among: object = None) -> list[str]:
        return members(self, topic, self.neighbours(self.own))

    def collect(self: Broadcast, holding: Holding) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ProcessRows, "members", reached)
            original(self, holding)

    original = Broadcast._collect
    patch.setattr(Broadcast, "_collect", collect)


def older_rows_replace_newer_ones(patch: pytest.MonkeyPatch) -> None:
    """Line 50: replaced where the received timestamp is not greater."""

    def take(self: ProcessRows, row: ProcessRow) -> bool:
        known = self._rows.get(row.process)
        if known is not None and (known.version <= row.version or row == known) and row.process != self.own:
            return False
        return original(self, row) or bool(self._rows.__setitem__(row.process, row))

    original = ProcessRows.take
    patch.setattr(ProcessRows, "take", take)


def holes_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Lines 63 and 64: whoever got a later event first takes what comes before it for known."""

    def take(self: Holding, message: Cast) -> list[Cast]:
        fresh = original(self, message)
        self.received.add_range(1, message.last + 1)
        return fresh

    original = Holding.take
    patch.setattr(Holding, "take", take)


def acknowledgements_are_of_the_sender(patch: pytest.MonkeyPatch) -> None:
    """Line 34: what has arrived is looked up by the sender, instead of the publisher."""

    def on_cast(self: Broadcast, sender: str, message: Cast) -> None:
        as_sender = Cast(sender, *message.stream[1:], message.first, message.collected, message.stretch)
        original(self, sender, as_sender)

    original = Broadcast.on_cast
    patch.setattr(Broadcast, "on_cast", on_cast)
    patch.setattr(Broadcast, "_report", lambda self, holding, process: None)


PLANTED = [
    collected_when_neighbours_have_it,
    older_rows_replace_newer_ones,
    holes_are_forgotten,
    acknowledgements_are_of_the_sender,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_line_as_printed_is_found(plant: Plant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        assert any(run_seed(seed).failed for seed in SEEDS_FOR_A_BUG)
