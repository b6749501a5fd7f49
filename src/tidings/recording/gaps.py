"""Gaps that are not yet in the archive, each with its place among the events that came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

MAX_PENDING = 1_000
"""The most gaps kept while nothing can be written; beyond this, the last two are merged."""
NOWHERE = 1 << 62


@dataclass(frozen=True)
class GapNote:
    after: int
    """The number of events that came before the gap."""
    reason: str
    missing: int | None
    noted: Callable[[], None] = field(default=lambda: None, compare=False)
    """Called when the gap is on disk."""


class PendingGaps:
    """Gaps to be written. Events are counted from the start of the recorder."""

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
        """Remove and return the gaps before the next event to be written."""
        due = [gap for gap in self._gaps if gap.after <= written]
        self._gaps = [gap for gap in self._gaps if gap.after > written]
        return due

    def give_back(self, gaps: list[GapNote]) -> None:
        self._gaps = gaps + self._gaps

    def next_position(self, written: int) -> int:
        """Return the position of the next gap; events up to there may be written at once."""
        return min((gap.after for gap in self._gaps if gap.after > written), default=NOWHERE)

    def make_all_due(self) -> None:
        """Make all gaps due now, because no more events will be written."""
        self._gaps = [replace(gap, after=0) for gap in self._gaps]


def _joined(one: GapNote, other: GapNote) -> GapNote:
    def noted() -> None:
        one.noted()
        other.noted()

    missing = None if one.missing is None or other.missing is None else one.missing + other.missing
    return GapNote(one.after, other.reason, missing, noted)
