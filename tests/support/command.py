"""The command line: in this process where that shows the same, which saves a second each; else in one of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

from tidings.cli.main import run


def tidings(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = list(map(str, arguments))
    out, err = _text(), _text()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(command)
    return subprocess.CompletedProcess(command, code, _written(out), _written(err))


def process_of_tidings(
    *arguments: object, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """As users run it: `given` is what it reads from standard input, the rest goes into its environment."""
    return subprocess.run(
        [sys.executable, "-m", "tidings.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        input=given,
        env={**os.environ, **environment},
    )


def _text() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
