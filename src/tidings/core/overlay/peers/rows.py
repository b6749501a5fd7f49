"""The latest row of each process (the paper's channelState, with its timestamps), and what follows from all of them.

A link counts if the rows of both sides say that their channel is open, so the last row of a process that has died
connects nobody. Links need not be transitive: who can be reached is the closure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b

from tidings.core.events.topics import TopicPattern
from tidings.core.overlay.peers.messages import ProcessRow

MARK_BYTES = 8


@lru_cache(maxsize=4_096)
def patterns_of(topics: tuple[str, ...]) -> tuple[TopicPattern, ...]:
    return tuple(map(TopicPattern, topics))


def takes_part(row: ProcessRow, topic: str) -> bool:
    """Return whether the process wants events of that topic, whatever its filters say."""
    return any(pattern.matches(topic) for topics, _ in row.takes for pattern in patterns_of(topics))


class ProcessRows:
    """The rows that the process `own` knows, its own included."""

    def __init__(self, own: ProcessRow) -> None:
        self.own = own.process
        self._rows = {own.process: own}
        self._open = {own.process: frozenset(own.open)}
        self._reached: tuple[str, ...] | None = None
        self._carriers: dict[str, frozenset[str]] = {}

    def __iter__(self) -> Iterator[ProcessRow]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, process: str) -> ProcessRow | None:
        return self._rows.get(process)

    def take(self, row: ProcessRow) -> bool:
        """Keep the row if it is newer than what is known of its process; return whether it is."""
        known = self._rows.get(row.process)
        if known is not None and known.version >= row.version:
            return False
        self._rows[row.process] = row
        self._open[row.process] = frozenset() if row.left else frozenset(row.open)
        self._look_anew()
        return True

    def forget(self, process: str) -> None:
        self._rows.pop(process, None)
        self._open.pop(process, None)
        self._look_anew()

    def _look_anew(self) -> None:
        self._reached = None
        self._carriers.clear()

    # --- What follows

    def linked(self, left: str, right: str) -> bool:
        """Return whether the two can talk, as both say."""
        nobody: frozenset[str] = frozenset()
        return right in self._open.get(left, nobody) and left in self._open.get(right, nobody)

    def neighbours(self, process: str) -> list[str]:
        """Return the processes that it can talk to, sorted."""
        return sorted(other for other in self._open.get(process, ()) if self.linked(process, other))

    @property
    def reached(self) -> tuple[str, ...]:
        """The processes of this partition, sorted; this one is always among them."""
        if self._reached is None:
            self._reached = tuple(sorted(self._closure(self.own)))
        return self._reached

    def _closure(self, start: str, within: Collection[str] | None = None) -> set[str]:
        """Return whom `start` reaches over links, or over links among these processes."""
        found, waiting = {start}, [start]
        while waiting:
            for other in self.neighbours(waiting.pop()):
                if other not in found and (within is None or other in within):
                    found.add(other)
                    waiting.append(other)
        return found

    def carriers(self, topic: str) -> frozenset[str]:
        """Return who passes on the events of a topic in this partition: its members or, if these cannot talk to each
        other directly, everybody."""
        found = self._carriers.get(topic)
        if found is None:
            members = frozenset(self.members(topic, self.reached))
            around = {*members, self.own}
            is_connected = self._closure(self.own, around) == around
            found = self._carriers[topic] = members if is_connected else frozenset(self.reached)
        return found

    def members(self, topic: str, among: Iterable[str] | None = None) -> list[str]:
        """Return who of these processes, or of all that are known, takes part in the topic, sorted."""
        rows = (self._rows.get(process) for process in (self._rows if among is None else among))
        return sorted(
            row.process for row in rows if row is not None and not row.left and takes_part(row, topic)
        )

    @property
    def agreed(self) -> bytes:
        """A digest of all rows, those of processes that cannot be reached included: they are members, too."""
        return mark_of((process, *self._rows[process].version) for process in sorted(self._rows))


def mark_of(entries: Iterable[tuple[str | int, ...]]) -> bytes:
    """Return a digest of these entries."""
    digest = blake2b(digest_size=MARK_BYTES)
    for entry in entries:
        digest.update(repr(entry).encode())
    return digest.digest()
