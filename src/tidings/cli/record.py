"""`tidings record`: records a subscription's events in an archive, and can serve it to readers."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.options import (
    ConnectTimeout,
    Json,
    TlsAuthority,
    TokenFile,
    Url,
    check_name,
    check_tls_ca,
    check_url,
    option,
    read_token,
)
from tidings.cli.shared.output import print_json, print_line
from tidings.cli.shared.retention import archive_settings
from tidings.cli.shared.subscription_options import (
    Count,
    OrderFlag,
    OrderName,
    Timeout,
    Where,
    check_patterns,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tidings.recording.recorder import Recorder

Topics = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC...]", help="/a/b, /a/* or /a/**. Default: all topics.", show_default=False
    ),
]
ArchiveDirectory = Annotated[
    Path | None, option("--archive", metavar="DIR", help="Archive directory; created if missing.")
]
OldArchiveFlag = Annotated[Path | None, option("-a", hidden=True, help="As --archive.")]
TraceDirectory = Annotated[
    Path | None, option("--trace", metavar="DIR", help="On exit, write what was recorded as trace tables.")
]
Name = Annotated[
    str | None,
    option("--name", metavar="NAME", help="Recorder name, the same on each start. Default: the archive's."),
]
Listen = Annotated[
    str | None, option("--listen", metavar="HOST:PORT", help="Serve the archive to readers at this address.")
]
RetainSize = Annotated[
    str | None, option("--retain-size", metavar="SIZE", help="Keep at most this much, such as 500M or 20G.")
]
RetainAge = Annotated[
    str | None, option("--retain-age", metavar="TIME", help="Keep events for this long, such as 12h or 30d.")
]
SegmentRows = Annotated[
    int | None,
    option("--segment-rows", metavar="N", min=1, max=10_000_000, help="Start a new file every N events."),
]
SequencerAddress = Annotated[
    str | None,
    option("--sequencer", metavar="HOST:PORT", help="Sequencer that orders events from an adapter."),
]


def record(
    url: Url,
    topics: Topics = None,
    archive: ArchiveDirectory = None,
    old_archive: OldArchiveFlag = None,
    trace: TraceDirectory = None,
    where: Where = None,
    order: OrderFlag = OrderName.NONE,
    name: Name = None,
    listen: Listen = None,
    count: Count = None,
    timeout: Timeout = None,
    retain_size: RetainSize = None,
    retain_age: RetainAge = None,
    segment_rows: SegmentRows = None,
    sequencer: SequencerAddress = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Record events into an archive.

    Runs until Ctrl-C, --count or --timeout; run it again to continue. On a guaranteed network no event is lost in
    between, and none is recorded twice.
    """
    from tidings.cli.shared.running import Stopped, run
    from tidings.recording.recorder import Recorder

    archive = archive or old_archive
    if archive is None and trace is None:
        raise typer.BadParameter("give a directory here or with --trace", param_hint="--archive")
    check_url(url)
    check_tls_ca(tls_ca, url)
    check_patterns(topics or (), "TOPIC")
    if name is not None:
        check_name(name)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    token = read_token(token_file)
    with TemporaryDirectory(prefix="tidings-record-") as scratch:
        recorder = Recorder(
            url,
            archive or Path(scratch) / "archive",
            *(topics or ()),
            where=where,
            order=order.value,
            name=name,
            token=token,
            tls_ca=tls_ca,
            timeout_s=connect_timeout,
            sequencer=sequencer,
            settings=archive_settings(retain_size, retain_age, segment_rows),
        )
        recording = Recording(recorder, as_json=json)
        began_ns = time.time_ns()
        stopped = False
        try:
            run(recording.run(listen, count, timeout, token))
        except Stopped:
            if not recording.began:
                raise
            stopped = True  # the user stopped it
        if trace is not None:
            from tidings.recording.trace import write_trace

            write_trace(
                recorder.directory,
                trace,
                recorder.name,
                recorder.subscription,
                recorder.first_offset,
                began_ns,
                "guaranteed" if recorder.guaranteed else None,
            )
        told = {"recorded": recorder.recorded, "archive": None if archive is None else str(archive)}
        if json:
            print_json({"event": "ended", **told, "trace": None if trace is None else str(trace)})
        else:
            into = " and ".join(str(path) for path in (archive, trace) if path is not None)
            print_line(f"recorded {recorder.recorded:,} events into {into}")
    if not stopped and timeout is not None and recorder.recorded < (count or 1):
        raise typer.Exit(ExitCode.TIMEOUT)


class Recording:
    def __init__(self, recorder: Recorder, *, as_json: bool) -> None:
        self.began = False
        self._recorder = recorder
        self._as_json = as_json

    async def run(self, listen: str | None, count: int | None, timeout_s: float | None, token: str) -> None:
        """Record until the time is over or there are enough events. If it cannot start, leave no directory behind."""
        recorder = self._recorder
        enough = asyncio.Event()
        recorder.on_recorded = lambda: (
            enough.set() if count is not None and recorder.recorded >= count else None
        )
        async with AsyncExitStack() as stack:
            undo = stack.enter_context(ExitStack())
            undo.callback(remove, missing_directories(recorder.directory))
            await recorder.start()
            stack.push_async_callback(recorder.stop)
            where = None
            if listen is not None:
                where = await stack.enter_async_context(served(recorder, listen, token))
            announce(recorder, where, as_json=self._as_json)
            self.began = True
            undo.pop_all()
            await self._record(enough, timeout_s)

    async def _record(self, enough: asyncio.Event, timeout_s: float | None) -> None:
        running = asyncio.ensure_future(self._recorder.run())
        waiting = asyncio.ensure_future(enough.wait())
        try:
            await asyncio.wait({running, waiting}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            running.cancel()
            waiting.cancel()
            await asyncio.gather(running, waiting, return_exceptions=True)


def missing_directories(directory: Path) -> list[Path]:
    """Return the directory and those above it that do not exist yet."""
    return [path for path in (directory, *directory.parents) if not path.exists()]


def remove(directories: list[Path]) -> None:
    """Remove the first directory with its content, and those above it if they are empty."""
    for directory in directories[:1]:
        shutil.rmtree(directory, ignore_errors=True)
    for directory in directories[1:]:
        with suppress(OSError):
            directory.rmdir()


@asynccontextmanager
async def served(recorder: Recorder, listen: str, token: str) -> AsyncIterator[str]:
    """Serve the archive to readers; yield its URL."""
    from tidings.core.errors import ConnectionFailed
    from tidings.drivers.address import parse_address, url
    from tidings.drivers.sockets.archive_read_service import ArchiveReadService
    from tidings.drivers.sockets.archive_server import ArchiveServer

    try:
        address = parse_address(listen)
    except ConnectionFailed as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from None
    read_service = ArchiveReadService(recorder.directory)
    read_service.recorded = recorder.subscription
    server = ArchiveServer(recorder.name, address, read_service, token=token)
    await server.start()
    try:
        yield url(server.address)
    finally:
        await server.stop()


def announce(recorder: Recorder, where: str | None, *, as_json: bool) -> None:
    """Print the line that scripts wait for: from now on everything is recorded."""
    if as_json:
        fields = {"event": "recording", "archive": str(recorder.directory), "id": recorder.archive_id}
        print_json({**fields, "recorder": recorder.name, "offset": recorder.first_offset, "url": where})
    else:
        reading = "" if where is None else f", readable at {where}"
        print_line(f"recording into {recorder.directory} from offset {recorder.first_offset}{reading}")
