"""Keeps an archive of what one subscription is notified of, in that order, each event once.

An event is acknowledged to the network when it is on disk. On a guaranteed network the broker keeps what is not, also
while the recorder is away (for a day): a recorder that is killed and started again loses nothing and records nothing
twice, for it knows from the archive what it has of each source. Elsewhere, and with an order of several topics, a
recorder that was away has missed what was published meanwhile: the archive then has a gap, and says so.

When the disk is full nothing is acknowledged any more; the recorder tries again until there is room.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tidings.archive import Archive, ArchiveSettings
from tidings.model.errors import ArchiveError, ArchiveFull, ConnectionFailed, TidingsError
from tidings.model.event import Event
from tidings.model.subscription import Order, Subscription
from tidings.net.client import Opener
from tidings.opening import ConnectedBus, connect
from tidings.protocol.attachments import ABSENT_NS
from tidings.protocol.client import MAX_TRACKED_SOURCES
from tidings.recording.intake import Intake
from tidings.services.bus import Bus
from tidings.services.overlay import SCHEMES, broker_bus
from tidings.services.service import EventService, parse_order
from tidings.services.stream import EventsMissed

SUBSCRIPTION = "archive"
BATCH_EVENTS = 4_096
"""Written, and made durable, at once."""
BUFFER_EVENTS = 65_536
"""What waits here for the disk where the network does not wait for us; beyond, events are missed, and counted."""
MAINTAIN_S = 5.0
RETRY_S = 1.0
ALIVE, BROKER = "~alive", "~broker"
"""Marks beside those of the sources: when the recorder last ran, and at which broker."""

Result = TypeVar("Result")
log = logging.getLogger("tidings")


class Recorder:
    """`await start()`, `await run()` until it is cancelled or cannot go on, `await stop()`.

    `topics` are topic patterns; none: every topic. `name` identifies the recorder to the network for ever; without
    one it is made from the archive's id. `opener` is for a recorder inside its broker.
    """

    def __init__(
        self,
        url: str,
        directory: Path | str,
        *topics: str,
        where: str | None = None,
        order: str = "none",
        name: str | None = None,
        token: str = "",
        tls_ca: str | Path | None = None,
        timeout_s: float = 5.0,
        sequencer: str | Sequence[str] | None = None,
        settings: ArchiveSettings | None = None,
        opener: Opener | None = None,
        on_recorded: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = Path(directory)
        self.recorded = 0
        """Events since the start."""
        self.problem = ""
        """Why nothing is written at the moment."""
        self.trouble = ""
        """Why files are not sealed, or not given up, at the moment."""
        self.name = name or ""
        self.archive_id = ""
        self.first_offset = 0
        """Where this run of the recorder began."""
        self.subscription = Subscription(SUBSCRIPTION, topics, where, parse_order(order))
        self.subscription.interest()  # a mistake shows here
        self._url = url
        self._credentials: dict[str, Any] = {"token": token, "tls_ca": tls_ca, "timeout_s": timeout_s}
        self._sequencer = sequencer
        self._opener = opener
        self._settings = settings or ArchiveSettings()
        self.on_recorded = on_recorded
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        """The archive is used in this thread alone."""
        self._archive: Archive | None = None
        self._service: EventService | None = None
        self._intake: Intake | None = None
        self._marks: OrderedDict[str, int] = OrderedDict()
        self._gaps: list[tuple[str, int | None]] = []
        self._dropped = 0
        self._maintained_at = 0.0

    @property
    def _resumes(self) -> bool:
        """Its broker keeps events while it is away."""
        return isinstance(self._service, Bus) and self._service.lossless

    # --- Life

    async def start(self) -> None:
        """ArchiveError: the archive cannot be used. ConnectionFailed and others: the network cannot be."""
        archive = await self._in_thread(self._open_archive)
        try:
            self.archive_id = archive.id
            self.name = self.name or f"archive-{archive.id[:16]}"
            self.first_offset = end = archive.bounds().end
            self._service = self._make_service()
            await self._service.open()
            began_before = ALIVE in self._marks
            if isinstance(self._service, Bus):
                self._service.keeps_subscriptions = True
                self._service.on_break = self._on_break
            await self._note_absence(began_before=began_before, end=end)
            self._intake = Intake(self._service, self.subscription, BUFFER_EVENTS)
            await self._intake.__aenter__()
            self._intake.on_miss = self._on_miss
            await self._write([])
        except BaseException:
            await self.stop()
            raise

    def _open_archive(self) -> Archive:
        self._archive = Archive.open(self.directory, self._settings)
        stored = self._archive.marks()
        self._marks.update(stored)
        return self._archive

    def _make_service(self) -> EventService:
        scheme, _, rest = self._url.partition("://")
        if scheme in SCHEMES and self.subscription.order in (Order.NONE, Order.FIFO):
            marks = {SUBSCRIPTION: dict(map(_parsed, self._source_marks()))}
            return broker_bus(
                scheme,
                rest.rstrip("/"),
                name=self.name,
                marks=marks,
                opener=self._opener,
                **self._credentials,
            )
        return connect(self._url, name=self.name, sequencer=self._sequencer, **self._credentials)

    def _source_marks(self) -> list[tuple[str, int]]:
        return [(key, value) for key, value in self._marks.items() if not key.startswith("~")]

    async def _note_absence(self, *, began_before: bool, end: int) -> None:
        """What was published while no recorder was there may be missing."""
        broker = _broker_number(self._service)
        if began_before:
            away_ns = time.time_ns() - self._marks[ALIVE]
            if not self._resumes:
                self._gaps.append((f"no recorder for {away_ns / 1e9:.0f} s", None))
            elif away_ns > ABSENT_NS:
                self._gaps.append((f"no recorder for {away_ns / 1e9:.0f} s: brokers keep a day", None))
            elif broker != self._marks.get(BROKER, broker):
                self._gaps.append(("the recorder moved to another broker", None))
        elif end:
            self._gaps.append(("another recorder, or none, before", None))
        self._marks[BROKER] = broker

    async def run(self) -> None:
        """Record until cancelled; raises what makes it impossible to go on."""
        intake = self._intake
        assert intake is not None
        while True:
            await intake.wait(MAINTAIN_S)
            events = intake.take(BATCH_EVENTS)
            if events or time.monotonic() - self._maintained_at >= MAINTAIN_S or self._gaps:
                await self._write(events)
                intake.settle(len(events))
            elif intake.failure is not None and not len(intake):
                raise intake.failure

    async def stop(self) -> None:
        """What came is written if it can be; the rest waits at the broker, if that is a guaranteed one."""
        intake, service, archive = self._intake, self._service, self._archive
        try:
            if intake is not None and archive is not None and not self.problem:
                with suppress(TidingsError):
                    while events := intake.take(BATCH_EVENTS):
                        await self._append(events)
                        intake.settle(len(events))
                await asyncio.sleep(0)  # acknowledgements leave at the end of a turn
        finally:
            if intake is not None:
                if self._resumes:
                    intake.leave()
                else:
                    with suppress(TidingsError):
                        await intake.__aexit__(None, None, None)
            if service is not None:
                with suppress(ConnectionFailed):
                    await service.close()
            if archive is not None:
                await self._in_thread(archive.close)
            self._archive = self._service = self._intake = None
            self._thread.shutdown(wait=False)

    # --- Writing

    async def _write(self, events: list[Event]) -> None:
        """Until it is on disk, however long that takes."""
        while True:
            try:
                await self._append(events)
            except ArchiveFull as error:
                if not self.problem:
                    log.error("nothing is recorded: %s", error)
                self.problem = str(error)
                await asyncio.sleep(RETRY_S)
            else:
                if self.problem:
                    log.warning("recording goes on")
                self.problem = ""
                return

    async def _append(self, events: list[Event]) -> None:
        self._note_dropped()
        gaps, self._gaps = self._gaps, []
        now_ns = time.time_ns()
        changes: dict[str, int | None] = {ALIVE: now_ns, BROKER: self._marks.get(BROKER, 0)}
        changes |= self._changed_marks(events)
        try:
            await self._in_thread(lambda: self._append_now(events, now_ns, changes, gaps))
        except ArchiveFull:
            self._gaps = gaps + self._gaps
            raise
        self._marks[ALIVE] = now_ns
        self._maintained_at = time.monotonic()
        if events:
            self.recorded += len(events)
            self.on_recorded()

    def _append_now(
        self,
        events: list[Event],
        now_ns: int,
        marks: dict[str, int | None],
        gaps: list[tuple[str, int | None]],
    ) -> None:
        archive = self._archive
        assert archive is not None
        while gaps:
            archive.note_gap(*gaps[0])
            gaps.pop(0)
        archive.append(events, now_ns, marks=marks)
        # The events are on disk: whatever upkeep meets, they must not be appended again.
        with suppress(ArchiveError):
            archive.maintain()
        if archive.trouble and archive.trouble != self.trouble:
            log.warning("the archive cannot be kept up, and takes events meanwhile: %s", archive.trouble)
        self.trouble = archive.trouble

    def _changed_marks(self, events: list[Event]) -> dict[str, int | None]:
        """The last sequence of each source, of the most recent sources alone."""
        if not self._resumes:
            return {}
        changes: dict[str, int | None] = {}
        marks = self._marks
        for event in events:
            key = f"{event.incarnation}:{event.source}"
            changes[key] = marks[key] = max(event.sequence, marks.pop(key, 0))
        while len(marks) > MAX_TRACKED_SOURCES + 2:
            oldest = next(iter(marks))
            if oldest in (ALIVE, BROKER):
                marks.move_to_end(oldest)
            else:
                del marks[oldest]
                changes[oldest] = None
        return changes

    def _note_dropped(self) -> None:
        dropped = self._intake.dropped if self._intake is not None else 0
        if isinstance(self._service, Bus | ConnectedBus):
            with suppress(AttributeError):  # an adapter has no such count
                dropped += self._service.dropped
        if dropped > self._dropped:
            self._gaps.append(("the recorder did not keep up", dropped - self._dropped))
            self._dropped = dropped

    def _on_miss(self, gap: EventsMissed) -> None:
        lost = gap.last - gap.first + 1
        reason = f"{gap.source}~{gap.incarnation} {gap.first} to {gap.last} could not be kept by the network"
        self._gaps.append((reason, lost))

    def _on_break(self, reason: str) -> None:
        if not self._resumes:
            self._gaps.append((f"the connection was lost: {reason}", None))
            if self._intake is not None:
                self._intake.nudge()  # it is noted before anything that comes after it

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def status(self) -> dict[str, object]:
        return {
            "archive": str(self.directory),
            "archive_recorder": self.name,
            "archive_recorded": self.recorded,
            "archive_waiting": 0 if self._intake is None else len(self._intake),
            "archive_problem": self.problem or self.trouble,
        }


def _parsed(mark: tuple[str, int]) -> tuple[tuple[str, int], int]:
    incarnation, _, source = mark[0].partition(":")
    if not incarnation.isdigit():
        raise ArchiveError(f"the archive's mark {mark[0]!r} is none of a recorder")
    return (source, int(incarnation)), mark[1]


def _broker_number(service: EventService | None) -> int:
    """Tells brokers apart; an archive's marks are numbers."""
    broker = getattr(getattr(service, "connection", None), "broker", "") if isinstance(service, Bus) else ""
    return zlib.crc32(broker.encode())
