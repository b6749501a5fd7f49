"""Locks that end with their process, and atomic replacement of files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


def lock_file(path: Path) -> BinaryIO:
    """Open the file, created if missing, and lock it until it is closed; BlockingIOError if it is locked already.

    The file stays when it is unlocked: removing it would race.
    """
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def replaced(path: Path, draft: Path | None = None) -> Iterator[Path]:
    """Yield a draft to write; when the block ends, it replaces `path` atomically and durably.

    If the block fails, nothing has changed. `draft` is its name, by default a unique one.
    """
    draft = draft or path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        yield draft
        _sync(draft)
        os.replace(draft, path)
        sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make renames in the directory durable."""
    _sync(directory)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
