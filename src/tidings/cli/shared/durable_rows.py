"""Prints durable subscriptions and groups from a broker's status, for `tidings subscriptions` and `tidings status`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidings.cli.shared.output import print_table

COLUMNS = {
    "name": "name",
    "kind": "kind",
    "topics": "topics",
    "filter": "filter",
    "order": "order",
    "broker": "broker",
    "attached": "attached",
    "waiting": "waiting",
    "unacknowledged": "unacknowledged",
    "set_aside": "set aside",
    "expired": "expired",
    "lease_left_s": "lease left",
    "waits_for": "waits for",
}
BRIEF = (
    "name",
    "kind",
    "broker",
    "attached",
    "waiting",
    "unacknowledged",
    "set_aside",
    "expired",
    "lease_left_s",
)
IF_ANY = ("filter", "order", "set_aside", "expired", "waits_for")
"""Shown only if some row has it: a table should fit the terminal."""
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def print_durable(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = tuple(COLUMNS)
) -> None:
    """Print one line for each subscription."""
    columns = [column for column in columns if column not in IF_ANY or any(map(_has(column), rows))]
    lines = [[_cell(column, row.get(column)) for column in columns] for row in rows]
    print_table(title, [COLUMNS[column] for column in columns], lines)


def _has(column: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: row.get(column) not in (None, "", 0, "none")


def _cell(column: str, value: object) -> object:
    if column == "lease_left_s" and isinstance(value, int | float):
        return duration_text(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or None
    return value or (None if isinstance(value, str) else value)


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units, such as `6 d 23 h`."""
    words: list[str] = []
    left = int(seconds)
    for unit, size in UNITS:
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join([*words, f"{left} s"][:2]) if words else f"{left} s"
