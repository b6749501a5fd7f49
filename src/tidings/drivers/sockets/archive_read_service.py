"""Answers readers of an archive, for a broker that keeps one or for a recorder.

A separate thread reads the files, so that the event loop is not blocked, batch by batch and in turn for all readers.
A batch is read once the one before it has been sent: a slow reader delays nobody and costs one batch of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tidings.core.errors import (
    ArchiveAhead,
    ArchiveCorrupt,
    ArchiveError,
    ArchiveFull,
    ArchiveTrimmed,
    FilterError,
    SubscriptionRefused,
    TidingsError,
    TopicError,
)
from tidings.core.events.subscription import Order, Subscription, make_interest
from tidings.core.overlay.guaranteed.archive_fence import described
from tidings.core.wire.archive_messages import (
    MAX_GAPS_TOLD,
    MAX_ROWS_BYTES,
    ArchiveCommit,
    ArchiveCommitted,
    ArchiveFailed,
    ArchiveFind,
    ArchiveFound,
    ArchiveGaps,
    ArchiveGapsRequest,
    ArchiveInfo,
    ArchiveInfoRequest,
    ArchiveLast,
    ArchiveReach,
    ArchiveRead,
    ArchiveRows,
    ArchiveSettle,
    ArchiveSettled,
)
from tidings.drivers.sockets.session import MAX_REASON_CHARACTERS, Handler, SessionState, SocketSession
from tidings.storage.archive import ArchiveReader
from tidings.storage.archive.files import DATABASE_NAME

MAX_REQUESTS = 16
"""Of one reader at a time; a reader that sends more is refused."""
BATCH_ROWS = 16_384
POLL_S = 0.02
"""How often to look whether an ordered archive has come far enough."""
ORDERED = (Order.CAUSAL, Order.TOTAL)
DONE = "~done"
"""The marks of an ordered recorder (recording/marks.py): the number of an entry up to which it has everything."""
FAILURES: dict[str, type[TidingsError]] = {
    "refused": SubscriptionRefused,
    "trimmed": ArchiveTrimmed,
    "ahead": ArchiveAhead,
    "corrupt": ArchiveCorrupt,
    "full": ArchiveFull,
    "error": ArchiveError,
}
"""Name on the wire -> error."""

NOT_A_BROKERS = "this archive is not the broker's own: connect to a broker that keeps one (--archive DIR)"

Settle = Callable[[str, str], Awaitable[None]]
"""Waits until the archive has everything that the client's subscription does not get live; SubscriptionRefused."""
Result = TypeVar("Result")


@dataclass(eq=False)
class _Reading:
    """One reader's session, and the id of the archive that it reads."""

    session: SocketSession
    archive: str = ""


Answering = Callable[[_Reading, Any], Awaitable[None]]


