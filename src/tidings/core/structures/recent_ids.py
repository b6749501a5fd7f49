"""Duplicate detection by (source, incarnation, sequence), the identity that exactly-once delivery relies on.

Every message of every broker passes here, so a window is just two integers: the highest number seen and a mask of the
numbers up to it.
"""

from __future__ import annotations

WINDOW = 512
MAX_SOURCES = 65_536


class RecentIds:
    """Keeps a sliding window of `window` sequences for each of at most `max_sources` sources.

    A sequence below its window counts as seen, and `stale` counts it: we prefer losing a very late original to
    delivering a duplicate. At the limit, the source that appeared first is forgotten, not the least recently used one:
    tracking use would cost as much as everything else here.
    """

    __slots__ = ("_full", "_max_sources", "_width", "_windows", "evicted", "stale")

    def __init__(self, window: int = WINDOW, max_sources: int = MAX_SOURCES) -> None:
        if window < 1 or max_sources < 1:
            raise ValueError(f"window {window} and max_sources {max_sources} must be positive")
        self._width = window
        self._full = (1 << window) - 1
        self._max_sources = max_sources
        self._windows: dict[str | tuple[str, int], list[int]] = {}
        """[highest, mask]: bit i of the mask stands for the number highest - i. In incarnation 0, which most sources
        never leave, the key is the source alone: that is faster."""
        self.stale = 0
        self.evicted = 0

    def __len__(self) -> int:
        """Return the number of sources remembered."""
        return len(self._windows)

    def first_time(self, source: str, incarnation: int, sequence: int) -> bool:
        """Mark this message as seen; return True if it was not seen before."""
        key = (source, incarnation) if incarnation else source
        window = self._windows.get(key)
        if window is None:
            self._open(key, sequence)
            return True
        ahead = sequence - window[0]
        if ahead > 0:
            window[0] = sequence
            window[1] = (window[1] << ahead | 1) & self._full if ahead < self._width else 1
            return True
        return self._late(window, -ahead)

    def fresh(self, source: str, incarnation: int, first: int, last: int) -> list[tuple[int, int]]:
        """Mark `first` to `last` as seen; return the ranges of it that were not seen before."""
        window = self._windows.get((source, incarnation) if incarnation else source)
        if window is not None and first > window[0]:
            self._advance(window, first, last)
            return [(first, last)]
        if window is not None and window[0] - self._width < first <= last <= window[0]:
            bits = (1 << last - first + 1) - 1 << window[0] - last
            seen = window[1] & bits
            if seen == bits:
                return []
            if not seen:
                window[1] |= bits
                return [(first, last)]
        ranges: list[tuple[int, int]] = []
        for sequence in range(first, last + 1):
            if self.first_time(source, incarnation, sequence):
                begin = ranges.pop()[0] if ranges and ranges[-1][1] == sequence - 1 else sequence
                ranges.append((begin, sequence))
        return ranges

    def _advance(self, window: list[int], first: int, last: int) -> None:
        """Mark these sequences, all ahead of the window, as if they were seen one by one."""
        ahead, count = last - window[0], last - first + 1
        seen = window[1] << ahead if ahead < self._width else 0
        window[0] = last
        window[1] = (seen | (1 << count) - 1) & self._full

    def seen(self, source: str, incarnation: int, sequence: int) -> bool:
        """Return True if `first_time` would return False."""
        window = self._windows.get((source, incarnation) if incarnation else source)
        if window is None:
            return False
        behind = window[0] - sequence
        return behind >= 0 and (behind >= self._width or bool(window[1] >> behind & 1))

    def highest(self, source: str, incarnation: int) -> int:
        """Return the highest number seen; 0 if none is remembered."""
        window = self._windows.get((source, incarnation) if incarnation else source)
        return 0 if window is None else window[0]

    def forget(self, source: str, incarnation: int) -> None:
        """Forget a source that is gone for good."""
        self._windows.pop((source, incarnation) if incarnation else source, None)

    def _open(self, key: str | tuple[str, int], sequence: int) -> None:
        if len(self._windows) >= self._max_sources:
            del self._windows[next(iter(self._windows))]
            self.evicted += 1
        self._windows[key] = [sequence, 1]

    def _late(self, window: list[int], behind: int) -> bool:
        if behind >= self._width:
            self.stale += 1
            return False
        bit = 1 << behind
        if window[1] & bit:
            return False
        window[1] |= bit
        return True
