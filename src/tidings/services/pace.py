"""What an application has taken of a guaranteed broker's notifications, and so may be acknowledged."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from tidings.protocol.reliable_client import ReliableSession


class Pace:
    """Which notifications of a guaranteed broker the application is done with: only those are acknowledged.

    So the broker's window holds back what a slow reader has not taken.
    """

    def __init__(self, session: ReliableSession) -> None:
        self._session = session
        self._connection = 0
        self._open: dict[int, int] = {}
        """Notification -> how many streams are not done with it, in the order of their numbers."""
        self._tickets: dict[str, deque[tuple[int, int]]] = {}
        """Subscription -> connection and notification of what its stream holds."""
        self._scheduled = False
        self._stopped = False
        # The session says here that it showed one more, even if that was for nobody.
        session.acknowledges = True
        session.acknowledge = lambda count: self._schedule()  # type: ignore[method-assign]

    def begin_connection(self) -> None:
        """Numbers start again; what an earlier connection brought is acknowledged no more."""
        self._connection += 1
        self._open.clear()

    def stop(self) -> None:
        """Nothing is acknowledged any more: what is not done with is for a later life of this client."""
        self._stopped = True

    def begin(self, subscription: str) -> None:
        self._tickets[subscription] = deque()

    def shown(self, subscription: str) -> None:
        tickets = self._tickets.get(subscription)
        if tickets is not None:
            number = self._session.shown
            self._open[number] = self._open.get(number, 0) + 1
            tickets.append((self._connection, number))

    def hold(self) -> Callable[[], None]:
        number = self._session.shown
        self._open[number] = self._open.get(number, 0) + 1
        return partial(self._close, self._connection, number)

    def taken(self, subscription: str) -> None:
        tickets = self._tickets.get(subscription)
        if tickets:
            self._close(*tickets.popleft())

    def end(self, subscription: str) -> None:
        for ticket in self._tickets.pop(subscription, ()):
            self._close(*ticket)

    def _close(self, connection: int, number: int) -> None:
        if connection != self._connection:
            return
        self._open[number] -= 1
        if not self._open[number]:
            del self._open[number]
            self._schedule()

    def _schedule(self) -> None:
        """Once per turn of the loop: a message for each event would cost as much as the event."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._acknowledge)

    def _acknowledge(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        first_open = next(iter(self._open), self._session.shown + 1)
        ReliableSession.acknowledge(self._session, first_open - 1)
