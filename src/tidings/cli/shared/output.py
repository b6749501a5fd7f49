"""What commands print: tables for people, JSON for programs, and progress on stderr where somebody watches."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PIPED_WIDTH = 160
"""Columns of a table that goes into a file or a pipe, where there is no terminal to ask."""

Progress = Callable[[float], None]
"""Told which share, from 0 to 1, is done."""


def print_line(text: str) -> None:
    """One line on stdout, at once."""
    sys.stdout.write(text.encode(errors="backslashreplace").decode() + "\n")
    sys.stdout.flush()


def print_json(value: object) -> None:
    """One JSON value on one line of stdout."""
    print_line(json_line(value))


def json_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def discard_output() -> None:
    """Nobody reads stdout any more; what is still to be written goes nowhere, and nobody complains."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout."""
    print_line(table_text(make_table(title, columns, rows)))


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Numbers to the right, and what users wrote is never taken for markup."""
    from rich.table import Table
    from rich.text import Text

    lines = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(lines) and all(isinstance(line[index], int | float) for line in lines)
        longest = max(map(len, column.split()), default=0)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", min_width=longest)
    for line in lines:
        table.add_row(*(Text(cell_text(cell)) for cell in line))
    return table


def table_text(table: RenderableType) -> str:
    """As wide as the terminal, or as a pipe gets it."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    with console.capture() as captured:  # rich would end the process where a pipe is broken
        console.print(table)
    return captured.get().rstrip("\n")


def cell_text(value: object) -> str:
    """A value as a table shows it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """The text with everything that could move a terminal's cursor, or is not one line, spelled out."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """A bar on stderr if that is a terminal and nobody asked for quiet."""
    if quiet or not sys.stderr.isatty():
        yield lambda share: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress

    # The time that has passed moves also while a share of the work takes long, as the start of Spark does.
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()),
        *(TimeElapsedColumn(), TimeRemainingColumn()),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=1.0)
        yield lambda share: bars.update(task, completed=share)
