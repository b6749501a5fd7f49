"""Records the demo's events at two sites, in total order, and audits both archives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from tidings.core.errors import PipelineError
from tidings.recording.recorder import Recorder
from tidings.scenarios.trace.checkers.once import EXACTLY_ONCE
from tidings.scenarios.trace.checkers.total import TOTAL_ORDER
from tidings.scenarios.trace.verdict import Verdict
from tidings.spark.audit.auditing import AuditRequest
from tidings.spark.audit.run import audit
from tidings.spark.session import default_master

RECORDED_AT = ("oslo2", "paris2")
"""Not at the site that is cut off: a recorder is not a node of the scenario, so it would not be cut off with it."""
PROMISED = AuditRequest((EXACTLY_ONCE, TOTAL_ORDER))
"""FIFO is not among them: total order keeps a source's order within each topic, not across topics."""
ARRIVE_TIMEOUT_S = 60.0
LOOK_S = 0.05


class ArchivesResult(msgspec.Struct, frozen=True):
    events: dict[str, int]
    """Broker -> events in the archive recorded there."""
    published: int
    verdicts: list[Verdict]
    on_spark: bool
    why_not: str = ""
    """Why the audit ran in this process although Spark was requested."""

    @property
    def holds(self) -> bool:
        complete = all(events == self.published for events in self.events.values())
        return complete and all(verdict.holds for verdict in self.verdicts)


@asynccontextmanager
async def recording(
    directory: Path, topics: Sequence[str], brokers: Mapping[str, str], sequencers: Sequence[str]
) -> AsyncIterator[dict[str, Recorder]]:
    """Run recorders of these topics, by their brokers; an error that stops one is raised here."""
    recorders = {
        broker: Recorder(brokers[broker], directory / broker, *topics, order="total", sequencer=sequencers)
        for broker in RECORDED_AT
    }
    try:
        async with asyncio.TaskGroup() as tasks:
            for recorder in recorders.values():
                await recorder.start()
            running = [tasks.create_task(recorder.run()) for recorder in recorders.values()]
            yield recorders
            for task in running:
                task.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # the first caused the others
    finally:
        await asyncio.gather(*(recorder.stop() for recorder in recorders.values()))


async def until_recorded(recorders: Mapping[str, Recorder], events: int) -> None:
    """Wait until each has this many events. If one does not get them in time, the result shows it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(ARRIVE_TIMEOUT_S):
            while any(recorder.recorded < events for recorder in recorders.values()):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)


def audit_archives(
    directory: Path, published: int, *, spark: bool, progress: Callable[[float], None]
) -> ArchivesResult:
    """Audit on Spark if it is requested and runs here, else in this process."""
    paths = [directory / broker for broker in RECORDED_AT]
    why_not, found = "", None
    if spark:
        try:
            found = audit(paths, PROMISED, master=default_master(), progress=progress)
        except PipelineError as error:
            why_not = str(error)
    if found is None:
        found = audit(paths, PROMISED, here=True)
    archives = found.archives
    assert archives is not None, "archives were named"
    events = dict(zip(RECORDED_AT, archives.events, strict=True))
    return ArchivesResult(events, published, archives.verdicts, spark and not why_not, why_not)
