"""Bookmarks against a twin that remembers every turn."""

from __future__ import annotations

from random import Random

import pytest

from tidings.core.client.bookmark import (
    TOO_LARGE,
    Bookmark,
    KeptEntry,
    Progress,
    Reached,
    advanced,
    decode_bookmark,
    encode_bookmark,
)
from tidings.core.ordering.resuming import Resumed
from tidings.core.overlay.guaranteed.messages import MAX_BOOKMARK_BYTES

RANKS = 3


class Twin:
    """All turns since each entry was joined."""

    def __init__(self) -> None:
        self.starts: dict[int, Resumed] = {}
        self.turns: list[tuple[int, int, bool]] = []

    def of(self, rank: int) -> Resumed:
        start = self.starts[rank]
        mine = [(number, no_op) for of_rank, number, no_op in self.turns if of_rank == rank]
        events = {number for number, no_op in mine if not no_op}
        no_ops = [number for number, no_op in mine if no_op]
        still_open = [number for number in (*start.open, *no_ops) if number not in events]
        clock = max([start.clock, *(number for number, _ in mine)])
        return Resumed(clock, start.fence if clock == start.clock else None, tuple(still_open))


def play(random: Random) -> tuple[Progress, Twin]:
    """Numbers in order, some of them no-ops, of which some are followed by their events."""
    progress, twin = Progress(), Twin()
    for rank in range(RANKS):
        clock = random.randrange(5)
        fence = ((0, 1), (2, 3)) if random.random() < 0.5 else None
        start = twin.starts[rank] = Resumed(clock, fence, tuple(range(1, clock, 2)))
        progress.begin(rank, start)
    for _ in range(random.choice((0, 3, 40))):
        rank = random.randrange(RANKS)
        before = twin.of(rank)
        if before.open and random.random() < 0.3:
            number, no_op = random.choice(before.open), False
        else:
            number, no_op = before.clock + 1, random.random() < 0.4
        twin.turns.append((rank, number, no_op))
        progress.pass_by(rank, number, no_op=no_op)
    return progress, twin


def disagreements(seeds: range) -> int:
    found = 0
    for seed in seeds:
        progress, twin = play(Random(seed))
        found += any(progress.of(rank) != twin.of(rank) for rank in range(RANKS))
    return found


def test_what_is_done_is_what_the_twin_says() -> None:
    assert disagreements(range(500)) == 0


def test_a_header_that_counts_as_a_no_op_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: its event would be waited for though there is none."""
    pass_by = Progress.pass_by
    monkeypatch.setattr(
        Progress,
        "pass_by",
        lambda self, rank, first, count=1, *, no_op: pass_by(self, rank, first, count, no_op=True),
    )
    assert disagreements(range(20))


def test_a_fence_that_is_forgotten_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: what the first event of an entry waits for (rule 3) dies with the process."""
    begin = Progress.begin
    monkeypatch.setattr(
        Progress, "begin", lambda self, rank, start: begin(self, rank, Resumed(start.clock, None, start.open))
    )
    assert disagreements(range(20))


def kept(*clocks: int) -> Bookmark:
    entries = tuple(KeptEntry(rank, 1, 1, 1, Resumed(clock)) for rank, clock in enumerate(clocks))
    return Bookmark(7, 9, ("/a",), "x > 1", entries, ("s@8",), ((0, 1),), (0, 8), (("main", 3),), "why")


def test_a_bookmark_is_read_as_it_was_written() -> None:
    assert decode_bookmark(encode_bookmark(kept(3, 0, 5))) == kept(3, 0, 5)


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        (None, (3, 9)),
        (Reached(7, {0: 5, 1: 4}), (5, 9)),
        (Reached(7, {}), (3, 9)),
        (Reached(8, {0: 5}), (3, 9)),
    ],
    ids=["nothing", "the later of the two", "less", "another subscriber's"],
)
def test_an_application_that_knows_more(reached: Reached | None, expected: tuple[int, ...]) -> None:
    assert tuple(entry.done.clock for entry in advanced(kept(3, 9), reached).entries) == expected


def test_what_cannot_be_read_or_is_too_large_says_so() -> None:
    assert "is invalid" in decode_bookmark(b"\xc1").refusal
    large = encode_bookmark(kept(*range(2**40, 2**40 + 4_096)))
    assert len(large) <= MAX_BOOKMARK_BYTES
    assert decode_bookmark(large).refusal == TOO_LARGE
