"""`spark.read.format("tidings")` on a real Spark, over real archives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from source_archives import event, extend, make_archive, published_ns
from tidings.storage.archive.archive import Archive, ArchiveSettings
from tidings.storage.archive.reader import ArchiveReader

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments and a tail."""
    return make_archive(tmp_path_factory.mktemp("source") / "a", [30, 20, 10])


def load(spark: Any, archive: Path | str, **options: object) -> Any:
    return spark.read.format("tidings").options(archive=str(archive), **options).load()


def offsets(frame: Any) -> list[int]:
    return sorted(row["offset"] for row in frame.select("offset").collect())


def test_rows_are_the_events(spark: Any, archive: Path) -> None:
    frame = load(spark, archive, minPartitions=4, includeHeaders="true")
    rows = sorted(frame.collect(), key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == list(range(60))
    for number, row in enumerate(rows):
        wanted = event(number)
        key = wanted.attributes.get("key")
        assert row["value"] == wanted.payload
        assert row["key"] == (key.encode() if key else None)
        assert (row["topic"], row["source"], row["sequence"]) == (
            wanted.topic,
            wanted.source,
            wanted.sequence,
        )
        assert row["partition"] == 0
        assert row["timestamp"].timestamp() * 1e9 == published_ns(number)
        assert row["attributes"] == {name: str(value) for name, value in wanted.attributes.items()}
        assert {header["key"]: header["value"].decode() for header in row["headers"]} == row["attributes"]
        assert row["order"] is None
    assert load(spark, archive).where("headers IS NULL").count() == 60


def test_one_load_is_used_twice(spark: Any, archive: Path) -> None:
    """Where filters are pushed into a source, Spark gives the second use the filters of the first."""
    frame = load(spark, archive)
    small, large = frame.where("offset < 10"), frame.where("offset >= 50")
    assert offsets(small.union(large)) == [*range(10), *range(50, 60)]
    assert small.join(large, "topic").count() == sum(
        event(one).topic == event(two).topic for one in range(10) for two in range(50, 60)
    )


def test_a_range_of_selected_events(spark: Any, archive: Path) -> None:
    found = load(
        spark,
        archive,
        startingOffsets=5,
        endingTimestamp=published_ns(55) // 1_000_000,
        subscribePattern="/news/*",
        where="key = 'k3' OR size IN (10, 12, 14)",
    )
    expected = [
        number
        for number in range(5, 55)
        if number % 3 != 2 and (event(number).attributes.get("key") == "k3" or number in (10, 12, 14))
    ]
    assert offsets(found) == expected


def test_an_empty_archive_and_an_empty_range(spark: Any, archive: Path, tmp_path: Path) -> None:
    assert load(spark, make_archive(tmp_path / "e", [])).collect() == []
    assert load(spark, archive, startingOffsets="latest").collect() == []


def test_two_archives_in_one_frame(spark: Any, archive: Path, tmp_path: Path) -> None:
    other = make_archive(tmp_path / "b", [5, 4])
    with ArchiveReader(archive) as one, ArchiveReader(other) as two:
        begin = json.dumps({one.id: 57, two.id: -2})
    found = load(spark, f"{other},{archive}", startingOffsets=begin).select("partition", "offset").collect()
    assert sorted(tuple(row) for row in found) == [(0, at) for at in range(9)] + [(1, 57), (1, 58), (1, 59)]


MISTAKES = [
    ({"startingOfsets": 3}, "unknown option 'startingofsets': did you mean startingOffsets?"),
    ({"where": "size >"}, "option where: "),
    ({"consumer": "job"}, "option consumer is only for streams"),
    (
        {"startingOffsets": 9, "endingOffsets": 3},
        "startingOffsets and endingOffsets go backwards from 9 to 3 in",
    ),
    ({"endingOffsets": 61}, "option endingOffsets: offset 61 is ahead of the log"),
    ({"startingOffsets": '{"x": 3}'}, "option startingOffsets names archive x"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_a_mistake_is_told_in_one_line(
    spark: Any,
    archive: Path,
    options: dict[str, object],
    words: str,
) -> None:
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        load(spark, archive, **options).collect()
    assert words in str(caught.value).splitlines()[0]
    assert "Traceback" not in str(caught.value)


def test_columns_are_fixed(spark: Any, archive: Path) -> None:
    with pytest.raises(Exception, match="the columns of format tidings are fixed"):
        spark.read.format("tidings").schema("value string").load(str(archive)).collect()


def test_what_is_trimmed_while_a_frame_is_in_use(spark: Any, tmp_path: Path) -> None:
    """A worker's error reaches the user as one line, too."""
    archive = make_archive(tmp_path / "a", [30, 10])
    strict, lenient = load(spark, archive), load(spark, archive, failOnDataLoss="false")
    assert offsets(strict) == offsets(lenient) == list(range(40))
    with Archive.open(archive, ArchiveSettings(retain_bytes=1)) as writer:
        writer.maintain()
    with pytest.raises(Exception, match="30 events \\(offsets 0 to 29\\) are no longer in") as caught:
        strict.collect()
    assert "Traceback (most recent call last):\n  File" not in str(caught.value).split("Caused by")[0]
    assert offsets(lenient) == list(range(30, 40))
    extend(archive, 2)
    assert offsets(load(spark, archive)) == list(range(30, 42))
