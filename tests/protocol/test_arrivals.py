"""What a client says it is done with, and has room for, against a model that looks at every notification each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidings.protocol.arrivals import Arrivals, Ticket, ranges_of


def test_what_is_done_is_what_all_holders_are_done_with() -> None:
    arrivals = Arrivals(lambda: None)
    first = arrivals.arrive()
    x, y = Ticket(first), Ticket(first)
    first.release()
    arrivals.arrive().release()  # for nobody
    assert arrivals.news() == (0, ((2, 2),))
    x.done()
    assert arrivals.news() is None
    x.done()  # again: it is nobody's
    assert arrivals.news() is None
    y.done()
    assert arrivals.news() == (2, ((1, 1),))


def test_what_is_buffered_is_granted_and_not_done() -> None:
    arrivals = Arrivals(lambda: None)
    notices = [arrivals.arrive() for _ in range(3)]
    tickets = [Ticket(notice) for notice in notices]
    for notice in notices:
        notice.release()
    for ticket in tickets:
        ticket.grant()
    assert arrivals.news() == (3, ())
    tickets[2].done()  # the order of finishing is not that of arrival
    tickets[0].done()
    assert arrivals.news() == (3, ((1, 1), (3, 3)))


def test_what_came_again_is_done_with_on_the_new_connection() -> None:
    told: list[str] = []
    before = Arrivals(lambda: told.append("before"))
    notice = before.arrive()
    held = Ticket(notice)
    held.grant()
    notice.release()
    before.end()
    told.clear()
    after = Arrivals(lambda: told.append("after"))
    again = after.arrive()
    held.move(again)
    again.release()
    assert after.news() == (1, ()), "what was granted is granted"
    held.done()
    assert after.news() == (1, ((1, 1),))
    assert set(told) == {"after"}


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["arrive", "grant", "done"])), max_size=60))
def test_random_courses_agree_with_the_model(course: list[tuple[int, str]]) -> None:
    arrivals = Arrivals(lambda: None)
    tickets: list[Ticket] = []
    granted: set[int] = set()
    done: set[int] = set()
    told: set[int] = set()
    for which, what in course:
        if what == "arrive" or which >= len(tickets):
            notice = arrivals.arrive()
            tickets.append(Ticket(notice))
            notice.release()
        elif what == "grant":
            tickets[which].grant()
            granted.add(which + 1)
        else:
            tickets[which].done()
            done.add(which + 1)
        news = arrivals.news()
        prefix = 0
        while prefix + 1 in granted | done:
            prefix += 1
        assert (news[0] if news else prefix) == prefix
        for first, last in news[1] if news else ():
            fresh = set(range(first, last + 1))
            assert not fresh & told
            told |= fresh
        assert told == done


def test_ranges_are_ascending_and_apart() -> None:
    assert ranges_of([5, 1, 2, 9, 8, 3]) == ((1, 3), (5, 5), (8, 9))
    assert ranges_of([]) == ()
