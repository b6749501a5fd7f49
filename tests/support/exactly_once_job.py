"""Two programs that a test kills: one appends to an archive, one streams it into Parquet files.

python exactly_once_job.py write ARCHIVE COUNT
python exactly_once_job.py query ARCHIVE HOME [finish]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

APPEND_ROWS = 20
APPEND_PAUSE_S = 0.02
SEGMENT_ROWS = 500
"""So that rows move from the tail to segments while they are read."""
BATCH_OFFSETS = 300


def write(directory: Path, count: int) -> None:
    from source_archives import append
    from tidings.archive.archive import Archive, ArchiveSettings

    with Archive.open(directory, ArchiveSettings(segment_rows=SEGMENT_ROWS)) as archive:
        while archive.bounds().end < count:
            append(archive, APPEND_ROWS)
            time.sleep(APPEND_PAUSE_S)


def query(directory: Path, home: Path, *, finish: bool) -> None:
    """What is there now if it is to finish, else for ever."""
    from spark_fixture import SETTINGS
    from tidings.spark.session import spark_session

    trigger = {"availableNow": True} if finish else {"processingTime": "50 milliseconds"}
    options = {
        "archive": str(directory),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(BATCH_OFFSETS),
        "minPartitions": "2",
        "consumer": "job",
    }
    with spark_session("local[2,3]", settings=SETTINGS) as session:
        frame = session.readStream.format("tidings").options(**options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(home / "checkpoint"))
        running = writer.trigger(**trigger).start(str(home / "rows"))
        parent = os.getppid()
        while not running.awaitTermination(1) and os.getppid() == parent:
            pass  # a test that was ended leaves nothing behind


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        query(Path(sys.argv[2]), Path(sys.argv[3]), finish=sys.argv[4:] == ["finish"])
