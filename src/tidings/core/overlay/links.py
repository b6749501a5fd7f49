"""What a broker keeps per neighbour to forward interests: a reliable stream of changes over any link.

One batch of changes is in flight at a time. It carries both incarnations and a number and is resent until it is
acknowledged, so the link may lose, duplicate and reorder. Changes that have not left yet cancel out, so the backlog
for an absent neighbour is bounded by the table, not by time.
"""

from __future__ import annotations

from tidings.core.events.subscription import Interest
from tidings.core.filters.matching.cover_index import CoverIndex
from tidings.core.messages import PatternCount
from tidings.core.overlay.members import is_member
from tidings.core.overlay.messages import AddInterest, Change, Changes, RemoveInterest, Settled, TableSent

Numbers = tuple[PatternCount, ...]

MAX_BATCH_CHANGES = 256
MAX_BATCH_BYTES = 32 * 1024

FIRST_RETRY_NS = 250_000_000
LAST_RETRY_NS = 8_000_000_000


def retry_delay_ns(attempt: int, longest_ns: int = LAST_RETRY_NS) -> int:
    """Return the delay before retry number `attempt` (from 0). It doubles up to `longest_ns`."""
    return min(FIRST_RETRY_NS << min(attempt, 8), longest_ns)


class ChangeStream:
    """The changes for one neighbour, in order, each kept until it is acknowledged."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, bytes], Change] = {}
        self.number = 0
        self.in_flight: tuple[Change, ...] | None = None
        self.attempt = 0

    def restart(self) -> None:
        self._pending.clear()
        self.number = 0
        self.in_flight = None
        self.attempt = 0

    @property
    def idle(self) -> bool:
        return self.in_flight is None and not self._pending

    def __len__(self) -> int:
        return len(self._pending) + len(self.in_flight or ())

    def add(self, interest: Interest, serial: int) -> None:
        topics = tuple(topic.text for topic in interest.topics)
        self._pending["add", interest.key] = AddInterest(interest.key, topics, interest.sql, serial)

    def remove(self, interest: Interest) -> None:
        if self._pending.pop(("add", interest.key), None) is None:
            self._pending["remove", interest.key] = RemoveInterest(interest.key)

    def settled(self, key: bytes, serial: int, numbers: Numbers = ()) -> None:
        self._pending["settled", key] = Settled(key, serial, numbers)

    def table_sent(self) -> None:
        self._pending["table", b""] = TableSent()

    def next_batch(self) -> tuple[Change, ...] | None:
        """Start the next batch and return it; None while one is in flight, or if there are no changes."""
        if self.in_flight is None and self._pending:
            self.number += 1
            self.in_flight = self._cut()
            self.attempt = 0
            return self.in_flight
        return None

    def taken(self, number: int) -> bool:
        """The neighbour acknowledged the batch of that number. Return True if it was the one in flight."""
        if self.in_flight is None or number != self.number:
            return False
        self.in_flight = None
        return True

    def _cut(self) -> tuple[Change, ...]:
        batch: list[Change] = []
        size_bytes = 0
        for change in self._pending.values():
            size_bytes += _size(change)
            if batch and (len(batch) >= MAX_BATCH_CHANGES or size_bytes > MAX_BATCH_BYTES):
                break
            batch.append(change)
        for name in list(self._pending)[: len(batch)]:
            del self._pending[name]
        return tuple(batch)


def _size(change: Change) -> int:
    if isinstance(change, AddInterest):
        return 32 + sum(len(topic) * 4 for topic in change.topics) + 4 * len(change.filter or "")
    if isinstance(change, Settled):
        return 32 + 64 * len(change.numbers)
    return 32


class NeighbourLink:
    """One neighbour: its state, what we sent it, and what it sent us."""

    def __init__(self, peer: str, *, covering: bool = True) -> None:
        self.peer = peer
        self._covering = covering
        self.present = True
        """False once the driver reports that it is gone, or if it never answered: nobody waits for it then."""
        self.heard = 0
        self.taken = 0
        self.stream = ChangeStream()
        self.open_attempt = 0
        self.has_table = False
        """The peer has sent its whole table in its present incarnation."""
        self.owes_table = False
        """We have not yet told the peer that our table is complete."""

        self.sent: dict[Interest, int] = {}
        """Interest -> serial. A Settled for an earlier addition of the same interest does not count."""
        self.serial = 0
        self.by_key: dict[bytes, Interest] = {}
        self.covers = CoverIndex()
        self.covered: dict[Interest, Interest] = {}
        self.covering: dict[Interest, dict[Interest, None]] = {}
        self.settled: dict[Interest, None] = {}

        self.received: dict[bytes, Interest] = {}
        """The peer's interests by the peer's keys. Two keys may mean one interest here (`keys`)."""
        self.keys: dict[Interest, dict[bytes, None]] = {}
        self.stale: dict[bytes, None] = {}
        self.owed: dict[Interest, dict[bytes, int]] = {}
        """Interests that we have not reported to the peer as settled, with its keys and serials for them."""

        self.members_sent: dict[Interest, None] = {}
        """Members of groups that we have announced to the peer. The peer relies on them only while it hears of us."""
        self.members_received: dict[Interest, None] = {}
        self.silent = False
        """Nothing was heard from the peer for too long: the members at it and behind it are not in our table."""

    def receive(self, key: bytes, interest: Interest) -> None:
        """The peer has sent this interest under this key."""
        self.received[key] = interest
        self.keys.setdefault(interest, {})[key] = None
        if is_member(interest):
            self.members_received[interest] = None

    def restart(self, incarnation: int) -> None:
        """The peer restarted: it knows nothing of us, and what it sent us is stale until it sends it again."""
        if self.silent:
            self._forget_members()
        self.silent = False
        self.heard = incarnation
        self.taken = 0
        self.has_table = self.owes_table = False
        self.stream.restart()
        self.sent.clear()
        self.by_key.clear()
        self.covers = CoverIndex()
        self.covered.clear()
        self.covering.clear()
        self.settled.clear()
        self.owed.clear()
        self.members_sent.clear()
        self.stale = dict.fromkeys(self.received)

    def _forget_members(self) -> None:
        for interest in self.members_received:
            for key in self.keys.pop(interest):
                del self.received[key]
        self.members_received.clear()

    def forward(self, interest: Interest) -> None:
        """Make the peer send us what matches. Nothing to do if it already does so for a wider interest."""
        member = is_member(interest)
        cover = self.covers.find(interest) if self._covering and not member else None
        if cover is not None:
            self.covered[interest] = cover
            self.covering.setdefault(cover, {})[interest] = None
            return
        self.serial += 1
        self.sent[interest] = self.serial
        self.by_key[interest.key] = interest
        if member:
            self.members_sent[interest] = None
        elif self._covering:
            self.covers.add(interest)
        self.stream.add(interest, self.serial)

    def withdraw(self, interest: Interest) -> tuple[Interest, ...]:
        """Undo `forward`. Interests that this one covered are sent before it is removed, so that no event is missed.

        Return what it covered: another interest that covers it may be settled already.
        """
        cover = self.covered.pop(interest, None)
        if cover is not None:
            del self.covering[cover][interest]
            return ()
        del self.sent[interest], self.by_key[interest.key]
        if is_member(interest):
            del self.members_sent[interest]
        elif self._covering:
            self.covers.remove(interest)
        self.settled.pop(interest, None)
        dependants = tuple(self.covering.pop(interest, ()))
        for dependant in dependants:
            del self.covered[dependant]
            self.forward(dependant)
        self.stream.remove(interest)
        return dependants

    def forwards(self, interest: Interest) -> bool:
        return interest in self.sent or interest in self.covered

    def is_settled(self, interest: Interest) -> bool:
        """Return True if everything behind the peer routes the interest towards us, or the peer is absent."""
        return not self.present or self.covered.get(interest, interest) in self.settled


def changes(incarnation: int, link: NeighbourLink, batch: tuple[Change, ...]) -> Changes:
    return Changes(incarnation, link.heard, link.stream.number, batch)
