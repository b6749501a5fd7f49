"""Runs of events: made once, cut anywhere, and never taken for more than they are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from payloads import ITEMS
from tidings.core.errors import AttributeValueError, PayloadError, TopicError, WireError
from tidings.core.events.event import BARE, Publication, make_publication, stamp_publication
from tidings.core.events.payload import PayloadItem
from tidings.core.events.run import (
    MAX_RUN_BYTES,
    Run,
    RunMaker,
    Stretch,
    decode_stretch,
    encoding,
    singles,
    stamped,
    stripped,
)
from tidings.core.events.timestamp import Timestamp
from tidings.core.filters.language.predicates import Scalar

Published = tuple[str, dict[str, Scalar], PayloadItem]
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("~é", max_size=3)
SCALARS |= st.binary(max_size=3) | st.floats(allow_nan=False)
EVENTS = st.tuples(
    st.sampled_from(["/a", "/a", "/b"]),
    st.dictionaries(st.sampled_from(["x", "y", "z~"]), SCALARS, max_size=3),
    ITEMS,
)


def made(events: list[Published], first: int = 1, incarnation: int = 7) -> list[Stretch]:
    maker = RunMaker("p", incarnation)
    for sequence, (topic, attributes, payload) in enumerate(events, first):
        maker.add(sequence, topic, attributes, payload, 5)
    return maker.take_all()


def one_by_one(events: list[Published], first: int = 1) -> list[Publication]:
    return [
        make_publication("p", 7, sequence, topic, attributes, payload, 5)
        for sequence, (topic, attributes, payload) in enumerate(events, first)
    ]


def encodings(stretch: Stretch) -> list[bytes]:
    return [bytes(single.raw) for single in singles(stretch)]


def run_of(count: int, topic: str = "/a") -> Run:
    (run,) = made([(topic, {"x": number}, b"") for number in range(count)])
    assert isinstance(run, Run)
    return run


def lie(**fields: Any) -> Run:
    """A run of three events that says something else of itself, as it comes from the wire."""
    run = run_of(3)
    told = {name: getattr(run, name) for name in Run.__struct_fields__[:6]} | fields
    back = decode_stretch(Raw(msgspec.msgpack.encode(tuple(told.values()))))
    assert isinstance(back, Run)
    return back


def no_complaint(error: WireError) -> None:
    raise AssertionError(error)


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, min_size=2, max_size=12), st.integers(0, 2**62))
def test_every_stretch_of_a_run_is_what_its_events_are_one_by_one(
    events: list[Published], first: int
) -> None:
    (run,) = made(events, first)
    assert isinstance(run, Run)
    plain = one_by_one(events, first)
    back = decode_stretch(run.raw)
    assert isinstance(back, Run)
    assert encodings(back) == [bytes(single.raw) for single in plain]
    assert back.check() == []
    assert back.events(no_complaint) == back.kept().events(no_complaint) == [each.event() for each in plain]
    assert (back.topic or None) == (events[0][0] if len({event[0] for event in events}) == 1 else None)
    for start in range(len(events)):
        for end in range(start, len(events)):
            stretch = back.cut(first + start, first + end)
            assert (stretch.first, stretch.last) == (first + start, first + end)
            assert stretch.count == end - start + 1
            assert encodings(stretch) == [bytes(single.raw) for single in plain[start : end + 1]]
            assert encoding(back, first + start, first + end) == bytes(stretch.raw)
            inner = stretch.cut(stretch.last, stretch.last) if isinstance(stretch, Run) else stretch
            assert encodings(inner) == [bytes(plain[end].raw)]


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, min_size=2, max_size=12), st.integers(0, 300))
def test_a_run_is_split_into_as_few_stretches_as_fit(events: list[Published], limit_bytes: int) -> None:
    (run,) = made(events)
    assert isinstance(run, Run)
    pieces = run.split(limit_bytes)
    assert [raw for piece in pieces for raw in encodings(piece)] == encodings(run)
    for piece, following in pairwise([*pieces, None]):
        assert isinstance(piece, Publication) or piece.size_bytes <= limit_bytes
        if piece is not None and following is not None:
            assert run.cut(piece.first, following.first).size_bytes > limit_bytes


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, min_size=2, max_size=12))
def test_what_is_verified_is_what_it_says(events: list[Published]) -> None:
    (run,) = made(events)
    back = decode_stretch(run.raw)
    assert isinstance(back, Run)
    back.verify()
    told = {name: getattr(run, name) for name in Run.__struct_fields__[:6]}
    for lying in ({"first": 2}, {"count": run.count + 1}, {"source": "q"}, {"topic": "/other"}):
        with pytest.raises(WireError):
            Run(*(told | lying).values()).verify()


STAMP = Timestamp(2, 11, (0, 3), (5, 0))


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, min_size=2, max_size=12), st.integers(1, 2**40))
def test_every_stretch_of_an_ordered_run_is_what_its_events_are_one_by_one(
    events: list[Published], number: int
) -> None:
    """The twin gives each event its own stamp."""
    (run,) = made(events)
    stamp = STAMP.at(number)
    back = decode_stretch(stamped(run, 9, stamp).raw)
    assert isinstance(back, Run)
    plain = [
        stamp_publication(single, 9, STAMP.at(number + place))
        for place, single in enumerate(one_by_one(events))
    ]
    assert back.check() == []
    assert back.events(no_complaint) == [each.event() for each in plain]
    for start in range(len(events)):
        for end in range(start, len(events)):
            stretch = back.cut(1 + start, 1 + end)
            assert (stretch.layout, stretch.stamp, stretch.numbers) == (
                9,
                stamp.at(number + start),
                stretch.count,
            )
            expected = [bytes(single.raw) for single in plain[start : end + 1]]
            assert encodings(stretch) == encodings(decode_stretch(stretch.raw)) == expected
            assert encoding(back, 1 + start, 1 + end) == bytes(stretch.raw)
            left = stripped(back).cut(1 + start, 1 + end)  # type: ignore[union-attr]
            again = decode_stretch(left.raw)
            assert isinstance(again, Run) and again.kind == left.kind == BARE and not again.body
            assert (again.first, again.last, again.layout, again.stamp) == (
                stretch.first,
                stretch.last,
                9,
                stretch.stamp,
            )
            kept = again.kept()
            assert (kept.stamp, kept.kind, bytes(kept.raw)) == (again.stamp, BARE, bytes(again.raw))


HEADED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"kind": BARE}, "kind -1 does not allow"),
    ({"body": b""}, "kind 0 does not allow"),
    ({"kind": 3}, "kind 3 does not allow"),
    ({"count": 1}, "has 1 events"),
    ({"kind": -2}, "not a run"),
    ({"stamp": [1]}, "not a run"),
    ({"layout": -1}, "not a run"),
    ({"first": 2**63 - 2}, "64 bits"),
)


@pytest.mark.parametrize(("fields", "reason"), HEADED)
def test_a_header_that_does_not_fit_its_run_does_not_decode(fields: dict[str, Any], reason: str) -> None:
    run = stamped(run_of(3), 9, STAMP)
    told = {name: getattr(run, name) for name in Run.__struct_fields__[:9]} | fields
    with pytest.raises(WireError, match=reason):
        decode_stretch(Raw(msgspec.msgpack.encode(tuple(told.values()))))


def test_a_forged_stamp_refuses_each_event_of_the_run_with_its_number() -> None:
    for forged in (STAMP.at(0), STAMP.at(2**62 - 1), Timestamp(0, 1, (0,), (1,))):
        run = stamped(run_of(3), 9, forged)
        assert isinstance(run, Run)
        refused = run.check()
        assert [sequence for sequence, _ in refused] == [1, 2, 3]
        assert all("a timestamp" in reason for _, reason in refused)
        assert run.without([1, 2, 3]) == []


def test_an_event_in_a_run_has_no_header_of_its_own() -> None:
    """Else a client could hide stamps there that its broker does not look at."""
    forged = b"".join(
        bytes(stamp_publication(single, 9, STAMP).raw) for single in one_by_one([("/a", {}, b"")] * 3)
    )
    run = lie(body=b"\xdc\x00\x03" + forged)
    with pytest.raises(WireError, match="a header of its own"):
        run.publications()
    with pytest.raises(WireError, match="a header of its own"):
        run.cut(2, 2)
    for longer in (8, 9, 11):
        items = [
            ["p", 7, sequence, "/a", 5, {}, b"", *(0, None, 0, 0)[: longer - 7]] for sequence in (1, 2, 3)
        ]
        with pytest.raises(WireError, match="a header of its own"):
            stamped(lie(body=msgspec.msgpack.encode(items)), 9, STAMP).publications()  # type: ignore[union-attr]
    assert all(event.carrier is None and event.order is None for event in run.events(no_complaint))


def test_a_run_is_closed_before_it_is_too_large_and_a_large_event_travels_alone() -> None:
    small, large = ("/a", {}, bytes(1_000)), ("/a", {}, bytes(200_000))
    stretches = made([small] * 100 + [large, small, small])
    assert [stretch.first for stretch in stretches] == [
        1,
        *(stretch.last + 1 for stretch in stretches[:-1]),
    ]
    assert stretches[-1].last == 103
    runs = [stretch for stretch in stretches if isinstance(stretch, Run)]
    assert max(len(run.body) for run in runs) <= MAX_RUN_BYTES + 3
    assert max(len(run.body) for run in runs) > MAX_RUN_BYTES - 2_000
    assert [stretch.first for stretch in stretches if isinstance(stretch, Publication)] == [101]


def test_what_cannot_be_published_leaves_the_run_as_it_was() -> None:
    maker = RunMaker("p", 0)
    maker.add(1, "/a", {"x": 1}, b"", 0)
    refused: list[tuple[type[Exception], str, Any, Any]] = [
        (TopicError, "a", {}, b""),
        (AttributeValueError, "/a", {"x": [1]}, b""),
        (AttributeValueError, "/a", {"x": 2**63}, b""),
        (AttributeValueError, "/a", {"x": "\ud800"}, b""),
        (AttributeValueError, "/a", {"topic": 1}, b""),
        (PayloadError, "/a", {}, object()),
        (PayloadError, "/a", {}, "\ud800"),
        (AttributeValueError, "/a", {}, bytes(2**20)),
        (AttributeValueError, "/a", None, b""),
    ]
    for error, topic, attributes, payload in refused:
        with pytest.raises(error):
            maker.add(2, topic, attributes, payload, 0)
    with pytest.raises(AttributeValueError, match="reserved"):
        maker.add(2, "/a", {"~x": 1}, b"", 0)
    maker.add(2, "/a", {"x": 2}, b"", 0)
    (run,) = maker.take_all()
    assert [single.attributes()["x"] for single in singles(run)] == [1, 2]
    assert not maker


# --- Lies


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"count": 2}, "the run 1 to 2 of p has 3 events, not 2"),
        ({"count": 4}, "the run 1 to 4 of p has 3 events, not 4"),
        ({"first": 2}, "the run 2 to 4 of p has events with other sequences"),
        ({"source": "q"}, "the run 1 to 3 of q has an event of 'p' in incarnation 7"),
        ({"incarnation": 8}, "has an event of 'p' in incarnation 7"),
        ({"topic": "/b"}, "says that all its events are on '/b'; one is on '/a'"),
        ({"body": b"\xc1"}, "its events do not decode"),
        ({"body": bytes(run_of(3).body[:-1])}, "its events do not decode"),
        ({"body": bytes(run_of(3).body) + b"\x00"}, "its events do not decode"),
    ],
)
def test_a_run_that_lies_is_told_what_is_wrong(fields: dict[str, Any], reason: str) -> None:
    for look in (Run.check, Run.publications, Run.look):
        with pytest.raises(WireError, match=reason):
            look(lie(**fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"count": 0}, "not a run of events"),
        ({"count": 1}, "has 1 events in 48 bytes"),
        ({"body": b""}, "has 3 events in 0 bytes"),
        ({"count": 5_000}, "not a run of events"),
        ({"first": -1}, "not a run of events"),
        ({"first": 2**63 - 2}, "its sequences do not fit into 64 bits"),
        ({"source": ""}, "not a run of events"),
        ({"body": "text"}, "not a run of events"),
        ({"body": bytes(MAX_RUN_BYTES + 4)}, "has 49156 bytes of events, the limit is 49152"),
    ],
)
def test_what_is_no_run(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        lie(**fields)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_runs_do_no_more_than_raise_wire_errors(data: st.DataObject) -> None:
    raw = bytearray(bytes(run_of(5).raw))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(1, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        run = decode_stretch(Raw(bytes(raw)))
        assert isinstance(run, Run)
        refused = [sequence for sequence, _ in run.check()]
        for stretch in run.without(refused):
            assert stretch.count == len(singles(stretch))
        run.events(lambda error: None)
        run.look()
    except WireError:
        pass


@pytest.mark.parametrize("bad", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("topic", "attributes", "payload", "reason"),
    [
        ("/a", {"x": [1]}, b"", "unknown type list"),
        ("/a", {"topic": 1}, b"", "reserved"),
        ("no topic", {}, b"", "must start with '/'"),
        ("/a", {}, "text", "its payload does not decode"),
        ("/a", 7, b"", "not an event"),
    ],
)
def test_an_event_that_does_not_decode_is_refused_and_the_others_pass(
    bad: int, topic: str, attributes: Any, payload: Any, reason: str
) -> None:
    fields = [("p", 7, number, "/a", 5, {"x": number}, b"") for number in range(1, 6)]
    fields[bad - 1] = ("p", 7, bad, topic, 5, attributes, payload)
    run = lie(count=5, topic="", body=msgspec.msgpack.encode(fields))
    ((sequence, said),) = run.check()
    assert sequence == bad
    assert reason in said
    passed = [single.sequence for stretch in run.without([bad]) for single in singles(stretch)]
    assert passed == [number for number in range(1, 6) if number != bad]
    complaints: list[WireError] = []
    shown = run.events(complaints.append)
    assert len(shown) + len(complaints) == 5
