"""Events on their way into an order: each gets its number, then goes to the service, in the order of publication."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from tidings.model.errors import AttributeValueError, ConnectionFailed, NotConfirmed, OrderError, TidingsError
from tidings.model.event import MAX_ATTRIBUTES, MAX_EVENT_BYTES, ORDER_ATTRIBUTE, EventId, Publication
from tidings.model.predicates import Scalar
from tidings.protocol.sequencing.client import OrderingModule, PublishNow
from tidings.protocol.sequencing.layout import Layout
from tidings.protocol.sequencing.stamps import encode_stamp
from tidings.services.service import EventService

MAX_UNDER_WAY = 8_192
"""Publications of one client that wait for a number or for the service; further ones wait outside."""
STAMP_BYTES = 64 + 1024
"""What a timestamp without entries takes, and the name and numbers of the event's source."""
ENTRY_BYTES = 12
CLOSED = "the connection was closed"


class Outgoing:
    """One event, from the application's call until the service has confirmed it."""

    __slots__ = ("anonymous", "attributes", "done", "payload", "topic")

    def __init__(
        self, topic: str, attributes: Mapping[str, Scalar], payload: bytes, *, anonymous: bool = False
    ) -> None:
        self.topic = topic
        self.anonymous = anonymous
        """Nobody asks for its identity: it may go with others in one call."""
        self.attributes = attributes
        self.payload = payload
        self.done: asyncio.Future[EventId | None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(note)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error if isinstance(error, TidingsError) else NotConfirmed(str(error)))


def note(done: asyncio.Future[Any]) -> None:
    """Whoever waited for it may be gone: an error that nobody hears of is no mistake then."""
    if not done.cancelled():
        done.exception()


class Together:
    """The events of one call, counted."""

    def __init__(self) -> None:
        self.begun = 0
        self._open = 0
        self._error: BaseException | None = None
        self._settled = asyncio.Event()

    def add(self, outgoing: Outgoing) -> None:
        self.begun += 1
        self._open += 1
        self._settled.clear()
        outgoing.done.add_done_callback(self._end)

    def _end(self, done: asyncio.Future[Any]) -> None:
        self._open -= 1
        self._error = self._error or done.exception()
        if not self._open:
            self._settled.set()

    async def settled(self) -> int:
        """How many there were, once all are with the service; the first error if one is not."""
        if self._open:
            await self._settled.wait()
        if self._error is not None:
            raise self._error
        return self.begun


def check_room(publication: Publication, attributes: int, layout: Layout) -> None:
    """AttributeValueError if the event leaves no room for its timestamp, however long that may get."""
    if attributes >= MAX_ATTRIBUTES:
        raise AttributeValueError(
            f"{attributes} attributes; with a place in an order at most {MAX_ATTRIBUTES - 1} are carried"
        )
    most = MAX_EVENT_BYTES - STAMP_BYTES - ENTRY_BYTES * len(layout.topics)
    if publication.size_bytes > most:
        raise AttributeValueError(
            f"the event has {publication.size_bytes} bytes; with a place in this order at most {most} are carried"
        )


class Publishing:
    def __init__(self, service: EventService, module: OrderingModule) -> None:
        self._service = service
        self._module = module
        self._layout = module.layout.fingerprint
        self._under_way: dict[Outgoing, None] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._ready: list[PublishNow] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.refusal = ""
        """Why nothing gets a number any more."""

    async def begin(self, rank: int | None, outgoing: Outgoing) -> None:
        """Returns once the event is on its way; `outgoing.done` when it is with the service.

        Without a rank it goes to the service as it is.
        """
        while len(self._under_way) >= MAX_UNDER_WAY and not self._closed:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            raise ConnectionFailed(CLOSED)
        if self.refusal and rank is not None:
            raise OrderError(self.refusal)
        self._under_way[outgoing] = None
        outgoing.done.add_done_callback(lambda _: self._ended(outgoing))
        if rank is None:
            self._start(self._publish_plain(outgoing))
        elif not self._module.publish(rank, outgoing):
            raise AssertionError("the module takes more than is under way here")

    def _ended(self, outgoing: Outgoing) -> None:
        self._under_way.pop(outgoing, None)
        if len(self._under_way) < MAX_UNDER_WAY // 2:
            self._room.set()

    def on_publish_now(self, fact: PublishNow) -> None:
        if self._closed:
            return
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._flush)
        self._ready.append(fact)

    def _flush(self) -> None:
        """What was stamped in one turn goes to the service together."""
        ready, self._ready = self._ready, []
        together: list[PublishNow] = []
        for fact in ready:
            if fact.event.anonymous:  # type: ignore[attr-defined]
                together.append(fact)
                continue
            self._start_together(together)
            together = []
            self._start(self._publish_one(fact))
        self._start_together(together)

    def _start_together(self, facts: list[PublishNow]) -> None:
        if facts:
            self._start(self._publish_all(facts))

    def _start(self, publishing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(publishing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stamped(self, fact: PublishNow) -> tuple[str, dict[str, Any], bytes]:
        outgoing = fact.event
        assert isinstance(outgoing, Outgoing)
        order = encode_stamp(self._layout, fact.stamp)
        return outgoing.topic, {**outgoing.attributes, ORDER_ATTRIBUTE: order}, outgoing.payload

    async def _publish_one(self, fact: PublishNow) -> None:
        try:
            event_id = await self._service.publish(*self._stamped(fact), internal=True)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail([fact], error)
        else:
            self._confirm(fact, event_id)

    async def _publish_plain(self, outgoing: Outgoing) -> None:
        try:
            event_id = await self._service.publish(outgoing.topic, outgoing.attributes, outgoing.payload)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            outgoing.fail(error)
        else:
            if not outgoing.done.done():
                outgoing.done.set_result(event_id)

    async def _publish_all(self, facts: list[PublishNow]) -> None:
        try:
            await self._service.publish_many(map(self._stamped, facts), internal=True)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # which of them failed is not known
            self._fail(facts, error)
        else:
            for fact in facts:
                self._confirm(fact, None)

    def _confirm(self, fact: PublishNow, event_id: EventId | None) -> None:
        self._module.published(fact.handle)
        outgoing = fact.event
        assert isinstance(outgoing, Outgoing)
        if not outgoing.done.done():
            outgoing.done.set_result(event_id)

    def _fail(self, facts: list[PublishNow], error: Exception) -> None:
        for fact in facts:
            self._module.failed(fact.handle)
            outgoing = fact.event
            assert isinstance(outgoing, Outgoing)
            outgoing.fail(error)

    def fail(self, error: OrderError) -> None:
        """Nothing gets a number any more: what waits for one, and what comes, is refused."""
        self.refusal = str(error)
        for outgoing in list(self._under_way):
            outgoing.fail(error)
        self._room.set()

    async def close(self) -> None:
        """What is not with the service now is not published; whoever waits for it is told."""
        self._closed = True
        self._ready.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for outgoing in list(self._under_way):
            outgoing.fail(ConnectionFailed(CLOSED))
        self._room.set()
        self._module.leave()
