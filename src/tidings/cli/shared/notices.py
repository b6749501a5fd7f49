"""Prints notices to stderr, beside a command's output: one line each, as JSON with `--json`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tidings.cli.shared.output import json_line


def notice(text: str, *, as_json: bool) -> None:
    """Print a notice to stderr: stdout has only the events or the summary."""
    sys.stderr.write((json_line({"notice": text}) if as_json else f"tidings: {text}") + "\n")
    sys.stderr.flush()


class _Notices(logging.Handler):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        notice(record.getMessage(), as_json=self._as_json)


@contextmanager
def log_as_notices(*, as_json: bool) -> Iterator[None]:
    """Show what the client logs meanwhile, such as a lost connection, as notices."""
    log = logging.getLogger("tidings")
    handler, level = _Notices(as_json=as_json), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
