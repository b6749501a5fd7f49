"""Numbers events per pattern, at the publisher's broker, so that subscribers notice losses.

Paper epidemic, section 4.2: an event carries, for each pattern that it matches, how many events its source has
published for that pattern. Here the source is the publisher's broker, the *origin*. Beyond the paper:

* A pattern that is installed again counts from 0 again, so a number belongs to an *epoch*. Epochs of one origin only
  grow, whatever the pattern: one integer covers all patterns that were removed.
* A pattern's name is the first 8 bytes of its interest's key, or all 16 if interests share these. The name depends only
  on what is installed, so brokers with equal tables use equal names. A pattern whose name changes starts a new epoch,
  since for subscribers it is a new stream.
* An event lists at most MAX_NUMBERS patterns. If it matches more, those that this broker listed earliest since its
  start come first, then those installed first: a new pattern never displaces one that subscribers already follow. A
  pattern that is not listed is not counted either; otherwise the event would look lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.core.events.subscription import Interest
from tidings.core.overlay.epidemic.messages import MAX_NUMBERS, PatternNumbers

SHORT_BYTES = 8
NEVER_LISTED = 1 << 62

Renamed = list[tuple[Interest, bytes]]
"""Interests whose name changed because a clash began or ended, with their previous name."""


class _Count:
    __slots__ = ("epoch", "number", "pattern", "rank")

    def __init__(self) -> None:
        self.pattern = b""
        self.epoch = 0
        self.number = 0
        self.rank = NEVER_LISTED
        """Its rank in the order in which patterns were first listed."""


class PatternNumbering:
    """Counts the events published at this broker, for each interest of its routing table."""

    def __init__(self) -> None:
        self._counts: dict[Interest, _Count] = {}
        self._sharing: dict[bytes, dict[Interest, None]] = {}
        """Short name -> the installed interests whose keys begin with it; nearly always one."""
        self._last_epoch = -1
        self._ranked = 0
        self.unlisted = 0
        """How often an event matched a pattern that it could not list."""

    def installed(self, interest: Interest, now: int) -> Renamed:
        """Start counting for an interest in the routing table, unless we already do."""
        if interest in self._counts:
            return []
        self._counts[interest] = _Count()
        short = interest.key[:SHORT_BYTES]
        self._sharing.setdefault(short, {})[interest] = None
        return self._name(short, now)

    def removed(self, interest: Interest) -> Renamed:
        """Stop counting for an interest that left the routing table; if it comes back, its epoch is later."""
        if self._counts.pop(interest, None) is None:
            return []
        short = interest.key[:SHORT_BYTES]
        sharing = self._sharing[short]
        del sharing[interest]
        if sharing:
            return self._name(short, self._last_epoch)
        del self._sharing[short]
        return []

    def pattern_id(self, interest: Interest) -> bytes | None:
        count = self._counts.get(interest)
        return None if count is None else count.pattern

    def interest(self, pattern: bytes) -> Interest | None:
        """Return the installed interest with that name, if any; 8 bytes name one only while no other key starts so."""
        sharing = self._sharing.get(pattern[:SHORT_BYTES], {})
        if len(pattern) == SHORT_BYTES:
            return next(iter(sharing)) if len(sharing) == 1 else None
        return next((interest for interest in sharing if interest.key == pattern), None)

    def count(self, interests: Iterable[Interest], events: int = 1) -> PatternNumbers:
        """Number this many events published here that match `interests`; return the numbers of the first one.

        Ignores interests that are not installed.
        """
        found = [self._counts[each] for each in dict.fromkeys(interests) if each in self._counts]
        found.sort(key=_precedence)
        self.unlisted += len(found[MAX_NUMBERS:]) * events
        del found[MAX_NUMBERS:]
        for count in found:
            count.number += events
            if count.rank == NEVER_LISTED:
                count.rank = self._ranked
                self._ranked += 1
        return tuple((count.pattern, count.epoch, count.number - events + 1) for count in found)

    def current(self, interest: Interest) -> tuple[int, int] | None:
        """Return (epoch, number of the last event counted)."""
        count = self._counts.get(interest)
        return None if count is None else (count.epoch, count.number)

    def _name(self, short: bytes, now: int) -> Renamed:
        """Give every interest with this short name its current id; a new id starts a new epoch."""
        sharing = self._sharing[short]
        renamed: Renamed = []
        for interest in sharing:
            count = self._counts[interest]
            pattern = interest.key if len(sharing) > 1 else short
            if pattern != count.pattern:
                before = count.pattern
                self._last_epoch = max(now, self._last_epoch + 1)
                count.pattern, count.epoch, count.number = pattern, self._last_epoch, 0
                if before:
                    renamed.append((interest, before))
        return renamed


def _precedence(count: _Count) -> tuple[int, int]:
    return count.rank, count.epoch
