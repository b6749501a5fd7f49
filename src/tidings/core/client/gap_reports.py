"""What the service reports as lost to an ordered subscription, until it is known what the order lacks: one gap is shown
once, although each of its sources, and each subscription in the service, reports its part."""

from __future__ import annotations

from msgspec import structs

from tidings.core.client.beneath import END, NOTHING, Taking
from tidings.core.facts import EventsGivenUp, LostEvents

MAX_REPORTS = 1_024
"""Beyond, reports are not kept: the gap does not name their events."""


class _Report:
    __slots__ = ("fact", "says_more", "tickets")

    def __init__(self, fact: EventsGivenUp) -> None:
        self.fact = fact
        """Without ticket."""
        self.says_more = False
        """The order alone does not tell: a number may have come without its event."""
        self.tickets: list[Taking] = []


class GapReports:
    """Reports that wait. Their tickets are granted: what follows a report at the broker may come."""

    def __init__(self) -> None:
        self._reports: dict[LostEvents, _Report] = {}

    def add(self, name: str, fact: EventsGivenUp, *, says_more: bool) -> None:
        """Keep a report for the application's subscription of that name."""
        lost = LostEvents(fact.source, fact.incarnation, fact.first, fact.last)
        report = self._reports.get(lost)
        if report is None and len(self._reports) < MAX_REPORTS:
            report = _Report(structs.replace(fact, subscription=name, ticket=None))
            self._reports[lost] = report
        ticket = fact.ticket or NOTHING
        if report is None:
            ticket.done()
        else:
            report.says_more |= says_more
            ticket.grant()
            report.tickets.append(ticket)

    def take(self) -> tuple[tuple[LostEvents, ...], Taking]:
        """Remove all, and return what is lost, with one ticket."""
        taken, self._reports = self._reports, {}
        tickets = [ticket for report in taken.values() for ticket in report.tickets]
        return tuple(taken), TicketBundle(tickets)

    def take_telling(self) -> list[EventsGivenUp]:
        """Remove all, and return those that say more than the order, which lacks nothing."""
        taken, self._reports = self._reports, {}
        telling: list[EventsGivenUp] = []
        for report in taken.values():
            ticket = TicketBundle(report.tickets)
            if report.says_more:
                telling.append(structs.replace(report.fact, ticket=ticket))
            else:
                ticket.done()
        return telling


class TicketBundle:
    """Several tickets as one."""

    __slots__ = ("_tickets",)

    def __init__(self, tickets: list[Taking]) -> None:
        self._tickets = tickets

    def grant(self, first: int = 0, last: int = END) -> None:
        pass

    def done(self, first: int = 0, last: int = END) -> None:
        tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            ticket.done()
