"""Random payloads: plain bytes, and data with a content type and other details."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tidings.core.events.payload import PayloadItem, TypedPayload

INSTANTS = st.just(0) | st.integers(0, 2**63 - 1)
TYPED = st.builds(
    TypedPayload,
    st.binary(max_size=20),
    st.sampled_from(["", "application/json", "text/plain; charset=utf-8", "é" * 127])
    | st.text("a/;é", max_size=60),
    INSTANTS,
    st.sampled_from(["", "/answers", "/a/b~1"]),
    st.text("ab~é", max_size=64),
)
ITEMS: st.SearchStrategy[PayloadItem] = st.binary(max_size=20) | TYPED


def as_shown(item: PayloadItem) -> PayloadItem:
    """An event whose payload has no details shows plain bytes."""
    return item.data if isinstance(item, TypedPayload) and not item.rest else item


BAD_ITEMS: list[tuple[Any, str]] = [
    ([], "length 1"),
    (["text"], "bytes"),
    ([b"", 7], "str"),
    ([b"", "x" * 256], "255"),
    ([b"", "é" * 128], "content type of 256 bytes"),
    ([b"", "", -1], ">= 0"),
    ([b"", "", 2**63], "int"),
    ([b"", "", 1.5], "int"),
    ([b"", "", 0, "answers"], "must start with '/'"),
    ([b"", "", 0, "/a/*"], "wildcard"),
    ([b"", "", 0, "/" + "x" * 1024], "1024"),
    ([b"", "", 0, "", "x" * 65], "64"),
    ([b"", "", 0, "", "", 1], "at most length 5"),
    ({"data": b""}, "bytes | array"),
    (7, "bytes | array"),
    (None, "bytes | array"),
    ("text", "bytes | array"),
]
"""What a publisher may not send as a payload, and a part of the reason that its broker gives."""
