"""What came before its turn."""

from __future__ import annotations

from random import Random

from tidings.core.ordering.replication.early_items import EARLY_LIMIT, EarlyItems


def test_what_is_next_finds_room_among_what_is_far_ahead() -> None:
    early: EarlyItems[int] = EarlyItems()
    numbers = list(range(2, 4 * EARLY_LIMIT))
    Random(1).shuffle(numbers)
    for number in numbers:
        early.keep(number, number)
    assert [early.pop(number) for number in range(2, EARLY_LIMIT + 2)] == [*range(2, EARLY_LIMIT + 2)]
    assert not early.has_any_from(0)


def test_who_comes_again_takes_no_place_from_others() -> None:
    early: EarlyItems[str] = EarlyItems()
    for number in range(EARLY_LIMIT):
        early.keep(number, "first")
    early.keep(0, "again")
    assert (early.pop(0), early.pop(EARLY_LIMIT - 1)) == ("again", "first")
