"""Frames on a byte stream: a 4-byte big-endian length, then that many bytes of body.

There is no I/O here: the driver feeds what it reads and gets the complete bodies.
"""

from __future__ import annotations

import struct

from tidings.core.errors import WireError

MAX_FRAME_BYTES = 4 * 1024 * 1024
HEADER_BYTES = 4

_HEADER = struct.Struct(">I")
_size_at = _HEADER.unpack_from


def frame(body: bytes | bytearray | memoryview) -> bytes:
    """Put the body's length in front of it; raise WireError if readers would reject it."""
    check_body_size(len(body), MAX_FRAME_BYTES)
    return b"".join((_HEADER.pack(len(body)), body))


def check_body_size(size_bytes: int, max_frame_bytes: int) -> None:
    if not 0 < size_bytes <= max_frame_bytes:
        raise WireError(f"a frame of {size_bytes} bytes; the limits are 1 to {max_frame_bytes}")


class FrameReader:
    """Cuts a stream into bodies, at a cost linear in its bytes, however it is chunked.

    A body that came in one chunk is a view of that chunk, so it keeps the whole chunk alive. A frame that spans chunks
    is gathered once, in a buffer that grows with the bytes received, never with the length that its header claims. A
    rejected length ends the stream: do not feed again after a WireError.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        """May be increased between two feeds, once the peer is known."""
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[memoryview]:
        bodies: list[memoryview] = []
        view = memoryview(data)
        end = len(data)
        start = self._continue(view, bodies) if self._partial else 0
        while (begin := start + HEADER_BYTES) <= end:
            stop = begin + _size_at(view, start)[0]
            if not begin < stop <= begin + self.max_frame_bytes:
                check_body_size(stop - begin, self.max_frame_bytes)
            if stop > end:
                break
            bodies.append(view[begin:stop])
            start = stop
        if start < end:
            self._partial += view[start:]
        return bodies

    def eof(self) -> None:
        """Raise WireError if the stream ended inside a frame."""
        if self._partial:
            raise WireError(f"the stream ended inside a frame, after {len(self._partial)} bytes")

    def _continue(self, view: memoryview, bodies: list[memoryview]) -> int:
        """Complete the pending frame from the start of `view`; return how many bytes that took."""
        partial = self._partial
        used = max(0, min(HEADER_BYTES - len(partial), len(view)))
        partial += view[:used]
        if len(partial) < HEADER_BYTES:
            return used
        size_bytes = _size_at(partial)[0]
        check_body_size(size_bytes, self.max_frame_bytes)
        missing = HEADER_BYTES + size_bytes - len(partial)
        taken = view[used : used + missing]
        partial += taken
        if len(taken) == missing:
            bodies.append(memoryview(partial)[HEADER_BYTES:])
            self._partial = bytearray()
        return used + len(taken)
