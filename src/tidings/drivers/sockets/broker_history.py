"""Lets a broker read its own archive, for durable subscriptions and groups that begin in the past.

The thread that reads for others reads for the broker, too, so that nothing blocks the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from tidings.core.errors import TidingsError
from tidings.core.events.event import Event
from tidings.core.events.rerun import runs_of
from tidings.core.events.subscription import Interest
from tidings.core.overlay.guaranteed.share_history import HistoryPosition, HistoryRows
from tidings.core.overlay.guaranteed.share_messages import StartItem
from tidings.drivers.sockets.archive_read_service import ArchiveReadService, Result
from tidings.storage.archive import ArchiveReader, events_of
from tidings.storage.starts import history_position

READ_EVENTS, READ_BYTES = 1_024, 1024 * 1024
"""An answer ends after this many selected events, or bytes of payloads."""
READ_ROWS = 16_384
"""How many rows are looked through for one answer."""
BATCH_ROWS = 1_024


class BrokerHistory:
    """The `ShareArchive` of a broker with an archive. `stop` ends what is being read."""

    def __init__(self, service: ArchiveReadService) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, start: StartItem, answer: Callable[[HistoryPosition | str], None]) -> None:
        self._ask(partial(_begin, start=start), answer)

    def read(
        self, interest: Interest, position: HistoryPosition, answer: Callable[[HistoryRows | str], None]
    ) -> None:
        self._ask(partial(read_history, interest=interest, position=position), answer)

    def _ask(self, use: Callable[[ArchiveReader], Result], answer: Callable[[Result | str], None]) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(use, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, use: Callable[[ArchiveReader], Result], answer: Callable[[Result | str], None]
    ) -> None:
        found: Result | str
        try:
            found = await self._service.use(use)
        except (TidingsError, OSError) as error:
            found = str(error)
        answer(found)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _begin(reader: ArchiveReader, start: StartItem) -> HistoryPosition:
    return history_position(reader.id, reader, start)


def read_history(reader: ArchiveReader, interest: Interest, position: HistoryPosition) -> HistoryRows:
    """Read what the interest selects from the position on, up to the limits above."""
    first, end = reader.bounds()
    if reader.id != position.archive or first > position.next:
        return HistoryRows(reader.id, first, position.next, end)
    following = position.next
    events: list[Event] = []
    size_bytes = 0
    for offset, event in _rows(reader, interest, position, end):
        if event is not None and interest.selects(event):
            events.append(event)
            size_bytes += len(event.payload)
        following = offset + 1
        enough = len(events) >= READ_EVENTS or size_bytes >= READ_BYTES
        if enough or following - position.next >= READ_ROWS:
            break
    gaps = tuple(
        (gap.offset, gap.missing, gap.reason)
        for gap in reader.gaps()
        if position.gaps_from <= gap.offset <= following
    )
    return HistoryRows(reader.id, first, following, end, tuple(runs_of(events)), gaps)


def _rows(
    reader: ArchiveReader, interest: Interest, position: HistoryPosition, end: int
) -> Iterator[tuple[int, Event | None]]:
    """Yield offsets with their events; with None, everything up to there has been shown or is not wanted."""
    if position.next < position.newest_below:
        batches = reader.newest(interest, position.newest_below, BATCH_ROWS)
        for batch in batches:
            for offset, event in zip(batch.column("offset").to_pylist(), events_of(batch), strict=True):
                if offset >= position.next:
                    yield offset, event
        yield position.newest_below - 1, None
        return
    stop = end if position.stop < 0 else min(position.stop, end)
    for batch in reader.read(position.next, max(stop, position.next), BATCH_ROWS):
        yield from zip(batch.column("offset").to_pylist(), events_of(batch), strict=True)
