"""`tidings get`: prints the events of an archive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.archive_source import ArchiveOrUrl, EndOffset, Offset, TopicPatterns, archive_source
from tidings.cli.shared.event_printer import PayloadForm, Printer
from tidings.cli.shared.instants import Since
from tidings.cli.shared.options import ConnectTimeout, Json, TlsAuthority, TokenFile, option
from tidings.cli.shared.output import discard_output, print_json, print_table
from tidings.cli.shared.subscription_options import Count, PayloadFlag, Where

if TYPE_CHECKING:
    from tidings.recording.replay import Source

POLL_S = 0.2

Follow = Annotated[bool, option("--follow", "-f", help="Wait for new events and print them, too.")]
Info = Annotated[bool, option("--info", help="Describe the archive instead of printing events.")]


def get(
    archive: ArchiveOrUrl,
    offset: Offset = "earliest",
    since: Since = None,
    end: EndOffset = "latest",
    count: Count = None,
    follow: Follow = False,
    info: Info = False,
    topic: TopicPatterns = None,
    where: Where = None,
    payload: PayloadFlag = PayloadForm.TEXT,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 10.0,
    json: Json = False,
) -> None:
    """Print the events of an archive.

    Each event is printed on a line, after its offset.
    """
    source = archive_source(archive, offset, end, topic, where, token_file, tls_ca, connect_timeout, since)
    if info:
        print_info(archive, source, as_json=json)
        return
    from tidings.core.errors import TidingsError

    printer = Printer(payload, as_json=json)
    try:
        print_range(source, printer, count, follow=follow and source.stop is None)
    except KeyboardInterrupt:
        printer.flush()  # the user stopped it
    except BrokenPipeError:
        discard_output()
    except TidingsError:
        printer.flush()  # the events before the error are good
        raise


def print_range(source: Source, printer: Printer, count: int | None, *, follow: bool) -> None:
    with source.open() as reader:
        start, stop = source.range(reader)
        if stop < start:
            raise typer.BadParameter(f"offset {stop} is before the first one, {start}", param_hint="--end")
        while True:
            for offset, event in source.events(reader, start, stop):
                printer.add(event, offset)
                if printer.printed == count:
                    printer.flush()
                    return
                if printer.waiting >= 1_000:
                    printer.flush()
            printer.flush()
            if not follow:
                return
            start = stop
            while stop == start:
                time.sleep(POLL_S)
                stop = reader.bounds().end


def print_info(name: str, source: Source, *, as_json: bool) -> None:
    with source.open() as reader:
        first, end = reader.bounds()
        gaps = reader.gaps()
        told = {"archive": name, "id": reader.id, "first": first, "end": end, "events": end - first}
    if as_json:
        listed = [
            {"offset": gap.offset, "noted_ns": gap.noted_ns, "missing": gap.missing, "reason": gap.reason}
            for gap in gaps
        ]
        print_json({**told, "gaps": listed})
        return
    print_table(name, ("what", "value"), list(told.items())[1:])
    if gaps:
        rows = [(gap.offset, "?" if gap.missing is None else gap.missing, gap.reason) for gap in gaps]
        print_table("gaps: events may be missing", ("before offset", "events", "why"), rows)
