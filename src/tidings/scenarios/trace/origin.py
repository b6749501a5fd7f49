"""What `summary.json` beside the tables says of the run that they come from: its mode, and who recorded it."""

from __future__ import annotations

from pathlib import Path

import msgspec

SUMMARY = "summary.json"


class Origin(msgspec.Struct, frozen=True):
    """`recorder` is the one subscriber whose events `tidings record --trace` wrote; nothing else was published then."""

    mode: str | None = None
    recorder: str | None = None


def trace_origin(directory: Path) -> Origin:
    """A trace without a summary, or with one that cannot be read, does not say."""
    try:
        return msgspec.json.decode((directory / SUMMARY).read_bytes(), type=Origin)
    except (OSError, msgspec.MsgspecError):
        return Origin()


def write_origin(directory: Path, origin: Origin) -> None:
    (directory / SUMMARY).write_bytes(msgspec.json.encode(origin) + b"\n")
