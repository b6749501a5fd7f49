"""A program that a test kills: it streams a durable subscription into Parquet files.

    python durable_job.py HOME URL PAUSE_MS

Each row takes its task so long. It ends when whoever started it has ended.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from spark_queries import started

ROWS = 20
"""Of a batch, at most."""
NAME = "lake"


def start_query(
    session: Any,
    home: Path,
    url: str,
    trigger: dict[str, Any],
    pause_ms: int = 0,
    checkpoint: Path | None = None,
    **options: Any,
) -> Any:
    given = {"url": url, "durable": NAME, "subscribe": "/orders/**", "maxOffsetsPerTrigger": ROWS, **options}
    rows = session.readStream.format("tidings").options(**given).load()
    if pause_ms:
        rows = rows.where(
            f"reflect('java.util.concurrent.locks.LockSupport', 'parkNanos', {pause_ms}000000L) IS NOT NULL"
        )
    writer = rows.writeStream.format("parquet").trigger(**trigger)
    writer = writer.option("checkpointLocation", str(checkpoint or home / "checkpoint"))
    return started(lambda: writer.start(str(home / "table")))


def main(home: Path, url: str, pause_ms: int) -> None:
    from spark_fixture import SETTINGS
    from tidings.spark.session import spark_session

    parent = os.getppid()
    with spark_session("local[2,3]", settings=SETTINGS) as session:
        running = start_query(session, home, url, {"processingTime": "50 milliseconds"}, pause_ms)
        while not running.awaitTermination(1) and os.getppid() == parent:
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
