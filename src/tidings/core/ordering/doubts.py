"""Ends the wait for events that the service may have lost: after a move to another broker, or when it gave events up.

Nothing tells which numbers are lost: the service knows sources and sequences only, and what is missing may just be on
its way. So a *doubt* asks the servers for their clocks first. Everything that was lost before has a number up to
these. Of those, what has not arrived when nothing more of them arrives for a while is given up, all at once, and the
doubt is over: what is published later is waited for as before.
"""

from __future__ import annotations

from collections.abc import Callable

Lacking = list[tuple[int, int, int]]
"""Topic, first and last number."""


def count_of(lacking: Lacking) -> int:
    return sum(last - first + 1 for _, first, last in lacking)


class Doubt:
    """Whether the numbers up to `clocks` that a subscriber lacks are lost."""

    __slots__ = ("_lacked", "clocks", "following", "is_held_up", "quiet_ns", "why")

    def __init__(self, why: str, quiet_ns: int, is_held_up: Callable[[], bool]) -> None:
        self.why = why
        self.quiet_ns = quiet_ns
        """How long nothing more may have arrived."""
        self.is_held_up = is_held_up
        """Returns True while the application is slow or disconnected: nothing can arrive."""
        self.clocks: tuple[tuple[int, int], ...] | None = None
        """None until the servers have answered."""
        self.following: Doubt | None = None
        """Begins when this one is over: what was lost meanwhile may have higher numbers."""
        self._lacked = -1

    def is_certain(self, lacking: Lacking, *, settled: bool) -> bool:
        """Return whether these numbers are lost: called once in `quiet_ns`, from when the clocks are known."""
        before, self._lacked = self._lacked, count_of(lacking)
        if self.is_held_up() or not settled:
            self._lacked = -1
        return before == self._lacked > 0
