"""What `--help` says of every verb."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest
from typer.main import get_command

from golden import GOLDEN, check_golden
from tidings.cli.main import app

WIDTH = "100"
END = "\x1e"


def paths(command: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The command itself and all beneath it."""
    beneath = getattr(command, "commands", {})
    return [path, *(found for name, child in beneath.items() for found in paths(child, (*path, name)))]


PATHS = paths(get_command(app))
SHOW = f"""
import sys
from tidings.cli.main import run
for line in sys.stdin.read().split("\\n"):
    run([*line.split(), "--help"])
    print(end={END!r})
"""


@cache
def help_texts() -> dict[tuple[str, ...], str]:
    """Of all commands, by a process of its own: width and colours are decided when typer is imported."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    environment = {**kept, "COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    environment["PYTHONUTF8"] = "1"
    asked = "\n".join(" ".join(path) for path in PATHS)
    command = [sys.executable, "-c", SHOW]
    done = subprocess.run(
        command, input=asked, env=environment, capture_output=True, encoding="utf-8", check=True
    )
    return dict(zip(PATHS, done.stdout.split(END)[:-1], strict=True))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: " ".join(("tidings", *path)))
def test_the_help_of_a_command(path: tuple[str, ...]) -> None:
    lines = [line.rstrip() for line in help_texts()[path].splitlines()]
    assert any("Usage" in line for line in lines)
    check_golden(f"help/{'-'.join(('tidings', *path))}.txt", lines)


def test_no_command_is_gone() -> None:
    kept = {path.stem for path in (GOLDEN / "help").glob("*.txt")}
    assert kept <= {"-".join(("tidings", *path)) for path in PATHS}
