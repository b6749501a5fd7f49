"""What the next life of a subscriber needs to know, to be the same subscriber for the servers and for the order.

While a client is away its event service keeps what it is not done with, and the servers keep the subscriber. So its
next life is a subscriber that was slow: it takes up the identity, and its clocks begin where the earlier life had done
with everything, not at the values of a walk.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

Fence = tuple[tuple[int, ...], tuple[int, ...]]
"""Topics, and what their clocks must have reached."""


class Resumed(Struct, frozen=True, array_like=True):
    """Of one topic."""

    clock: int
    """Events up to this number are done with."""
    fence: Fence | None = None
    """What the next event waits for, if none was done with since the topic was joined (rule 3)."""
    open: tuple[int, ...] = ()
    """No-ops up to the clock whose events may come yet."""


class Resumption(Struct, frozen=True):
    """`ever` are all topics that the earlier life had, or may have asked for; `lineages` those of the servers."""

    incarnation: int
    ever: tuple[int, ...]
    topics: Mapping[int, Resumed]
    lineages: tuple[tuple[str, int], ...] = ()
