"""The archive of events: a durable log with contiguous offsets.

`Archive` writes; `ArchiveReader` reads, in any process and at any time. The newest rows, the tail, are in a SQLite
file in WAL mode; older ones are in Parquet files, the segments, which Spark can read directly.

Read `facts`, `archive`, `packing`, `upkeep`, `reader`, then the rest. docs/internals/storage.md has the reasons.
"""

from tidings.extras import need

need("an archive", "archive")

from tidings.storage.archive.archive import Archive
from tidings.storage.archive.events import events_of
from tidings.storage.archive.facts import ArchiveGap, ArchiveSettings, Bounds, Segment
from tidings.storage.archive.reader import ArchiveReader
from tidings.storage.archive.rows import SCHEMA

__all__ = [
    "SCHEMA",
    "Archive",
    "ArchiveGap",
    "ArchiveReader",
    "ArchiveSettings",
    "Bounds",
    "Segment",
    "events_of",
]
