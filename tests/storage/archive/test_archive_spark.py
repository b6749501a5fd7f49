"""The segments of an archive are Parquet files that Spark reads as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archive_events import make_events
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_spark_reads_the_directory_of_segments(spark: Any, tmp_path: Path) -> None:
    with Archive.open(tmp_path, ArchiveSettings(segment_rows=40)) as archive:
        archive.append(make_events(0, 100), 5)
        (tmp_path / "segments" / ".sealing").write_text("half of a segment")
        rows = spark.read.parquet(str(tmp_path / "segments")).orderBy("offset").collect()
    with ArchiveReader(tmp_path) as reader:
        expected = [row for batch in reader.read(0, 80) for row in batch.to_pylist()]
    assert len(rows) == 80
    for row, wanted in zip(rows, expected, strict=True):
        shown = row.asDict(recursive=True)
        wanted["attributes"] = dict(wanted["attributes"])
        if wanted["order"] is not None:
            wanted["order"]["after"] = dict(wanted["order"]["after"])
        assert shown == wanted
