"""The seam between a subscription's history, which an archive has, and what comes live.

The two overlap: what comes live while the subscription begins is also in the archive, which may be behind the live
events or ahead of them. Both have the events of a source in their order, so one number per source tells what the
history has shown or passed by. A live event up to it is a repetition; the first one beyond it ends the overlap of its
source.

What makes history and live events contiguous is not decided here, but by where the history stops
(core/overlay/guaranteed/archive_fence.py).
"""

from __future__ import annotations

from tidings.core.client.session import MAX_TRACKED_SOURCES
from tidings.core.structures.highest import Highest


class Seam:
    """`pass_by` for every row of the archive, selected or not, in its order; then `admits` for every live event."""

    def __init__(self, most_sources: int = MAX_TRACKED_SOURCES) -> None:
        """Keep the `most_sources` that came last: only the end of the history overlaps with live events."""
        self._passed: Highest[tuple[str, int], int] = Highest(most_sources)

    def __len__(self) -> int:
        """Return how many sources may still overlap."""
        return len(self._passed)

    def pass_by(self, source: str, incarnation: int, sequence: int) -> None:
        self._passed.raise_to((source, incarnation), sequence)

    def admits(self, source: str, incarnation: int, sequence: int) -> bool:
        """Return False if the live event is a repetition."""
        if not self._passed:
            return True
        key = (source, incarnation)
        passed = self._passed.get(key)
        if passed is None:
            return True
        if sequence <= passed:
            return False
        del self._passed[key]
        return True
