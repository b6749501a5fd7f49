"""Requests messages of a JetStream consumer: as many as there is room for, at an inbox of our own.

(The client library's `fetch` holds messages back until the batch is full.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from nats.aio.subscription import Subscription
from nats.js.errors import APIError

from tidings.drivers.adapters.nats_session import Headers
from tidings.drivers.adapters.session import SessionLost

if TYPE_CHECKING:
    from tidings.drivers.adapters.nats_jetstream import JetStreamSession

PULL_EXPIRES_S = 5.0
"""How long the server may hold a request for messages when there are none."""
DRAINED, FULL, BROKEN = "drained", "full", "broken"


class MessageNumbers(NamedTuple):
    """What the reply subject of a message says."""

    in_stream: int
    in_consumer: int
    attempt: int


def message_numbers(reply: str) -> MessageNumbers:
    """Return the message's numbers in the stream and in the consumer, and how often it was delivered."""
    tokens = reply.split(".")
    at = 5 if len(tokens) == 9 else 7  # newer servers add their domain and account
    return MessageNumbers(int(tokens[at]), int(tokens[at + 1]), int(tokens[at - 1]))


class PullRequests:
    """The requests of one reader, one after the other.

    `handle` gets the numbers, the reply subject and the body of each message; it returns False if messages are missing
    before this one.
    """

    def __init__(
        self, session: JetStreamSession, handle: Callable[[MessageNumbers, str, bytes], bool]
    ) -> None:
        self._session = session
        self._handle = handle
        self._consumer = ""
        self._inbox = ""
        self._listening: Subscription | None = None
        self._number = 0
        self._wanted = 0
        self._outcome: asyncio.Future[str] | None = None

    async def begin(self, consumer: str) -> None:
        client = self._session.client
        self._consumer = consumer
        self._inbox = client.new_inbox()
        self._listening = await client.listen(f"{self._inbox}.*", self._on_message)

    async def end(self) -> None:
        if self._listening is not None:
            await self._session.client.unlisten(self._listening)
            self._listening = None

    async def ask(self, room: int) -> str:
        """Request that many messages; return FULL once they have arrived, DRAINED if there were fewer."""
        self._number += 1
        self._wanted = room
        self._outcome = asyncio.get_running_loop().create_future()
        service = self._session.service
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{service.stream}.{self._consumer}"
        request = msgspec.json.encode({"batch": room, "expires": int(PULL_EXPIRES_S * 1e9)})
        await self._session.send(subject, request, f"{self._inbox}.{self._number}")
        try:
            async with asyncio.timeout(PULL_EXPIRES_S + service.timeout_s):
                return await self._outcome
        except TimeoutError:
            raise SessionLost("no answer to a request for messages") from None

    def _on_message(self, subject: str, reply: str, body: bytes, headers: Headers) -> None:
        status = headers.get("Status") if headers and not reply.startswith("$JS.ACK.") else None
        if status is not None:
            if subject == f"{self._inbox}.{self._number}" and status != "100":
                self._end(DRAINED if status in ("404", "408") else BROKEN)
            return
        try:
            numbers = message_numbers(reply)
        except (ValueError, IndexError):
            self._session.service.skip(f"the message on {subject} is not from the stream")
            return
        if not self._handle(numbers, reply, body):
            self._end(BROKEN)
            return
        self._wanted -= 1
        if self._wanted == 0:
            self._end(FULL)

    def _end(self, outcome: str) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)


def describe(error: Exception) -> str:
    if isinstance(error, APIError) and error.description:
        return error.description
    return str(error) or type(error).__name__
