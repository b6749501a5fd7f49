"""Reads a JetStream stream for one subscription.

A reader has a consumer at the server, which the server deletes when it is idle for long. The reader requests as many
messages as its subscription has room for and gets them in order. If a number is skipped, or the consumer is gone, it
makes a new consumer after the last message that it has. (The client library's `fetch` holds messages back until the
batch is full.)

What the stream deleted before it was read shows in the number of its first message. Up to `StreamPosition.verified`,
every message was either delivered to us or not for us. It may advance to the last message that we have or, if the
server had nothing more for us, to the end of the stream as it was before that, but only if the stream still begins at
or before `verified` + 1: then nothing in between was deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from nats import errors
from nats.aio.subscription import Subscription
from nats.js import api
from nats.js.errors import APIError

from tidings.core.errors import SubscriptionRefused
from tidings.core.events.subscription import Interest
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.adapters.nats import subjects
from tidings.drivers.adapters.nats_session import Headers
from tidings.drivers.adapters.session import SessionLost

if TYPE_CHECKING:
    from tidings.drivers.adapters.nats_jetstream import JetStreamSession

PULL_EXPIRES_S = 5.0
"""How long the server may hold a request for messages when there are none."""
INACTIVE_S = 300.0
"""The server deletes a consumer that was idle for so long."""
RENEW_DELAY_S = 0.2
MAX_COMPARISONS = 100_000
"""The most comparisons of subjects to see whether they overlap; beyond that, everything is read."""
DRAINED, FULL, BROKEN = "drained", "full", "broken"

log = logging.getLogger("tidings")


class StreamEnds(NamedTuple):
    """The numbers of the first and the last message of a range."""

    first: int
    last: int


@dataclass
class StreamPosition:
    """The position of one subscription in the stream; it outlives the connection."""

    delivered: int
    """The last message that we have."""
    verified: int
    """Every message up to this one was either delivered to us or not for us."""
    end: int
    """The stream's last message when it was last checked."""
    created: object
    """When the stream was created: it identifies the stream among those of that name."""

    def advance(self, ends: StreamEnds, delivered: int, *, drained: bool) -> StreamEnds | None:
        """Advance `verified` after a check of the stream, and return what is missing, if anything.

        `delivered` and `drained` are from before the check.
        """
        gap = StreamEnds(self.verified + 1, ends.first - 1) if ends.first > self.verified + 1 else None
        if gap is not None:
            self.verified = gap.last
        self.verified = max(self.verified, delivered)
        if drained and gap is None:
            self.verified = max(self.verified, self.end)
        self.end = ends.last
        return gap


def filter_subjects(prefix: str, interest: Interest) -> list[str]:
    """Return the subjects of all patterns, or everything if they overlap: a consumer's subjects must not."""
    found = [subject for pattern in interest.topics for subject in subjects(prefix, pattern)]
    tokens = [subject.split(".") for subject in found]
    wild = [each for each in tokens if "*" in each or ">" in each]  # subjects without wildcards are distinct
    if len(wild) * len(tokens) > MAX_COMPARISONS:
        return [f"{prefix}.>"]
    overlap = any(_overlap(one, other) for one in wild for other in tokens if one is not other)
    return [f"{prefix}.>"] if overlap else found


def _overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    for mine, theirs in zip(one, other, strict=False):
        if ">" in (mine, theirs):
            return True
        if mine != theirs and "*" not in (mine, theirs):
            return False
    return len(one) == len(other)


def message_numbers(reply: str) -> tuple[int, int]:
    """Return the message's numbers in the stream and in the consumer, from its reply subject."""
    tokens = reply.split(".")
    at = 5 if len(tokens) == 9 else 7  # newer servers add their domain and account
    return int(tokens[at]), int(tokens[at + 1])


