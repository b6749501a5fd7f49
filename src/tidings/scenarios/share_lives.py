"""Follows who is attached to a durable subscription or group, and notes in the trace when one of that name had ended.

Nobody who is attached sees a lease run out, because nobody is. That a share has ended shows when somebody attaches and
the share has another life. Then its end is that of its lease: as long after the last one went as it is kept. But it is
not after the next one was accepted, if somebody only seemed to be attached.
"""

from __future__ import annotations

from tidings.scenarios.actor import NEVER
from tidings.scenarios.trace.writer import TraceWriter

Row = tuple[str, str]
"""A subscriber and its subscription."""


class ShareLives:
    """The shares of one name. Attachments of which no life is known belong to the life without a name."""

    def __init__(self, writer: TraceWriter, keep_for_ns: int) -> None:
        """`keep_for_ns`: how long a share is kept while nobody is attached; 0: longer than any run."""
        self._writer = writer
        self._keep_for_ns = keep_for_ns
        self._life_of: dict[Row, str] = {}
        self._left: dict[str, dict[Row, int]] = {}
        """Life -> who was attached -> when it went."""
        self.ended: dict[str, int] = {}
        """Life -> when it had ended."""

    def life_of(self, row: Row) -> str:
        return self._life_of.get(row, "")

    def joined(self, row: Row, life: str) -> None:
        self._writer.joined(*row, life)
        self._life_of[row] = life
        self._left.setdefault(life, {})[row] = NEVER

    def left(self, row: Row, at_ns: int) -> None:
        if row in self._life_of:
            self._left[self._life_of[row]][row] = at_ns

    def lease_ends(self, life: str) -> int:
        """Return when the lease ends unless somebody attaches; NEVER while somebody is attached."""
        left = max(self._left.get(life, {}).values(), default=NEVER)
        return left + self._keep_for_ns if left != NEVER and self._keep_for_ns else NEVER

    def accepted(self, row: Row, at_ns: int) -> None:
        """Note the ends of all others, unless this one was accepted late, by one that had ended."""
        life = self.life_of(row)
        for other in [*self._left] if life not in self.ended else [life]:
            if other == life and life not in self.ended:
                continue
            ended = self.ended.setdefault(other, min(at_ns, self.lease_ends(other)))
            for each in self._left[other]:
                self._writer.cancelled(*each, ended)
