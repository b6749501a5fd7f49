"""How far each origin has counted each pattern, as far as it was seen passing here.

A broker that subscribes to a pattern is told this by its neighbours, hop by hop from every origin, together with
'settled': what is counted above is published for it. So the first events of a stream can be missed by nobody, and
nobody asks for those of long ago (recovery, epidemic 7; the paper takes the first event seen as the first there is).
"""

from __future__ import annotations

from tidings.core.overlay.epidemic.messages import PatternNumbers
from tidings.core.structures.highest import Highest

MAX_ORIGINS = 512
"""Per pattern; the one that was silent longest is forgotten."""

Count = tuple[str, int, int]
"""(origin, epoch, number)"""


class PatternCounter:
    def __init__(self) -> None:
        self._by_pattern: dict[bytes, Highest[str, tuple[int, int]]] = {}

    def open(self, pattern: bytes) -> None:
        """The pattern is in our table: keep account of it."""
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
