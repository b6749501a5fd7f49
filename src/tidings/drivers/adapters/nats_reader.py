"""Reads a JetStream stream for one subscription.

A reader has a consumer at the server, which the server deletes when it is idle for long. The reader requests as many
messages as its subscription has room for and gets them in order. If a number is skipped, or the consumer is gone, it
makes a new consumer after the last message that it has.

What the stream deleted before it was read shows in the number of its first message. Up to `StreamPosition.verified`,
every message was either delivered to us or not for us. It may advance to the last message that we have or, if the
server had nothing more for us, to the end of the stream as it was before that, but only if the stream still begins at
or before `verified` + 1: then nothing in between was deleted.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nats import errors
from nats.js import api
from nats.js.errors import APIError

from tidings.core.errors import SubscriptionRefused
from tidings.drivers.adapters.incoming import Incoming
from tidings.drivers.adapters.nats import disjoint_subjects
from tidings.drivers.adapters.nats_pull import BROKEN, DRAINED, MessageNumbers, PullRequests, describe
from tidings.drivers.adapters.session import SessionLost

if TYPE_CHECKING:
    from tidings.drivers.adapters.nats_jetstream import JetStreamSession

INACTIVE_S = 300.0
"""The server deletes a consumer that was idle for so long."""
RENEW_DELAY_S = 0.2

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


class JetStreamReader:
    """Requests messages for one subscription and checks the stream for gaps."""

    def __init__(self, session: JetStreamSession, incoming: Incoming, position: StreamPosition) -> None:
        self._session = session
        self._incoming = incoming
        self._takers = (incoming,)
        self._position = position
        self._subjects = disjoint_subjects(session.service.prefix, incoming.interest.topics)
        self._requests = PullRequests(session, self._on_message)
        self._consumer = ""
        self._last_number = 0
        """The last consumer number; they have no gaps."""
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
                outcome = await self._requests.ask(room)
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
            await self._requests.begin(self._consumer)
            await session.streams.add_consumer(session.service.stream, config)
        except APIError as error:
            raise SubscriptionRefused(
                f"{session.service.server} rejected the subscription: {describe(error)}"
            ) from None
        except (errors.Error, OSError) as error:
            raise SessionLost(describe(error)) from None

    async def _end_consumer(self, *, forget: bool) -> None:
        await self._requests.end()
        if forget and self._consumer:
            try:
                await self._session.streams.delete_consumer(self._session.service.stream, self._consumer)
            except (errors.Error, OSError) as error:
                log.debug("consumer %s was not deleted: %s", self._consumer, describe(error))

    # --- Messages

    def _on_message(self, numbers: MessageNumbers, reply: str, body: bytes) -> bool:
        if numbers.in_consumer != self._last_number + 1:
            return False
        self._last_number = numbers.in_consumer
        self._position.delivered = numbers.in_stream
        self._session.service.receive(body, self._takers)
        return True

    async def _verify(self, *, drained: bool) -> None:
        delivered = self._position.delivered
        info = await self._session.look()
        ends = StreamEnds(info.state.first_seq, info.state.last_seq)
        gap = self._position.advance(ends, delivered, drained=drained)
        if gap is not None:
            self._session.service.missed(self._incoming, self._session.service.stream, gap.first, gap.last)
