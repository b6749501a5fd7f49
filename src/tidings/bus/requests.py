"""Requests and their answers, over publications and subscriptions, so that every event service has them.

A request is an event that says where its answer goes: to a topic that only its client subscribes to, at the first
request, and keeps. The answer repeats the request's id. A request ends once, with the first of: an answer, a failure,
the news that nobody is subscribed, the failure of its publication, its timeout. Whatever comes later finds no request
with its id and is ignored. What answers is in bus/serving.py.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from datetime import timedelta
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from tidings.bus.durable_stream import DurableStream
from tidings.bus.serving import ERROR_TYPE, Handler, RequestServer
from tidings.core.errors import ConnectionFailed, NoResponder, RequestFailed
from tidings.core.events.event import Event
from tidings.core.events.payload import Payload, typed_payload
from tidings.core.events.subscription import Subscription
from tidings.core.events.topics import check_topic
from tidings.core.filters.language.predicates import Scalar

if TYPE_CHECKING:
    from tidings.bus.receipts import Receipt
    from tidings.bus.service import EventService
    from tidings.bus.stream import Condition

REPLY_TOPICS = "/~reply"
REPLY_SUBSCRIPTION = "~reply"
"""Its id. A client that restarts under its name takes it up again, so that nothing is left of its earlier life."""
DEFAULT_TIMEOUT_S = 5.0
DEFAULT_CONCURRENCY = 16
MAX_PENDING = 10_000
"""How many requests of a client may wait for their answers."""
TRUST_S = 1.0
ASK_AFTER_S = 0.01
"""For a second after an answer, a request on its topic asks whether anybody is subscribed only if its own answer takes
longer than this. So a request that is answered costs no question, and the others hear 'nobody' at once all the same."""
MAX_TRUSTED = 1_000
MAX_PASSED_BY = 1_000
"""How many alarms of ended requests may wait in vain."""
NEXT_S = 0.001
"""An alarm is set at least this far ahead: event loops count in milliseconds."""
NS_PER_S = 1_000_000_000


class RequestReply:
    """The part of an event service that asks and answers."""

    asking_costs = False
    """True if `ask_for_responders` sends a message of its own."""

    def __init__(self) -> None:
        self.requests = PendingRequests(cast("EventService", self))

    async def request(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: Payload = b"",
        *,
        timeout: float | timedelta = DEFAULT_TIMEOUT_S,  # noqa: ASYNC109 - it travels with the request
    ) -> Event:
        """Publish a request and return its answer, the first one that arrives.

        Args:
            topic: The request's topic, such as "/price".
            attributes: As in `publish`.
            payload: As in `publish`.
            timeout: How long to wait for the answer, in seconds or as a timedelta. The request expires with it.

        Raises:
            NoResponder: Nobody is subscribed to such a request, as far as the service can tell.
            RequestFailed: The handler raised an exception, whose text this has; or 10,000 requests of this client are
                waiting.
            TimeoutError: No answer came in time.
            NotConfirmed: The request could not be published, or nobody knows whether it was.
        """
        return await self.requests.ask(topic, attributes or {}, payload, _seconds(timeout))

    def serve(
        self,
        topic: str,
        handler: Handler,
        *,
        group: str | None = None,
        where: Condition | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
    ) -> RequestServer:
        """Answer requests, inside `async with`.

        Args:
            topic: A topic pattern, such as "/price" or "/prices/*".
            handler: Called with each request, an event; a function or a coroutine function. What it returns is the
                answer: None, a payload as in `publish`, or a tuple (attributes, payload). An exception is passed to the
                caller. Answers to plain events, which have no `reply_to`, are dropped.
            group: The name of a group: each request goes to one member. In a guaranteed network it goes to another one
                if that one goes before it has answered. Without it, every server answers, and the first answer counts.
            where: A filter over the attributes, as in `subscribe`.
            concurrency: How many requests may be in the hands of an asynchronous handler at once.

        Raises:
            ValueError: An argument is not valid.
        """
        check_handler(handler)
        if not isinstance(concurrency, int) or not 1 <= concurrency <= MAX_PENDING:
            raise ValueError(f"concurrency must be between 1 and {MAX_PENDING:,}, not {concurrency!r}")
        service = cast("EventService", self)
        if group is None:
            stream = service.subscribe(topic, where=where)
        else:
            stream = service.subscribe(topic, where=where, group=group, ack="manual", max_unacked=concurrency)
            if isinstance(stream, DurableStream):
                stream.may_do_without("ack", "max_unacked")
        return RequestServer(service, stream, handler, concurrency)

    # --- What a service may know better

    def ask_for_responders(
        self, number: int, topic: str, attributes: Mapping[str, Scalar], receipt: Receipt
    ) -> None:
        """Ask whether anybody is subscribed to a request that is being published, and call `requests.nobody(number)` if
        not. A service that cannot tell does nothing: such a request ends with its timeout."""

    def flush(self) -> None:
        """Send what was published now, if the service would otherwise wait for the end of the turn."""

    def publish_now(
        self, topic: str, attributes: Mapping[str, Scalar], payload: Payload, *, alone: bool
    ) -> Receipt | None:
        """Publish a request or an answer; return None if it has to wait, for `publish` to do that.

        `alone`: nothing follows in this turn, for whose end it need not wait.
        """
        return None

    def reply_name(self) -> str:
        """Return the name of this client, for the topic of its answers."""
        return secrets.token_hex(8)


class _Pending:
    """A request that waits for its answer."""

    __slots__ = ("answer", "attributes", "deadline", "number", "receipt", "topic")

    def __init__(
        self,
        number: int,
        topic: str,
        attributes: Mapping[str, Scalar],
        answer: asyncio.Future[Event],
        deadline: float,
    ) -> None:
        self.number = number
        self.topic = topic
        self.attributes = attributes
        self.answer = answer
        self.deadline = deadline
        """On the event loop's clock."""
        self.receipt: Receipt | None = None

    def end(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def settled(self) -> None:
        """Its publication is over; end it if that failed."""
        assert self.receipt is not None
        if self.receipt.first_error is not None:
            self.end(self.receipt.first_error)


class PendingRequests:
    """The requests of one client that wait for their answers."""

    def __init__(self, service: EventService) -> None:
        self._service = service
        self._pending: dict[str, _Pending] = {}
        """By the id of each request."""
        self._next_number = 0
        """Larger than any of an earlier life of this client, whose answers may still arrive."""
        self._reply_to = ""
        self._subscribing: asyncio.Task[None] | None = None
        self._subscribed = False
        self._trusted: dict[str, float] = {}
        """Topic -> until when somebody is believed to answer there, on the event loop's clock."""
        self._alarms: list[tuple[float, str]] = []
        """A heap: when to look at which request. One timer serves all, because most end before; it would cost much of a
        request to set and cancel timers of its own."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._pending)

    async def ask(
        self, topic: str, attributes: Mapping[str, Scalar], payload: Payload, timeout_s: float
    ) -> Event:
        began_at = asyncio.get_running_loop().time()
        try:
            if not self._subscribed:
                check_topic(topic)
                async with asyncio.timeout_at(began_at + timeout_s):
                    await self._subscribe()
            return await self._ask(topic, attributes, payload, began_at + timeout_s)
        except TimeoutError:
            problem = f"no answer to the request on {topic} within {timeout_s:g} s"
            if not self._subscribed:
                problem = f"the network did not accept the subscription to answers within {timeout_s:g} s"
            raise TimeoutError(problem) from None

    async def _ask(
        self, topic: str, attributes: Mapping[str, Scalar], payload: Payload, deadline: float
    ) -> Event:
        if len(self._pending) >= MAX_PENDING:
            raise RequestFailed(f"{MAX_PENDING:,} requests of this client are waiting for an answer already")
        service, loop = self._service, asyncio.get_running_loop()
        number, self._next_number = self._next_number, self._next_number + 1
        name, now = f"{number:x}", loop.time()
        expires_at = service.now + int((deadline - now) * NS_PER_S)
        typed = typed_payload(payload, expires_at=expires_at, reply_to=self._reply_to, request=name)
        request = self._pending[name] = _Pending(number, topic, attributes, loop.create_future(), deadline)
        try:
            asks_later = service.asking_costs and now < self._trusted.get(topic, 0.0)
            alone = len(self._pending) == 1  # several travel together at the end of the turn
            receipt = service.publish_now(topic, attributes, typed, alone=alone and asks_later)
            waits = receipt is None or not asks_later
            if receipt is None:
                async with asyncio.timeout_at(deadline):
                    receipt = await service.publish(topic, attributes, typed, wait=False)
            request.receipt = receipt
            receipt.on_settled = request.settled
            if receipt.done:
                request.settled()
            if asks_later:
                self._look_at(name, min(now + ASK_AFTER_S, deadline))
            else:
                service.ask_for_responders(number, topic, attributes, receipt)
                self._look_at(name, deadline)
            if alone and waits:
                service.flush()
            event = await request.answer
            self._trust(topic, loop.time())
            return event
        finally:
            del self._pending[name]
            if request.receipt is not None:
                request.receipt.on_settled = None  # the two would keep each other alive

    def _trust(self, topic: str, now: float) -> None:
        """Somebody answers there, so that the next requests need not ask at once whether anybody does."""
        if len(self._trusted) >= MAX_TRUSTED:
            self._trusted.clear()
        self._trusted[topic] = now + TRUST_S

    # --- Alarms

    def _look_at(self, name: str, when: float) -> None:
        """Look at the request then, if it has not ended."""
        heappush(self._alarms, (when, name))
        if len(self._alarms) > 2 * len(self._pending) + MAX_PASSED_BY:
            self._alarms = [alarm for alarm in self._alarms if alarm[1] in self._pending]
            heapify(self._alarms)
        if self._timer is None or when < self._timer.when():
            self._set_timer(when)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now, alarms = asyncio.get_running_loop().time(), self._alarms
        while alarms:
            when, name = alarms[0]
            request = self._pending.get(name)
            if request is not None and when > now:
                self._set_timer(max(when, now + NEXT_S))
                return
            heappop(alarms)
            if request is None:
                continue
            if when >= request.deadline:
                request.end(TimeoutError())
            elif request.receipt is not None:
                self._service.ask_for_responders(
                    request.number, request.topic, request.attributes, request.receipt
                )
                heappush(alarms, (request.deadline, name))

    # --- The subscription to answers

    async def _subscribe(self) -> None:
        """Subscribe to the answers, once for all requests."""
        if self._subscribing is None:
            self._subscribing = asyncio.create_task(self._add_subscription())
            self._subscribing.add_done_callback(_seen)
        await asyncio.shield(self._subscribing)

    async def _add_subscription(self) -> None:
        try:
            service = self._service
            self._next_number = max(self._next_number, service.now)
            self._reply_to = f"{REPLY_TOPICS}/{quote(service.reply_name(), safe='')}"
            subscription = Subscription(REPLY_SUBSCRIPTION, (self._reply_to,))
            await service.add_subscription(subscription, self._on_answer)
            self._subscribed = True
        finally:
            self._subscribing = None

    # --- How a request ends

    def _on_answer(self, event: Event) -> None:
        request = self._pending.get(event.request)
        if request is None or request.answer.done():
            return  # late, a duplicate, or not for us
        if event.content_type == ERROR_TYPE:
            request.answer.set_exception(RequestFailed(event.payload.decode(errors="replace")))
        else:
            request.answer.set_result(event)

    def nobody(self, number: int) -> None:
        """Nobody is subscribed to that request; called by the service."""
        request = self._pending.get(f"{number:x}")
        if request is not None:
            problem = f"nobody is subscribed to {request.topic}, or not with the request's attributes"
            request.end(NoResponder(problem))

    def fail(self, reason: str) -> None:
        """The service has closed; called by the service."""
        self._subscribed = False
        for request in list(self._pending.values()):
            request.end(ConnectionFailed(reason))


def check_handler(handler: object) -> None:
    if not callable(handler):
        raise ValueError(f"handler must be a function of one event, not {handler!r}")


def _seen(task: asyncio.Task[None]) -> None:
    """Mark its error as seen, even if every request that waited for it has given up."""
    if not task.cancelled():
        task.exception()


def _seconds(timeout: float | timedelta) -> float:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not isinstance(seconds, int | float) or not 0 < seconds <= 1e9:
        raise ValueError(f"timeout must be a positive number of seconds or a timedelta, not {timeout!r}")
    return seconds
