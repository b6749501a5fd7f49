"""Two programs that a test kills: one appends to an archive, one streams it into Parquet files.

    python exactly_once_job.py write HOME
    python exactly_once_job.py query HOME

Each ends when whoever started it has ended.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from spark_queries import started

APPEND_ROWS = 20
APPEND_PAUSE_S = 0.05
SEGMENT_ROWS = 300
"""So that rows move from the tail to segments while they are read."""
MAX_OFFSETS = 150
MAX_AHEAD = 2_000
"""However slow the query is, the archive does not run away from it, nor does the query run out of events."""
OPTIONS = {"startingOffsets": "earliest", "minPartitions": "2", "consumer": "job"}


def write(home: Path) -> None:
    """Until there is a file `enough`."""
    from source_archives import append
    from tidings.storage.archive.archive import Archive, ArchiveSettings
    from tidings.storage.archive.reader import ArchiveReader

    parent = os.getppid()
    with (
        Archive.open(home / "archive", ArchiveSettings(segment_rows=SEGMENT_ROWS)) as archive,
        ArchiveReader(home / "archive") as reader,
    ):
        while not (home / "enough").exists() and os.getppid() == parent:
            if archive.bounds().end < reader.consumers().get("job", 0) + MAX_AHEAD:
                append(archive, APPEND_ROWS)
            time.sleep(APPEND_PAUSE_S)


def start_query(session: Any, home: Path, trigger: dict[str, Any], **options: str) -> Any:
    reader = session.readStream.format("tidings").options(**OPTIONS, **options)
    writer = reader.load(str(home / "archive")).writeStream.format("parquet").trigger(**trigger)
    writer = writer.option("checkpointLocation", str(home / "checkpoint"))
    return started(lambda: writer.start(str(home / "rows")))


def query(home: Path) -> None:
    from spark_fixture import SETTINGS
    from tidings.spark.session import spark_session

    parent = os.getppid()
    with spark_session("local[2,3]", settings=SETTINGS) as session:
        trigger = {"processingTime": "50 milliseconds"}
        running = start_query(session, home, trigger, maxOffsetsPerTrigger=str(MAX_OFFSETS))
        while not running.awaitTermination(1) and os.getppid() == parent:
            pass


if __name__ == "__main__":
    {"write": write, "query": query}[sys.argv[1]](Path(sys.argv[2]))
