"""Prints for commands: tables for people, JSON for programs, and progress on stderr if it is a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PIPED_WIDTH = 160
"""The width of a table that goes into a file or a pipe, where there is no terminal to ask."""

FOLDED_WIDTH = 20
"""Longer texts in a cell may be folded if there is no room."""

BORDER_WIDTH = 3
"""For each column: a line and two blanks."""

Progress = Callable[[float], None]
"""Called with the share that is done, from 0 to 1."""


def print_line(text: str) -> None:
    """Print one line to stdout at once."""
    sys.stdout.write(text.encode(errors="backslashreplace").decode() + "\n")
    sys.stdout.flush()


def counted(events: int) -> str:
    return "1 event" if events == 1 else f"{events:,} events"


def print_json(value: object) -> None:
    """Print a JSON value on one line of stdout."""
    print_line(json_line(value))


def json_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def discard_output() -> None:
    """Send the rest of stdout to /dev/null, without errors, as nobody reads it any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, keys: int = 1
) -> None:
    """Print a table to stdout; if it is too wide, several tables, each with the first `keys` columns."""
    print_line("\n".join(map(table_text, make_tables(title, columns, rows, keys=keys))))


def make_tables(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, keys: int = 1
) -> list[Table]:
    """Return as many tables as needed, as rich would crop what does not fit; each repeats the first `keys` columns."""
    lines = list(rows)
    made = [_Column(heading, [line[index] for line in lines]) for index, heading in enumerate(columns)]
    room = _console().width
    shown: list[list[_Column]] = [[]]
    for column in made:
        if len(shown[-1]) > keys and _least_width([*shown[-1], column]) > room:
            shown.append(made[:keys])
        shown[-1] = [*shown[-1], column]
    return [_table("" if number else title, group, room) for number, group in enumerate(shown)]


class _Column:
    def __init__(self, heading: str, cells: list[object]) -> None:
        self.heading = heading
        self.texts = [cell_text(cell) for cell in cells]
        self.is_numeric = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        widest = max(map(len, self.texts), default=0)
        longest_word = max(map(len, heading.split()), default=0)
        # A folded number would read as another number.
        self.least = max(longest_word, widest if self.is_numeric else min(widest, FOLDED_WIDTH))
        self.best = max(len(heading), widest)


def _least_width(columns: list[_Column]) -> int:
    return sum(column.least for column in columns) + BORDER_WIDTH * len(columns) + 1


def _table(title: str, columns: list[_Column], room: int) -> Table:
    """Return a table with numbers aligned right; users' texts are never taken for markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", title_style="bold")
    left = max(room - _least_width(columns), 0)
    for column in columns:
        width = min(column.best, column.least + left)
        left -= width - column.least
        justify: Literal["left", "right"] = "right" if column.is_numeric else "left"
        table.add_column(column.heading, justify=justify, overflow="fold", width=width)
    for texts in zip(*(column.texts for column in columns), strict=True):
        table.add_row(*map(Text, texts))
    return table


def table_text(table: RenderableType) -> str:
    """Return the table as text, as wide as the terminal, or `PIPED_WIDTH`."""
    console = _console()
    with console.capture() as captured:  # rich would end the process on a broken pipe
        console.print(table)
    return captured.get().rstrip("\n")


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)


def cell_text(value: object) -> str:
    """Format a value for a table."""
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
    """Escape everything that could move a terminal's cursor or break the line."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Show a progress bar on stderr if it is a terminal, unless `quiet`."""
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

    # The elapsed time moves even while one step takes long, such as the start of Spark.
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()),
        *(TimeElapsedColumn(), TimeRemainingColumn()),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=1.0)
        yield lambda share: bars.update(task, completed=share)
