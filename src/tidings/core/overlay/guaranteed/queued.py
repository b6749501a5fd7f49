"""The publications that a guaranteed broker keeps until they are confirmed (core/overlay/guaranteed/delivery.py)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from tidings.core.overlay.guaranteed.messages import Forward, ForwardGap
from tidings.core.overlay.labels import Label
from tidings.core.structures.range_map import RangeMap


class LocalClient(Struct, frozen=True, gc=False):
    """One of the broker's own clients, as a hop."""

    name: str


Hop = str | LocalClient
"""The next broker on the path, or a client."""
Flow = tuple[str, str, int]
"""The publisher's broker, the source, the source's incarnation."""


def name_of(hop: Hop) -> str:
    return hop.name if isinstance(hop, LocalClient) else hop


MAX_IDLE_FLOWS = 1_024
"""So many flows may be kept although nothing of them waits: most go on."""
NOBODY: frozenset[Hop] = frozenset()


class Row:
    """A row of the spill on disk, and the parts of it that are not delivered yet."""

    __slots__ = ("key", "pieces")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.pieces: dict[int, Queued] = {}


class Queued(Struct, eq=False):
    """Consecutive publications of a flow that wait for the same hops, or a gap in the place of some.

    Every field holds for each of its publications; where one would differ, the entry is split. With every hop and every
    sender it has consecutive numbers, one per publication; a gap has one.
    """

    serial: int
    """Numbers publications in the order in which they were taken."""
    flow: Flow
    label: Label
    first: int
    last: int
    count: int
    """How many numbers it uses."""
    taken_at: int
    message: Forward | ForwardGap | None = None
    """Has these publications, and maybe others around them; None while it is only on disk."""
    size_bytes: int = 0
    log_position: int = 0
    """The position of the log when it was taken. Records beyond it never get it."""
    excluded: tuple[str, ...] = ()
    local: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Client -> its subscriptions that match. Entries share the mapping, so it is replaced, never changed."""
    pending: dict[Hop, Hop | None] = field(default_factory=dict)
    """Who has to confirm it, with the hop that carries it there; None: no hop yet."""
    hops: dict[Hop, int] = field(default_factory=dict)
    """The hops that have it or will get it, with its first number there; 0: not sent yet."""
    parked_beyond: frozenset[Hop] = NOBODY
    """The hops that reported it as parked: beyond them it waits only for somebody unreachable."""
    senders: list[tuple[Hop, int]] = field(default_factory=list)
    """Who sent it, with its first number on that connection; a client's numbers are its sequences."""
    is_gap: bool = False
    parked: bool = False
    row: Row | None = None
    """Where it is on disk."""

    def make_gap(self, message: ForwardGap) -> None:
        self.message, self.last, self.count, self.is_gap = message, message.last, 1, True

    def keep_in(self, row: Row) -> None:
        self.row = row
        row.pieces[self.serial] = self

    def split_off(self, at: int) -> Queued:
        """Split off and return the part from sequence `at` on."""
        offset = at - self.first
        count = self.last - at + 1
        part = Queued(self.serial + offset, self.flow, self.label, at, self.last, count, self.taken_at)
        part.size_bytes = self.size_bytes * count // self.count
        self.size_bytes -= part.size_bytes
        self.last, self.count = at - 1, offset
        part.message, part.log_position, part.excluded = self.message, self.log_position, self.excluded
        part.pending = dict(self.pending)
        part.hops = {hop: number and number + offset for hop, number in self.hops.items()}
        part.parked_beyond = self.parked_beyond
        part.local = self.local
        part.senders = [(sender, number + offset) for sender, number in self.senders]
        part.parked = self.parked
        if self.row is not None:
            part.keep_in(self.row)
        return part


class Queue:
    """All queued entries, in the order in which they were taken, and by flow and sequence.

    A gap is indexed by its last sequence only: the others may also be queued, for subscribers that do not miss them.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Queued] = {}
        self._unparked: dict[int, Queued] = {}
        self._flows: dict[Flow, RangeMap[Queued]] = {}
        self._in_order = True
        self._highest = 0
        """The highest serial so far."""
        self.parked_count = 0
        """How many entries are parked."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, serial: object) -> bool:
        return serial in self._entries

    def entries(self) -> list[Queued]:
        self._sort()
        return list(self._entries.values())

    def unparked(self) -> list[Queued]:
        self._sort()
        return list(self._unparked.values())

    @property
    def unparked_count(self) -> int:
        return len(self._unparked)

    def of_flow(self, flow: Flow, first: int, last: int) -> list[tuple[int, int, Queued]]:
        """Return (first, last, entry) for the queued ones among these sequences, ascending, cut to the range."""
        ranges = self._flows.get(flow)
        return [] if ranges is None else ranges.overlapping(first, last)

    def add(self, queued: Queued) -> None:
        if queued.serial > self._highest:
            self._highest = queued.serial
        else:
            self._in_order = False
        self._entries[queued.serial] = queued
        if queued.parked:
            self.parked_count += 1
        else:
            self._unparked[queued.serial] = queued
        self._index(queued)

    def remove(self, queued: Queued) -> bool:
        """Remove the entry. Return False if it was not queued."""
        if self._entries.pop(queued.serial, None) is None:
            return False
        if queued.parked:
            self.parked_count -= 1
        else:
            del self._unparked[queued.serial]
        ranges = self._flows[queued.flow]
        ranges.pop(queued.last if queued.is_gap else queued.first, queued.last)
        if len(self._flows) > MAX_IDLE_FLOWS and not ranges:
            del self._flows[queued.flow]
        return True

    def park(self, queued: Queued) -> None:
        queued.parked = True
        self.parked_count += 1
        del self._unparked[queued.serial]

    def split(self, queued: Queued, at: int) -> Queued:
        """Make the part from sequence `at` on an entry of its own, and return it."""
        ranges = self._flows[queued.flow]
        part = queued.split_off(at)
        ranges.take(at, part.last)
        self.add(part)
        return part

    def make_gap(self, queued: Queued, message: ForwardGap) -> None:
        """Turn the entry into a gap, or replace its gap."""
        ranges = self._flows[queued.flow]
        ranges.take(queued.last if queued.is_gap else queued.first, queued.last)
        queued.make_gap(message)
        self._index(queued)

    def _index(self, queued: Queued) -> None:
        ranges = self._flows.get(queued.flow)
        if ranges is None:
            ranges = self._flows[queued.flow] = RangeMap()
        ranges.add(queued.last if queued.is_gap else queued.first, queued.last, queued)

    def _sort(self) -> None:
        if not self._in_order:
            self._in_order = True
            self._entries = dict(sorted(self._entries.items()))
            self._unparked = dict(sorted(self._unparked.items()))
