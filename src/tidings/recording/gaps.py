"""Gaps that are not in the archive yet, each with its place among the events that came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

MAX_PENDING = 1_000
"""While nothing can be written; beyond, the last two become one."""
NOWHERE = 1 << 62


@dataclass(frozen=True)
class GapNote:
    after: int
    """So many events came before."""
    reason: str
    missing: int | None
    noted: Callable[[], None] = field(default=lambda: None, compare=False)
    """Called when it is on disk."""


class PendingGaps:
    """Events are counted from the start of the recorder."""

    def __init__(self) -> None:
        self._gaps: list[GapNote] = []

    def __len__(self) -> int:
        return len(self._gaps)

    def add(
        self,
        reason: str,
        missing: int | None = None,
        *,
        after: int = 0,
        noted: Callable[[], None] = lambda: None,
    ) -> None:
        gap = GapNote(after, reason, missing, noted)
        if len(self._gaps) >= MAX_PENDING:
            gap = _joined(self._gaps.pop(), gap)
        self._gaps.append(gap)

    def take(self, written: int) -> list[GapNote]:
        """Those before the next event that is written."""
        due = [gap for gap in self._gaps if gap.after <= written]
        self._gaps = [gap for gap in self._gaps if gap.after > written]
        return due

    def give_back(self, gaps: list[GapNote]) -> None:
        self._gaps = gaps + self._gaps

    def next_position(self, written: int) -> int:
        """Events up to there may be written at once."""
        return min((gap.after for gap in self._gaps if gap.after > written), default=NOWHERE)

    def hurry(self) -> None:
        """No more events are written: what is missing is told now."""
        self._gaps = [replace(gap, after=0) for gap in self._gaps]


def _joined(one: GapNote, other: GapNote) -> GapNote:
    def noted() -> None:
        one.noted()
        other.noted()

    missing = None if one.missing is None or other.missing is None else one.missing + other.missing
    return GapNote(one.after, other.reason, missing, noted)
