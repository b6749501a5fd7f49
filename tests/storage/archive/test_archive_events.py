"""What goes into an archive comes out: every type of attribute, odd text, large payloads, orders; tail or segment."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archive_events import as_batch, facts, kept_events, make_event, make_events
from breadth import examples
from tidings.bus.positions import Places
from tidings.core.errors import ArchiveError
from tidings.core.events.event import INT_MAX, INT_MIN, Event
from tidings.core.events.position import OrderPosition
from tidings.core.events.text import attribute_text
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.layout import ServerPlacement as Server
from tidings.storage.archive import SCHEMA, Archive, ArchiveReader, ArchiveSettings, events_of

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = texts.filter(
    lambda name: name and name != "topic" and not name.startswith("~") and len(name.encode()) < 256
)
integers = st.integers(INT_MIN, INT_MAX)
counters = st.integers(0, INT_MAX)
scalars = st.one_of(
    st.none(), st.booleans(), integers, st.floats(), texts, st.binary(max_size=30),
    st.sampled_from(["1", "1.0", "true", "NaN", '"', "X'00'", "", "\0", "-", "~", "\U0010ffff"]),
)  # fmt: skip
orders = st.builds(
    lambda topic, number, after: OrderPosition(topic=topic, number=number, after=after),
    texts, integers, st.dictionaries(texts, integers, max_size=4),
)  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> Event:
    source = draw(texts.filter(bool)) + draw(st.sampled_from(["", "~1", "~"]))
    event = Event(
        source, draw(st.sampled_from([0, 0, 1, 11, INT_MAX])), draw(counters), draw(texts), draw(counters),
        draw(st.dictionaries(names, scalars, max_size=5)), draw(st.binary(max_size=50)),
    )  # fmt: skip
    if draw(st.booleans()):
        event.__dict__["order"] = draw(orders)
    if draw(st.booleans()):
        event.__dict__["out_of_order"] = True
    return event


@settings(max_examples=examples(100))
@given(st.lists(events(), max_size=6), integers, st.integers(0, 2**62))
def test_any_event_comes_back_as_it_was(many: list[Event], notified_ns: int, first: int) -> None:
    batch = as_batch(first, many, notified_ns)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    assert batch.column("offset").to_pylist() == list(range(first, first + len(many)))
    assert batch.column("notified_ns").to_pylist() == [notified_ns] * len(many)
    assert [facts(event) for event in events_of(batch)] == [facts(event) for event in many]
    for event, shown in zip(many, batch.column("attributes").to_pylist(), strict=True):
        assert dict(shown) == {name: attribute_text(value) for name, value in event.attributes.items()}


@settings(max_examples=examples(15))
@given(many=st.lists(events(), min_size=1, max_size=8), batch_rows=st.integers(1, 9))
def test_a_segment_gives_the_rows_that_the_tail_gave(
    tmp_path_factory: pytest.TempPathFactory, many: list[Event], batch_rows: int
) -> None:
    directory = tmp_path_factory.mktemp("archive")
    with Archive.open(directory) as archive, ArchiveReader(directory) as reader:
        archive.append(many, 5)
        before = pa.Table.from_batches(reader.read(0, len(many), batch_rows))
        archive.seal()
        after = pa.Table.from_batches(reader.read(0, len(many), batch_rows))
    assert before.equals(after) and before.schema.equals(after.schema)
    assert [facts(event) for batch in after.to_batches() for event in events_of(batch)] == [
        facts(e) for e in many
    ]


def test_the_columns_are_those_that_were_agreed() -> None:
    assert " ".join(SCHEMA.names) == (
        "offset source incarnation sequence topic attributes packed payload published_ns notified_ns"
        " out_of_order order content_type expires_ns reply_to request"
    )
    nullable = [field.name for field in SCHEMA if field.nullable]
    assert nullable == ["order", "content_type", "expires_ns", "reply_to", "request"]
    batch = as_batch(7, [make_event(12)], 99)
    (row,) = batch.to_pylist()
    assert row["offset"] == 7 and row["source"] == "source-0" and row["notified_ns"] == 99
    assert row["attributes"] == [("number", "12"), ("kind", "k5"), ("half", "6.0"), ("none", None)]
    assert row["order"] == {"topic": "/t/2", "number": 12, "after": [("/o", 11)]}
    assert as_batch(0, [make_event(1)], 99).column("source").to_pylist() == ["source-1~1"]


def test_large_payloads_come_in_small_batches(tmp_path: Path) -> None:
    many = make_events(0, 40, payload_bytes=1_000_000)
    with Archive.open(tmp_path, ArchiveSettings(segment_bytes=12_000_000)) as archive:
        archive.append(many[:20], 1)
        archive.append(many[20:], 1)
        with ArchiveReader(tmp_path) as reader:
            assert [segment.rows for segment in reader.segments()] == [18, 18]
            sizes = [batch.nbytes for batch in reader.read(0, 40)]
            assert max(sizes) < 17_000_000
            assert [facts(event) for event in kept_events(reader, 0, 40)] == [facts(event) for event in many]


def test_the_place_of_an_ordered_event_is_kept() -> None:
    layout = Layout([Server("a", ("/a", "/b")), Server("c", ("/c/**",))])
    event = make_event(1)
    event.__dict__["order"] = Places(Timestamp(1, 5, (0, 2), (3, 4)), layout, event.sequence).of(
        event.sequence
    )
    (back,) = events_of(as_batch(0, [event], 1))
    assert (back.order.topic, back.order.number, back.order.after) == ("/b", 5, {"/a": 3, "/c/**": 4})


def _event(**changes: Any) -> Event:
    fields: dict[str, Any] = {
        "source": "s", "incarnation": 0, "sequence": 1, "topic": "/t", "published_at": 1, "attributes": {},
        "payload": b"",
    }  # fmt: skip
    order = changes.pop("order", None)
    event = Event(**{**fields, **changes})
    if order is not None:
        event.__dict__["order"] = OrderPosition(**order)
    return event


BAD_EVENTS = {
    "negative sequence": _event(sequence=-1),
    "sequence of 65 bits": _event(sequence=2**64),
    "sequence of 64 bits without a sign": _event(sequence=2**63),
    "time that is no integer": _event(published_at=1.5),
    "no source": _event(source=""),
    "source that is no text": _event(source="\udc80"),
    "topic that is no text": _event(topic=None),
    "payload that is text": _event(payload="text"),
    "payload that is missing": _event(payload=None),
    "attribute of a list": _event(attributes={"a": [1]}),
    "attribute of a large integer": _event(attributes={"a": 2**70}),
    "attribute that is no text": _event(attributes={"a": "\ud800"}),
    "attribute name that is no text": _event(attributes={"\ud800": 1}),
    "attribute called topic": _event(attributes={"topic": "x"}),
    "order without a number": _event(order={"topic": "/t", "number": None, "after": {}}),
    "order with a large number": _event(order={"topic": "/t", "number": 2**63, "after": {}}),
    "order after no map": _event(order={"topic": "/t", "number": 1, "after": {"/o": math.inf}}),
}


@pytest.mark.parametrize("name", BAD_EVENTS)
def test_an_event_that_could_not_be_read_back_is_refused_with_its_batch(name: str, tmp_path: Path) -> None:
    with Archive.open(tmp_path) as archive:
        archive.append(make_events(0, 2), 1)
        with pytest.raises(ArchiveError, match="cannot be archived") as caught:
            archive.append([make_event(2), BAD_EVENTS[name]], 1)
        assert "\n" not in str(caught.value)
        assert archive.bounds() == (0, 2)
        assert archive.append([make_event(2)], 1) == 2
        archive.seal()
