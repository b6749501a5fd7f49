"""What `tidings demo` asks Spark: how many different events does an archive have?"""

from __future__ import annotations

from pathlib import Path

from tidings.spark.session import spark_session


def distinct_rows(archive: Path) -> int:
    with spark_session(app="tidings demo") as spark:
        frame = spark.read.format("tidings").option("archive", str(archive)).load()
        return int(frame.select("source", "sequence").distinct().count())
