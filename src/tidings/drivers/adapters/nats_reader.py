"""Reading a JetStream stream for one subscription.

A reader has a consumer at the server that is gone when nobody asks it any more. It asks for as many messages as its
subscription has room for and gets them in order; a number that is skipped, or a consumer that is gone, makes it begin
a new one behind the last message it has. (The client library's `fetch` keeps messages back until the batch is full.)

What the stream gave up before it was read shows in the number of its first message. `StreamPosition.verified` is the
last number up to which everything was either given to us or not for us. It may move to the last message that we
have, or, if the server had nothing more for us, to the end of the stream as it was before that, but only if the
stream still begins at or before `verified`: then nothing in between was given up.
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
"""How long the server may keep a request for messages when there are none."""
INACTIVE_S = 300.0
"""A consumer that nobody asks for so long is dropped by the server."""
RENEW_DELAY_S = 0.2
MAX_COMPARISONS = 100_000
"""Of subjects, to see whether they overlap; where it were more, everything is read."""
DRAINED, FULL, BROKEN = "drained", "full", "broken"

log = logging.getLogger("tidings")


class StreamEnds(NamedTuple):
    first: int
    last: int


@dataclass
class StreamPosition:
    """Of one subscription in the stream; it outlives the connection."""

    delivered: int
    verified: int
    end: int
    """The last message of the stream when it was last looked at."""
    created: object
    """Which stream it is of that name."""

    def advance(self, ends: StreamEnds, delivered: int, *, drained: bool) -> StreamEnds | None:
        """The stream was looked at; `delivered` and `drained` are from before. What is missing, if something is."""
        gap = StreamEnds(self.verified + 1, ends.first - 1) if ends.first > self.verified + 1 else None
        if gap is not None:
            self.verified = gap.last
        self.verified = max(self.verified, delivered)
        if drained and gap is None:
            self.verified = max(self.verified, self.end)
        self.end = ends.last
        return gap


def filter_subjects(prefix: str, interest: Interest) -> list[str]:
    """The subjects of all patterns; everything where they overlap, which a consumer's subjects may not."""
    found = [subject for pattern in interest.topics for subject in subjects(prefix, pattern)]
    tokens = [subject.split(".") for subject in found]
    wild = [each for each in tokens if "*" in each or ">" in each]  # no two others are the same
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
    """The message's number in the stream and from the consumer, which the subject for its answer has."""
    tokens = reply.split(".")
    at = 5 if len(tokens) == 9 else 7  # newer servers add their domain and account
    return int(tokens[at]), int(tokens[at + 1])


class JetStreamReader:
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
        """The consumer's own, which counts without gaps."""
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
            raise SubscriptionRefused(f"{session.service.server} refused it: {describe(error)}") from None
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
        """Ask for that many messages; FULL once they are here, DRAINED if there were fewer."""
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
            self._session.service.skip(f"a message on {subject} is not from the stream")
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
