"""Defines the flags of `tidings get`, `last` and `replay` that select an archive and its events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.instants import parse_instant
from tidings.cli.shared.options import check_tls_ca, option, read_token
from tidings.cli.shared.subscription_options import check_patterns

if TYPE_CHECKING:
    from tidings.recording.replay import Source

EARLIEST, LATEST = "earliest", "latest"

ArchiveOrUrl = Annotated[
    str,
    typer.Argument(
        metavar="ARCHIVE",
        help="Archive directory, or tidings://HOST:PORT of a broker or recorder that has one.",
        show_default=False,
    ),
]
Offset = Annotated[
    str,
    option(
        "--offset", metavar="OFFSET", help="First offset: a number, earliest, latest, or -N for the last N."
    ),
]
EndOffset = Annotated[
    str,
    option("--end", metavar="OFFSET", help="Stop before this offset; same values as --offset."),
]
TopicPatterns = Annotated[
    list[str] | None,
    option("--topic", "-t", metavar="TOPIC", help="Only these topics: /a/b, /a/*, /a/**. Repeatable."),
]


def archive_source(
    archive: str,
    offset: str,
    end: str,
    topics: list[str] | None,
    where: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    timeout_s: float,
    since: str | None = None,
) -> Source:
    """Return the source with its offsets resolved; report bad flags."""
    from dataclasses import replace

    from tidings.recording.replay import Source
    from tidings.storage.starts import first_offset

    check_patterns(topics or (), "--topic")
    is_url = "://" in archive
    if is_url:
        check_tls_ca(tls_ca, archive)
    source = Source(
        archive=None if is_url else Path(archive),
        url=archive if is_url else None,
        topics=tuple(topics or ()),
        where=where,
        token=read_token(token_file),
        tls_ca=tls_ca,
        timeout_s=timeout_s,
    )
    source.interest()
    start, stop = parse_offset(offset, "--offset"), parse_offset(end, "--end")
    if since is not None and start != EARLIEST:
        raise typer.BadParameter("not allowed with --offset", param_hint="--since")
    instant = None if since is None else parse_instant(since, "--since")
    if start == EARLIEST and stop == LATEST and instant is None:
        return source
    with source.open() as reader:
        bounds = reader.bounds()
        if instant is not None:
            start = first_offset(reader, instant, "use --offset earliest")
    return replace(
        source,
        start=None if start == EARLIEST else resolved(start, *bounds),
        stop=None if stop == LATEST else resolved(stop, *bounds),
    )


def parse_offset(text: str, flag: str) -> int | str:
    if text in (EARLIEST, LATEST):
        return text
    try:
        return int(text)
    except ValueError:
        reason = f"expected a number, {EARLIEST}, {LATEST}, or -N for the last N, not {text!r}"
        raise typer.BadParameter(reason, param_hint=flag) from None


def resolved(offset: int | str, first: int, end: int) -> int:
    if isinstance(offset, str):
        return first if offset == EARLIEST else end
    return offset if offset >= 0 else max(first, end + offset)
