"""Archives of format 2, which had a row for each event: read as they are, and written on."""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from archive_events import kept_numbers, make_event, make_events
from tidings.core.errors import ArchiveCorrupt
from tidings.core.events.event import Event
from tidings.storage.archive import Archive, ArchiveReader, ArchiveSettings

SETTINGS = ArchiveSettings(segment_rows=10)
END = 17


def old_value(event: Event, notified_ns: int) -> bytes:
    """As format 2 had it."""
    order = event.order
    row = (
        event.published_at, notified_ns, event.source, event.incarnation, event.sequence, event.topic,
        msgspec.msgpack.encode(event.attributes), event.payload, event.out_of_order,
        None if order is None else (order.topic, order.number, order.after),
    )  # fmt: skip
    return msgspec.msgpack.encode(row)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Offsets 0 to 9 in a segment, 10 to 16 in the tail."""
    with Archive.open(tmp_path / "archive", SETTINGS) as archive:
        archive.append(make_events(0, END), 5)
    with closing(sqlite3.connect(tmp_path / "archive" / "archive.sqlite")) as connection, connection:
        connection.execute("DELETE FROM tail")
        for event in make_events(10, END - 10):
            value = old_value(event, 5)
            row = event.sequence, zlib.crc32(value, event.sequence), value
            connection.execute("INSERT INTO tail VALUES (?, ?, ?)", row)
        connection.execute("PRAGMA user_version = 2")
    return tmp_path / "archive"


def version(directory: Path) -> int:
    return int.from_bytes((directory / "archive.sqlite").read_bytes()[60:64])


def test_an_older_archive_is_read_as_it_is(directory: Path) -> None:
    with ArchiveReader(directory) as reader:
        assert reader.bounds() == (0, END)
        assert kept_numbers(reader) == list(range(END))
        assert reader.verify() == []
        assert reader.offset_at(make_event(13).published_at) == 13
        reader.commit("somebody", 12)  # beside a writer of the older version
        assert reader.consumers() == {"somebody": 12}
    assert version(directory) == 2


def test_an_older_archive_is_written_on_and_an_older_version_then_refuses_it(directory: Path) -> None:
    with Archive.open(directory, SETTINGS) as archive, ArchiveReader(directory) as reader:
        assert version(directory) == 4
        assert archive.append(make_events(END, 2), 6) == END
        assert kept_numbers(reader) == list(range(END + 2))
        archive.append(make_events(END + 2, 4), 6)
        assert [segment.last for segment in reader.segments()] == [9, 19]
        archive.seal()
        assert kept_numbers(reader) == list(range(END + 6))
        assert reader.verify() == []


def test_a_damaged_row_of_an_older_archive_is_told(directory: Path) -> None:
    with closing(sqlite3.connect(directory / "archive.sqlite")) as connection, connection:
        connection.execute("UPDATE tail SET value = CAST(x'00' || value AS BLOB) WHERE offset = 12")
    with (
        ArchiveReader(directory) as reader,
        pytest.raises(ArchiveCorrupt, match="offset 12 has a wrong checksum"),
    ):
        list(reader.read(0, END))
