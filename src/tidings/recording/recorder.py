"""Records the notifications of one subscription in an archive, in their order, each event once.

An event is acknowledged to the network once it is on disk. On a guaranteed network the broker keeps all other events,
also while the recorder is away (for a day). A recorder that is killed and restarted loses nothing and records nothing
twice, because the archive has its progress for each source, or for each entry of the order. On other networks a
recorder misses what is published while it is away, and notes a gap in the archive. It also does so if it cannot resume
an order.

When the disk is full, the recorder acknowledges nothing and retries until there is room.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tidings.bus.connect import connect_as
from tidings.bus.gaps import Gap
from tidings.bus.service import EventService, parse_order
from tidings.core.errors import ArchiveError, ArchiveFull, OrderError, TidingsError, WireError
from tidings.core.events.event import Event
from tidings.core.events.run import Arrival
from tidings.core.events.subscription import ORDERED, OrderName, Subscription
from tidings.core.overlay.guaranteed.attachments import ABSENT_NS
from tidings.drivers.sockets.client import Opener
from tidings.recording.gaps import GapNote, PendingGaps
from tidings.recording.intake import Intake
from tidings.recording.marks import ALIVE, BROKER, DISK, WHO, Changes, Marks
from tidings.storage.archive import Archive, ArchiveSettings

SUBSCRIPTION = "archive"
BATCH_EVENTS = 4_096
"""The most events written to disk at once."""
BUFFER_EVENTS = 65_536
"""The most events waiting for the disk if the network does not wait for us; more are dropped and counted."""
MAINTAIN_S = 5.0
RETRY_S = 1.0
MOVED = "the recorder moved to another broker"

Result = TypeVar("Result")
log = logging.getLogger("tidings")


class Recorder:
    """Records a subscription: `await start()`, `await run()` until it is cancelled or fails, `await stop()`.

    `topics` are topic patterns; none means every topic. `name` identifies the recorder to the network for ever; the
    default derives from the archive's id. `opener` is for a recorder inside its broker.
    """

    def __init__(
        self,
        url: str,
        directory: Path | str,
        *topics: str,
        where: str | None = None,
        order: OrderName = "none",
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
        """Events recorded since the start."""
        self.problem = ""
        """Why nothing can be written at the moment."""
        self.trouble = ""
        """Why the archive cannot be sealed or trimmed at the moment."""
        self.name = name or ""
        self.archive_id = ""
        self.first_offset = 0
        """The offset at which this run of the recorder began."""
        self.guaranteed = False
        """Whether the network is a guaranteed one; known after `start`."""
        self.subscription = Subscription(SUBSCRIPTION, topics, where, parse_order(order))
        self.subscription.interest()  # raises if topics or filter are invalid
        self._url = url
        self._credentials: dict[str, Any] = {"token": token, "tls_ca": tls_ca, "timeout_s": timeout_s}
        self._sequencer = sequencer
        self._opener = opener
        self._settings = settings or ArchiveSettings()
        self.on_recorded = on_recorded
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        """The only thread that uses the archive."""
        self._archive: Archive | None = None
        self._service: EventService | None = None
        self._intake: Intake | None = None
        self._marks = Marks()
        self._batch: list[Event | Arrival] = []
        """Taken from the intake, but not yet on disk."""
        self._gaps = PendingGaps()
        self._dropped = self._reconnections = 0
        self._maintained_at = 0.0

    @property
    def _resumes(self) -> bool:
        """Whether the broker keeps events while the recorder is away."""
        return self._service is not None and self._service.resumes

    @property
    def _is_ordered(self) -> bool:
        return self.subscription.order in ORDERED

    @property
    def _received(self) -> int:
        """The number of events received since the start, on disk or not."""
        return self.recorded + _count(self._batch) + (0 if self._intake is None else len(self._intake))

    # --- Life

    async def start(self) -> None:
        """Open the archive and subscribe; ArchiveError, or ConnectionFailed and other errors of the network."""
        try:
            archive = await _uninterrupted(self._in_thread(self._open_archive))
            self.archive_id = archive.id
            self.name = self.name or f"archive-{archive.id[:16]}"
            self.first_offset = end = archive.bounds().end
            await self._subscribe(end)
            await self._write()
        except BaseException:
            await self.stop()
            raise

    async def _subscribe(self, end: int) -> None:
        refusal = ""
        try:
            await self._open_intake()
        except OrderError as error:
            if self._marks.reached is None:
                raise
            refusal = str(error)
            await self._leave()
            await self._open_intake()  # as a new subscriber: the earlier one is forgotten everywhere
        self._note_absence(refusal, began_before=ALIVE in self._marks, end=end)

    async def _open_intake(self) -> None:
        service = self._service = self._make_service()
        service.on_break = self._on_break
        await service.open()
        self.guaranteed = service.lossless
        service.keeps_subscriptions = self._resumes
        self._intake = Intake(service, self.subscription, BUFFER_EVENTS)
        self._intake.on_miss = self._on_miss  # an order that needs every event replaces it
        await self._intake.__aenter__()

    def _open_archive(self) -> Archive:
        self._archive = Archive.open(self.directory, self._settings)
        self._marks = Marks(self._archive.marks())
        return self._archive

    def _make_service(self) -> EventService:
        service = connect_as(
            self._url,
            self.name,
            sequencer=self._sequencer,
            resume_points={SUBSCRIPTION: self._marks.of_sources()},
            opener=self._opener,
            **self._credentials,
        )
        if not self._is_ordered:
            return service.without_order()
        reached = self._marks.reached
        if reached is not None:
            service.reached_before[SUBSCRIPTION] = reached
        return service

    def _note_absence(self, refusal: str, *, began_before: bool, end: int) -> None:
        """Note a gap if events published while no recorder was running may be missing."""
        broker, who = _broker_number(self._service), self._identity()
        if began_before:
            away_ns = time.time_ns() - self._marks[ALIVE]
            if refusal:
                self._gaps.add(f"no recorder for {away_ns / 1e9:.0f} s: {refusal}")
            elif not self._resumes:
                self._gaps.add(f"no recorder for {away_ns / 1e9:.0f} s")
            elif away_ns > ABSENT_NS:
                self._gaps.add(f"no recorder for {away_ns / 1e9:.0f} s: brokers keep events for a day")
            elif broker != self._marks.get(BROKER, broker):
                self._gaps.add(MOVED)
                self._marks.pop(DISK, None)
            elif who != self._marks.get(WHO, who):
                self._gaps.add("the earlier recorder had another name or recorded other events")
            elif self._is_ordered and not self._has_resumed():
                self._gaps.add(f"no recorder for {away_ns / 1e9:.0f} s: its broker kept nothing")
        elif end:
            self._gaps.add("no recorder before, or another one")
        self._marks[BROKER], self._marks[WHO] = broker, who

    def _has_resumed(self) -> bool:
        """Return True if this is the same subscriber as before."""
        assert self._service is not None
        before, now = self._marks.reached, self._service.reached(SUBSCRIPTION, 0)
        return before is not None and now is not None and before.incarnation == now.incarnation

    def _identity(self) -> int:
        """Return a hash of name and selection: for others than these the broker has kept nothing."""
        key = self.subscription.interest().key
        return zlib.crc32(f"{self.name} {self.subscription.order} {key.hex()}".encode())

    async def run(self) -> None:
        """Record until cancelled; raise an error that makes it impossible to continue."""
        intake = self._intake
        assert intake is not None
        while True:
            if not self._gaps:
                await intake.wait(MAINTAIN_S)
            self._take(BATCH_EVENTS)
            if self._batch or self._gaps or self._is_maintenance_due():
                await self._write()
            elif intake.failure is not None and not len(intake):
                raise intake.failure

    async def stop(self) -> None:
        """Write what has come, if possible, and leave; a guaranteed broker keeps the rest."""
        try:
            if self._intake is not None and self._archive is not None and not self.problem:
                with suppress(TidingsError):
                    await _uninterrupted(self._write_rest())
                await asyncio.sleep(0)  # acknowledgements are sent at the end of a turn
        finally:
            try:
                await self._leave()
            finally:
                archive, self._archive = self._archive, None
                if archive is not None:
                    await self._in_thread(archive.close)
                self._thread.shutdown(wait=False)

    async def _write_rest(self) -> None:
        """Write what is here now; what keeps coming might never end."""
        last = self._received
        while self.recorded < last:
            self._take(last - self.recorded)
            await self._append()
        self._gaps.make_all_due()
        if self._gaps:
            await self._append()

    async def _leave(self) -> None:
        intake, service, resumes = self._intake, self._service, self._resumes
        self._intake = self._service = None
        if intake is not None:
            if resumes:
                intake.leave()
            else:
                with suppress(TidingsError):
                    await intake.__aexit__(None, None, None)
        if service is not None:
            with suppress(TidingsError):
                await service.close()

    # --- Writing

    def _take(self, limit: int) -> None:
        """Take the next batch, unless there is one; it ends at the next gap, to note the gap in its place."""
        if not self._batch and self._intake is not None:
            before_gap = self._gaps.next_position(self.recorded) - self.recorded
            self._batch = self._intake.take(min(limit, BATCH_EVENTS, before_gap))

    async def _write(self) -> None:
        """Write the batch, and retry until it is on disk."""
        while True:
            try:
                await _uninterrupted(self._append())
            except ArchiveFull as error:
                if not self.problem:
                    log.error("recording paused: %s", error)
                self.problem = str(error)
                await asyncio.sleep(RETRY_S)
            else:
                if self.problem:
                    log.warning("recording resumed")
                self.problem = ""
                return

    async def _append(self) -> None:
        """Append the gaps before the batch and the batch, which is kept until it is on disk."""
        self._note_losses()
        batch, unreadable = self._batch, list[WireError]()
        gaps = self._gaps.take(self.recorded)
        now_ns = time.time_ns()
        changes = {**self._marks.own(), ALIVE: now_ns}
        changes |= self._progress(batch)
        to_note = gaps.copy()
        try:
            await self._in_thread(lambda: self._append_now(batch, now_ns, changes, gaps, unreadable.append))
        except ArchiveError:
            self._gaps.give_back(gaps)
            raise
        finally:
            for gap in to_note[: len(to_note) - len(gaps)]:
                gap.noted()
        self._marks[ALIVE] = now_ns
        self._batch = []
        for error in unreadable:
            log.warning("%s", error)
            self._gaps.add(str(error), 1)
        if batch:
            count = _count(batch)
            self.recorded += count
            if self._intake is not None:
                self._intake.settle(count)
            self.on_recorded()

    def _progress(self, batch: list[Event | Arrival]) -> Changes:
        """Return the marks from which a restarted recorder continues after these events."""
        if not self._resumes:
            return {}
        assert self._service is not None
        reached = self._service.reached(SUBSCRIPTION, _count(batch))
        return self._marks.advance(batch) if reached is None else self._marks.reach(reached)

    def _append_now(
        self,
        batch: list[Event | Arrival],
        now_ns: int,
        marks: Changes,
        gaps: list[GapNote],
        leave_out: Callable[[WireError], None],
    ) -> None:
        archive = self._archive
        assert archive is not None
        while gaps:
            archive.note_gap(gaps[0].reason, gaps[0].missing)
            gaps.pop(0)
        archive.append(batch, now_ns, marks=marks, leave_out=leave_out)
        if self._is_maintenance_due():
            # The events are on disk, so a failure of the upkeep must not make us append them again.
            with suppress(ArchiveError):
                archive.maintain()
            self._maintained_at = time.monotonic()
        if archive.trouble and archive.trouble != self.trouble:
            log.warning("cannot maintain the archive, but still recording: %s", archive.trouble)
        self.trouble = archive.trouble

    def _note_losses(self) -> None:
        """Note losses that are not reported by a callback: check for them at every write."""
        came = self._received
        service = self._service
        assert service is not None
        dropped = service.dropped + (0 if self._intake is None else self._intake.dropped)
        if dropped > self._dropped:
            self._gaps.add("the recorder was too slow", dropped - self._dropped, after=came)
            self._dropped = dropped
        if service.reconnections > self._reconnections and not service.lossless:
            self._reconnections = service.reconnections
            self._gaps.add("the connection was lost", after=came)
        if self._resumes:
            self._note_broker(came)

    def _note_broker(self, came: int) -> None:
        """Note a gap if this is another broker, or one that lost its disk: it has kept nothing for us."""
        assert self._service is not None
        broker, disk = _broker_number(self._service), self._service.generation
        if broker != self._marks[BROKER]:
            self._gaps.add(MOVED, after=came)
        elif disk and disk != self._marks.get(DISK, disk):
            self._gaps.add("the broker lost what it kept", after=came)
        self._marks[BROKER] = broker
        if disk:
            self._marks[DISK] = disk

    def _on_miss(self, gap: Gap, certain: bool, noted: Callable[[], None]) -> None:
        """Note a gap that the broker or the order reported; a broker keeps its report until the gap is on disk."""
        events = ", ".join(
            f"{each.source}~{each.incarnation} {each.first} to {each.last}" for each in gap.missed
        )
        if self._is_ordered or not events:
            reason = f"{gap.reason} ({events})" if events else gap.reason
        else:
            reason = (
                f"{events} could not be kept by the network"
                if certain
                else f"{events} may have waited elsewhere"
            )
        self._add_gap(reason, gap.count, noted)

    def _on_break(self, reason: str) -> None:
        if self._service is not None and not self._service.lossless:
            self._add_gap(f"the connection was lost: {reason}")

    def _add_gap(
        self, reason: str, missing: int | None = None, noted: Callable[[], None] = lambda: None
    ) -> None:
        self._gaps.add(reason, missing, after=self._received, noted=noted)
        if self._intake is not None:
            self._intake.nudge()

    def _is_maintenance_due(self) -> bool:
        return time.monotonic() - self._maintained_at >= MAINTAIN_S

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def status(self) -> dict[str, object]:
        """What `tidings status` shows of an archive's recorder."""
        return {
            "archive": str(self.directory),
            "archive_recorder": self.name,
            "archive_recorded": self.recorded,
            "archive_waiting": 0 if self._intake is None else len(self._intake),
            "archive_problem": self.problem or self.trouble,
        }


def _count(batch: list[Event | Arrival]) -> int:
    return sum(came.count for came in batch)


async def _uninterrupted(work: Coroutine[Any, Any, Result]) -> Result:
    """Await the work, and delay a cancellation until it is done, because half of it would leave an unknown state."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def _broker_number(service: EventService | None) -> int:
    """Return a number that identifies the broker; an archive's marks are numbers."""
    return zlib.crc32(("" if service is None else service.broker).encode())
