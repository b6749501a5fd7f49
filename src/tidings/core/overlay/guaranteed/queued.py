"""What a guaranteed broker keeps because somebody has not confirmed it (core/overlay/guaranteed/delivery.py)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from tidings.core.overlay.guaranteed.messages import Forward, ForwardGap
from tidings.core.overlay.labels import Label
from tidings.core.structures.range_map import RangeMap


class LocalClient(Struct, frozen=True, gc=False):
    """One of the broker's own clients, where clients and other brokers are hops alike."""

    name: str


Hop = str | LocalClient
"""The next broker on the way, or a client."""
Flow = tuple[str, str, int]
"""The publisher's broker, the source, its incarnation."""


def name_of(hop: Hop) -> str:
    return hop.name if isinstance(hop, LocalClient) else hop


NOBODY: frozenset[Hop] = frozenset()


class Row:
    """A row of the spill on disk, and what of it somebody still waits for."""

    __slots__ = ("key", "pieces")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.pieces: dict[int, Queued] = {}


class Queued(Struct, eq=False):
    """Consecutive publications of a flow that wait for the same, or a gap in the place of some.

    All that is said of it holds for each of its publications; where that ends, it is split. It has consecutive numbers
    with every hop and every sender, one for each publication; a gap has one.
    """

    serial: int
    """In the order in which publications were taken."""
    flow: Flow
    label: Label
    first: int
    last: int
    count: int
    """How many numbers it takes."""
    taken_at: int
    message: Forward | ForwardGap | None = None
    """With these publications, and maybe others around them; None while it is on disk only."""
    size_bytes: int = 0
    log_position: int = 0
    """Records of the log beyond this position do not get it, and never will."""
    excluded: tuple[str, ...] = ()
    local: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Clients with the subscriptions that it is for; others may share it, so it is replaced where it changes."""
    pending: dict[Hop, Hop | None] = field(default_factory=dict)
    """Who has to confirm it, with the hop that it was handed to."""
    hops: dict[Hop, int] = field(default_factory=dict)
    """Hops that have it or will get it, with its first number there; 0: not sent yet."""
    parked_beyond: frozenset[Hop] = NOBODY
    """Hops that said that it waits only for somebody who cannot be reached from there."""
    senders: list[tuple[Hop, int]] = field(default_factory=list)
    """Who sent it, with its first number there; a client's numbers are its sequences."""
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
        """What is from that sequence on; this ends before it."""
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
    """All that is queued, in the order in which it was taken, and by flow and sequence.

    A gap has its last sequence alone: some of the others may be queued as well, for whom they are not missing.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Queued] = {}
        self._unparked: dict[int, Queued] = {}
        self._flows: dict[Flow, RangeMap[Queued]] = {}
        self._in_order = True
        self._highest = 0
        """Of all serials so far."""
        self.parked_count = 0
        """Entries that are parked."""

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
        """What is queued of these sequences, ascending; parts of entries, where they go beyond."""
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
        """False if it was not there."""
        if self._entries.pop(queued.serial, None) is None:
            return False
        if queued.parked:
            self.parked_count -= 1
        else:
            del self._unparked[queued.serial]
        ranges = self._flows[queued.flow]
        ranges.pop(queued.last if queued.is_gap else queued.first, queued.last)
        if not ranges:
            del self._flows[queued.flow]
        return True

    def park(self, queued: Queued) -> None:
        queued.parked = True
        self.parked_count += 1
        del self._unparked[queued.serial]

    def split(self, queued: Queued, at: int) -> Queued:
        """What is from that sequence on becomes an entry of its own."""
        ranges = self._flows[queued.flow]
        part = queued.split_off(at)
        ranges.take(at, part.last)
        self.add(part)
        return part

    def make_gap(self, queued: Queued, message: ForwardGap) -> None:
        """It is a gap from now on, or another one."""
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
