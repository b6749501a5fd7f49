"""Declares the flags of `tidings sub` that say what a line looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.event_printer import PayloadForm, Printer, RawPrinter
from tidings.cli.shared.options import option

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidings.core.events.event import Event

LineFormat = Annotated[
    str | None,
    option(
        "--format",
        metavar="TEMPLATE",
        help="Print each event like this, with fields in braces: topic, payload, time, id, attributes.NAME ...",
    ),
]
Raw = Annotated[bool, option("--raw", help="Print payloads only, as they are, each on a line.")]
NoNewline = Annotated[bool, option("--no-newline", help="With --raw: nothing between two payloads.")]
Timestamps = Annotated[
    bool, option("--timestamps", help="Print when each event was published (ISO 8601) before its line.")
]


def make_printer(
    payload: PayloadForm,
    template: str | None,
    *,
    raw: bool,
    no_newline: bool,
    timestamps: bool,
    as_json: bool,
) -> Printer:
    """Return the printer that the flags ask for; report flags that exclude each other."""
    forms = {"--json": as_json, "--format": template is not None, "--raw": raw}
    given = [flag for flag, wanted in forms.items() if wanted]
    if len(given) > 1:
        raise typer.BadParameter(f"not allowed with {given[0]}", param_hint=given[1])
    if timestamps and (as_json or raw):
        raise typer.BadParameter(f"not allowed with {given[0]}", param_hint="--timestamps")
    if no_newline and not raw:
        raise typer.BadParameter("requires --raw", param_hint="--no-newline")
    if raw:
        return RawPrinter(newline=not no_newline)
    printer = Printer(payload, as_json=as_json)
    if template is not None:
        from tidings.cli.shared.event_format import parse_format

        printer.format_line = parse_format(template)
    if timestamps:
        printer.format_line = _stamped(printer.format_line)
    return printer


def _stamped(format_line: Callable[[Event], str]) -> Callable[[Event], str]:
    from tidings.cli.shared.event_format import time_text

    return lambda event: f"{time_text(event.published_at)} {format_line(event)}"
