"""How a command ends: its exit codes, and one line on stderr for whatever went wrong."""

from __future__ import annotations

import json
import sys
from enum import IntEnum

from tidings.core.errors import (
    AddressError,
    ConnectionFailed,
    NotConfirmed,
    SubscriptionRefused,
    TidingsError,
    WireError,
)

NETWORK_ERRORS = (ConnectionFailed, NotConfirmed, SubscriptionRefused, WireError)


class ExitCode(IntEnum):
    OK = 0
    CHECK_FAILED = 1
    """A guarantee is violated."""
    BAD_INPUT = 2
    """A flag, a file, a filter, a topic, a scenario that cannot be used."""
    TIMEOUT = 3
    """Nothing, or less than asked for, arrived in time."""
    UNREACHABLE = 4
    """A broker cannot be reached, cannot listen, refuses, or went away."""
    BUG = 70
    """An error that is not the user's; the traceback is for the report."""
    SIGNAL_BASE = 128
    """Plus the number of the signal that cut the command short."""
    BROKEN_PIPE = 141
    """Whoever read the output has gone."""


def exit_code_of(error: Exception) -> ExitCode:
    """The exit code for an error that the command could not handle."""
    if isinstance(error, NETWORK_ERRORS) and not isinstance(error, AddressError):
        return ExitCode.UNREACHABLE
    if isinstance(error, TimeoutError):
        return ExitCode.TIMEOUT
    if isinstance(error, TidingsError | OSError):
        return ExitCode.BAD_INPUT
    return ExitCode.BUG


def message_of(error: Exception) -> str:
    """One line that says what went wrong."""
    if isinstance(error, OSError) and not isinstance(error, TidingsError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return one_line(f"{where}{error.strerror}")
    return one_line(str(error) or type(error).__name__)


def one_line(text: str) -> str:
    return " ".join(text.split())


def report(message: str, *, as_json: bool) -> None:
    """Tell the user on stderr, as `tidings: ...` or as one JSON object."""
    line = json.dumps({"error": message}, ensure_ascii=False) if as_json else f"tidings: {message}"
    # A message may quote bytes of the command line that are no text.
    sys.stderr.write(line.encode(errors="backslashreplace").decode() + "\n")
    sys.stderr.flush()
