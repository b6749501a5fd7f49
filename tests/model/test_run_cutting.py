"""Runs of events: made once, cut anywhere, and never taken for more than they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from tidings.model.errors import AttributeValueError, TopicError, WireError
from tidings.model.event import Publication, make_publication
from tidings.model.predicates import Scalar
from tidings.model.run import MAX_RUN_BYTES, Run, RunMaker, Stretch, decode_stretch, singles

Published = tuple[str, dict[str, Scalar], bytes]
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("~é", max_size=3)
SCALARS |= st.binary(max_size=3) | st.floats(allow_nan=False)
EVENTS = st.tuples(
    st.sampled_from(["/a", "/a", "/b"]),
    st.dictionaries(st.sampled_from(["x", "y", "~z"]), SCALARS, max_size=3),
    st.binary(max_size=20),
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
            inner = stretch.cut(stretch.last, stretch.last) if isinstance(stretch, Run) else stretch
            assert encodings(inner) == [bytes(plain[end].raw)]


def test_internal_attributes_of_a_run_are_set_apart() -> None:
    (run,) = made([("/a", {"x": 1, "~order": b"o"}, b""), ("/a", {"x": "~"}, b"~noop")])
    assert isinstance(run, Run)
    first, second = run.events(no_complaint)
    assert (first.attributes, first.internal) == ({"x": 1}, {"~order": b"o"})
    assert (second.attributes, second.internal) == ({"x": "~"}, {})
    assert run.may_hide()  # it might: its events get a closer look
    assert not run_of(2).may_hide()


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
        (AttributeValueError, "/a", {}, "text"),
        (AttributeValueError, "/a", {}, bytes(2**20)),
        (AttributeValueError, "/a", None, b""),
    ]
    for error, topic, attributes, payload in refused:
        with pytest.raises(error):
            maker.add(2, topic, attributes, payload, 0)
    with pytest.raises(AttributeValueError, match="reserved"):
        maker.add(2, "/a", {"~x": 1}, b"", 0, internal=False)
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
        ({"body": b""}, "its events do not decode"),
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
        ({"count": 1}, "not a run of events"),
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
        ("/a", {}, "text", "not an event"),
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
