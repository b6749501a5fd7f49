"""Payloads: bytes stay as they are, everything else carries what it is, and nothing else passes a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from payloads import BAD_ITEMS, ITEMS, TYPED, as_shown
from tidings.core.errors import PayloadError, WireError
from tidings.core.events.event import (
    Event,
    check_publication,
    decode_event,
    decode_publication,
    make_publication,
    rebuild_publication,
    separate_payload,
)
from tidings.core.events.payload import JSON, TEXT, PayloadItem, TypedPayload, typed_payload
from tidings.core.events.run import Run, RunMaker, cut, decode_stretch, look, singles


class Story(Struct):
    title: str
    size: int = 0


@dataclass
class Place:
    city: str


def fail(error: WireError) -> None:
    raise error


def event_with(payload: Any) -> Event:
    return make_publication("p", 0, 1, "/a", {"x": 1}, payload, 5).event()


def run_with(payloads: list[Any], attributes: Any = None) -> Any:
    maker = RunMaker("p", 0)
    for sequence, payload in enumerate(payloads, 1):
        maker.add(sequence, "/a", attributes or {"x": sequence}, payload, 5)
    (run,) = maker.take_all()
    return run


# --- What applications publish and see


@pytest.mark.parametrize(
    ("payload", "data", "content_type"),
    [
        (b"\xff", b"\xff", ""),
        (bytearray(b"ab"), b"ab", ""),
        (memoryview(b"ab"), b"ab", ""),
        ("grüße", "grüße".encode(), TEXT),
        ("", b"", TEXT),
        ({"a": [1, None]}, b'{"a":[1,null]}', JSON),
        ([1, "x"], b'[1,"x"]', JSON),
        (3, b"3", JSON),
        (True, b"true", JSON),
        (None, b"null", JSON),
        (Story("oil", 3), b'{"title":"oil","size":3}', JSON),
        (Place("Basel"), b'{"city":"Basel"}', JSON),
    ],
)
def test_a_payload_travels_with_its_content_type(payload: Any, data: bytes, content_type: str) -> None:
    event = event_with(payload)
    assert (event.payload, event.content_type) == (data, content_type)
    assert (event.expires_at, event.reply_to, event.request) == (None, "", "")
    assert type(event) is Event


def test_plain_bytes_are_encoded_as_before() -> None:
    raw = msgspec.msgpack.decode(make_publication("p", 0, 1, "/a", {}, b"x", 5).raw)
    assert raw == ["p", 0, 1, "/a", 5, {}, b"x"]
    raw = msgspec.msgpack.decode(make_publication("p", 0, 1, "/a", {}, TypedPayload(b"x"), 5).raw)
    assert raw[6] == b"x", "a payload without details is plain bytes"
    raw = msgspec.msgpack.decode(make_publication("p", 0, 1, "/a", {}, "x", 5).raw)
    assert raw[6] == [b"x", TEXT], "the last items are left out if they are empty"


def test_an_event_decodes_its_payload() -> None:
    event = event_with(Story("oil", 3))
    assert event.json() == {"title": "oil", "size": 3}
    assert event.decode(Story) == Story("oil", 3)
    assert event.text == '{"title":"oil","size":3}'
    assert event_with(Place("Basel")).decode(Place) == Place("Basel")
    assert event_with([1, 2]).decode(list[int]) == [1, 2]
    assert event_with("text").decode(str) == "text"
    assert event_with(b"\xff").decode(bytes) == b"\xff"
    assert event_with({"a": "x"}["a"]).text == "x"
    assert event_with(b'{"title": "plain"}').decode(Story) == Story("plain")


def test_what_a_payload_is_not_is_one_error_that_names_the_event() -> None:
    with pytest.raises(PayloadError, match="event p:1: its payload is not UTF-8 text"):
        _ = event_with(b"\xff").text
    with pytest.raises(PayloadError, match="event p:1: its payload does not decode as JSON"):
        event_with(b"oil").json()
    with pytest.raises(PayloadError, match=r"event p:1: its payload does not decode as Story: .*title"):
        event_with({"size": 1}).decode(Story)
    with pytest.raises(PayloadError, match="event p:1: its payload does not decode as JSON"):
        event_with(b"[" * 100_000).json()
    with pytest.raises(PayloadError, match="event p:1"):
        event_with(b"{}").decode(dict[Any, int] | dict[str, int])  # type: ignore[arg-type]


class _Odd:
    pass


@pytest.mark.parametrize("payload", [object(), [_Odd()], {(1, 2): 3}, "\ud800", ["\ud800"]])
def test_what_cannot_be_encoded_is_one_error(payload: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        event_with(payload)
    assert "\n" not in str(caught.value)
    assert type(payload).__name__ in str(caught.value) or "Unicode" in str(caught.value)


def test_events_with_other_details_are_not_equal() -> None:
    assert event_with("x") == event_with("x")
    assert event_with("x") != event_with(b"x")
    assert event_with("x") != 7


# --- Round trips


@settings(max_examples=100, deadline=None)
@given(st.lists(ITEMS, min_size=2, max_size=8), st.booleans(), st.data())
def test_payloads_come_back_from_runs_and_cuts(
    items: list[PayloadItem], odd: bool, data: st.DataObject
) -> None:
    run = run_with(items, {"x": b"bytes"} if odd else None)
    assert isinstance(run, Run)
    back = decode_stretch(Raw(bytes(run.raw)))
    assert isinstance(back, Run) and back.check() == []
    back.verify()
    wanted = [as_shown(item) for item in items]
    assert [event.payload_item for event in back.events(fail)] == wanted
    assert all(type(event) is Event for event in back.events(fail))
    assert [one.attributes()["x"] for one in look(back)] == [one.attributes()["x"] for one in singles(back)]
    first = data.draw(st.integers(1, len(items)))
    last = data.draw(st.integers(first, len(items)))
    part = cut(back, first, last)
    assert [single.event().payload_item for single in singles(part)] == wanted[first - 1 : last]


@settings(max_examples=100, deadline=None)
@given(ITEMS, st.booleans())
def test_an_event_in_parts_is_rebuilt_as_it_was(item: PayloadItem, odd: bool) -> None:
    made = make_publication("p", 3, 9, "/a", {"x": b"b"} if odd else {}, item, 5)
    check_publication(made)
    data, header = separate_payload(made)
    back = rebuild_publication("p", 3, 9, "/a", 5, bytes(made.packed_attributes), data, header)
    assert bytes(back.raw) == bytes(made.raw)
    assert back.event().payload_item == as_shown(item)


@settings(max_examples=50, deadline=None)
@given(TYPED, st.integers(0, 2**63 - 1))
def test_a_payload_published_again_keeps_what_it_is(item: TypedPayload, expires_at: int) -> None:
    again = typed_payload(item, expires_at=expires_at)
    assert (again.data, again.content_type) == (item.data, item.content_type)
    assert (again.expires_at, again.reply_to, again.request) == (expires_at, "", "")


# --- Bad slots


@pytest.mark.parametrize(("item", "reason"), BAD_ITEMS)
def test_a_bad_payload_is_refused_with_one_line_and_the_others_pass(item: Any, reason: str) -> None:
    fields: list[Any] = [("p", 7, number, "/a", 5, {"x": number}, (b"", TEXT)) for number in range(1, 4)]
    fields[1] = ("p", 7, 2, "/a", 5, {"x": 2}, item)
    raw = msgspec.msgpack.encode(("p", 7, 1, 3, "/a", msgspec.msgpack.encode(fields)))
    run = decode_stretch(Raw(raw))
    assert isinstance(run, Run)
    ((sequence, said),) = run.check()
    assert sequence == 2
    assert said.startswith("event p~7:2: ") and reason in said and "\n" not in said
    assert [single.sequence for part in run.without([2]) for single in singles(part)] == [1, 3]
    alone = decode_publication(Raw(msgspec.msgpack.encode(fields[1])))
    with pytest.raises(WireError, match="event p~7:2: "):
        check_publication(alone)


@settings(max_examples=200, deadline=None)
@given(TYPED, st.data())
def test_a_damaged_slot_does_no_more_than_raise_wire_errors(item: TypedPayload, data: st.DataObject) -> None:
    made = make_publication("p", 0, 1, "/a", {}, item, 5)
    raw = bytearray(bytes(made.raw))
    start = len(raw) - len(memoryview(made.packed_payload))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(start, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        publication = decode_publication(Raw(bytes(raw)))
        check_publication(publication)
    except WireError:
        return
    event = decode_event(publication.raw)
    assert isinstance(event.payload, bytes)
