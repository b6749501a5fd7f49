"""`tidings record`: keeps an archive of what a subscription is notified of, and lets others read it."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.options import ConnectTimeout, Json, TlsAuthority, TokenFile, Url, option, read_token
from tidings.cli.shared.output import print_json, print_line
from tidings.cli.sub import OrderFlag, OrderName, Where

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tidings.recording.recorder import Recorder
    from tidings.storage.archive import ArchiveSettings

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Topics = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC...]", help="/a/b, /a/* or /a/**; none: every topic.", show_default=False),
]
ArchiveDirectory = Annotated[
    Path | None, option("--archive", "-a", metavar="DIR", help="The archive; made if it is not there.")
]
TraceDirectory = Annotated[
    Path | None, option("--trace", metavar="DIR", help="At the end, write what was recorded as trace tables.")
]
Name = Annotated[
    str | None,
    option("--name", help="The recorder's name in the network, for ever; made from the archive without."),
]
Listen = Annotated[
    str | None, option("--listen", metavar="HOST:PORT", help="Let others read the archive there.")
]
Count = Annotated[int | None, option("--count", "-n", min=1, help="End after so many events.")]
Timeout = Annotated[
    float | None,
    option("--timeout", min=0.0, help="End after so many seconds; exit code 3 if too little came."),
]
RetainSize = Annotated[
    str | None, option("--retain-size", metavar="SIZE", help="Keep at most so much, such as 500M or 20G.")
]
RetainAge = Annotated[
    str | None, option("--retain-age", metavar="TIME", help="Keep it for so long, such as 12h or 30d.")
]
SegmentRows = Annotated[
    int | None, option("--segment-rows", min=1, max=10_000_000, help="Seal a file after so many events.")
]
SequencerAddress = Annotated[
    str | None, option("--sequencer", metavar="HOST:PORT", help="Over an adapter, who gives the order.")
]


def record(
    url: Url,
    topics: Topics = None,
    archive: ArchiveDirectory = None,
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
    """Record events into an archive until Ctrl-C, --count or --timeout; start it again, and it goes on.

    On a guaranteed network nothing is missing in between, and nothing is there twice.
    """
    from tidings.cli.shared.running import Stopped, run
    from tidings.recording.recorder import Recorder

    if archive is None and trace is None:
        raise typer.BadParameter("give a directory for the archive, or for a trace", param_hint="--archive")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
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
        began_ns = time.time_ns()
        stopped = False
        try:
            run(record_events(recorder, listen, count, timeout, token, as_json=json))
        except Stopped:
            stopped = True  # somebody has seen enough
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


async def record_events(
    recorder: Recorder,
    listen: str | None,
    count: int | None,
    timeout_s: float | None,
    token: str,
    *,
    as_json: bool,
) -> None:
    """Until the time is over or there are enough of them."""
    enough = asyncio.Event()
    recorder.on_recorded = lambda: enough.set() if count is not None and recorder.recorded >= count else None
    async with AsyncExitStack() as stack:
        await recorder.start()
        stack.push_async_callback(recorder.stop)
        where = None if listen is None else await stack.enter_async_context(served(recorder, listen, token))
        announce(recorder, where, as_json=as_json)
        running = asyncio.ensure_future(recorder.run())
        waiting = asyncio.ensure_future(enough.wait())
        try:
            await asyncio.wait({running, waiting}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            running.cancel()
            waiting.cancel()
            await asyncio.gather(running, waiting, return_exceptions=True)


@asynccontextmanager
async def served(recorder: Recorder, listen: str, token: str) -> AsyncIterator[str]:
    """Others may read the archive; gives the URL."""
    from tidings.core.errors import ConnectionFailed
    from tidings.drivers.address import parse_address, url
    from tidings.drivers.sockets.archive_read_service import ArchiveReadService
    from tidings.drivers.sockets.archive_server import ArchiveServer

    try:
        address = parse_address(listen)
    except ConnectionFailed as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from None
    server = ArchiveServer(recorder.name, address, ArchiveReadService(recorder.directory), token=token)
    await server.start()
    try:
        yield url(server.address)
    finally:
        await server.stop()


def announce(recorder: Recorder, where: str | None, *, as_json: bool) -> None:
    """The line that others wait for: from now on everything is recorded."""
    if as_json:
        fields = {"event": "recording", "archive": str(recorder.directory), "id": recorder.archive_id}
        print_json({**fields, "recorder": recorder.name, "offset": recorder.first_offset, "url": where})
    else:
        reading = "" if where is None else f", to be read at {where}"
        print_line(f"recording into {recorder.directory} from offset {recorder.first_offset}{reading}")


def archive_settings(size: str | None, age: str | None, segment_rows: int | None = None) -> ArchiveSettings:
    from dataclasses import replace

    from tidings.storage.archive import ArchiveSettings

    settings = ArchiveSettings(
        retain_bytes=None
        if size is None
        else int(parse_quantity(size, UNITS, "--retain-size", "500M or 20G")),
        retain_s=None if age is None else parse_quantity(age, SECONDS, "--retain-age", "12h or 30d"),
    )
    return settings if segment_rows is None else replace(settings, segment_rows=segment_rows)


def parse_quantity(text: str, units: dict[str, int] | dict[str, float], flag: str, example: str) -> float:
    """A number with a unit behind it."""
    unit = text[-1:].lower() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(unit)]
    try:
        value = float(number) * units[unit]
    except (ValueError, KeyError):
        value = 0.0
    if not 0 < value < float(1 << 62):
        raise typer.BadParameter(f"{text!r} is nothing like {example}", param_hint=flag)
    return value
