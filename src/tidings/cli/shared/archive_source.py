"""Which events of which archive: flags that `tidings get` and `tidings replay` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.options import option, read_token

if TYPE_CHECKING:
    from tidings.recording.replay import Source

EARLIEST, LATEST = "earliest", "latest"

ArchiveOrUrl = Annotated[
    str,
    typer.Argument(
        metavar="ARCHIVE",
        help="A directory, or tidings://HOST:PORT of a broker or recorder that keeps one.",
        show_default=False,
    ),
]
Offset = Annotated[
    str,
    option("--offset", metavar="N", help="The first offset: a number, earliest, latest, or -N from the end."),
]
EndOffset = Annotated[
    int | None, option("--end", metavar="N", min=0, help="Before this offset; all that are there without.")
]
TopicPatterns = Annotated[
    list[str] | None, option("--topic", "-t", metavar="TOPIC", help="Only these topics: /a/b, /a/*, /a/**.")
]


def archive_source(
    archive: str,
    offset: str,
    end: int | None,
    topics: list[str] | None,
    where: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    timeout_s: float,
) -> Source:
    """The source with its offsets resolved; mistakes are told as such."""
    from dataclasses import replace

    from tidings.recording.replay import Source

    is_url = "://" in archive
    source = Source(
        archive=None if is_url else Path(archive),
        url=archive if is_url else None,
        stop=end,
        topics=tuple(topics or ()),
        where=where,
        token=read_token(token_file),
        tls_ca=tls_ca,
        timeout_s=timeout_s,
    )
    source.interest()
    if offset == EARLIEST:
        return source
    with source.open() as reader:
        first, stop = reader.bounds()
    if offset == LATEST:
        return replace(source, start=stop)
    try:
        number = int(offset)
    except ValueError:
        reason = f"{offset!r} is no offset: a number, {EARLIEST}, {LATEST}, or -N from the end"
        raise typer.BadParameter(reason, param_hint="--offset") from None
    return replace(source, start=number if number >= 0 else max(first, stop + number))