class ArchiveReadService:
    """Reads the archive in `directory`, which another part of the process may be writing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive-reads")
        self._reader: ArchiveReader | None = None
        self._file: tuple[int, int] | None = None
        """The file that the reader has open: device and inode."""
        self._tasks: dict[SocketSession, set[asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled tasks of sessions that have ended."""
        self._closed = False
        self.settle: Settle | None = None
        """Set by a broker that records this archive itself."""
        self.recorded: Subscription | None = None
        """What the recorder in this process subscribes to."""

    def handlers(self, session: SocketSession) -> dict[type, Handler]:
        """Return the handlers for what a reader may send."""
        reading = _Reading(session)

        def answered(answer: Answering) -> Handler:
            return lambda message: self._begin(reading, message, answer)

        return {
            ArchiveInfoRequest: answered(self._send_info),
            ArchiveFind: answered(self._find),
            ArchiveRead: answered(self._read),
            ArchiveCommit: answered(self._commit),
            ArchiveGapsRequest: answered(self._send_gaps),
            ArchiveSettle: answered(self._settle),
            ArchiveReach: answered(self._reach),
            ArchiveLast: answered(self._send_last),
        }

    def forget(self, session: SocketSession) -> None:
        """Cancel the requests of a session that has ended."""
        for task in list(self._tasks.pop(session, ())):
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for session in list(self._tasks):
            self.forget(session)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close_reader)
        self._thread.shutdown(wait=False)

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- Requests

    def _begin(self, reading: _Reading, message: Any, answer: Answering) -> None:
        tasks = self._tasks.setdefault(reading.session, set())
        if len(tasks) >= MAX_REQUESTS:
            reading.session.refuse(f"too many requests at once: at most {MAX_REQUESTS}")
            return
        task = asyncio.ensure_future(self._answer(reading, message, answer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _answer(self, reading: _Reading, message: Any, answer: Answering) -> None:
        try:
            await answer(reading, message)
        except (ArchiveError, SubscriptionRefused, FilterError, TopicError, OSError) as error:
            kind = next((name for name, cls in FAILURES.items() if isinstance(error, cls)), "error")
            reading.session.send(ArchiveFailed(message.request, kind, str(error)[:MAX_REASON_CHARACTERS]))

    async def use(self, use: Callable[[ArchiveReader], Result]) -> Result:
        """Use the archive in the thread, on behalf of this process."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: use(self._current_reader())
        )

    async def _call(self, reading: _Reading, use: Callable[[ArchiveReader], Result]) -> Result:
        def call() -> Result:
            reader = self._current_reader()
            reading.archive = reading.archive or reader.id
            if reading.archive != reader.id:
                raise ArchiveError(f"archive {self.directory} was replaced by another one: reconnect")
            return use(reader)

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _current_reader(self) -> ArchiveReader:
        """Return a reader of the present archive: it may have been deleted and made anew under an open file."""
        try:
            status = (self.directory / DATABASE_NAME).stat()
            file = (status.st_dev, status.st_ino)
        except OSError:
            file = None
        if file is None or file != self._file:
            self._close_reader()
        if self._reader is None:
            self._reader, self._file = ArchiveReader(self.directory), file
        return self._reader

    async def _send_info(self, reading: _Reading, message: ArchiveInfoRequest) -> None:
        archive, bounds = await self._call(reading, lambda reader: (reader.id, reader.bounds()))
        reading.session.send(ArchiveInfo(message.request, archive, bounds.first, bounds.end))

    async def _find(self, reading: _Reading, message: ArchiveFind) -> None:
        offset = await self._call(reading, lambda reader: reader.offset_at(message.published_ns))
        reading.session.send(ArchiveFound(message.request, offset))

    async def _commit(self, reading: _Reading, message: ArchiveCommit) -> None:
        await self._call(reading, lambda reader: reader.commit(message.consumer, message.offset))
        reading.session.send(ArchiveCommitted(message.request))

    async def _send_gaps(self, reading: _Reading, message: ArchiveGapsRequest) -> None:
        gaps = await self._call(reading, lambda reader: reader.gaps())
        latest = tuple((gap.offset, gap.noted_ns, gap.missing, gap.reason) for gap in gaps[-MAX_GAPS_TOLD:])
        reading.session.send(ArchiveGaps(message.request, latest))

    async def _settle(self, reading: _Reading, message: ArchiveSettle) -> None:
        if self.settle is None:
            raise SubscriptionRefused(NOT_A_BROKERS)
        await self.settle(message.client, message.subscription)
        bounds = await self._call(reading, lambda reader: reader.bounds())
        reading.session.send(ArchiveSettled(message.request, bounds.end))

    async def _reach(self, reading: _Reading, message: ArchiveReach) -> None:
        check_ordered(self.recorded, message)
        wanted = {f"{DONE}:{rank}": number for rank, number in message.numbers}
        while True:
            marks, bounds = await self._call(reading, lambda reader: (reader.marks(), reader.bounds()))
            if all(marks.get(key, -1) >= number for key, number in wanted.items()):
                break
            await asyncio.sleep(POLL_S)
        reading.session.send(ArchiveSettled(message.request, bounds.end))

    async def _send_last(self, reading: _Reading, message: ArchiveLast) -> None:
        interest = make_interest(message.topics, message.filter)
        parts = await self._call(
            reading, lambda reader: _encoded(reader.newest(interest, message.stop, BATCH_ROWS))
        )
        await self._send_parts(reading, message.request, 0, parts)
        reading.session.send(ArchiveRows(message.request, message.stop, 0, b""))

    async def _read(self, reading: _Reading, message: ArchiveRead) -> None:
        session = reading.session
        if message.start >= message.stop:
            session.send(ArchiveRows(message.request, message.start, 0, b""))
            return
        columns = message.columns or None
        parts = await self._call(
            reading,
            lambda reader: _encoded(reader.read(message.start, message.stop, BATCH_ROWS, columns)),
        )
        await self._send_parts(reading, message.request, message.start, parts)

    async def _send_parts(
        self, reading: _Reading, request: int, offset: int, parts: Generator[tuple[int, bytes], None, None]
    ) -> None:
        """Send the parts, each once the one before has left. `offset` counts rows."""
        session = reading.session
        try:
            while session.state is SessionState.UP:
                part = await self._call(reading, lambda reader: next(parts, None))
                if part is None:
                    return
                rows, body = part
                session.send(ArchiveRows(request, offset, rows, body))
                offset += rows
                await session.drained()
        finally:
            # Close it in the thread: the generator holds a file open and may be running there right now.
            await asyncio.get_running_loop().run_in_executor(self._thread, parts.close)


def check_ordered(recorded: Subscription | None, wanted: ArchiveReach) -> None:
    """Raise SubscriptionRefused unless the archive has what is wanted, in its order."""
    order = Order.NONE if recorded is None else recorded.order
    if recorded is None or order not in ORDERED or (wanted.order == Order.TOTAL and order != Order.TOTAL):
        raise SubscriptionRefused(
            f"this archive is recorded with order {order.value!r}: to start with it in order {wanted.order!r}, give "
            "archive= the URL of `tidings record --order total --listen`, or use order 'fifo'"
        )
    if not recorded.interest().covers(make_interest(wanted.topics, wanted.filter)):
        raise SubscriptionRefused(
            f"this archive has only {described(recorded.interest())}: subscribe to no more"
        )


def _encoded(batches: Iterable[Any]) -> Generator[tuple[int, bytes], None, None]:
    """Yield the rows as encoded batches, none larger than an answer may be."""
    for batch in batches:
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            if part.num_rows > 1 and part.nbytes > MAX_ROWS_BYTES:
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
            else:
                yield part.num_rows, part.serialize().to_pybytes()
