"""Publishes the events of an archive again, in the archive's order.

They are new events of the replay's own source, with the topics, attributes and payloads of the old ones. With a `once`
name, the events have the same ids in every run, so that a guaranteed network accepts each of them once: a replay that
was interrupted is simply started again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tidings.bus.connect import connect, connect_as
from tidings.bus.overlay import SCHEMES
from tidings.bus.service import EventService
from tidings.core.errors import ArchiveAhead, ArchiveTrimmed, ConnectionFailed
from tidings.core.events.event import Event
from tidings.core.events.subscription import Interest, make_interest
from tidings.drivers.sockets.archive_client import open_reader
from tidings.storage.archive import events_of

ONCE_NEEDS = "--once requires a guaranteed network; {} is not one"
BATCH_EVENTS = 1_024
"""The most events published, and waited for, at once."""

Numbered = tuple[int, Event]
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Source:
    """Where events come from: an archive by directory or URL, a range of offsets, and a selection."""

    archive: Path | None = None
    url: str | None = None
    start: int | None = None
    """The first offset; None for the first that is kept."""
    stop: int | None = None
    """The offset after the last; None for the current end."""
    topics: tuple[str, ...] = ()
    where: str | None = None
    token: str = ""
    tls_ca: Path | None = None
    timeout_s: float = 10.0

    def interest(self) -> Interest:
        return make_interest(self.topics, self.where)

    def open(self) -> Any:
        return open_reader(
            self.archive, self.url, token=self.token, tls_ca=self.tls_ca, timeout_s=self.timeout_s
        )

    def range(self, reader: Any) -> tuple[int, int]:
        """Return the range of offsets; ArchiveTrimmed or ArchiveAhead if the archive does not have it."""
        first, end = reader.bounds()
        start = first if self.start is None else self.start
        stop = end if self.stop is None else self.stop
        if start < first:
            raise ArchiveTrimmed(f"offset {start} is no longer in the archive; the first is {first}")
        if max(start, stop) > end:
            raise ArchiveAhead(f"offset {max(start, stop)} does not exist yet; the archive ends at {end}")
        return start, stop

    def events(self, reader: Any, start: int, stop: int) -> Iterator[Numbered]:
        interest = self.interest()
        offset = start
        for batch in reader.read(start, stop):
            for event in events_of(batch):
                if interest.selects(event):
                    yield offset, event
                offset += 1


class _Feed:
    """Reads the events of a source in a separate thread."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="replay")
        self._reader: Any = None
        self._events: Iterator[Numbered] = iter(())
        self.archive_id = ""
        self.start = self.stop = 0

    async def open(self) -> None:
        def begin() -> None:
            self._reader = self._source.open()
            self.archive_id = self._reader.id
            self.start, self.stop = self._source.range(self._reader)
            self._events = self._source.events(self._reader, self.start, self.stop)

        await asyncio.get_running_loop().run_in_executor(self._thread, begin)

    async def batches(self) -> AsyncIterator[list[Numbered]]:
        def take() -> list[Numbered]:
            return list(islice(self._events, BATCH_EVENTS))

        while batch := await asyncio.get_running_loop().run_in_executor(self._thread, take):
            yield batch

    async def close(self) -> None:
        def end() -> None:
            if self._reader is not None:
                self._reader.close()

        await asyncio.get_running_loop().run_in_executor(self._thread, end)
        self._thread.shutdown(wait=False)


class Replay:
    """Publishes a source with `await run()`; after an interruption, continue at `next_offset`."""

    def __init__(
        self,
        source: Source,
        url: str,
        *,
        once: str | None = None,
        rate_hz: float | None = None,
        speed: float | None = None,
        name: str | None = None,
        token: str = "",
        tls_ca: Path | None = None,
        timeout_s: float = 5.0,
        progress: Progress = lambda share: None,
    ) -> None:
        source.interest()  # raises if topics or filter are invalid
        self.published = 0
        self.begun = False
        """Whether an event may have been published; `published` counts only confirmed events."""
        self.next_offset = source.start or 0
        self._source = source
        self._url = url
        self._once = once
        self._rate_hz = rate_hz
        self._speed = speed
        self._name = name
        self._credentials: dict[str, Any] = {"token": token, "tls_ca": tls_ca, "timeout_s": timeout_s}
        self._progress = progress

    async def run(self) -> None:
        feed = _Feed(self._source)
        try:
            await feed.open()
            self.next_offset = feed.start
            async with self._service(feed) as service:
                if self._once is not None and not service.lossless:
                    raise ConnectionFailed(ONCE_NEEDS.format(self._url))
                await self._publish(service, feed)
        finally:
            await feed.close()
        self.next_offset = feed.stop
        self._progress(1.0)

    def _service(self, feed: _Feed) -> EventService:
        if self._once is None:
            return connect(self._url, name=self._name, **self._credentials)
        if self._url.partition("://")[0] not in SCHEMES:
            raise ConnectionFailed(ONCE_NEEDS.format(self._url))
        name = f"{self._once}-{self._fingerprint(feed)}"
        return connect_as(self._url, name, incarnation=0, **self._credentials).without_order()

    def _fingerprint(self, feed: _Feed) -> str:
        """Return a hash of the selection: another one numbers its events differently, so it is another source."""
        interest = self._source.interest()
        what = f"{feed.archive_id} {feed.start} {interest.key.hex()}"
        return hashlib.blake2b(what.encode(), digest_size=6).hexdigest()

    async def _publish(self, service: EventService, feed: _Feed) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        first_ns: int | None = None
        async for batch in feed.batches():
            first_ns = batch[0][1].published_at if first_ns is None else first_ns
            waiting = batch
            while waiting:
                due = [
                    self._due_s(number, event, first_ns)
                    for number, (_, event) in enumerate(waiting, self.published)
                ]
                now_s = loop.time() - began_s
                ready = next((index for index, due_s in enumerate(due) if due_s > now_s), len(waiting))
                if not ready:
                    await asyncio.sleep(due[0] - now_s)
                    continue
                self.begun = True
                await service.publish_many(
                    (e.topic, e.attributes, e.payload_item) for _, e in waiting[:ready]
                )
                self.published += ready
                self.next_offset = waiting[ready - 1][0] + 1
                waiting = waiting[ready:]
            self._progress((self.next_offset - feed.start) / max(feed.stop - feed.start, 1))

    def _due_s(self, number: int, event: Event, first_ns: int) -> float:
        """Return when to publish the event, in seconds from the start."""
        if self._rate_hz is not None:
            return number / self._rate_hz
        if self._speed is not None:
            return max(event.published_at - first_ns, 0) / 1e9 / self._speed
        return 0.0
