"""`tidings dead`: looks at events that were given up, and publishes or delivers them again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.confirmation import Yes, confirm
from tidings.cli.shared.event_printer import PayloadForm, Printer
from tidings.cli.shared.options import (
    ClientName,
    ConnectTimeout,
    Json,
    TlsAuthority,
    TokenFile,
    Url,
    make_bus,
    option,
    read_token,
)
from tidings.cli.shared.output import counted, discard_output, print_json, print_line
from tidings.cli.shared.subscription_options import PayloadFlag, check_patterns

if TYPE_CHECKING:
    from tidings.bus.host import ApplicationHost
    from tidings.bus.service import SetAside
    from tidings.cli.shared.dead_letters import DeadLetter
BATCH_EVENTS = 512

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="Topic of dead letters, such as /dead/billing, or name of a durable subscription or group.",
        show_default=False,
    ),
]
Ids = Annotated[
    list[str] | None,
    option("--id", metavar="ID", help="Only this one, by its id or number. Repeatable."),
]
Again = Annotated[
    bool,
    option(
        "--again", help="Publish dead letters on their old topics again; deliver what is set aside again."
    ),
]
Drop = Annotated[bool, option("--drop", help="Drop what is set aside.")]
ArchiveDirectory = Annotated[
    Path | None,
    option("--archive", metavar="DIR", help="Read dead letters from this archive, not from the broker's."),
]


def dead(
    url: Url,
    what: What,
    again: Again = False,
    drop: Drop = False,
    ids: Ids = None,
    yes: Yes = False,
    archive: ArchiveDirectory = None,
    payload: PayloadFlag = PayloadForm.TEXT,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Look at events that were given up.

    Dead letters are read from the broker's archive. What a broker has set aside is listed by the subscription's name.
    """
    from tidings.cli.shared.running import run

    if again and drop:
        raise typer.BadParameter("not allowed with --again", param_hint="--drop")
    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    printer = Printer(payload, as_json=json)
    if not what.startswith("/"):
        if archive is not None:
            raise typer.BadParameter("only for a topic of dead letters", param_hint="--archive")
        if drop:
            confirm(f"Drop what is set aside for {what!r}?", yes=yes)
        run(handle_aside(bus, what, ids or [], printer, again=again, drop=drop))
        return
    if drop:
        raise typer.BadParameter(
            "an archive keeps its events: only for a subscription's name", param_hint="--drop"
        )
    letters = read_letters(url, what, archive, token_file, tls_ca, connect_timeout)
    if ids:
        letters = iter(selected(letters, ids, f"dead letters on {what}"))
    try:
        if again:
            run(publish_again(bus, letters, as_json=json))
        else:
            show_letters(letters, printer, what)
    except BrokenPipeError:
        discard_output()


# --- Dead letters in an archive


def read_letters(
    url: str, topic: str, archive: Path | None, token_file: Path | None, tls_ca: Path | None, timeout_s: float
) -> Iterator[DeadLetter]:
    from tidings.cli.shared.dead_letters import dead_letters
    from tidings.extras import need

    need("dead", "archive")
    from tidings.recording.replay import Source

    source = Source(
        archive=archive,
        url=None if archive else url,
        topics=(topic,),
        token=read_token(token_file),
        tls_ca=tls_ca,
        timeout_s=timeout_s,
    )
    check_patterns([topic], "WHAT")
    source.interest()  # reports a mistake in the topic
    return dead_letters(source)


def selected(letters: Iterable[DeadLetter], ids: list[str], where: str) -> list[DeadLetter]:
    """Return the dead letters with these ids; report ids that none has."""
    found = [letter for letter in letters if any(letter.is_named(name) for name in ids)]
    check_known(ids, lambda name: any(letter.is_named(name) for letter in found), where)
    return found


def check_known(ids: Iterable[str], is_known: Any, where: str) -> None:
    unknown = [name for name in ids if not is_known(name)]
    if unknown:
        raise typer.BadParameter(f"not among the {where}: {', '.join(unknown)}", param_hint="--id")


def show_letters(letters: Iterator[DeadLetter], printer: Printer, topic: str) -> None:
    for letter in letters:
        if printer.as_json:
            print_json({**letter.fields(), **printer.payload_fields(letter.event)})
        else:
            print_line(letter.line() + printer.payload_words(letter.event))
        printer.printed += 1
    if not printer.printed and not printer.as_json:
        print_line(f"no dead letters on {topic}")


async def publish_again(bus: ApplicationHost, letters: Iterator[DeadLetter], *, as_json: bool) -> None:
    """Publish the events of dead letters on their old topics, with their own attributes and payloads."""
    from tidings.core.errors import TidingsError

    published = 0
    try:
        async with bus:
            while batch := await asyncio.to_thread(lambda: list(islice(letters, BATCH_EVENTS))):
                published += await bus.publish_many(letter.again() for letter in batch)
    except TidingsError as error:
        if published:  # whoever runs it again must know how far it came
            error.args = (f"{error}; {counted(published)} were published before",)
        raise
    if as_json:
        print_json({"published": published})
    else:
        print_line(f"published {counted(published)} again")


# --- What a broker has set aside


async def handle_aside(
    bus: ApplicationHost, name: str, ids: list[str], printer: Printer, *, again: bool, drop: bool
) -> None:
    async with bus.without_order() as service:
        rows = await service.set_aside(name)
        if ids:
            rows = [row for row in rows if is_named(row, ids)]
            check_known(
                ids,
                lambda given: any(is_named(row, [given]) for row in rows),
                f"events set aside for {name!r}",
            )
        numbers = [row.number for row in rows]
        changed = 0
        if again:
            changed = await service.release(name, numbers)
        elif drop:
            changed = await service.drop_aside(name, numbers)
    if again or drop:
        key = "released" if again else "dropped"
        if printer.as_json:
            print_json({key: changed, "numbers": numbers})
        else:
            print_line(f"{key} {counted(changed)}")
        return
    show_aside(rows, name, printer)


def is_named(row: SetAside, ids: list[str]) -> bool:
    return str(row.number) in ids or str(row.event.id) in ids


def show_aside(rows: Sequence[SetAside], name: str, printer: Printer) -> None:
    for row in rows:
        if printer.as_json:
            print_json({"number": row.number, "attempts": row.attempts, **printer.fields(row.event)})
        else:
            attempts = "1 attempt" if row.attempts == 1 else f"{row.attempts} attempts"
            print_line(f"{row.number} ({attempts}) {row.event.id}: {printer.text(row.event)}")
    if not rows and not printer.as_json:
        print_line(f"nothing is set aside for {name}")
