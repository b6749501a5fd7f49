"""What a client says it is done with, and has room for, against a model that looks at every notification each time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidings.core.client.arrivals import Arrivals, Notice, Ticket, Undone
from tidings.core.structures.ranges import merged


def ticket(notice: Notice, first: int | None = None, last: int | None = None) -> Ticket:
    """For the events `first` to `last`, all of the notice unless said otherwise."""
    begin, end = notice.first if first is None else first, notice.last if last is None else last
    return notice.ticket({}, ("s", "p", 0), begin, end)


def test_what_is_done_is_what_all_holders_are_done_with() -> None:
    arrivals = Arrivals(lambda: None)
    first = arrivals.arrive(1, 1)
    x, y = ticket(first), ticket(first)
    first.close()
    arrivals.arrive(2, 1).close()  # for nobody
    assert arrivals.news() == (0, ((2, 2),))
    x.done()
    assert arrivals.news() is None
    x.done()  # again: it is nobody's
    assert arrivals.news() is None
    y.done()
    assert arrivals.news() == (2, ((1, 1),))


def test_what_is_buffered_is_granted_and_not_done() -> None:
    arrivals = Arrivals(lambda: None)
    notices = [arrivals.arrive(1, 1) for _ in range(3)]
    tickets = [ticket(notice) for notice in notices]
    for notice in notices:
        notice.close()
    for each in tickets:
        each.grant()
    assert arrivals.news() == (3, ())
    tickets[2].done()  # the order of finishing is not that of arrival
    tickets[0].done()
    assert arrivals.news() == (3, ((1, 1), (3, 3)))


def test_events_of_a_run_are_done_with_in_any_order() -> None:
    arrivals = Arrivals(lambda: None)
    run = arrivals.arrive(101, 10)
    held = ticket(run)
    run.close()
    held.done(104, 105)
    assert arrivals.news() == (0, ((4, 5),))
    held.done(101, 104)
    assert arrivals.news() == (5, ((1, 3),))
    held.done()
    assert arrivals.news() == (10, ((6, 10),))


def test_what_nobody_holds_of_a_run_is_done_with() -> None:
    arrivals = Arrivals(lambda: None)
    run = arrivals.arrive(1, 6)
    held = ticket(run, first=3, last=4)
    held.grant()
    run.close()
    assert arrivals.news() == (6, ((1, 2), (5, 6)))


def test_one_that_is_quick_does_not_settle_what_another_will_hold() -> None:
    """Both hold it before the handler ends: what the first says meanwhile counts for the first alone."""
    arrivals = Arrivals(lambda: None)
    notice = arrivals.arrive(1, 1)
    quick = ticket(notice)
    quick.done()
    slow = ticket(notice)
    notice.close()
    assert arrivals.news() is None
    slow.done()
    assert arrivals.news() == (1, ((1, 1),))


def test_what_came_again_is_done_with_on_the_new_connection() -> None:
    told: list[str] = []
    before = Arrivals(lambda: told.append("before"))
    notice = before.arrive(11, 4)
    held = ticket(notice)
    held.grant()
    notice.close()
    held.done(12, 12)
    before.end()
    told.clear()
    after = Arrivals(lambda: told.append("after"))
    for first, last in ((11, 12), (13, 14)):  # cut otherwise than before
        again = after.arrive(first, last - first + 1)
        undone = held.keep()
        assert undone is not None
        undone.move(again, first, last)
        again.close()
    assert after.news() == (4, ((2, 2),)), "what was granted is granted; what was done before is so again"
    held.done()
    assert after.news() == (4, ((1, 1), (3, 4)))
    assert set(told) == {"after"}


def test_only_what_is_not_done_with_at_once_is_in_the_table() -> None:
    arrivals = Arrivals(lambda: None)
    table: dict[tuple[str, str, int], Undone] = {}
    notice = arrivals.arrive(1, 4)
    quick = notice.ticket(table, ("s", "p", 0), 1, 2)
    slow = notice.ticket(table, ("s", "p", 0), 3, 4)
    quick.done()
    assert quick.keep() is None
    quick.grant()
    slow.keep()
    notice.close()
    assert [(first, last) for first, last, _ in table["s", "p", 0]] == [(3, 4)]
    assert arrivals.news() == (2, ((1, 2),))
    slow.done(3, 3)
    slow.done()
    slow.done()
    assert table == {}
    assert arrivals.news() == (4, ((3, 4),))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "keep", "grant", "done"]),
        st.integers(0, 5),
        st.integers(0, 6),
        st.integers(0, 6),
    ),
    max_size=60,
)


@given(STEPS)
def test_random_courses_agree_with_the_model(course: list[tuple[str, int, int, int]]) -> None:
    """Each notification of some events has up to three holders, each of a stretch of it."""
    arrivals = Arrivals(lambda: None)
    tickets: list[tuple[Ticket, range]] = []
    ungranted: dict[int, set[int]] = {}
    """Number -> the tickets that have neither granted nor finished it."""
    holders: dict[int, set[int]] = {}
    told: set[int] = set()
    for what, which, offset, length in course:
        if what == "arrive" or which >= len(tickets):
            notice = arrivals.arrive(arrivals.count + 1, length + 1)
            for number in range(notice.first, notice.last + 1):
                holders[number], ungranted[number] = set(), set()
            for holder in range(which % 4):
                first = min(notice.first + (offset + holder) % 3, notice.last)
                numbers = range(first, notice.last + 1 - holder % 2)
                if numbers:
                    made = ticket(notice, first, numbers[-1])
                    for number in numbers:
                        holders[number].add(len(tickets))
                        ungranted[number].add(len(tickets))
                    tickets.append((made, numbers))
            notice.close()
        elif what == "keep":
            tickets[which][0].keep()
        elif what == "grant":
            tickets[which][0].grant()
            for number in tickets[which][1]:
                ungranted[number].discard(which)
        else:
            held, numbers = tickets[which]
            part = numbers[offset : offset + length]
            if part:
                held.done(part[0], part[-1])
            for number in part:
                holders[number].discard(which)
                ungranted[number].discard(which)
        granted = 0
        while granted + 1 in ungranted and not ungranted[granted + 1]:
            granted += 1
        done = {number for number, who in holders.items() if not who} - told
        news = arrivals.news()
        if news is None:
            assert not done
            continue
        assert news[0] == granted
        assert {number for low, high in news[1] for number in range(low, high + 1)} == done
        told |= done


@given(st.sets(st.integers(1, 40)))
def test_ranges_are_ascending_and_apart(numbers: set[int]) -> None:
    ranges = merged((number, number) for number in numbers)
    assert {number for first, last in ranges for number in range(first, last + 1)} == numbers
    assert all(left[1] + 1 < right[0] for left, right in pairwise(ranges))
