"""`tidings last`: prints the newest event of each topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.archive_source import EARLIEST, LATEST, ArchiveOrUrl, archive_source
from tidings.cli.shared.event_printer import PayloadForm, Printer
from tidings.cli.shared.options import ConnectTimeout, Json, TlsAuthority, TokenFile
from tidings.cli.shared.output import discard_output
from tidings.cli.shared.subscription_options import PayloadFlag, Where, check_patterns

if TYPE_CHECKING:
    from tidings.recording.replay import Source

Topics = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC...]", help="/a/b, /a/* or /a/**. Default: all topics.", show_default=False
    ),
]


def last(
    archive: ArchiveOrUrl,
    topics: Topics = None,
    where: Where = None,
    payload: PayloadFlag = PayloadForm.TEXT,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 10.0,
    json: Json = False,
) -> None:
    """Print the newest event of each topic in an archive.

    Each event is printed on a line, after its offset; the oldest comes first.
    """
    check_patterns(topics or (), "TOPIC")
    source = archive_source(archive, EARLIEST, LATEST, topics, where, token_file, tls_ca, connect_timeout)
    printer = Printer(payload, as_json=json)
    try:
        print_newest(source, printer)
    except BrokenPipeError:
        discard_output()


def print_newest(source: Source, printer: Printer) -> None:
    from tidings.storage.archive import events_of

    with source.open() as reader:
        for batch in reader.newest(source.interest(), reader.bounds().end):
            offsets = batch.column("offset").to_pylist()
            for offset, event in zip(offsets, events_of(batch), strict=True):
                printer.add(event, offset)
            printer.flush()
