"""The archive in `tidings demo`: a recorder is killed while events are published, and Spark reads what it has.

The network is a guaranteed broker of this process, the recorder a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.bus.connect import connect
from tidings.core.errors import ConnectionFailed, PipelineError
from tidings.drivers.address import Address, url
from tidings.drivers.sockets.broker import BrokerServer
from tidings.drivers.sockets.guaranteed import GuaranteedSettings
from tidings.storage.archive import ArchiveReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EVENTS = 6_000
KILLS = 2
READY_S = 30.0
ARRIVE_S = 30.0


@dataclass(frozen=True)
class ArchiveResult:
    published: int
    kills: int
    recorded: int
    distinct: int
    in_order: bool
    rows_on_spark: int | None
    """None: Spark does not run here, and `why` says why."""
    why: str = ""

    @property
    def as_claimed(self) -> bool:
        counts = {self.published, self.recorded, self.distinct}
        if self.rows_on_spark is not None:
            counts.add(self.rows_on_spark)
        return len(counts) == 1 and self.in_order


def play(*, spark: bool) -> ArchiveResult:
    from tidings.cli.shared.running import run

    with tempfile.TemporaryDirectory(prefix="tidings-demo-") as directory:
        archive = Path(directory) / "archive"
        run(_record(Path(directory), archive))
        numbers = _numbers(archive)
        rows, why = _rows_on_spark(archive) if spark else (None, "it was not asked for")
        return ArchiveResult(
            EVENTS, KILLS, len(numbers), len(set(numbers)), numbers == sorted(numbers), rows, why
        )


async def _record(directory: Path, archive: Path) -> None:
    settings = GuaranteedSettings((0,), {}, delta=0, data=directory, new=True)
    server = BrokerServer("b0", Address(port=0), mode="guaranteed", guaranteed=settings)
    await server.start()
    try:
        where = url(server.address)
        async with connect(where) as bus:
            async with _recorder(where, archive):
                await _publish(bus, 0)
            for part in range(1, KILLS + 1):
                await _publish(bus, 2 * part - 1)  # nobody is there
                async with _recorder(where, archive, kill=part < KILLS):
                    await _publish(bus, 2 * part)
                    if part == KILLS:
                        await _until_recorded(archive)
    finally:
        await server.stop()


async def _publish(bus: Any, part: int) -> None:
    share = EVENTS // (2 * KILLS + 1) + 1
    numbers = range(part * share, min((part + 1) * share, EVENTS))
    await bus.publish_many(("/demo", {"number": number}, b"") for number in numbers)


@asynccontextmanager
async def _recorder(where: str, archive: Path, *, kill: bool = True) -> AsyncIterator[None]:
    """A process that records; at the end of the block it is killed, or told to end."""
    arguments = ("-m", "tidings.cli.main", "record", where, "--archive", str(archive), "--json")
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY_S):
            line = await process.stdout.readline()
        if not line or json.loads(line).get("event") != "recording":
            raise ConnectionFailed("the recorder of the demo did not start")
        yield
    finally:
        with suppress(ProcessLookupError):
            process.kill() if kill else process.terminate()
        await process.wait()


async def _until_recorded(archive: Path) -> None:
    with ArchiveReader(archive) as reader, suppress(TimeoutError):
        async with asyncio.timeout(ARRIVE_S):
            while reader.bounds().end < EVENTS:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)


def _numbers(archive: Path) -> list[int]:
    with ArchiveReader(archive) as reader:
        batches = list(reader.read(*reader.bounds()))
    texts = [dict(row)["number"] for batch in batches for row in batch.column("attributes").to_pylist()]
    return [int(text) for text in texts]


def _rows_on_spark(archive: Path) -> tuple[int | None, str]:
    from tidings.spark.demo import distinct_rows

    try:
        return distinct_rows(archive), ""
    except PipelineError as error:
        return None, str(error)
