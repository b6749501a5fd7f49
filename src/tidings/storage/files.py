"""A lock that goes with its process, and files that are replaced whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


def lock_file(path: Path) -> BinaryIO:
    """The file, made if there is none, locked until it is closed; BlockingIOError if another has the lock.

    It stays when it is unlocked: removing it would race.
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
    """Where to write the new content of `path`, which is there whole, and for good, when the block ends.

    If it fails nothing has changed. `draft`: another name than one that nobody has.
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
    """Makes renamings last."""
    _sync(directory)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
