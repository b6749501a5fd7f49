"""What describes an archive: bounds, segments, gaps, and its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from tidings.core.errors import ArchiveError

MEBIBYTE = 1024 * 1024
MAX_NAME_CHARACTERS = 1024


class Bounds(NamedTuple):
    """The offsets that are kept: first <= offset < end."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed file: offsets `first` to `last`, both included."""

    first: int
    last: int
    path: Path
    rows: int
    size_bytes: int
    first_notified_ns: int
    last_notified_ns: int
    max_published_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArchiveGap:
    """Events may be missing before `offset`; `missing` is their number, if known."""

    offset: int
    noted_ns: int
    reason: str
    missing: int | None


@dataclass(frozen=True)
class ArchiveSettings:
    """When the tail is sealed and what is kept. The size of the tail is that of its uncompressed rows."""

    segment_rows: int = 100_000
    segment_bytes: int = 64 * MEBIBYTE
    retain_s: float | None = None
    """A segment is removed once everything in it is older."""
    retain_bytes: int | None = None
    """The oldest segments are removed while segments and tail together are larger."""
    consumer_expiry_s: float = 7 * 86_400
    """A consumer that commits nothing for this long is forgotten and no longer holds segments."""
    max_tail_rows: int = 1_000_000
    """If sealing fails and the tail would exceed this, `append` raises ArchiveFull."""
    max_tail_bytes: int = 1024 * MEBIBYTE

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ArchiveError(f"{field.name} must be a positive number, not {value!r}")


def check_name(kind: str, name: str) -> None:
    """Raise ArchiveError if the name of a mark or consumer cannot be stored."""
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise ArchiveError(
            f"the name of a {kind} must have 1 to {MAX_NAME_CHARACTERS} characters, not {len(name)}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ArchiveError(f"the name of a {kind} must be Unicode text: {name!r}") from None
