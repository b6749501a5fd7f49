"""Answers readers of an archive, for a broker that keeps one or for a recorder.

The files are read in a thread of its own, batch by batch in turn for all readers, so that the loop goes on.
A batch is read when the one before it has left: a slow reader holds up nobody and costs one batch of memory.
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
"""Of one reader at a time; one that asks for more is sent away."""
BATCH_ROWS = 16_384
FAILURES: dict[str, type[ArchiveError]] = {
    "trimmed": ArchiveTrimmed,
    "ahead": ArchiveAhead,
    "corrupt": ArchiveCorrupt,
    "full": ArchiveFull,
    "error": ArchiveError,
}
"""How an error is called on the wire."""

Result = TypeVar("Result")


@dataclass(eq=False)
class _Visit:
    """One reader's session, and which archive it has been told of."""

    session: SocketSession
    archive: str = ""


Answering = Callable[[_Visit, Any], Awaitable[None]]


class ArchiveReadService:
    """Reads the archive in `directory`, which another part of the process, or nobody, writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive-reads")
        self._reader: ArchiveReader | None = None
        self._file: tuple[int, int] | None = None
        """Which file the reader has open."""
        self._tasks: dict[SocketSession, set[asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Of sessions that ended."""
        self._closed = False

    def handlers(self, session: SocketSession) -> dict[type, Handler]:
        """What a reader may send."""
        visit = _Visit(session)

        def answered(answer: Answering) -> Handler:
            return lambda message: self._begin(visit, message, answer)

        return {
            ArchiveInfoRequest: answered(self._tell_info),
            ArchiveFind: answered(self._find),
            ArchiveRead: answered(self._read),
            ArchiveCommit: answered(self._commit),
            ArchiveGapsRequest: answered(self._tell_gaps),
        }

    def forget(self, session: SocketSession) -> None:
        """It ended."""
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

    def _begin(self, visit: _Visit, message: Any, answer: Answering) -> None:
        tasks = self._tasks.setdefault(visit.session, set())
        if len(tasks) >= MAX_REQUESTS:
            visit.session.refuse(f"more than {MAX_REQUESTS} requests at once")
            return
        task = asyncio.ensure_future(self._answer(visit, message, answer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _answer(self, visit: _Visit, message: Any, answer: Answering) -> None:
        try:
            await answer(visit, message)
        except (ArchiveError, OSError) as error:
            kind = next((name for name, cls in FAILURES.items() if isinstance(error, cls)), "error")
            visit.session.send(ArchiveFailed(message.request, kind, str(error)[:MAX_REASON_CHARACTERS]))

    async def _call(self, visit: _Visit, use: Callable[[ArchiveReader], Result]) -> Result:
        def call() -> Result:
            reader = self._current_reader()
            visit.archive = visit.archive or reader.id
            if visit.archive != reader.id:
                raise ArchiveError(f"archive {self.directory} was replaced by another one: connect again")
            return use(reader)

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _current_reader(self) -> ArchiveReader:
        """Of what is in the directory now: an archive may be removed, and made anew, under an open file."""
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

    async def _tell_info(self, visit: _Visit, message: ArchiveInfoRequest) -> None:
        archive, bounds = await self._call(visit, lambda reader: (reader.id, reader.bounds()))
        visit.session.send(ArchiveInfo(message.request, archive, bounds.first, bounds.end))

    async def _find(self, visit: _Visit, message: ArchiveFind) -> None:
        offset = await self._call(visit, lambda reader: reader.offset_at(message.published_ns))
        visit.session.send(ArchiveFound(message.request, offset))

    async def _commit(self, visit: _Visit, message: ArchiveCommit) -> None:
        await self._call(visit, lambda reader: reader.commit(message.consumer, message.offset))
        visit.session.send(ArchiveCommitted(message.request))

    async def _tell_gaps(self, visit: _Visit, message: ArchiveGapsRequest) -> None:
        gaps = await self._call(visit, lambda reader: reader.gaps())
        told = tuple((gap.offset, gap.noted_ns, gap.missing, gap.reason) for gap in gaps[-MAX_GAPS_TOLD:])
        visit.session.send(ArchiveGaps(message.request, told))

    async def _read(self, visit: _Visit, message: ArchiveRead) -> None:
        session = visit.session
        if message.start >= message.stop:
            session.send(ArchiveRows(message.request, message.start, 0, b""))
            return
        columns = message.columns or None
        parts = await self._call(visit, lambda reader: _parts(reader, message.start, message.stop, columns))
        offset = message.start
        try:
            while session.state is SessionState.UP:
                part = await self._call(visit, lambda reader: next(parts, None))
                if part is None:
                    return
                rows, body = part
                session.send(ArchiveRows(message.request, offset, rows, body))
                offset += rows
                await session.drained()
        finally:
            # The generator holds a file open, and may be at work in the thread at this moment.
            await asyncio.get_running_loop().run_in_executor(self._thread, parts.close)


def _parts(
    reader: ArchiveReader, start: int, stop: int, columns: Sequence[str] | None
) -> Generator[tuple[int, bytes], None, None]:
    """The rows as encoded batches, none larger than an answer may be."""
    for batch in reader.read(start, stop, BATCH_ROWS, columns):
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            if part.num_rows > 1 and part.nbytes > MAX_ROWS_BYTES:
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
            else:
                yield part.num_rows, part.serialize().to_pybytes()
