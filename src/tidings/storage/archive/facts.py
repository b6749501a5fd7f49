"""What an archive says about itself: bounds, segments, gaps, and its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from tidings.core.errors import ArchiveError

MEBIBYTE = 1024 * 1024
MAX_NAME_CHARACTERS = 1024


class Bounds(NamedTuple):
    """The offsets that are kept: from `first`, below `end`."""

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
class Gap:
    """Something may be missing before `offset`: how many events, where that is known."""

    offset: int
    noted_ns: int
    reason: str
    missing: int | None


@dataclass(frozen=True)
class ArchiveSettings:
    """When the tail is sealed and what is kept. Sizes of the tail are those of its rows, not compressed."""

    segment_rows: int = 100_000
    segment_bytes: int = 64 * MEBIBYTE
    retain_s: float | None = None
    """Whole segments go once everything in them is older."""
    retain_bytes: int | None = None
    """Whole segments go while segments and tail together are larger."""
    consumer_expiry_s: float = 7 * 86_400
    """A consumer that commits nothing for so long is forgotten, and holds nothing any more."""
    max_tail_rows: int = 1_000_000
    """With more than that in the tail, because nothing can be sealed, `append` raises ArchiveFull."""
    max_tail_bytes: int = 1024 * MEBIBYTE

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ArchiveError(f"{field.name} must be a positive number, not {value!r}")


def check_name(kind: str, name: str) -> None:
    """ArchiveError for the name of a mark or consumer that cannot be kept."""
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise ArchiveError(f"the name of a {kind} has 1 to {MAX_NAME_CHARACTERS} characters, not {len(name)}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ArchiveError(f"the name of a {kind} must be Unicode text: {name!r}") from None
