"""Defines how a command ends: its exit codes, and one line on stderr for an error."""

from __future__ import annotations

import json
import sys
from enum import IntEnum

from tidings.core.errors import (
    AddressError,
    ConnectionFailed,
    NoResponder,
    NotConfirmed,
    RequestFailed,
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
    """A bad flag, file, filter, topic or scenario."""
    TIMEOUT = 3
    """Fewer events than requested, or no answer, arrived in time."""
    UNREACHABLE = 4
    """A broker cannot be reached, cannot listen, refuses the connection, or went away."""
    NO_RESPONDER = 5
    """Nobody is subscribed to a request."""
    REQUEST_FAILED = 6
    """The answer to a request is an error."""
    BUG = 70
    """A bug in tidings; the traceback is for the bug report."""
    SIGNAL_BASE = 128
    """Plus the number of the signal that ended the command."""
    BROKEN_PIPE = 141
    """The reader of the output has closed the pipe."""


def exit_code_of(error: Exception) -> ExitCode:
    """Return the exit code for an error that the command did not handle."""
    if isinstance(error, NETWORK_ERRORS) and not isinstance(error, AddressError):
        return ExitCode.UNREACHABLE
    if isinstance(error, NoResponder):
        return ExitCode.NO_RESPONDER
    if isinstance(error, RequestFailed):
        return ExitCode.REQUEST_FAILED
    if isinstance(error, TimeoutError):
        return ExitCode.TIMEOUT
    if isinstance(error, TidingsError | OSError):
        return ExitCode.BAD_INPUT
    return ExitCode.BUG


def message_of(error: Exception) -> str:
    """Return one line that says what went wrong."""
    if isinstance(error, OSError) and not isinstance(error, TidingsError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return one_line(f"{where}{error.strerror}")
    return one_line(str(error) or type(error).__name__)


def one_line(text: str) -> str:
    return " ".join(text.split())


def report(message: str, *, as_json: bool) -> None:
    """Print the error to stderr, as `tidings: ...` or as one JSON object."""
    line = json.dumps({"error": message}, ensure_ascii=False) if as_json else f"tidings: {message}"
    # A message may quote bytes of the command line that are not valid text.
    sys.stderr.write(line.encode(errors="backslashreplace").decode() + "\n")
    sys.stderr.flush()
