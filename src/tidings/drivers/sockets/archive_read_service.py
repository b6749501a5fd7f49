"""Answers readers of an archive, for a broker that keeps one or for a recorder.

A separate thread reads the files, so that the event loop is not blocked, batch by batch and in turn for all readers.
A batch is read once the one before it has been sent: a slow reader delays nobody and costs one batch of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
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
)
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
    ArchiveRead,
    ArchiveRows,
)
from tidings.drivers.sockets.session import MAX_REASON_CHARACTERS, Handler, SessionState, SocketSession
from tidings.storage.archive import ArchiveReader
from tidings.storage.archive.files import DATABASE_NAME

MAX_REQUESTS = 16
"""Of one reader at a time; a reader that sends more is refused."""
BATCH_ROWS = 16_384
FAILURES: dict[str, type[ArchiveError]] = {
    "trimmed": ArchiveTrimmed,
    "ahead": ArchiveAhead,
    "corrupt": ArchiveCorrupt,
    "full": ArchiveFull,
    "error": ArchiveError,
}
"""Name on the wire -> error."""

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
        except (ArchiveError, OSError) as error:
            kind = next((name for name, cls in FAILURES.items() if isinstance(error, cls)), "error")
            reading.session.send(ArchiveFailed(message.request, kind, str(error)[:MAX_REASON_CHARACTERS]))

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

    async def _read(self, reading: _Reading, message: ArchiveRead) -> None:
        session = reading.session
        if message.start >= message.stop:
            session.send(ArchiveRows(message.request, message.start, 0, b""))
            return
        columns = message.columns or None
        parts = await self._call(reading, lambda reader: _parts(reader, message.start, message.stop, columns))
        offset = message.start
        try:
            while session.state is SessionState.UP:
                part = await self._call(reading, lambda reader: next(parts, None))
                if part is None:
                    return
                rows, body = part
                session.send(ArchiveRows(message.request, offset, rows, body))
                offset += rows
                await session.drained()
        finally:
            # Close it in the thread: the generator holds a file open and may be running there right now.
            await asyncio.get_running_loop().run_in_executor(self._thread, parts.close)


def _parts(
    reader: ArchiveReader, start: int, stop: int, columns: Sequence[str] | None
) -> Generator[tuple[int, bytes], None, None]:
    """Yield the rows as encoded batches, none larger than an answer may be."""
    for batch in reader.read(start, stop, BATCH_ROWS, columns):
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            if part.num_rows > 1 and part.nbytes > MAX_ROWS_BYTES:
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
            else:
                yield part.num_rows, part.serialize().to_pybytes()
