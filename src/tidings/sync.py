"""The bus without `async`, for notebooks and scripts.

    with tidings.sync.embedded() as bus, bus.subscribe("/news/**") as stream:
        bus.publish("/news/bbc", {"size": 12})
        print(stream.get(timeout_s=1.0))

An event loop runs in its own thread; every call blocks until the loop has the result.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from tidings.bus import connect as opening
from tidings.bus.durable_stream import MAX_UNACKED, Ack, DurableStream
from tidings.bus.embedded import Embedded
from tidings.bus.embedded import embedded as open_embedded
from tidings.bus.expiry import Expiry
from tidings.bus.gaps import Gap
from tidings.bus.history import HistoryStream
from tidings.bus.history_reader import HistoryGap
from tidings.bus.receipts import Receipt
from tidings.bus.requests import DEFAULT_CONCURRENCY, DEFAULT_TIMEOUT_S, check_handler
from tidings.bus.service import EventService, PublishedEvent, SetAside
from tidings.bus.serving import RequestServer
from tidings.bus.stream import DEFAULT_BUFFER_EVENTS, KEEP, Condition, Stream, Unchanged
from tidings.core.errors import ConnectionFailed
from tidings.core.events.event import Event, EventId
from tidings.core.events.payload import Payload
from tidings.core.events.subscription import OrderName
from tidings.core.filters.language.predicates import Scalar
from tidings.storage.starts import Start

Result = TypeVar("Result")
Options = ParamSpec("Options")
NOT_OPEN = "the bus is not open: use it inside 'with'"


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidings", daemon=True)
        self._thread.start()

    @property
    def stopped(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self.stopped:
            work.close()
            raise ConnectionFailed("the connection was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncReceipt:
    """The outcome of a publication that was sent with `wait=False`."""

    def __init__(self, loop: _Loop, receipt: Receipt) -> None:
        self._loop = loop
        self._receipt = receipt

    @property
    def done(self) -> bool:
        """True once the publication is confirmed or has failed."""
        return self._receipt.done

    def result(self, timeout_s: float | None = None) -> EventId:
        """Wait until the event is confirmed and return its id.

        Args:
            timeout_s: Seconds to wait; None waits without limit.

        Raises:
            NotConfirmed: The publication failed, or its outcome cannot be known.
            TimeoutError: There was no answer in time.
        """

        async def wait() -> EventId:
            async with asyncio.timeout(timeout_s):
                return await self._receipt

        return self._loop.run(wait())


class SyncStream(AbstractContextManager["SyncStream"]):
    """The events of one subscription, as `Stream` without `async`.

    `with` subscribes and unsubscribes. Iterating blocks until the next event arrives or the stream is closed.
    """

    def __init__(self, loop: _Loop, stream: Stream) -> None:
        self._loop = loop
        self._stream = stream

    @property
    def dropped(self) -> int:
        """Events dropped because the reader was too slow; see `Stream.dropped`."""
        return self._stream.dropped

    @property
    def expired(self) -> int:
        """Events that were not shown because they had expired; see `Stream.expired`."""
        return self._stream.expired

    @property
    def gaps(self) -> list[Gap]:
        """The latest gaps; see `Stream.gaps`."""
        return list(self._stream.gaps)

    @property
    def missed(self) -> int:
        """Events in all gaps so far; see `Stream.missed`."""
        return self._stream.missed

    @property
    def uncovered(self) -> tuple[str, ...]:
        """The brokers that do not know this subscription yet, or keep something for it and cannot be reached; see
        `Stream.uncovered`."""
        return self._stream.uncovered

    @property
    def live(self) -> bool:
        """True once the history has been read, which a stream without `start` does not have; see
        `HistoryStream.live`."""
        return not isinstance(self._stream, HistoryStream) or self._stream.live

    @property
    def history_gaps(self) -> list[HistoryGap]:
        """Where the archive notes that events may be missing; see `HistoryStream.history_gaps`."""
        return list(self._stream.history_gaps) if isinstance(self._stream, HistoryStream) else []

    @property
    def refused(self) -> int:
        """Acknowledgements that did not count; see `DurableStream.refused`."""
        return self._stream.refused if isinstance(self._stream, DurableStream) else 0

    @property
    def set_aside(self) -> int:
        """Events that were delivered too often and set aside at the broker; see `DurableStream.set_aside`."""
        return self._stream.set_aside if isinstance(self._stream, DurableStream) else 0

    def completed(self) -> None:
        """Wait until the whole network knows this subscription, as `Stream.completed`."""
        self._loop.run(self._stream.completed())

    def get(self, timeout_s: float | None = None) -> Event:
        """Return the next event, as `Stream.get`; raises TimeoutError if none arrives within `timeout_s` seconds."""
        return self._loop.run(self._stream.get(timeout_s))

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                event = self._loop.run(self._stream.__anext__())
            except StopAsyncIteration:
                return
            yield event

    def batches(self, max_events: int = 1_000, max_wait_s: float = 0.0) -> Iterator[list[Event]]:
        """Iterate over lists of up to `max_events` events, as `Stream.batches`."""
        batches = self._stream.batches(max_events, max_wait_s)
        while (batch := self._loop.run(_next_of(batches))) is not None:
            yield batch

    def ack(self, event: Event) -> None:
        """Acknowledge an event, as `Event.ack`."""
        self._loop.run(event.ack())

    def nack(self, event: Event, after: float | timedelta = 0.0) -> None:
        """Give an event back, as `Event.nack`."""
        self._loop.run(event.nack(after))

    def cancel(self) -> None:
        """End a durable subscription or a group for good, as `Stream.cancel`."""
        self._loop.run(self._stream.cancel())

    def add(self, *topics: str) -> None:
        """Select these topic patterns as well, as `Stream.add`."""
        self._loop.run(self._stream.add(*topics))

    def remove(self, *topics: str) -> None:
        """Stop selecting these topic patterns, as `Stream.remove`."""
        self._loop.run(self._stream.remove(*topics))

    def change(self, *topics: str, where: Condition | Unchanged | None = KEEP) -> None:
        """Replace topics, filter or both, as `Stream.change`."""
        self._loop.run(self._stream.change(*topics, where=where))

    def __enter__(self) -> Self:
        self._loop.run(self._stream.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._loop.stopped:  # otherwise the bus has ended the stream
            self._loop.run(self._stream.__aexit__(kind, error, trace))


async def _next_of(batches: AsyncIterator[list[Event]]) -> list[Event] | None:
    return await anext(batches, None)


class SyncServer(AbstractContextManager["SyncServer"]):
    """Answers requests while its `with` block runs, as `RequestServer` without `async`. Handlers run in threads, so
    that they may block and use the bus."""

    def __init__(self, loop: _Loop, server: RequestServer, threads: ThreadPoolExecutor) -> None:
        self._loop = loop
        self._server = server
        self._threads = threads

    @property
    def answered(self) -> int:
        """Requests that got an answer."""
        return self._server.answered

    @property
    def failed(self) -> int:
        """Requests whose caller got a failure."""
        return self._server.failed

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the bus is closed, or `timeout_s` seconds; requests are answered meanwhile."""

        async def wait() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._server.wait()

        self._loop.run(wait())

    def __enter__(self) -> Self:
        self._loop.run(self._server.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._loop.stopped:
            self._loop.run(self._server.__aexit__(kind, error, trace))
        self._threads.shutdown(wait=False, cancel_futures=True)


class SyncBus(AbstractContextManager["SyncBus"]):
    """A bus without `async`, made by `tidings.sync.connect` or `tidings.sync.embedded`.

    `with` opens and closes it. Without a block, as in a notebook, call `open` and `close`.
    """

    def __init__(self, bus: EventService, loop: _Loop | None = None) -> None:
        self._bus = bus
        self._shared = loop
        self._loop = loop

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._loop is None:
            work.close()
            raise ConnectionFailed(NOT_OPEN)
        return self._loop.run(work)

    @overload
    def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: Payload = b"",
        *,
        expires: Expiry | None = None,
        wait: Literal[True] = True,
    ) -> EventId: ...

    @overload
    def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: Payload = b"",
        *,
        expires: Expiry | None = None,
        wait: Literal[False],
    ) -> SyncReceipt: ...

    def publish(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: Payload = b"",
        *,
        expires: Expiry | None = None,
        wait: bool = True,
    ) -> EventId | SyncReceipt:
        """Publish one event, as `EventService.publish`; with `wait=False` it returns a `SyncReceipt`."""
        if wait:
            return self._run(self._bus.publish(topic, attributes, payload, expires=expires))
        receipt = self._run(self._bus.publish(topic, attributes, payload, expires=expires, wait=False))
        assert self._loop is not None
        return SyncReceipt(self._loop, receipt)

    def publish_many(self, events: Iterable[PublishedEvent]) -> int:
        """Publish (topic, attributes, payload) tuples and return how many, as `EventService.publish_many`."""
        return self._run(self._bus.publish_many(events))

    def subscribe(
        self,
        *topics: str,
        where: Condition | None = None,
        order: OrderName = "none",
        buffer_events: int = DEFAULT_BUFFER_EVENTS,
        durable: str | None = None,
        group: str | None = None,
        group_by: str | None = None,
        ack: Ack = "auto",
        takeover: bool = False,
        keep_for: timedelta | float | None = None,
        max_unacked: int = MAX_UNACKED,
        max_deliveries: int | None = None,
        dead_letter: str | None = None,
        start: Start = "new",
        archive: str | None = None,
    ) -> SyncStream:
        """Return a stream to use with `with`; the arguments are those of `EventService.subscribe`."""
        if self._loop is None:
            raise ConnectionFailed(NOT_OPEN)
        stream = self._bus.subscribe(
            *topics,
            where=where,
            order=order,
            buffer_events=buffer_events,
            durable=durable,
            group=group,
            group_by=group_by,
            ack=ack,
            takeover=takeover,
            keep_for=keep_for,
            max_unacked=max_unacked,
            max_deliveries=max_deliveries,
            dead_letter=dead_letter,
            start=start,
            archive=archive,
        )
        return SyncStream(self._loop, stream)

    def request(
        self,
        topic: str,
        attributes: Mapping[str, Scalar] | None = None,
        payload: Payload = b"",
        *,
        timeout: float | timedelta = DEFAULT_TIMEOUT_S,
    ) -> Event:
        """Publish a request and return its answer, as `EventService.request`."""
        return self._run(self._bus.request(topic, attributes, payload, timeout=timeout))

    def serve(
        self,
        topic: str,
        handler: Callable[[Event], Any],
        *,
        group: str | None = None,
        where: Condition | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
    ) -> SyncServer:
        """Answer requests inside `with`; the arguments are those of `EventService.serve`, and `handler` is a plain
        function, which runs in a thread."""
        if self._loop is None:
            raise ConnectionFailed(NOT_OPEN)
        check_handler(handler)
        if inspect.iscoroutinefunction(handler):
            raise ValueError(f"handler must be a plain function here, not a coroutine function: {handler!r}")

        async def handle(event: Event) -> Any:
            return await asyncio.get_running_loop().run_in_executor(threads, handler, event)

        server = self._bus.serve(topic, handle, group=group, where=where, concurrency=concurrency)
        threads = ThreadPoolExecutor(concurrency, thread_name_prefix="tidings-serve")
        return SyncServer(self._loop, server, threads)

    def cancel_durable(self, name: str) -> None:
        """End a durable subscription or a group for good, as `EventService.cancel_durable`."""
        self._run(self._bus.cancel_durable(name))

    def durable_subscriptions(self) -> list[dict[str, Any]]:
        """Return the network's durable subscriptions and groups, as `EventService.durable_subscriptions`."""
        return self._run(self._bus.durable_subscriptions())

    def set_aside(self, name: str) -> list[SetAside]:
        """Return what was set aside, as `EventService.set_aside`."""
        return self._run(self._bus.set_aside(name))

    def release(self, name: str, numbers: Iterable[int]) -> int:
        """Deliver events again that were set aside, as `EventService.release`."""
        return self._run(self._bus.release(name, numbers))

    def drop_aside(self, name: str, numbers: Iterable[int]) -> int:
        """Drop events that were set aside, as `EventService.drop_aside`."""
        return self._run(self._bus.drop_aside(name, numbers))

    def status(self) -> dict[str, Any]:
        """Return the state of the service, as `EventService.status`."""
        return self._run(self._bus.status())

    def connect(self, at: str | None = None, *, name: str | None = None) -> SyncBus:
        """Return another client of an embedded network.

        Args:
            at: The broker to connect to; None is the last one.
            name: The client's name; None draws a random one.
        """
        if not isinstance(self._bus, Embedded):
            raise RuntimeError(
                "only a bus made by embedded() can connect more clients: use tidings.sync.connect"
            )
        if self._loop is None:
            raise ConnectionFailed(NOT_OPEN)
        return SyncBus(self._bus.connect(at, name=name), self._loop)

    def open(self) -> None:
        """Start the event loop's thread and connect."""
        if self._loop is None:
            self._loop = self._shared or _Loop()
        try:
            self._loop.run(self._bus.open())
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        """Close all streams, disconnect and stop the thread. Closing twice is harmless."""
        if self._loop is None:
            return
        try:
            if not self._loop.stopped:  # otherwise its embedded network was closed, and this bus with it
                self._loop.run(self._bus.close())
        finally:
            self._stop()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self) -> None:
        if self._loop is not None and self._shared is None:
            self._loop.stop()
        self._loop = None


def _synchronous(make: Callable[Options, EventService]) -> Callable[Options, SyncBus]:
    """Wrap a function that makes a bus: same arguments, but it returns a `SyncBus`."""

    @wraps(make)
    def made(*args: Options.args, **options: Options.kwargs) -> SyncBus:
        return SyncBus(make(*args, **options))

    made.__annotations__ = {**make.__annotations__, "return": "SyncBus"}
    return made


connect = _synchronous(opening.connect)
"""Return a bus without `async` for the network at a URL; the arguments are those of `tidings.connect`."""
embedded = _synchronous(open_embedded)
"""Return a bus without `async` on a network in this process; the arguments are those of `tidings.embedded`."""
