"""Frames with headed events and runs, damaged in every way: nothing but WireError comes out."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from tidings.core.errors import WireError
from tidings.core.events.event import BARE, Publication, check_publication, make_no_ops, make_publication
from tidings.core.events.run import Run, RunMaker, Stretch, decode_stretch, stamped, stripped
from tidings.core.events.timestamp import Timestamp
from tidings.core.messages import Notify
from tidings.core.wire.codec import decode, encode

STAMP = Timestamp(1, 5, (0, 3), (7, 2))


def run_of(count: int) -> Run:
    maker = RunMaker("p", 2)
    for sequence in range(1, count + 1):
        maker.add(sequence, "/a", {"n": sequence}, b"payload", 3)
    (run,) = maker.take_all()
    assert isinstance(run, Run)
    return run


def headed() -> list[Stretch]:
    event = make_publication("p", 2, 1, "/a", {"n": 1}, b"payload", 3)
    run = stamped(run_of(4), 99, STAMP)
    return [
        stamped(event, 99, STAMP),
        run,
        stripped(event),
        stripped(run),
        stripped(run_of(3)),
        make_no_ops("p", 2, 1, "/a", 99, STAMP, 12),
    ]


@pytest.mark.parametrize("stretch", headed(), ids=str)
def test_headed_stretches_come_back_from_their_frames(stretch: Stretch) -> None:
    (back,) = decode(encode(Notify(("s",), stretch)))
    assert isinstance(back, Notify)
    found = back.stretch
    assert (found.layout, found.stamp, found.kind) == (stretch.layout, stretch.stamp, stretch.kind)
    assert bytes(found.raw) == bytes(stretch.raw)
    (again,) = decode(encode(stretch))
    assert type(again) is type(stretch)
    assert bytes(again.raw) == bytes(stretch.raw)  # type: ignore[union-attr]


def use(stretch: Stretch) -> None:
    """All that a broker and a client do with what came from the wire."""
    if isinstance(stretch, Publication):
        check_publication(stretch)
        stretch.event()
        stripped(stretch)
        return
    stripped(stretch).cut(stretch.first, stretch.first)  # type: ignore[union-attr]
    stretch.events(lambda error: None)
    if stretch.kind != BARE:
        stretch.look()
        stretch.check()
        for publication in stretch.publications():
            assert publication.stamp == (
                None if stretch.stamp is None else stretch.stamp.at(publication.stamp.number)  # type: ignore[union-attr]
            )


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(headed()),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_damaged_bytes_are_refused_or_harmless(
    stretch: Stretch, damages: list[tuple[int, int]], cut: int
) -> None:
    raw = bytearray(bytes(stretch.raw))
    for place, byte in damages:
        raw[place % len(raw)] = byte
    body = bytes(raw[: len(raw) - cut])
    with suppress(WireError):
        use(decode_stretch(Raw(body)))


ITEMS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=9)
)
ITEMS |= st.lists(st.integers(-5, 2**63 - 1) | st.lists(st.integers(-5, 9), max_size=3), max_size=5)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(headed()), st.integers(0, 9), ITEMS)
def test_any_item_may_be_something_else(stretch: Stretch, place: int, value: Any) -> None:
    items = msgspec.msgpack.decode(bytes(stretch.raw))
    items[place % len(items)] = value
    with suppress(WireError):
        use(decode_stretch(Raw(msgspec.msgpack.encode(items))))


@pytest.mark.parametrize("count", [2, 3, 5, 4096])
def test_a_run_that_lies_about_its_count_is_found_out_by_its_body(count: int) -> None:
    items = msgspec.msgpack.decode(bytes(stamped(run_of(4), 99, STAMP).raw))
    items[3] = count
    run = decode_stretch(Raw(msgspec.msgpack.encode(items)))
    assert isinstance(run, Run)
    for look in (run.publications, run.look, run.check):
        with pytest.raises(WireError, match=f"has 4 events, not {count}"):
            look()
