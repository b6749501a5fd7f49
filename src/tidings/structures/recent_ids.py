"""Which messages have been seen before: duplicate detection by (source, incarnation, sequence).

Exactly-once identity is (source, incarnation, sequence) (DESIGN.md, 'Decisions already taken'). Every message
of every broker passes here, so the common case, the next number of a known source, does no arithmetic on bit
masks: a window remembers which numbers are *missing* below the highest one, and in sequence nothing is.
"""

from __future__ import annotations

from collections import OrderedDict


class _Window:
    """What is known of one source: the highest number seen, and which numbers near it were not.

    Bit `i` of `missing` stands for the number `base + i`. Bits of numbers that have left the window may linger;
    they are ignored on reading and shifted out when the mask is next rewritten.
    """

    __slots__ = ("base", "highest", "missing")

    def __init__(self, first: int, width: int) -> None:
        self.highest = first
        self.base = first - width + 1
        self.missing = (1 << (width - 1)) - 1


class RecentIds:
    """A sliding window of `window` sequence numbers for each of at most `max_sources` sources.

    A number that has fallen out of its window counts as seen, and in `stale`: after a source was silent for
    longer than the window, losing a late original is preferred to delivering a duplicate.

    The least recently used source is forgotten first. Noting each use would cost as much as all the rest, so
    uses are noted only while at least half of `max_sources` are taken: of two sources that were both silent
    ever since, the one that appeared first goes first.
    """

    __slots__ = ("_crowded", "_max_sources", "_width", "_windows", "evicted", "stale")

    def __init__(self, window: int = 1024, max_sources: int = 65_536) -> None:
        if window < 1 or max_sources < 1:
            raise ValueError(f"window {window} and max_sources {max_sources} must be positive")
        self._width = window
        self._max_sources = max_sources
        self._windows: OrderedDict[tuple[str, int], _Window] = OrderedDict()
        self._crowded = False
        self.stale = 0
        self.evicted = 0

    def __len__(self) -> int:
        """How many sources are remembered."""
        return len(self._windows)

    def first_time(self, source: str, incarnation: int, sequence: int) -> bool:
        """True if this message was not seen before; from now on it was."""
        key = (source, incarnation)
        window = self._windows.get(key)
        if window is None:
            self._open(key, sequence)
            return True
        if self._crowded:
            self._windows.move_to_end(key)
        skipped = sequence - window.highest
        if skipped == 1:
            window.highest = sequence
            return True
        if skipped > 1:
            self._skip(window, sequence)
            return True
        return skipped < 0 and self._fill(window, sequence)

    def forget(self, source: str, incarnation: int) -> None:
        """Drop what is known of a source that is gone for good."""
        self._windows.pop((source, incarnation), None)
        self._crowded = 2 * len(self._windows) >= self._max_sources

    def _open(self, key: tuple[str, int], sequence: int) -> None:
        if len(self._windows) >= self._max_sources:
            self._windows.popitem(last=False)
            self.evicted += 1
        self._windows[key] = _Window(sequence, self._width)
        self._crowded = 2 * len(self._windows) >= self._max_sources

    def _skip(self, window: _Window, sequence: int) -> None:
        """Numbers between the highest and `sequence` are missing now; those below the window are forgotten."""
        base = sequence - self._width + 1
        first_missing = max(window.highest + 1, base)
        shift = base - window.base
        kept = window.missing >> shift if shift >= 0 else window.missing << -shift
        skipped = ((1 << (sequence - first_missing)) - 1) << (first_missing - base)
        window.missing = kept | skipped
        window.base = base
        window.highest = sequence

    def _fill(self, window: _Window, sequence: int) -> bool:
        """A late number: new if it is still missing within the window."""
        if sequence <= window.highest - self._width:
            self.stale += 1
            return False
        offset = sequence - window.base
        bit = 1 << offset if offset >= 0 else 0
        if not window.missing & bit:
            return False
        window.missing ^= bit
        return True
