"""Virtual time: what is due happens in order, and only then."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.drivers.virtual.schedule import Schedule


def test_things_of_one_instant_happen_in_the_order_in_which_they_were_put_in() -> None:
    schedule, seen = Schedule(), list[str]()
    for name in "abc":
        schedule.at(5, lambda first, _second: seen.append(first), name)
    schedule.run(5)
    assert seen == ["a", "b", "c"]
    assert (schedule.now, schedule.steps) == (5, 3)


def test_what_is_put_in_for_this_instant_happens_still_in_it() -> None:
    schedule, seen = Schedule(), list[tuple[int, str]]()

    def chain(left: int, _second: object) -> None:
        seen.append((schedule.now, f"chain {left}"))
        if left:
            schedule.at(schedule.now, chain, left - 1)

    schedule.at(3, chain, 2)
    schedule.at(3, lambda _first, _second: seen.append((schedule.now, "other")))
    schedule.run(3)
    assert seen == [(3, "chain 2"), (3, "other"), (3, "chain 1"), (3, "chain 0")]


def test_run_leaves_the_clock_at_the_end_and_later_things_in_place() -> None:
    schedule, seen = Schedule(), list[int]()
    for at in (10, 20, 30):
        schedule.at(at, lambda _first, _second: seen.append(schedule.now))
    schedule.run(20)
    assert seen == [10, 20]
    assert schedule.now == 20
    assert schedule.next_at == 30
    schedule.run(25)
    assert schedule.now == 25
    schedule.run(100)
    assert seen == [10, 20, 30]
    assert schedule.next_at is None
    schedule.run(50)
    assert schedule.now == 100, "time does not go back"


def test_nothing_is_put_into_the_past() -> None:
    schedule = Schedule()
    schedule.run(10)
    with pytest.raises(ValueError, match="already 10 ns"):
        schedule.at(9, lambda _first, _second: None)


def test_what_is_due_can_be_redirected() -> None:
    schedule, seen = Schedule(), list[str]()

    def old(first: str, _second: object) -> None:
        seen.append(f"old {first}")

    def other(first: str, _second: object) -> None:
        seen.append(f"other {first}")

    schedule.at(1, old, "a")
    schedule.at(1, other, "b")
    schedule.at(2, old, "c")
    schedule.redirect(lambda action: action is old, lambda first, _second: seen.append(f"new {first}"))
    schedule.at(2, old, "d")
    schedule.run(2)
    assert seen == ["new a", "other b", "new c", "old d"]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(0, 5), max_size=3)), max_size=30),
    st.lists(st.integers(0, 40), max_size=5),
)
@settings(max_examples=examples(200))
def test_it_equals_a_sorted_list(tasks: list[tuple[int, list[int]]], stops: list[int]) -> None:
    """Dumb twin: a list, stably sorted by time after every step. Each task puts in others, `delays` later."""
    seen, expected = list[tuple[int, int]](), list[tuple[int, int]]()
    schedule = Schedule()

    def act(number: int, delays: tuple[int, ...]) -> None:
        seen.append((schedule.now, number))
        for delay in delays:
            schedule.at(schedule.now + delay, act, number + 1_000, ())

    queue: list[tuple[int, int, tuple[int, ...]]] = []
    for number, (at, delays) in enumerate(tasks):
        schedule.at(at, act, number, tuple(delays))
        queue.append((at, number, tuple(delays)))
    while queue:
        queue.sort(key=lambda item: item[0])
        at, number, following = queue.pop(0)
        expected.append((at, number))
        queue += [(at + delay, number + 1_000, ()) for delay in following]
    for stop in sorted(stops):
        schedule.run(stop)
    schedule.run(100)
    assert seen == expected
    assert schedule.steps == len(expected)
