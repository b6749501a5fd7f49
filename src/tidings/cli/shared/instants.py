"""Parses points in time and starts of subscriptions, as users write them: `2h`, `2026-11-18T12:00`, `earliest`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.options import option
from tidings.cli.shared.retention import SECONDS

if TYPE_CHECKING:
    from tidings.storage.starts import Start

TIMES = "a time ago such as 2h, 90s or 7d, or an ISO 8601 time such as 2026-11-18T12:00:00Z"

Since = Annotated[
    str | None,
    option(
        "--since",
        metavar="TIME",
        help="Start with events published then: 2h, 90s or 7d ago, or an ISO 8601 time.",
    ),
]
StartFlag = Annotated[
    str,
    option(
        "--start",
        metavar="START",
        help="First print what the broker's archive has: earliest, last (newest of each topic), an offset, "
        "or a time as 2h (ago) or in ISO 8601.",
    ),
]

OrderedArchive = Annotated[
    str | None,
    option(
        "--archive",
        metavar="URL",
        help="With --start and --order: a recorder that listens, with an archive in that order.",
    ),
]


def parse_instant(text: str, flag: str) -> datetime:
    """Parse a time ago, or an ISO 8601 time; without a zone, it is local time."""
    found = _parsed(text)
    if found is None:
        raise typer.BadParameter(f"expected {TIMES}, not {text!r}", param_hint=flag)
    return found


def parse_start(text: str, flag: str) -> Start:
    """Parse where a subscription starts."""
    match text:
        case "new" | "earliest" | "last":
            return text
    if text.isascii() and text.isdigit():
        return int(text)
    found = _parsed(text)
    if found is None:
        reason = f"expected new, earliest, last, an offset, {TIMES}, not {text!r}"
        raise typer.BadParameter(reason, param_hint=flag)
    return found


def _parsed(text: str) -> datetime | None:
    try:
        if text[-1:] in SECONDS:
            ago_s = float(text[:-1]) * SECONDS[text[-1:]]
            return datetime.now(UTC) - timedelta(seconds=ago_s) if ago_s >= 0 else None
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        return None
