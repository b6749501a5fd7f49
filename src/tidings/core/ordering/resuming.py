"""What a subscriber needs after a restart to be the same subscriber for the servers and for the order.

While a client is away, its event service keeps what it is not done with, and the servers keep the subscriber. So a
restarted subscriber is one that was slow: it takes up the identity, and its clocks start where the earlier run was done
with everything, not at the values of a walk.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

Fence = tuple[tuple[int, ...], tuple[int, ...]]
"""Topics, and the values that their clocks must have reached."""


class Resumed(Struct, frozen=True, array_like=True):
    """Where one topic resumes."""

    clock: int
    """The subscriber is done with all numbers up to this one."""
    fence: Fence | None = None
    """What the next event waits for, if no number was done since the topic was joined (rule 3)."""
    open: tuple[int, ...] = ()
    """No-ops up to the clock whose events may still arrive."""


class Resumption(Struct, frozen=True):
    """Where a subscriber resumes. `ever` are all topics that the earlier run had or may have requested; `lineages` are
    those of the servers."""

    incarnation: int
    ever: tuple[int, ...]
    topics: Mapping[int, Resumed]
    lineages: tuple[tuple[str, int], ...] = ()
