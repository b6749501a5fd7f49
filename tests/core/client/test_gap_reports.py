"""Reports of one loss by several subscriptions in the service become one."""

from __future__ import annotations

from tidings.core.client import gap_reports
from tidings.core.client.gap_reports import GapReports
from tidings.core.facts import EventsGivenUp, LostEvents


class Ticket:
    """Counts what is said to it."""

    def __init__(self) -> None:
        self.granted = self.finished = 0

    def grant(self, first: int = 0, last: int = 0) -> None:
        self.granted += 1

    def done(self, first: int = 0, last: int = 0) -> None:
        self.finished += 1


def report(first: int, ticket: Ticket | None = None, *, certain: bool = True) -> EventsGivenUp:
    return EventsGivenUp("s@0", "p", 1, first, first + 1, certain, ticket)


def test_a_loss_is_named_once_and_all_its_tickets_are_done_together() -> None:
    reports, tickets = GapReports(), [Ticket() for _ in range(3)]
    for first, ticket in zip((1, 1, 5), tickets, strict=True):
        reports.add("s", report(first, ticket), says_more=True)
    lost, bundle = reports.take()
    assert lost == (LostEvents("p", 1, 1, 2), LostEvents("p", 1, 5, 6))
    assert [(ticket.granted, ticket.finished) for ticket in tickets] == [(1, 0)] * 3
    bundle.done()
    bundle.done()
    assert [ticket.finished for ticket in tickets] == [1] * 3
    assert reports.take()[0] == ()


def test_what_the_order_tells_by_itself_is_not_told_again() -> None:
    reports, quiet, telling = GapReports(), Ticket(), Ticket()
    reports.add("s", report(1, quiet, certain=False), says_more=False)
    reports.add("s", report(5, telling, certain=False), says_more=False)
    reports.add("s", report(5, certain=False), says_more=True)
    (fact,) = reports.take_telling()
    assert (fact.subscription, fact.first, fact.certain) == ("s", 5, False)
    assert (quiet.finished, telling.finished) == (1, 0)
    assert fact.ticket is not None
    fact.ticket.done()
    assert telling.finished == 1


def test_there_is_room_for_some_reports_only() -> None:
    reports, last = GapReports(), Ticket()
    for first in range(gap_reports.MAX_REPORTS):
        reports.add("s", report(2 * first), says_more=True)
    reports.add("s", report(10**6, last), says_more=True)
    assert last.finished == 1 and len(reports.take()[0]) == gap_reports.MAX_REPORTS
