"""Where a guaranteed broker's publications go next, and where they come from, with windows in both directions.

A hop is a session with another broker, or a client. Both ends of a connection number the publications on it;
confirmations name ranges of these numbers.
"""

from __future__ import annotations

from heapq import heappop, heappush

from tidings.core.kernel import Port
from tidings.core.overlay.guaranteed.messages import Taken
from tidings.core.overlay.guaranteed.queued import NOBODY, Hop, LocalClient, Queue, Queued, name_of
from tidings.core.overlay.guaranteed.sessions import Sessions
from tidings.core.structures.range_map import RangeMap
from tidings.core.structures.ranges import Ranges

MAX_WAITING_PER_SENDER = 1_024
"""While more of a sender's publications wait here, not parked, further ones are not reported to it as taken."""


class _Outgoing:
    """What is in flight over one session, or to one client. 0 <= taken <= count."""

    __slots__ = ("count", "handed_over", "sent", "taken", "turns")

    def __init__(self) -> None:
        self.count = 0
        """How many were sent on this connection."""
        self.taken = 0
        """How many of these the peer has taken."""
        self.sent: RangeMap[Queued] = RangeMap()
        """Those that the peer has not confirmed, by number."""
        self.handed_over: dict[int, Queued] = {}
        """Those not sent yet, by serial."""
        self.turns: list[int] = []
        """A heap of their serials: they are sent in the order in which they were taken."""

    def hand_over(self, queued: Queued) -> None:
        self.handed_over[queued.serial] = queued
        heappush(self.turns, queued.serial)


class Hops:
    """Tracks what each hop was sent and has not confirmed, and what waits for room in its window."""

    def __init__(self, queue: Queue, window: int) -> None:
        self._queue = queue
        self._window = window
        self.outgoing: dict[Hop, _Outgoing] = {}
        """Those that are connected."""

    def open(self, hop: Hop) -> _Outgoing:
        return self.outgoing.setdefault(hop, _Outgoing())

    def close(self, hop: Hop) -> None:
        """The connection broke: its numbers are void."""
        self.take_all_back(hop)
        self.outgoing.pop(hop, None)

    def counts(self, hop: Hop) -> tuple[int, int]:
        """Return how many publications the hop was sent and has not confirmed, and how many wait to be sent."""
        outgoing = self.outgoing.get(hop)
        if outgoing is None:
            return 0, 0
        sent = sum(last - first + 1 for first, last, _ in outgoing.sent)
        return sent, sum(queued.count for queued in outgoing.handed_over.values())

    def knows(self, hop: Hop, number: int) -> bool:
        """Return True if the hop was sent a publication of that number on this connection, or is not connected."""
        outgoing = self.outgoing.get(hop)
        return outgoing is None or 0 < number <= outgoing.count

    # --- Sending

    def hand_over(self, queued: Queued, hop: Hop, names: list[Hop]) -> None:
        """Let the hop carry the entry to these. `next_due` returns it when the window has room."""
        pending = queued.pending
        for name in names:
            pending[name] = hop
        if hop not in queued.hops:
            queued.hops[hop] = 0
            (self.outgoing.get(hop) or self.open(hop)).hand_over(queued)

    def next_due(self, hop: Hop) -> Queued | None:
        """Return the next entry to send there, and count it as sent; None if there is none, or no room."""
        outgoing = self.outgoing.get(hop)
        while outgoing is not None and outgoing.turns:
            room = self._window - (outgoing.count - outgoing.taken)
            if room <= 0:
                return None
            queued = outgoing.handed_over.pop(heappop(outgoing.turns), None)
            if queued is None or queued.hops.get(hop) != 0:
                continue  # it was confirmed or withdrawn while it waited
            if queued.count > room:
                self.split(queued, queued.first + room)
            queued.hops[hop] = number = outgoing.count + 1
            outgoing.count += queued.count
            outgoing.sent.add(number, outgoing.count, queued)
            return queued
        return None

    def split(self, queued: Queued, at: int) -> Queued:
        """Make the part from sequence `at` on an entry of its own, for all hops that carry it, and return it."""
        part = self._queue.split(queued, at)
        for hop, number in part.hops.items():
            outgoing = self.outgoing[hop]
            if number:
                outgoing.sent.cut(number)
                outgoing.sent.replace(number, part)
            else:
                outgoing.hand_over(part)
        return part

    def take_all_back(self, hop: Hop) -> None:
        """Take back what the hop has not confirmed, to send it by another path or there again."""
        outgoing = self.outgoing.get(hop)
        if outgoing is None:
            return
        sent = [queued for _, _, queued in outgoing.sent]
        for queued in (*sent, *outgoing.handed_over.values()):
            if queued.hops.pop(hop, None) is not None:
                queued.parked_beyond -= {hop}
                for name, chosen in queued.pending.items():
                    if chosen == hop:
                        queued.pending[name] = None
        outgoing.sent.clear()
        outgoing.handed_over.clear()
        outgoing.turns.clear()

    def take_back(self, queued: Queued) -> None:
        """Take the entry back from all hops. Confirmations that still arrive for it are ignored."""
        for hop, number in queued.hops.items():
            outgoing = self.outgoing[hop]
            if number:
                outgoing.sent.take(number, number + queued.count - 1)
            else:
                outgoing.handed_over.pop(queued.serial, None)
        queued.hops.clear()
        queued.parked_beyond = NOBODY
        for name in queued.pending:
            queued.pending[name] = None

    # --- Reports from the hop

    def taken(self, hop: Hop, number: int) -> None:
        """The hop has taken the first `number` publications of this connection."""
        outgoing = self.outgoing.get(hop)
        if outgoing is not None and number > outgoing.taken:
            outgoing.taken = min(number, outgoing.count)

    def parked(self, hop: Hop, ranges: Ranges) -> None:
        outgoing = self.outgoing.get(hop)
        if outgoing is not None:
            for first, last in ranges:
                for queued in self._exactly(outgoing, hop, first, last):
                    queued.parked_beyond |= {hop}

    def passed(self, hop: Hop, ranges: Ranges) -> list[Queued]:
        """The hop confirms these numbers. Return the entries that nobody has to confirm any more."""
        outgoing = self.outgoing.get(hop)
        if outgoing is None:
            return []
        done: list[Queued] = []
        for first, last in ranges:
            whole = outgoing.sent.pop(first, last)
            for queued in (whole,) if whole is not None else self._take_exactly(outgoing, hop, first, last):
                del queued.hops[hop]
                if queued.parked_beyond:
                    queued.parked_beyond -= {hop}
                pending = queued.pending
                if isinstance(hop, LocalClient):  # a client carries nothing further
                    pending.pop(hop, None)
                else:
                    for name in [name for name, chosen in pending.items() if chosen == hop]:
                        del pending[name]
                if not pending:
                    done.append(queued)
        return done

    def _exactly(self, outgoing: _Outgoing, hop: Hop, first: int, last: int) -> list[Queued]:
        """Return the hop's entries of these numbers, splitting those at the ends."""
        found: list[Queued] = []
        for low, high, queued in outgoing.sent.overlapping(first, last):
            number = queued.hops[hop]
            if low > number:
                queued = self.split(queued, queued.first + low - number)
            if high - low + 1 < queued.count:
                self.split(queued, queued.first + high - low + 1)
            found.append(queued)
        return found

    def _take_exactly(self, outgoing: _Outgoing, hop: Hop, first: int, last: int) -> list[Queued]:
        """Like `_exactly`, but also remove them from the hop."""
        found = self._exactly(outgoing, hop, first, last)
        outgoing.sent.take(first, last)
        return found

    # --- Waiting entries

    def oldest(self, hop: Hop) -> int | None:
        """Return the serial of the first entry that the hop was not sent or has not confirmed; None if none."""
        outgoing = self.outgoing.get(hop)
        if outgoing is None:
            return None
        sent = outgoing.sent.first
        if sent is not None:
            return sent[2].serial
        return outgoing.turns[0] if outgoing.turns else None

    def is_behind(self, hop: Hop) -> bool:
        """Return True if the first entry that the hop has not confirmed is parked."""
        first = self.outgoing[hop].sent.first
        return first is not None and first[2].parked


