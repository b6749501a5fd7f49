"""The files of an archive: their names, and the writer's lock.

archive.sqlite                        tail, list of segments, consumers, marks, gaps
archive.lock                          locked by the writer for as long as it is open; has the commit mark
segments/00000000000000000000.parquet named by the first offset
segments/.sealing                     a segment in the making; Spark and pyarrow skip such names
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from tidings.core.errors import ArchiveCorrupt, ArchiveError
from tidings.storage.archive.errors import told_as_archive_error
from tidings.storage.files import lock_file

DATABASE_NAME = "archive.sqlite"
DRAFT_NAME = "archive.sqlite.new"
LOCK_NAME = "archive.lock"
SEGMENTS_NAME = "segments"
SEALING_NAME = ".sealing"
OFFSET_DIGITS = 20
_SEGMENT_NAME = re.compile(rf"([0-9]{{{OFFSET_DIGITS}}})\.parquet")


def segment_path(directory: Path, first: int) -> Path:
    return directory / SEGMENTS_NAME / f"{first:0{OFFSET_DIGITS}d}.parquet"


def first_in_name(path: Path) -> int | None:
    """The first offset of a segment by its name; None for a file that is none."""
    match = _SEGMENT_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def segment_paths(directory: Path) -> list[Path]:
    """All files named as segments, listed or not."""
    folder = directory / SEGMENTS_NAME
    with told_as_archive_error(folder):
        try:
            return sorted(path for path in folder.iterdir() if first_in_name(path) is not None)
        except FileNotFoundError:
            raise ArchiveCorrupt(f"{folder} is missing") from None


def check_there(directory: Path) -> None:
    """ArchiveError unless the directory looks like an archive."""
    with told_as_archive_error(directory):
        if (directory / DATABASE_NAME).exists():
            return
    if not directory.is_dir():
        raise ArchiveError(
            f"there is no archive {directory}: {'not a' if directory.exists() else 'no such'} directory"
        )
    if _holds_segments(directory):
        raise ArchiveCorrupt(f"{directory / DATABASE_NAME} is missing, but {directory} has segments")
    raise ArchiveError(f"{directory} is not an archive: it has no {DATABASE_NAME}")


def check_free(directory: Path) -> None:
    """ArchiveError unless a new archive may be made in the directory: only what a crash while making one left."""
    if _holds_segments(directory):
        raise ArchiveCorrupt(f"{directory / DATABASE_NAME} is missing, but {directory} has segments")
    for path in sorted(directory.iterdir()):
        if path.name not in (LOCK_NAME, SEGMENTS_NAME) and not path.name.startswith(DRAFT_NAME):
            raise ArchiveError(
                f"{directory} is not an archive, and not empty: it has {path.name!r}, but no {DATABASE_NAME}"
            )


def _holds_segments(directory: Path) -> bool:
    return (directory / SEGMENTS_NAME).is_dir() and bool(segment_paths(directory))


def lock_writer(directory: Path) -> BinaryIO:
    """The lock file, locked until it is closed."""
    path = directory / LOCK_NAME
    with told_as_archive_error(path):
        try:
            return lock_file(path)
        except BlockingIOError:
            raise ArchiveError(f"archive {directory} is in use by another writer") from None
