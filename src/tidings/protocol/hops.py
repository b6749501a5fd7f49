"""Where a guaranteed broker's publications go next, and where they come from: windows in both directions.

A hop is a session with another broker, or a client. Both ends of a connection count the publications on it;
confirmations name the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidings.model.messages import Message, Taken
from tidings.protocol.kernel import Port
from tidings.protocol.queued import CLIENT, Incoming, Outgoing, Queued

MAX_WAITING_PER_SENDER = 1_024
"""A sender whose publications wait here in such number, not parked, is not told that further ones are taken."""


class Hops:
    """What each hop has been sent and has not confirmed, and what waits for room in its window."""

    def __init__(self, port: Port, window: int, message_for: Callable[[Queued, str], Message]) -> None:
        self._port = port
        self._window = window
        self._message_for = message_for
        self._outgoing: dict[str, Outgoing] = {}

    def __contains__(self, hop: str) -> bool:
        return hop in self._outgoing

    def open(self, hop: str) -> None:
        self._outgoing.setdefault(hop, Outgoing())

    def close(self, hop: str) -> None:
        """The connection is gone, and its counts with it."""
        self.take_all_back(hop)
        self._outgoing.pop(hop, None)

    def counts(self, hop: str) -> tuple[int, int]:
        """How many publications that hop has and has not confirmed, and how many wait to go there."""
        outgoing = self._outgoing.get(hop)
        return (0, 0) if outgoing is None else (len(outgoing.sent), len(outgoing.waiting))

    def sent(self, hop: str, first: int, last: int) -> list[int]:
        """The counts from `first` to `last` that the hop has not confirmed."""
        outgoing = self._outgoing.get(hop)
        sent = {} if outgoing is None else outgoing.sent
        between = range(first, last + 1) if last - first < len(sent) else sent
        return [count for count in between if first <= count <= last and count in sent]

    def knows(self, hop: str, count: int) -> bool:
        """Was the hop sent so many on this connection?"""
        outgoing = self._outgoing.get(hop)
        return outgoing is None or 0 < count <= outgoing.count

    def hand_over(self, queued: Queued, hop: str, names: list[str]) -> None:
        """The hop will carry it to these; `pump` sends it when it is its turn."""
        for name in names:
            queued.pending[name] = hop
        if hop not in queued.hops:
            queued.hops[hop] = 0
            self.open(hop)
            self._outgoing[hop].waiting.append(queued)

    def pump(self, hop: str) -> None:
        """Send what waits for the hop while its window has room."""
        outgoing = self._outgoing.get(hop)
        if outgoing is None:
            return
        waiting = outgoing.waiting
        while waiting and outgoing.count - outgoing.taken < self._window:
            queued = waiting.popleft()
            if queued.hops.get(hop) != 0:
                continue  # confirmed or withdrawn while it waited
            outgoing.count += 1
            queued.hops[hop] = outgoing.count
            outgoing.sent[outgoing.count] = queued
            self._port.send(hop.removeprefix(CLIENT), self._message_for(queued, hop))

    def take_all_back(self, hop: str) -> None:
        """What went there and is not confirmed will go another way, or there again."""
        outgoing = self._outgoing.get(hop)
        if outgoing is None:
            return
        for queued in (*outgoing.sent.values(), *outgoing.waiting):
            if queued.hops.pop(hop, None) is not None:
                for name, chosen in queued.pending.items():
                    if chosen == hop:
                        queued.pending[name] = None
        outgoing.forget()

    def take_back(self, queued: Queued) -> None:
        """Take it back from all hops; what they were sent they may still confirm, in vain."""
        for hop, count in queued.hops.items():
            outgoing = self._outgoing[hop]
            outgoing.sent.pop(count, None)
            outgoing.parked.discard(count)
        queued.hops.clear()
        for name in queued.pending:
            queued.pending[name] = None

    def taken(self, hop: str, count: int) -> None:
        """The hop has taken the first `count` of this connection."""
        outgoing = self._outgoing.get(hop)
        if outgoing is not None:
            outgoing.taken = min(max(outgoing.taken, count), outgoing.count)
            self.pump(hop)

    def parked(self, hop: str, counts: Sequence[int]) -> None:
        outgoing = self._outgoing.get(hop)
        if outgoing is not None:
            outgoing.parked.update(count for count in counts if count in outgoing.sent)

    def has_parked(self, queued: Queued, hop: str) -> bool:
        """Does it wait beyond the hop, for somebody who cannot be reached from there?"""
        return queued.hops.get(hop, 0) in self._outgoing[hop].parked

    def is_behind(self, hop: str) -> bool:
        """Is the first that the hop has not confirmed parked for its sake?"""
        outgoing = self._outgoing[hop]
        first = next(iter(outgoing.sent.values()), None)
        return first is not None and first.parked

    def passed(self, hop: str, counts: Sequence[int]) -> list[Queued]:
        """The hop confirms these counts; what nobody has to confirm any more."""
        outgoing = self._outgoing.get(hop)
        if outgoing is None:
            return []
        done: list[Queued] = []
        for count in counts:
            queued = outgoing.sent.pop(count, None)
            if queued is None:
                continue
            outgoing.parked.discard(count)
            del queued.hops[hop]
            for name in [name for name, chosen in queued.pending.items() if chosen == hop]:
                del queued.pending[name]
            if not queued.pending:
                done.append(queued)
        return done


class Senders:
    """What comes from each sender: counted, and acknowledged half a window at a time."""

    def __init__(self, port: Port, window_of: Callable[[str], int]) -> None:
        self._port = port
        self._window_of = window_of
        self._incoming: dict[str, Incoming] = {}

    def count(self, sender: str) -> int:
        """The count of the publication that has just come from there."""
        incoming = self._incoming.get(sender)
        if incoming is None:
            incoming = self._incoming[sender] = Incoming()
        incoming.count += 1
        self._tell(sender, incoming)
        return incoming.count

    def forget(self, sender: str) -> None:
        self._incoming.pop(sender, None)

    def wait(self, queued: Queued) -> None:
        """The publication begins to hold up its first sender."""
        incoming = self._first(queued)
        if incoming is not None:
            incoming.waiting += 1

    def go_on(self, queued: Queued) -> None:
        """It holds up nobody any more."""
        incoming = self._first(queued)
        if incoming is not None:
            incoming.waiting = max(incoming.waiting - 1, 0)
            self._tell(queued.senders[0][0], incoming)

    def waiting(self, queued: Queued) -> int:
        """How many publications of its first sender wait here."""
        incoming = self._first(queued)
        return 0 if incoming is None else incoming.waiting

    def _first(self, queued: Queued) -> Incoming | None:
        return self._incoming.get(queued.senders[0][0]) if queued.senders else None

    def _tell(self, sender: str, incoming: Incoming) -> None:
        if incoming.waiting > MAX_WAITING_PER_SENDER:
            return
        if 2 * (incoming.count - incoming.taken) >= self._window_of(sender):
            incoming.taken = incoming.count
            self._port.send(sender.removeprefix(CLIENT), Taken(incoming.count))
