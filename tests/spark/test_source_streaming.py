"""`spark.readStream.format("tidings")` on a real Spark: batches, checkpoints, and what is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from source_archives import extend, make_archive
from spark_queries import started
from tidings.storage.archive.reader import ArchiveReader

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
WAIT_S = 120


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return make_archive(tmp_path / "a", [30, 20, 10])


class Query:
    """A stream into Parquet files under `home`, which is run again and again."""

    def __init__(self, spark: Any, home: Path) -> None:
        self.spark = spark
        self.home = home

    def start(self, archive: Path | str, trigger: dict[str, Any], **options: object) -> Any:
        frame = self.spark.readStream.format("tidings").options(archive=str(archive), **options).load()
        writer = frame.select("offset", "value").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.home / "checkpoint")).trigger(**trigger)
        return started(lambda: writer.start(str(self.home / "rows")))

    def run(self, archive: Path | str, **options: object) -> list[int]:
        """Everything that is there now; how many rows each batch had."""
        query = self.start(archive, {"availableNow": True}, **options)
        try:
            assert query.awaitTermination(WAIT_S)
            return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
        finally:
            query.stop()

    def offsets(self) -> list[int]:
        found = self.spark.read.parquet(str(self.home / "rows")).select("offset").collect()
        return sorted(row["offset"] for row in found)

    def edit(self, batch: int, position: object) -> None:
        """As somebody does who knows where Spark keeps positions."""
        path = self.home / "checkpoint" / "offsets" / str(batch)
        *head, _ = path.read_text().splitlines()
        path.write_text("\n".join([*head, json.dumps(position)]))
        (path.parent / f".{batch}.crc").unlink(missing_ok=True)

    def forget(self, batch: int) -> None:
        """The state of a crash before the batch was finished: neither the query nor the sink has it."""
        for log in (self.home / "checkpoint" / "commits", self.home / "rows" / "_spark_metadata"):
            for name in (str(batch), f".{batch}.crc"):
                (log / name).unlink(missing_ok=True)


@pytest.fixture
def query(spark: Any, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def test_batches_go_on_from_the_checkpoint(query: Query, archive: Path) -> None:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 25, "consumer": "job"}
    assert query.run(archive, **options) == [25, 25, 10]
    assert query.run(archive, **options) == []
    extend(archive, 30)
    assert query.run(archive, **options) == [25, 5]
    assert query.offsets() == list(range(90))
    with ArchiveReader(archive) as reader:
        assert reader.consumers()["job"] >= 60  # Spark tells of a batch once it begins the next


def test_a_batch_that_was_not_finished_is_read_again(query: Query, archive: Path) -> None:
    query.run(archive, startingOffsets="earliest")
    query.forget(0)
    extend(archive, 5)
    query.run(archive, startingOffsets="earliest")
    assert query.offsets() == list(range(65))


def test_a_stream_follows_two_archives_that_grow(spark: Any, archive: Path, tmp_path: Path) -> None:
    other = make_archive(tmp_path / "b", [3])
    options = {"archive": f"{archive},{other}", "subscribe": "/news/bbc", "startingOffsets": "earliest"}
    frame = spark.readStream.format("tidings").options(**options).load()
    writer = frame.select("partition", "offset").writeStream.format("memory").queryName("growing")
    running = started(writer.trigger(processingTime="100 milliseconds").start)
    wanted = [(0, at) for at in range(0, 60, 3)] + [(1, 0)]
    try:
        for at in (3, 6):
            wait_for(running, spark, wanted)
            extend(other, 3)
            wanted.append((1, at))
        wait_for(running, spark, wanted)
    finally:
        running.stop()


def wait_for(running: Any, spark: Any, wanted: list[tuple[int, int]]) -> None:
    """Those and no others."""
    until = time.monotonic() + WAIT_S
    found: list[tuple[int, int]] = []
    while len(found) < len(wanted) and time.monotonic() < until:
        assert running.isActive, running.exception()
        found = sorted(tuple(row) for row in spark.table("growing").collect())
        time.sleep(0.1)
    assert found == wanted


def test_an_edited_checkpoint_is_told_in_one_line(query: Query, archive: Path) -> None:
    query.run(archive, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    with ArchiveReader(archive) as reader:
        name = reader.id
    for position, words in (
        ({name: 30}, "go backwards from 40 to 30 in"),
        ({"f" * 32: 60}, f"names archive {'f' * 32}, but this source reads {archive} (archive {name})"),
    ):
        query.edit(1, position)
        query.forget(1)
        with pytest.raises(Exception, match="STREAM_FAILED") as caught:
            query.run(archive)
        assert words in str(caught.value).splitlines()[0]
        assert "Traceback" not in str(caught.value)


def test_a_position_that_is_put_back_by_hand_is_read_again(query: Query, archive: Path) -> None:
    """As the docs say: to the source it is a position as any other."""
    query.run(archive, startingOffsets="earliest")
    with ArchiveReader(archive) as reader:
        query.edit(0, {reader.id: 50})
    query.run(archive)
    assert query.offsets() == sorted([*range(60), *range(50, 60)])


def test_a_mistake_is_told_when_the_query_starts(query: Query, archive: Path) -> None:
    with pytest.raises(Exception, match="option endingOffsets is only for batch reads: a stream has no end"):
        query.run(archive, endingOffsets=3)
