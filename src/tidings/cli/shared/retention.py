"""Parses how much of an archive to keep, and other quantities, as users write them: `500M`, `30d`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tidings.storage.archive import ArchiveSettings

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MAX_SECONDS = 1e9
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


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


def parse_duration(text: str, flag: str, example: str) -> float:
    """Parse a duration, in seconds."""
    seconds = parse_quantity(text, SECONDS, flag, example)
    if seconds > MAX_SECONDS:
        raise typer.BadParameter(f"at most {MAX_SECONDS:.0e} s, not {text!r}", param_hint=flag)
    return seconds


def parse_quantity(text: str, units: dict[str, int] | dict[str, float], flag: str, example: str) -> float:
    """Parse a number followed by a unit."""
    unit = text[-1:].lower() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(unit)]
    try:
        value = float(number) * units[unit]
    except (ValueError, KeyError):
        value = -1.0
    if value == 0:
        raise typer.BadParameter(f"must be above 0, such as {example}, not {text!r}", param_hint=flag)
    if not 0 < value < float(1 << 62):
        raise typer.BadParameter(f"expected a value such as {example}, not {text!r}", param_hint=flag)
    return value
