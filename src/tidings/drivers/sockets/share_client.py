"""Reads a durable subscription by number, with plain blocking sockets (core/overlay/guaranteed/share_reading.py).

Everything but `attach`, `reach` and `leave` works over any number of connections at once, through any broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from tidings.core.errors import BrokerAway, SubscriptionRefused
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.share_messages import (
    ShareAccepted,
    ShareAttach,
    ShareInterrupted,
    ShareLeave,
    ShareLeft,
    ShareReach,
    ShareReached,
    ShareRead,
    ShareRefused,
    ShareRows,
)
from tidings.core.overlay.modes import GUARANTEED
from tidings.drivers.address import Address
from tidings.drivers.sockets.blocking import BlockingConnection, NoAnswer

SUBSCRIPTION = "numbers"
"""The client's only subscription."""
NEEDS_GUARANTEED = "the option durable needs a guaranteed network"

Answer = TypeVar("Answer", bound=Message)


class ShareUnread(SubscriptionRefused):
    """Nobody reads the durable subscription by number, or it does not exist."""


class ShareConnection(BlockingConnection):
    """A connection of the client `client` to a guaranteed broker. Raises SubscriptionRefused where that one refuses."""

    def __init__(
        self,
        url: str,
        address: Address,
        client: str,
        *,
        encrypted: bool,
        token: str,
        tls_ca: str | Path | None,
        timeout_s: float,
    ) -> None:
        super().__init__(
            url, address, client, encrypted=encrypted, token=token, tls_ca=tls_ca, timeout_s=timeout_s
        )
        self._requests = 0
        if self.mode != GUARANTEED:
            self.close()
            raise SubscriptionRefused(f"{NEEDS_GUARANTEED}, and {url} runs in mode {self.mode!r}")

    def attach(
        self,
        name: str,
        topics: Sequence[str],
        where: str | None,
        reading: int,
        *,
        resumes: bool,
        takeover: bool,
        keep_for_ns: int = 0,
    ) -> None:
        """Attach as the reader of `name`, and create it if it does not exist."""
        self._send(
            ShareAttach(
                SUBSCRIPTION,
                name,
                tuple(topics),
                where,
                keep_for_ns=keep_for_ns,
                takeover=takeover,
                reading=reading,
                resumes=resumes,
            )
        )
        try:
            self._await(ShareAccepted)
        except NoAnswer:
            raise NoAnswer(
                f"{self.url} did not attach {name!r} in time: a new name waits until every broker can be reached"
            ) from None

    def reach(self, position: int = 0, *, count: int = 0, stop: int = 0, done_below: int = 0) -> ShareReached:
        """Take more events; be done with others."""
        self._requests += 1
        self._send(ShareReach(SUBSCRIPTION, self._requests, position, count, stop, done_below))
        answer = self._await(ShareReached)
        if answer.reason:
            raise SubscriptionRefused(answer.reason)
        return answer

    def read(self, name: str, reading: int, first: int, stop: int) -> Iterator[ShareRows]:
        """Yield the events with these numbers, in parts. An empty range only checks whose reading it is."""
        while True:
            self._requests += 1
            self._send(ShareRead(name, self._requests, reading, first, stop))
            rows = self._await(ShareRows)
            if rows.reason:
                raise (ShareUnread if rows.unread else SubscriptionRefused)(rows.reason)
            if first < stop and rows.next <= first:
                raise self._broken(f"nothing from number {first} on")
            yield rows
            first = rows.next
            if first >= stop:
                return

    def leave(self) -> None:
        """Detach."""
        self._send(ShareLeave(SUBSCRIPTION))
        self._await(ShareLeft)

    def _await(self, kind: type[Answer]) -> Answer:
        """Return the answer, after what came earlier."""
        while True:
            message = self._next()
            if isinstance(message, kind) and getattr(message, "request", self._requests) == self._requests:
                return message
            if isinstance(message, ShareRefused):
                raise SubscriptionRefused(message.reason)
            if isinstance(message, ShareInterrupted):
                self._interrupted(message.home)

    def _interrupted(self, home: str) -> NoReturn:
        raise BrokerAway(
            f"broker {home}, which keeps the durable subscription, cannot be reached through {self.url}"
        )
