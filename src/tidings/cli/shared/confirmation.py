"""Asks before something is given up for good."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidings.cli.shared.options import option

Yes = Annotated[bool, option("--yes", "-y", help="Do not ask. Without a terminal, nobody is asked anyway.")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal, unless `yes`; elsewhere nobody can answer. Anything but y or yes ends the command."""
    if yes or not sys.stdin.isatty():
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.BadParameter("not confirmed; nothing has changed")
