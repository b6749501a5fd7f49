"""The SQLite file of an archive: its tables, and how it is created and opened (storage/database.py)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4
from zlib import crc32

from tidings.storage import database as storage
from tidings.storage.archive.errors import TROUBLES
from tidings.storage.archive.files import DATABASE_NAME, LOCK_NAME
from tidings.storage.database import Database

LOG_PAGES = 2048

_TABLES = {
    "about": "CREATE TABLE about (id INTEGER PRIMARY KEY, archive TEXT NOT NULL,"
    " first INTEGER NOT NULL, ending INTEGER NOT NULL, consumers INTEGER NOT NULL, gaps INTEGER NOT NULL,"
    " marks INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "consumers": "CREATE TABLE consumers (name TEXT PRIMARY KEY, offset INTEGER NOT NULL,"
    " committed_ns INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    "gaps": "CREATE TABLE gaps (id INTEGER PRIMARY KEY, offset INTEGER NOT NULL, noted_ns INTEGER NOT NULL,"
    " reason TEXT NOT NULL, missing INTEGER, checksum INTEGER NOT NULL)",
    "marks": "CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL, checksum INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "segments": "CREATE TABLE segments (first INTEGER PRIMARY KEY, last INTEGER NOT NULL,"
    " size_bytes INTEGER NOT NULL, first_notified_ns INTEGER NOT NULL, last_notified_ns INTEGER NOT NULL,"
    " max_published_ns INTEGER NOT NULL, sha256 TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "tail": "CREATE TABLE tail (offset INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, value BLOB NOT NULL)",
}


def _about_nothing() -> tuple[object, ...]:
    about = (uuid4().hex, 0, 0, 0, 0, 0)
    return (*about, fields_checksum(about))


def fields_checksum(fields: Iterable[object]) -> int:
    """Return the checksum of a row, in which a value's type counts, too."""
    return crc32(repr(tuple(fields)).encode())


KIND = storage.DatabaseKind(
    what="an archive",
    application_id=0x74696461,  # "tida"
    format=4,
    older=(2, 3),
    tables=_TABLES,
    counter="about",
    first_row=_about_nothing,
    log_pages=LOG_PAGES,
    busy_seconds=10.0,
    troubles=TROUBLES,
    other_format=TROUBLES.unusable,
)


def open_database(directory: Path, *, writable: bool) -> Database:
    return Database(directory / DATABASE_NAME, directory / LOCK_NAME, KIND, writable=writable)


def make_database(directory: Path) -> None:
    """Create the file of a new archive atomically."""
    with TROUBLES.told(directory / DATABASE_NAME):
        storage.make_database(directory / DATABASE_NAME, directory / LOCK_NAME, KIND)
