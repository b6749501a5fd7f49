"""Records how far each origin has counted each pattern, as far as events that passed here show.

When a broker subscribes to a pattern, its neighbours tell it this together with 'settled', hop by hop from every
origin: it is owed whatever is counted above. So no broker misses the first events of a stream unnoticed, and none asks
for events of long ago. (The paper takes the first event seen as the first there is.)
"""

from __future__ import annotations

from tidings.core.overlay.epidemic.messages import PatternNumbers
from tidings.core.structures.highest import Highest

MAX_ORIGINS = 512
"""The limit per pattern; beyond it, the origin that was silent longest is forgotten."""

Count = tuple[str, int, int]
"""(origin, epoch, number)"""


class PatternCounter:
    """Keeps the highest (epoch, number) per pattern and origin."""

    def __init__(self) -> None:
        self._by_pattern: dict[bytes, Highest[str, tuple[int, int]]] = {}

    def open(self, pattern: bytes) -> None:
        """Start recording a pattern that is in our table."""
        self._by_pattern.setdefault(pattern, Highest(MAX_ORIGINS))

    def close(self, pattern: bytes) -> None:
        self._by_pattern.pop(pattern, None)

    def saw(self, origin: str, numbers: PatternNumbers) -> None:
        for pattern, epoch, number in numbers:
            self._raise(pattern, origin, (epoch, number))

    def counts(self, pattern: bytes) -> tuple[Count, ...]:
        held = self._by_pattern.get(pattern)
        return () if held is None else tuple((origin, *count) for origin, count in held.items())

    def _raise(self, pattern: bytes, origin: str, count: tuple[int, int]) -> None:
        held = self._by_pattern.get(pattern)
        if held is not None:
            held.raise_to(origin, count)
