"""What benchmarks print: progress to stderr, and tables of results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.table import Table

MAX_COLUMNS = 12


def progress(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


def table_of(title: str, rows: Sequence[Any]) -> Table:
    """Return a table with a line per row, or a column per row if it has too many fields for a line."""
    fields = [field.replace("_", " ") for field in rows[0]._fields]
    lines = [[shown(value) for value in row] for row in rows]
    if len(fields) > MAX_COLUMNS:
        fields, *lines = [list(line) for line in zip(fields, *lines, strict=True)]
    table = Table(title=title)
    for number, field in enumerate(fields):
        table.add_column(field, justify="right" if number else "left")
    for line in lines:
        table.add_row(*line)
    return table


def shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "NO"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
        case _:
            return str(value)
