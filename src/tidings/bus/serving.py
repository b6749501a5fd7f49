"""Answers requests: reads them from a stream, calls a handler, and publishes what it returns (bus/requests.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self

from tidings.bus.durable_stream import DurableStream
from tidings.core.errors import ConnectionFailed, NotConfirmed, NotHeld, RequestFailed, TidingsError
from tidings.core.events.event import Event
from tidings.core.events.payload import TypedPayload, typed_payload

if TYPE_CHECKING:
    from types import TracebackType

    from tidings.bus.receipts import Receipt
    from tidings.bus.service import EventService
    from tidings.bus.stream import Stream

ERROR_TYPE = "application/x-tidings-error"
"""The content type of an answer that is a failure: its payload is the text of the error."""
MAX_ERROR_CHARACTERS = 4_096
Handler = Callable[[Event], Any]
"""Takes a request and returns its answer, or an awaitable of it."""
LEAVE_TIMEOUT_S = 2.0
"""How long leaving the block waits until answers are confirmed and their requests acknowledged."""
UNSENT = (ConnectionFailed, NotConfirmed)
"""The answer cannot be published now, whatever it is."""

log = logging.getLogger("tidings")


class RequestServer:
    """Answers requests while its `async with` block runs; made by `EventService.serve`.

    Leaving the block cancels handlers that are not finished. Their requests go to another member if there is a group.
    What was answered is acknowledged before, so that nobody answers it again.
    """

    def __init__(
        self,
        service: EventService,
        stream: Stream,
        handler: Handler,
        concurrency: int,
    ) -> None:
        self.answered = 0
        """Requests that got an answer."""
        self.failed = 0
        """Requests whose caller got a failure."""
        self._service = service
        self._stream = stream
        self._handler = handler
        self._concurrency = concurrency
        self._acknowledges = False
        """The network has requests answered again that were not."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """One for each request in hand."""
        self._answering: dict[int, asyncio.Task[None]] = {}
        """Those whose handler is done."""
        self._begun = 0
        """Requests taken in hand so far; their tasks are numbered."""
        self._ended: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until the service ends; it never does by itself.

        Raises:
            ConnectionFailed: The bus was closed.
        """
        if self._ended is None:
            raise ValueError("a server runs only inside its 'async with' block")
        await asyncio.shield(self._ended)

    async def __aenter__(self) -> Self:
        self._ended = asyncio.get_running_loop().create_future()
        self._stream.on_arrival = self._take_requests
        self._stream.on_failure = self._on_failure
        await self._stream.__aenter__()
        self._acknowledges = (
            isinstance(self._stream, DurableStream) and self._stream.durability.ack == "manual"
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._concurrency = 0
        answering = list(self._answering.values())
        tasks = [task for number, task in self._tasks.items() if number not in self._answering]
        for task in tasks:
            task.cancel()
        _, late = await asyncio.wait(answering, timeout=LEAVE_TIMEOUT_S) if answering else ((), ())
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, *late, return_exceptions=True)
        await self._stream.__aexit__(kind, error, trace)
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(None)

    def _on_failure(self, error: Exception) -> None:
        assert self._ended is not None
        if not self._ended.done():
            log.warning("no more requests are answered: %s", error)
            self._ended.set_exception(error)
            self._ended.exception()  # seen, whether anybody waits for it or not

    def _take_requests(self) -> None:
        """Begin with the requests that wait, as many as may be in hand. A task each: the turn in which they arrive is
        the network's, and a handler may take long."""
        while len(self._tasks) < self._concurrency and (event := self._stream.take_next()) is not None:
            self._begun += 1
            self._tasks[self._begun] = asyncio.create_task(self._handle(event, self._begun))

    async def _handle(self, event: Event, number: int) -> None:
        try:
            try:
                answer = self._handler(event)
                if isawaitable(answer):
                    answer = await answer
            except Exception as error:
                answer = _failure(error)
            self._answering[number] = self._tasks[number]
            receipt = await self._answer(event, answer)
            if self._acknowledges:
                await self._acknowledge(event, receipt)
        except Exception:
            log.exception("a request was not answered")
        finally:
            del self._tasks[number]
            self._answering.pop(number, None)
            self._take_requests()

    async def _acknowledge(self, event: Event, receipt: Receipt | None) -> None:
        try:
            if receipt is not None:
                await receipt
            await event.ack()
        except (*UNSENT, NotHeld) as error:  # the request comes again, here or at another member
            log.info("the answer to request %s is not certain: %s", event.id, error)

    async def _answer(self, event: Event, answer: Any) -> Receipt | None:
        """Publish the answer; return None if the request wants none or the answer cannot leave."""
        if not event.reply_to:
            return None
        try:
            attributes, payload = _parts(answer)
            return await self._publish(event, attributes, _typed(payload, event))
        except UNSENT as error:
            log.info("cannot answer request %s: %s", event.id, error)
            return None
        except TidingsError as error:  # the answer is not publishable, which its caller should know
            return await self._fail(event, error)

    async def _fail(self, event: Event, error: Exception) -> Receipt | None:
        try:
            return await self._publish(event, {}, _typed(_failure(error), event))
        except TidingsError as problem:
            log.info("cannot answer request %s: %s", event.id, problem)
            return None

    async def _publish(self, event: Event, attributes: Mapping[str, Any], answer: TypedPayload) -> Receipt:
        service, to = self._service, event.reply_to
        alone = len(self._tasks) == 1  # several answers travel together at the end of the turn
        receipt = service.publish_now(to, attributes, answer, alone=alone)
        if receipt is None:
            sent: Receipt = await service.publish(to, attributes, answer, wait=False)
            receipt = sent
            if alone:
                service.flush()
        if answer.content_type == ERROR_TYPE:
            self.failed += 1
        else:
            self.answered += 1
        return receipt


def _failure(error: Exception) -> TypedPayload:
    """Return the payload of an answer that is a failure. A RequestFailed is what the handler wants to say."""
    kind, text = type(error).__name__, str(error)
    if not isinstance(error, RequestFailed) or not text:
        text = f"{kind}: {text}" if text else kind
    return TypedPayload(text[:MAX_ERROR_CHARACTERS].encode(errors="replace"), ERROR_TYPE)


def _parts(answer: Any) -> tuple[Mapping[str, Any], Any]:
    """Return the attributes and the payload of an answer."""
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Mapping):
        return answer[0], b"" if answer[1] is None else answer[1]
    return {}, b"" if answer is None else answer


def _typed(payload: Any, event: Event) -> TypedPayload:
    """Return the payload of an answer, which expires when nobody waits for it any more."""
    return typed_payload(payload, expires_at=event.expires_at or 0, request=event.request)
