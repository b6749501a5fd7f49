"""Payloads with a content type and other details in archives: kept whole, read as columns, published again equal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidings
from archive_events import as_batch, kept_events, make_events
from payloads import ITEMS, as_shown
from tidings.core.events.event import Event, give_payload
from tidings.core.events.payload import PayloadItem, TypedPayload
from tidings.core.events.run import Arrival, RunMaker
from tidings.recording import replay
from tidings.storage.archive import (
    SCHEMA,
    Archive,
    ArchiveReader,
    ArchiveSettings,
    events_of,
    segment_file,
    upkeep,
)
from tidings.storage.archive.rows import DETAILS

TYPED = TypedPayload(b"{}", "application/json", 99, "/answers", "r1")


def event_with(number: int, item: PayloadItem) -> Event:
    event = make_events(number, 1)[0]
    give_payload(event, item)
    return event


def arrival_of(items: Iterable[PayloadItem], odd: bool = False) -> Arrival:
    maker = RunMaker("p", 0)
    for sequence, item in enumerate(items, 1):
        maker.add(sequence, "/a", {"x": b"b"} if odd else {"x": sequence}, item, 5)
    (stretch,) = maker.take_all()
    return Arrival(stretch)


@settings(max_examples=60, deadline=None)
@given(st.lists(ITEMS, min_size=1, max_size=8), st.booleans())
def test_payloads_come_back_from_rows(items: list[PayloadItem], odd: bool) -> None:
    wanted = [as_shown(item) for item in items]
    single = [event_with(number, item) for number, item in enumerate(wanted)]
    for came in (single, [arrival_of(items, odd)]):
        batch = as_batch(0, came, 7)
        assert batch.schema.equals(SCHEMA)
        back = list(events_of(batch))
        assert [event.payload_item for event in back] == wanted
        assert batch.column("payload").to_pylist() == [event.payload for event in back]


def test_the_details_are_columns_in_the_tail_and_in_segments(tmp_path: Path) -> None:
    wanted = [(None,) * 4, ("application/json", 99, "/answers", "r1"), (None,) * 4, (None, 5, None, None)]
    items = [b"plain", TYPED, b"", TypedPayload(b"x", expires_at=5)]
    with Archive.open(tmp_path, ArchiveSettings(segment_rows=4)) as archive:
        archive.append([arrival_of(items)], 1)  # sealed at once
        archive.append([arrival_of(items[:3])], 1)
        with ArchiveReader(tmp_path) as reader:
            assert len(reader.segments()) == 1
            found: list[Any] = []
            for batch in reader.read(0, 7):
                found += zip(*(batch.column(name).to_pylist() for name in DETAILS), strict=True)
            assert found == [*wanted, *wanted[:3]]
            assert [event.payload_item for event in kept_events(reader, 0, 7)] == [*items, *items[:3]]
            (few,) = reader.read(0, 4, columns=["content_type"])
            assert few.schema.names == ["offset", "content_type"]
            assert reader.verify() == []


def test_segments_from_before_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = pa.schema([field for field in SCHEMA if field.name not in DETAILS])
    write = upkeep.write_segment

    def write_as_before(path: Path, batches: Iterable[pa.RecordBatch]) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(segment_file, "SCHEMA", former)
            patch.setattr(segment_file, "_DICTIONARY_COLUMNS", ["source"])
            return write(path, (batch.select(former.names) for batch in batches))

    with Archive.open(tmp_path, ArchiveSettings(segment_rows=10)) as archive:
        with monkeypatch.context() as patch:
            patch.setattr(upkeep, "write_segment", write_as_before)
            archive.append(make_events(0, 10), 1)
        archive.append([event_with(10, TYPED), *make_events(11, 9)], 1)
        with ArchiveReader(tmp_path) as reader:
            assert [segment.rows for segment in reader.segments()] == [10, 10]
            items = [event.payload_item for event in kept_events(reader, 0, 20)]
            assert items[10] == TYPED and not any(isinstance(item, TypedPayload) for item in items[:10])
            assert [batch.schema for batch in reader.read(0, 20)] == [SCHEMA] * 2
            (few,) = reader.read(2, 5, columns=["request", "topic"])
            assert few.schema.names == ["offset", "topic", "request"]
            assert few.column("request").null_count == 3
            assert reader.verify() == []


def test_a_replay_publishes_payloads_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = TypedPayload(b"1", "application/json", 2**62, "/answers", "r")
    items = [b"plain", TypedPayload("grüße".encode(), "text/plain; charset=utf-8"), later]
    with Archive.open(tmp_path) as archive:
        archive.append([arrival_of(items)], 1)

    async def scenario() -> list[Event]:
        async with tidings.embedded(brokers=1) as bus, bus.subscribe("/a") as stream:
            monkeypatch.setattr(replay, "connect", lambda url, **options: bus.connect())
            await replay.Replay(replay.Source(tmp_path), "tidings://here").run()
            return [await stream.get(10) for _ in items]

    events = asyncio.run(scenario())
    assert [event.payload_item for event in events] == items
    assert all(event.published_at > 5 for event in events)