class _Incoming:
    """What arrives over one session, or from one client. 0 <= taken <= count."""

    __slots__ = ("count", "taken", "waiting", "window")

    def __init__(self, window: int | None) -> None:
        self.window = window
        """The window of a client; None for a broker, which has said its own."""
        self.count = 0
        self.taken = 0
        """The count last reported to the sender."""
        self.waiting = 0
        """How many publications first received from there wait here, not parked."""


class Senders:
    """Numbers what arrives from each sender, and acknowledges it half a window at a time."""

    def __init__(self, port: Port, sessions: Sessions, window: int) -> None:
        self._port = port
        self._window_of = sessions.window_of
        self._window = window
        """The window of our own clients."""
        self._incoming: dict[Hop, _Incoming] = {}

    def count(self, sender: Hop, count: int) -> int:
        """Count publications that just arrived from there, and return the number of the first."""
        incoming = self._incoming.get(sender)
        if incoming is None:
            window = self._window if isinstance(sender, LocalClient) else None
            incoming = self._incoming[sender] = _Incoming(window)
        first = incoming.count + 1
        incoming.count += count
        if incoming.window is None or 2 * (incoming.count - incoming.taken) >= incoming.window:
            self._tell(sender, incoming)
        return first

    def forget(self, sender: Hop) -> None:
        self._incoming.pop(sender, None)

    def wait(self, queued: Queued) -> None:
        """The entry begins to hold up its first sender."""
        senders = queued.senders
        incoming = self._incoming.get(senders[0][0]) if senders else None
        if incoming is not None:
            incoming.waiting += queued.count

    def go_on(self, queued: Queued) -> None:
        """The entry holds up nobody any more."""
        senders = queued.senders
        incoming = self._incoming.get(senders[0][0]) if senders else None
        if incoming is not None:
            before, incoming.waiting = incoming.waiting, max(incoming.waiting - queued.count, 0)
            if before > MAX_WAITING_PER_SENDER:  # otherwise the sender has been told already
                self._tell(senders[0][0], incoming)

    def waiting(self, queued: Queued) -> int:
        """Return how many publications of the entry's first sender wait here."""
        incoming = self._incoming.get(queued.senders[0][0]) if queued.senders else None
        return 0 if incoming is None else incoming.waiting

    def _tell(self, sender: Hop, incoming: _Incoming) -> None:
        if incoming.waiting > MAX_WAITING_PER_SENDER:
            return
        window = self._window_of(name_of(sender)) if incoming.window is None else incoming.window
        if 2 * (incoming.count - incoming.taken) >= window:
            incoming.taken = incoming.count
            self._port.send(name_of(sender), Taken(incoming.count))
