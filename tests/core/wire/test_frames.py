"""Frames come out whole and in order however the stream is cut, at a cost linear in its bytes."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.errors import WireError
from tidings.core.wire.frames import MAX_FRAME_BYTES, FrameReader, frame


def bodies_of(stream: bytes) -> list[bytes]:
    """The dumb twin: the whole stream at once."""
    found = []
    while len(stream) >= 4:
        (size,) = struct.unpack(">I", stream[:4])
        if len(stream) < 4 + size:
            break
        found.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
    return found


@settings(max_examples=examples(200))
@given(
    st.lists(st.binary(min_size=1, max_size=300), max_size=8),
    st.lists(st.integers(0, 400), max_size=60),
    st.integers(0, 400),
)
def test_any_chunking_equals_the_dumb_twin(bodies: list[bytes], cuts: list[int], missing: int) -> None:
    stream = b"".join(map(frame, bodies))
    stream = stream[: max(0, len(stream) - missing)]
    reader = FrameReader()
    found: list[bytes] = []
    start = 0
    for cut in [*cuts, len(stream)]:
        found += [bytes(body) for body in reader.feed(stream[start : start + cut])]
        start += cut
    assert found == bodies_of(stream)
    whole_bytes = sum(4 + len(body) for body in found)
    if whole_bytes == len(stream):
        reader.eof()
    else:
        with pytest.raises(WireError, match=f"after {len(stream) - whole_bytes} bytes"):
            reader.eof()


def test_byte_by_byte() -> None:
    reader = FrameReader()
    found = [bytes(body) for byte in frame(b"ab") + frame(b"c") for body in reader.feed(bytes((byte,)))]
    assert found == [b"ab", b"c"]
    reader.eof()


def test_bodies_stay_what_they_were() -> None:
    reader = FrameReader()
    data = frame(b"first") + frame(b"second")
    early = reader.feed(data[:12]) + reader.feed(data[12:])
    for _ in range(100):
        reader.feed(frame(b"x" * 50)[:30])
        reader.feed(frame(b"x" * 50)[30:])
    assert [bytes(body) for body in early] == [b"first", b"second"]


@pytest.mark.parametrize("size", [0, 101, 2**31, 2**32 - 1])
@pytest.mark.parametrize("split", [0, 1, 3, 4])
def test_a_bad_length_is_refused_at_once(size: int, split: int) -> None:
    reader = FrameReader(100)
    header = struct.pack(">I", size)
    first, second = (b"", frame(b"good") + header) if split == 4 else (header[:split], header[split:])
    assert reader.feed(first) == []
    with pytest.raises(WireError, match=f"a frame of {size} bytes; the limits are 1 to 100"):
        reader.feed(second)


def test_the_limit_itself_is_taken() -> None:
    reader = FrameReader(100)
    assert [len(body) for body in reader.feed(frame(b"x" * 100))] == [100]


def test_frame_refuses_what_no_reader_takes() -> None:
    for body in (b"", bytes(MAX_FRAME_BYTES + 1)):
        with pytest.raises(WireError):
            frame(body)


def test_a_claimed_length_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        readers = [FrameReader() for _ in range(100)]
        for reader in readers:
            reader.feed(struct.pack(">I", MAX_FRAME_BYTES) + b"x")
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(15)  # a guard: linear takes a fraction of a second
def test_cost_is_linear_in_the_bytes() -> None:
    """The largest frame in chunks of 64 bytes: a reader that copied it at each chunk would copy 137 GB."""
    stream = frame(bytes(MAX_FRAME_BYTES))
    chunks = [stream[start : start + 64] for start in range(0, len(stream), 64)]
    reader = FrameReader()
    assert sum(len(reader.feed(chunk)) for chunk in chunks) == 1
