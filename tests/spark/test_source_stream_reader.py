"""The stream reader, called as Spark calls it, also across a crash; Spark itself is not needed for that."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from source_archives import extend, make_archive, published_ns
from tidings.core.errors import PipelineError, TidingsError
from tidings.spark.format.source import SCHEMA
from tidings.spark.format.stream_reader import ArchiveStreamReader
from tidings.storage.archive.archive import Archive, ArchiveSettings
from tidings.storage.archive.reader import ArchiveReader

ALL = ReadAllAvailable()


def reader_of(*directories: Path, **options: object) -> ArchiveStreamReader:
    archive = ",".join(map(str, directories))
    given = {name: str(value) for name, value in options.items()}
    return ArchiveStreamReader({"archive": archive, **given}, SCHEMA)


def id_of(directory: Path) -> str:
    with ArchiveReader(directory) as reader:
        return reader.id


def sent(value: Any) -> Any:
    serializer = CloudPickleSerializer()
    return serializer.loads(serializer.dumps(value))


def offsets_of(reader: ArchiveStreamReader, start: Any, end: Any) -> list[int]:
    """As the workers read them: each with a copy of the reader."""
    found: list[int] = []
    for partition in sent(reader.partitions(start, end)):
        for batch in sent(reader).read(partition):
            found += batch.column("offset").to_pylist()
    return found


def trim(directory: Path) -> int:
    """Everything sealed goes; the first offset that is left."""
    with Archive.open(directory, ArchiveSettings(retain_bytes=1)) as archive:
        archive.maintain()
        return archive.bounds().first


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return make_archive(tmp_path / "a", [30, 20, 10])


def batches(reader: ArchiveStreamReader, start: Any) -> Iterator[tuple[Any, Any]]:
    """Until nothing is new."""
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        yield start, end
        start = end


def test_where_a_stream_begins(archive: Path) -> None:
    name = id_of(archive)
    assert reader_of(archive).initialOffset() == {name: 60}
    assert reader_of(archive, startingOffsets="earliest").initialOffset() == {name: 0}
    assert reader_of(archive, startingOffsets="7").initialOffset() == {name: 7}
    assert reader_of(archive, startingOffsets=json.dumps({name: -2})).initialOffset() == {name: 0}
    at_ms = published_ns(12) // 1_000_000
    assert reader_of(archive, startingTimestamp=at_ms).initialOffset() == {name: 12}
    assert reader_of(archive, startingTimestamp=at_ms + 1).initialOffset() == {name: 13}
    assert reader_of(archive, startingTimestamp=2 * at_ms).initialOffset() == {name: 60}


def test_batches_are_limited_and_complete(archive: Path) -> None:
    reader = reader_of(archive, startingOffsets="earliest", maxOffsetsPerTrigger=7)
    found = [offsets_of(reader, *batch) for batch in batches(reader, reader.initialOffset())]
    assert [len(one) for one in found] == [7] * 8 + [4]
    assert [offset for one in found for offset in one] == list(range(60))
    assert reader.latestOffset({id_of(archive): 3}, ALL) == {id_of(archive): 60}
    assert reader.latestOffset({id_of(archive): 3}, ReadMaxRows(2)) == {id_of(archive): 5}


def test_a_batch_reads_the_same_after_a_crash_and_after_sealing(archive: Path) -> None:
    reader = reader_of(archive, startingOffsets="earliest", maxOffsetsPerTrigger=25)
    plan = list(batches(reader, reader.initialOffset()))
    before = [offsets_of(reader, *batch) for batch in plan]
    extend(archive, 40)
    with Archive.open(archive) as writer:
        writer.seal()
    for start, end in plan:
        again = reader_of(archive, startingOffsets="latest")  # a new process asks for partitions first
        assert offsets_of(again, start, end) == before.pop(0)
    assert offsets_of(reader, *next(batches(reader, plan[-1][1]))) == list(range(60, 85))


def test_what_is_available_now_does_not_grow(archive: Path) -> None:
    reader = reader_of(archive, startingOffsets="55", maxOffsetsPerTrigger=3)
    reader.prepareForTriggerAvailableNow()
    extend(archive, 5)
    start = reader.initialOffset()
    assert [end for _, end in batches(reader, start)] == [{id_of(archive): 58}, {id_of(archive): 60}]
    assert reader.latestOffset({id_of(archive): 65}, ALL) == {id_of(archive): 65}  # never back
    assert reader.reportLatestOffset() == {id_of(archive): 65}


def test_several_archives_have_one_position(archive: Path, tmp_path: Path) -> None:
    other = make_archive(tmp_path / "b", [9])
    reader = reader_of(other, archive, startingOffsets="earliest", maxOffsetsPerTrigger=23)
    start = reader.initialOffset()
    assert list(start) == sorted([id_of(archive), id_of(other)])
    seen: list[tuple[int, int]] = []
    for begin, end in batches(reader, start):
        assert list(end) == list(start)
        assert 0 < sum(end.values()) - sum(begin.values()) <= 23
        for partition in reader.partitions(begin, end):
            for batch in reader.read(partition):
                seen += [(row["partition"], row["offset"]) for row in batch.to_pylist()]
    assert sorted(seen) == [(0, offset) for offset in range(9)] + [(1, offset) for offset in range(60)]


def test_one_archive_under_two_names_is_refused(archive: Path) -> None:
    (archive.parent / "link").symlink_to(archive)
    with pytest.raises(PipelineError, match="are the same archive"):
        reader_of(archive, archive.parent / "link").initialOffset()


def test_an_empty_archive_has_no_batch(tmp_path: Path) -> None:
    empty = make_archive(tmp_path / "e", [])
    for start in ("earliest", "latest", "0"):
        reader = reader_of(empty, startingOffsets=start)
        position = reader.initialOffset()
        assert position == {id_of(empty): 0}
        assert not list(batches(reader, position))
        assert reader.partitions(position, position) == []
    extend(empty, 2)
    assert offsets_of(reader, *next(batches(reader, position))) == [0, 1]


def test_a_position_of_another_archive_is_refused(archive: Path, tmp_path: Path) -> None:
    name = id_of(archive)
    archive.rename(tmp_path / "moved")
    make_archive(archive, [60])
    reader = reader_of(archive)
    for ask in (lambda: reader.latestOffset({name: 3}, ALL), lambda: reader.partitions({name: 3}, {name: 5})):
        with pytest.raises(
            PipelineError, match=f"names archive {name}, but this source reads .*another checkpointLocation"
        ):
            ask()
    assert offsets_of(reader_of(tmp_path / "moved"), {name: 3}, {name: 5}) == [
        3,
        4,
    ]  # the path is not the archive


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ({"A": 5}, {"A": 3}, "go backwards from 5 to 3 in"),
        ({"A": 5}, {"A": 61}, "offset 61 is ahead of the log of .*, which ends at 60"),
        ({"A": 5}, {"A": "9"}, "malformed: '9' is not an offset"),
        ({"A": 5}, {"A": True}, "malformed"),
        ({"A": -1}, {"A": 5}, "malformed: '-1' is not an offset"),
        ({"A": 5}, {}, "has no offset for "),
        ({"A": 5}, {"A": 6, "x": 1}, "names archive x"),
        ([5], {"A": 6}, r"malformed: '\[5\]'"),
        (None, {"A": 6}, "malformed"),
    ],
)
def test_an_edited_checkpoint_is_refused(archive: Path, start: Any, end: Any, words: str) -> None:
    def real(position: Any) -> Any:
        return json.loads(json.dumps(position).replace('"A"', json.dumps(id_of(archive))))

    with pytest.raises(PipelineError, match=words) as caught:
        reader_of(archive).partitions(real(start), real(end))
    assert "\n" not in str(caught.value)


def test_a_position_ahead_of_the_log_is_refused(archive: Path) -> None:
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(PipelineError, match="offset 61 is ahead of the log"):
            reader_of(archive, **options).latestOffset({id_of(archive): 61}, ALL)
    with pytest.raises(PipelineError, match="option startingOffsets: offset 61 is ahead"):
        reader_of(archive, startingOffsets="61").initialOffset()
    with pytest.raises(PipelineError, match="option startingOffsets names archive x"):
        reader_of(archive, startingOffsets='{"x": 1}').initialOffset()


def test_what_is_trimmed_fails_or_is_skipped(archive: Path, caplog: pytest.LogCaptureFixture) -> None:
    name, first = id_of(archive), trim(archive)
    assert first == 50
    told = "45 events \\(offsets 5 to 49\\) are no longer in .*, which starts at offset 50: set failOnDataLoss=false"
    for ask in (
        lambda reader: reader.latestOffset({name: 5}, ALL),
        lambda reader: reader.partitions({name: 5}, {name: 60}),
    ):
        with pytest.raises(PipelineError, match=told):
            ask(reader_of(archive))
    with pytest.raises(PipelineError, match=told):
        reader_of(archive, startingOffsets="5").initialOffset()

    lenient = reader_of(archive, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "tidings.spark"):
        assert lenient.latestOffset({name: 5}, ReadMaxRows(3)) == {name: 53}
        assert not caplog.records
        assert offsets_of(lenient, {name: 5}, {name: 53}) == [50, 51, 52]
        assert "45 events (offsets 5 to 49)" in caplog.text
        assert offsets_of(lenient, {name: 5}, {name: 20}) == []
        assert "15 events (offsets 5 to 19)" in caplog.text
    assert reader_of(archive, startingOffsets="5", failOnDataLoss="false").initialOffset() == {name: 50}
    assert reader_of(archive, startingOffsets="earliest").initialOffset() == {name: 50}


def test_what_is_trimmed_between_plan_and_read(archive: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = id_of(archive)
    strict, lenient = reader_of(archive), reader_of(archive, failOnDataLoss="false")
    plans = [reader.partitions({name: 5}, {name: 60}) for reader in (strict, lenient)]
    trim(archive)
    with pytest.raises(PipelineError, match=r"45 events \(offsets 5 to 49\)"):
        list(strict.read(plans[0][0]))
    (batch,) = lenient.read(plans[1][0])
    assert batch.column("offset").to_pylist() == list(range(50, 60))
    assert "45 events" in caplog.text


def test_a_consumer_holds_what_it_has_not_read(archive: Path) -> None:
    name = id_of(archive)
    reader = reader_of(archive, startingOffsets="earliest", consumer="job")
    start = reader.initialOffset()
    assert trim(archive) == 0
    reader.commit({name: 35})
    with ArchiveReader(archive) as plain:
        assert plain.consumers() == {"job": 35}
    assert trim(archive) == 30
    assert offsets_of(reader, {name: 35}, {name: 60}) == list(range(35, 60))
    reader.commit(start)  # never goes back
    reader_of(archive).commit({name: 60})  # no consumer, nothing to note
    with ArchiveReader(archive) as plain:
        assert plain.consumers() == {"job": 35}


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TidingsError, match=str(tmp_path / "none")):
        reader_of(tmp_path / "none").initialOffset()
