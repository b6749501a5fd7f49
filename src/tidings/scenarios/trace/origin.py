"""Reads from `summary.json`, beside the tables, which mode a trace comes from and who recorded it."""

from __future__ import annotations

from pathlib import Path

import msgspec

SUMMARY = "summary.json"


class Origin(msgspec.Struct, frozen=True):
    """Describes where a trace comes from. `recorder` is the one subscriber of `tidings record --trace`, which knows no
    events but those that it received."""

    mode: str | None = None
    recorder: str | None = None
    virtual_s: float | None = None
    settled_s: float | None = None
    """Of runs in wall time."""

    @property
    def is_virtual(self) -> bool:
        """True if nothing happened but what the scenario says."""
        return self.virtual_s is not None and self.settled_s is None


def trace_origin(directory: Path) -> Origin:
    """Return the trace's origin; empty if it has no readable summary."""
    try:
        return msgspec.json.decode((directory / SUMMARY).read_bytes(), type=Origin)
    except (OSError, msgspec.MsgspecError):
        return Origin()


def write_origin(directory: Path, origin: Origin) -> None:
    (directory / SUMMARY).write_bytes(msgspec.json.encode(origin) + b"\n")