class JetStreamReader:
    """Requests messages for one subscription and checks the stream for gaps."""

    def __init__(self, session: JetStreamSession, incoming: Incoming, position: StreamPosition) -> None:
        self._session = session
        self._incoming = incoming
        self._takers = (incoming,)
        self._position = position
        self._subjects = filter_subjects(session.service.prefix, incoming.interest)
        self._consumer = ""
        self._inbox = ""
        self._listening: Subscription | None = None
        self._last_number = 0
        """The last consumer number; they have no gaps."""
        self._pull = 0
        self._wanted = 0
        self._outcome: asyncio.Future[str] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._begin_consumer()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, *, forget: bool) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_consumer(forget=forget)

    async def _run(self) -> None:
        try:
            while True:
                room = await self._incoming.pace.wait()
                outcome = await self._ask(room)
                if outcome == BROKEN:
                    await asyncio.sleep(RENEW_DELAY_S)
                    await self._end_consumer(forget=True)
                    await self._begin_consumer()
                await self._verify(drained=outcome == DRAINED)
        except (SessionLost, SubscriptionRefused) as error:
            self._session.end(str(error))
        except Exception as error:
            log.exception("subscription %s: its reader failed", self._incoming.subscription.id)
            self._session.end(f"{type(error).__name__}: {error}")

    # --- The consumer

    async def _begin_consumer(self) -> None:
        session = self._session
        self._consumer = f"tidings-{session.client.new_inbox().rpartition('.')[2]}"
        self._inbox = session.client.new_inbox()
        self._last_number = 0
        config = api.ConsumerConfig(
            name=self._consumer,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._position.delivered + 1,
            ack_policy=api.AckPolicy.NONE,
            filter_subjects=self._subjects,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        try:
            self._listening = await session.client.listen(f"{self._inbox}.*", self._on_message)
            await session.streams.add_consumer(session.service.stream, config)
        except APIError as error:
            raise SubscriptionRefused(
                f"{session.service.server} rejected the subscription: {describe(error)}"
            ) from None
        except (errors.Error, OSError) as error:
            raise SessionLost(describe(error)) from None

    async def _end_consumer(self, *, forget: bool) -> None:
        if self._listening is not None:
            await self._session.client.unlisten(self._listening)
            self._listening = None
        if forget and self._consumer:
            try:
                await self._session.streams.delete_consumer(self._session.service.stream, self._consumer)
            except (errors.Error, OSError) as error:
                log.debug("consumer %s was not deleted: %s", self._consumer, describe(error))

    # --- Messages

    async def _ask(self, room: int) -> str:
        """Request that many messages; return FULL once they have arrived, DRAINED if there were fewer."""
        self._pull += 1
        self._wanted = room
        self._outcome = asyncio.get_running_loop().create_future()
        session = self._session
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{session.service.stream}.{self._consumer}"
        request = msgspec.json.encode({"batch": room, "expires": int(PULL_EXPIRES_S * 1e9)})
        await session.send(subject, request, f"{self._inbox}.{self._pull}")
        try:
            async with asyncio.timeout(PULL_EXPIRES_S + session.service.timeout_s):
                return await self._outcome
        except TimeoutError:
            raise SessionLost("no answer to a request for messages") from None

    def _on_message(self, subject: str, reply: str, body: bytes, headers: Headers) -> None:
        status = headers.get("Status") if headers and not reply.startswith("$JS.ACK.") else None
        if status is not None:
            if subject == f"{self._inbox}.{self._pull}" and status != "100":
                self._end_pull(DRAINED if status in ("404", "408") else BROKEN)
            return
        try:
            in_stream, number = message_numbers(reply)
        except (ValueError, IndexError):
            self._session.service.skip(f"the message on {subject} is not from the stream")
            return
        if number != self._last_number + 1:
            self._end_pull(BROKEN)
            return
        self._last_number = number
        self._position.delivered = in_stream
        self._session.service.receive(body, self._takers)
        self._wanted -= 1
        if self._wanted == 0:
            self._end_pull(FULL)

    def _end_pull(self, outcome: str) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)

    async def _verify(self, *, drained: bool) -> None:
        delivered = self._position.delivered
        info = await self._session.look()
        ends = StreamEnds(info.state.first_seq, info.state.last_seq)
        gap = self._position.advance(ends, delivered, drained=drained)
        if gap is not None:
            self._session.service.missed(self._incoming, self._session.service.stream, gap.first, gap.last)


def describe(error: Exception) -> str:
    if isinstance(error, APIError) and error.description:
        return error.description
    return str(error) or type(error).__name__
