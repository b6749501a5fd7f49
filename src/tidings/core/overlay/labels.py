"""Geometry of the primary tree, computed from the brokers' labels alone (Dewey paths, fixed when a broker joins).

Labels answer 'who is on the path', 'who is next' and 'who is beyond' without tables or messages: every broker can
compute the primary path P(A, B) of the paper (partitions, section III) for any two labels.

Except for `parse_label`, functions assume labels of one tree: tuples that begin with the root's 0.
"""

from __future__ import annotations

import re

Label = tuple[int, ...]
"""The path from the root: the root is (0,), its children are (0, 0), (0, 1), ..."""

ROOT: Label = (0,)
MAX_LABEL_ITEMS = 4096
MAX_LABEL_ITEM = 2**31 - 1

_LABEL = re.compile(r"0(?:\.(?:0|[1-9][0-9]{0,9}))*")
_MAX_TEXT = 1 + (MAX_LABEL_ITEMS - 1) * (1 + len(str(MAX_LABEL_ITEM)))


def parse_label(text: str) -> Label:
    """Parse a label such as `0.1.2`. Only what `label_text` writes is accepted, so equal labels have equal texts."""
    if len(text) > _MAX_TEXT or text.count(".") >= MAX_LABEL_ITEMS:
        raise ValueError(f"a label has at most {MAX_LABEL_ITEMS} numbers")
    if not _LABEL.fullmatch(text):
        shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
        raise ValueError(f"{shown} is not a label: write the path from the root, such as 0 or 0.1.2")
    label = tuple(map(int, text.split(".")))
    if max(label) > MAX_LABEL_ITEM:
        raise ValueError(f"{max(label)} in a label is greater than {MAX_LABEL_ITEM}")
    return label


def label_text(label: Label) -> str:
    return ".".join(map(str, label))


def distance(a: Label, b: Label) -> int:
    """Return the number of links on the path from `a` to `b`."""
    return len(a) + len(b) - 2 * _common(a, b)


def path(a: Label, b: Label) -> tuple[Label, ...]:
    """Return the brokers from `a` to `b`, both included."""
    common = _common(a, b)
    up = [a[:size] for size in range(len(a), common, -1)]
    down = [b[:size] for size in range(common, len(b) + 1)]
    return (*up, *down)


def step(a: Label, b: Label) -> Label:
    """Return the neighbour of `a` on the path to `b`."""
    size = len(a)
    if b[:size] != a:
        return a[:-1]
    if len(b) == size:
        raise ValueError(f"no step from {label_text(a)} to itself")
    return b[: size + 1]


def on_path(x: Label, a: Label, b: Label) -> bool:
    """Is `x` on the path from `a` to `b`, ends included?"""
    size = len(x)
    if a[:size] != x:
        return b[:size] == x  # above b but not above a: on the way down to b
    if b[:size] != x:
        return True  # above a but not above b: on the way up from a
    # Above both: on the path only where the two branch off.
    return len(a) == size or len(b) == size or a[size] != b[size]


def beyond(x: Label, b: Label, a: Label) -> bool:
    """Seen from `a`, is `b` at `x` or behind it?"""
    return on_path(x, a, b)


def _common(a: Label, b: Label) -> int:
    """Return the length of the common prefix of `a` and `b`."""
    if len(a) > len(b):
        a, b = b, a
    size = len(a)
    if b[:size] == a:  # a fast path: one is above the other
        return size
    for position in range(size):
        if a[position] != b[position]:
            return position
    raise AssertionError("unequal labels differ somewhere")
