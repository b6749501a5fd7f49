"""Reliable broadcast to all members of a topic (the paper's TR-broadcast).

A publisher numbers its events per topic and sends them to everybody it can talk to who carries the topic. Whoever gets
one passes it on to those that its sender cannot talk to, if it is the first, by name, of those that could: so while
views are stable, each member gets each event exactly once. Channels acknowledge; whoever passes events on tells its
supplier who has them, so that the publisher learns when all members have one, and then tells them that it is
*collected*: they need not keep it any more.

What remains uncollected for a second is repaired (the paper's check & forward): processes tell each other what they
have, and whoever is the first to have what another one lacks, as far as it knows, sends it. So is what partitions kept
from each other, once they meet. A member keeps every event until every other member, reachable or not, has it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tidings.core.events.run import Stretch
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.overlay.peers.channels import Channels
from tidings.core.overlay.peers.holding import Holding
from tidings.core.overlay.peers.membership import TopicMembership
from tidings.core.overlay.peers.messages import (
    MAX_STREAMS,
    Cast,
    ReceivedSummary,
    Stream,
    StreamState,
)
from tidings.core.overlay.peers.rows import takes_part
from tidings.core.structures.range_set import RangeSet

REPORT_NS = 50_000_000
"""How long a report of who has what may wait for more."""
REPAIR_NS, LONGEST_REPAIR_NS = 1_000_000_000, 16_000_000_000
"""How often what is uncollected is looked at: more and more rarely while nothing changes."""
SOON_NS = 200_000_000
LOST_NS = 10_000_000_000
"""For how long everybody is there, and nobody has what comes before other events of a publisher that is gone, until
that counts as lost with it."""
AT_ONCE_BYTES = 256 * 1024
"""How much of a stream is sent to a peer before it acknowledges."""

Deliver = Callable[[Cast], None]


class Sent(NamedTuple):
    """The ticket of events that are on their way to a peer."""

    stream: Stream
    first: int
    last: int


class Broadcast(Part):
    name = "broadcast"

    def __init__(
        self,
        port: Port,
        channels: Channels,
        membership: TopicMembership,
        deliver: Deliver,
        *,
        incarnation: int,
    ) -> None:
        super().__init__(port)
        self._channels = channels
        self._membership = membership
        self._deliver = deliver
        self._incarnation = incarnation
        channels.listeners.append(self)
        channels.handlers.update({Cast: self.on_cast, ReceivedSummary: self.on_summary})
        membership.listeners.append(self)
        self._streams: dict[Stream, Holding] = {}
        self._lives: dict[str, int] = {}
        """The incarnation of each other process that `others` of holdings are about."""
        self._flights: dict[tuple[str, Stream], int] = {}
        """How many casts of a stream are on their way to a peer."""
        self._unreported: dict[tuple[Stream, str], None] = {}
        self._news: dict[Stream, str] = {}
        """Streams of which more is collected than peers have heard -> who told us, or this process itself."""
        self._collected_late: dict[tuple[str, Stream], None] = {}
        """Who keeps what is collected, and is told so."""
        self._reporting = self._repairing = False
        self._repair_ns = REPAIR_NS

    @property
    def kept_bytes(self) -> int:
        """What is kept because some member may lack it."""
        return sum(holding.kept_bytes for holding in self._streams.values())

    # --- TR-broadcast

    def broadcast(self, topic: str, stretch: Stretch) -> tuple[int, int]:
        """Send events to all members of a topic; return their numbers."""
        holding = self._holding((self.port.node, self._incarnation, topic))
        first = (holding.received.last or 0) + 1
        message = Cast(*holding.stream, first, holding.collected, stretch)
        holding.take(message)
        for peer in self._carriers_beside(topic):
            self._cast(peer, message)
        self._collect(holding)
        self._repair_later()
        return message.first, message.last

    def _holding(self, stream: Stream) -> Holding:
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = Holding(stream)
        return found

    def _carriers_beside(self, topic: str) -> list[str]:
        carriers = self._membership.rows.carriers(topic)
        return [peer for peer in self._channels.open_peers if peer in carriers]

    def _cast(self, peer: str, message: Cast) -> None:
        """Send events to a peer that is not known to have them."""
        if self._channels.cast(peer, message, Sent(message.stream, message.first, message.last)):
            key = (peer, message.stream)
            self._flights[key] = self._flights.get(key, 0) + 1

    # --- TR-deliver

    def on_cast(self, sender: str, message: Cast) -> None:
        holding = self._holding(message.stream)
        fresh = holding.take(message)
        holding.note(sender, message.first, message.last)
        self._collected(holding, message.collected, sender)
        if not fresh:
            return
        holding.supplier = sender
        for part in fresh:
            self._pass_on(sender, part)
            if self._takes_part(self.port.node, message.topic):
                self._deliver(part)
        self._collect(holding)
        self._repair_later()

    def _pass_on(self, sender: str, message: Cast) -> None:
        """Send fresh events to those whom their sender cannot talk to, if we are the first who can."""
        rows = self._membership.rows
        carriers = rows.carriers(message.topic)
        for peer in self._carriers_beside(message.topic):
            if peer in (sender, message.publisher) or rows.linked(sender, peer):
                continue
            if not any(
                each in carriers and rows.linked(each, sender) for each in self._before(peer, message.stream)
            ):
                self._cast(peer, message)

    def _before(self, peer: str, stream: Stream) -> list[str]:
        """Return who can talk to the peer and is to send it events of that stream, if it has them, rather than we: the
        publisher, then the others by name (the paper's firstParticipant)."""
        publisher, own = stream[0], self.port.node
        neighbours = self._membership.rows.neighbours(peer)
        return [each for each in neighbours if (each != publisher, each) < (own != publisher, own)]

    def _takes_part(self, process: str, topic: str) -> bool:
        row = self._membership.rows.get(process)
        return row is not None and not row.left and takes_part(row, topic)

    # --- Who has what

    def arrived(self, peer: str, tickets: Sequence[Hashable]) -> None:
        for ticket in tickets:
            if not isinstance(ticket, Sent):
                continue
            stream, first, last = ticket
            holding = self._holding(stream)
            key = (peer, stream)
            self._flights[key] = self._flights.get(key, 1) - 1
            if self._flights[key] <= 0:
                del self._flights[key]
            if holding.note(peer, first, last):
                self._report(holding, peer)
                self._collect(holding)
            if key not in self._flights:
                self._send_missing(holding, peer)

    def _report(self, holding: Holding, process: str) -> None:
        """Tell our supplier soon what a process has that the publisher cannot talk to."""
        publisher = holding.stream[0]
        if publisher == self.port.node or self._membership.rows.linked(publisher, process):
            return
        self._unreported[holding.stream, process] = None
        self._report_soon()

    def _report_soon(self) -> None:
        if not self._reporting:
            self._reporting = True
            self.port.set_timer((self.name, "report"), self.port.now + REPORT_NS)

    def _send_reports(self) -> None:
        self._reporting = False
        unreported, self._unreported = self._unreported, {}
        by_way: dict[tuple[str, str], list[StreamState]] = {}
        for stream, process in unreported:
            holding = self._streams[stream]
            by_way.setdefault((holding.supplier, process), []).append(self._state(holding, process))
        for (supplier, process), states in by_way.items():
            self._summarize(supplier, process, states)
        self._tell_collected()

    def _tell_collected(self) -> None:
        """Tell peers what is collected, but those who hear it from whom we have it."""
        news, self._news = self._news, {}
        late, self._collected_late = self._collected_late, {}
        own = self.port.node
        by_peer: dict[str, list[StreamState]] = {}
        for peer, stream in late:
            by_peer.setdefault(peer, []).append(self._state(self._streams[stream], own))
        for stream, source in news.items():
            for peer in self._carriers_beside(stream[2]):
                if source == own or (peer != source and not self._membership.rows.linked(source, peer)):
                    by_peer.setdefault(peer, []).append(self._state(self._streams[stream], own))
        for peer, states in by_peer.items():
            self._summarize(peer, own, states)

    def _state(self, holding: Holding, process: str) -> StreamState:
        has = holding.received if process == self.port.node else holding.others.get(process, RangeSet())
        ranges = [(start, stop - 1) for start, stop in has if stop - 1 > holding.collected]
        return (*holding.stream, holding.collected, tuple(ranges[:1_024]))

    def _summary(
        self, process: str, states: Sequence[StreamState], *, complete: bool = False
    ) -> ReceivedSummary:
        row = self._membership.rows.get(process)
        return ReceivedSummary(process, 0 if row is None else row.incarnation, tuple(states), complete)

    def _summarize(
        self, peer: str, process: str, states: Sequence[StreamState], *, complete: bool = False
    ) -> None:
        """Tell a peer what a process has."""
        for start in range(0, max(len(states), 1), MAX_STREAMS):
            part = states[start : start + MAX_STREAMS]
            is_last = start + MAX_STREAMS >= len(states)
            self._channels.cast(peer, self._summary(process, part, complete=complete and is_last))

    def on_summary(self, sender: str, message: ReceivedSummary) -> None:
        if message.process == self.port.node or self._is_of_the_past(message):
            return
        seen: dict[Stream, None] = {}
        for publisher, incarnation, topic, collected, ranges in message.streams:
            holding = self._holding((publisher, incarnation, topic))
            seen[holding.stream] = None
            self._collected(holding, collected, sender)
            if ranges and collected < holding.collected and message.process == sender:
                self._collected_late[sender, holding.stream] = None
                self._report_soon()
            news = [holding.note(message.process, first, last) for first, last in ranges]
            if any(news):
                self._report(holding, message.process)
                self._collect(holding)
            if message.process == sender:
                self._send_missing(holding, sender)
        for holding in list(self._streams.values()) if message.complete and message.process == sender else ():
            if holding.stream not in seen:
                self._send_missing(holding, sender)

    def _is_of_the_past(self, message: ReceivedSummary) -> bool:
        """Return whether it is about an earlier life of that process."""
        row = self._membership.rows.get(message.process)
        return row is None or message.incarnation < row.incarnation

    # --- Collecting

    def _collect(self, holding: Holding) -> None:
        """Collect what all members are known to have. In a stable partition we know all members that our supplier
        knows, those that cannot be reached included."""
        node, (publisher, _, topic) = self.port.node, holding.stream
        rows, source = self._membership.rows, node if publisher == node else holding.supplier
        if not self._membership.is_stable or source not in rows.reached:
            return
        members = [each for each in rows.members(topic) if each not in (node, publisher)]
        own = next(iter(holding.received.missing(holding.collected + 1, 2**62)))[0] - 1
        up_to = min((own, *(holding.reached_by(member) for member in members)))
        if holding.collect(up_to):
            self._news[holding.stream] = node
            self._report_soon()

    def _collected(self, holding: Holding, number: int, sender: str) -> None:
        """A peer says that every member has everything up to this number."""
        if number <= holding.collected:
            return
        self._news[holding.stream] = sender
        self._report_soon()
        lost = holding.received.missing(1, number + 1)
        for start, stop in lost:  # before our time, or gone with its publisher
            holding.received.add_range(start, stop)
        holding.collect(number)
        self._collect(holding)

    # --- Repair

    def rows_changed(self) -> None:
        for row in self._membership.rows:
            if self._lives.get(row.process, row.incarnation) != row.incarnation:
                for holding in self._streams.values():
                    holding.others.pop(row.process, None)
            self._lives[row.process] = row.incarnation
        self._repair_ns = REPAIR_NS
        if self._repairing:
            self.port.set_timer((self.name, "repair"), self.port.now + SOON_NS)
        for holding in self._uncollected():
            self._collect(holding)

    def opened(self, peer: str) -> None:
        own = self.port.node
        self._summarize(peer, own, [self._state(each, own) for each in self._streams.values()], complete=True)

    def closed(self, peer: str) -> None:
        for key in [key for key in self._flights if key[0] == peer]:
            del self._flights[key]

    def beat(self, peer: str, mark: bytes) -> None: ...

    def _uncollected(self) -> Iterator[Holding]:
        return (holding for holding in list(self._streams.values()) if not holding.is_settled)

    def _repair_later(self) -> None:
        if not self._repairing:
            self._repairing, self._repair_ns = True, REPAIR_NS
            self.port.set_timer((self.name, "repair"), self.port.now + self._repair_ns)

    def _repair(self) -> None:
        """Tell everybody what we have of what is uncollected, and what those have whom they cannot talk to. Send what
        others are known to lack."""
        own = self.port.node
        by_peer: dict[str, list[Holding]] = {}
        for holding in self._uncollected():
            self._pass_hole(holding)
            for peer in self._carriers_beside(holding.stream[2]):
                by_peer.setdefault(peer, []).append(holding)
        for peer, holdings in by_peer.items():
            self._summarize(peer, own, [self._state(each, own) for each in holdings])
            for process, states in self._behind_us(peer, holdings).items():
                self._summarize(peer, process, states)
            for holding in holdings:
                self._send_missing(holding, peer)
        self._repairing = any(True for _ in self._uncollected())
        if self._repairing:
            self._repair_ns = min(2 * self._repair_ns, LONGEST_REPAIR_NS)
            self.port.set_timer((self.name, "repair"), self.port.now + self._repair_ns)

    def _pass_hole(self, holding: Holding) -> None:
        """Wait no longer for events of a publisher's earlier life that it took with it: no member has them."""
        rows, (publisher, incarnation, topic) = self._membership.rows, holding.stream
        row, hole = rows.get(publisher), holding.hole
        is_over = row is None or row.left or row.incarnation > incarnation
        complete = self._membership.is_stable and set(rows.members(topic)) <= set(rows.reached)
        if not hole or not is_over or not complete:
            holding.hole_since = 0
        elif not holding.hole_since:
            holding.hole_since = self.port.now
        elif self.port.now - holding.hole_since >= LOST_NS:
            holding.hole_since = 0
            self._collected(holding, hole, self.port.node)

    def _behind_us(self, peer: str, holdings: Iterable[Holding]) -> dict[str, list[StreamState]]:
        """Return what processes have that the peer cannot talk to."""
        found: dict[str, list[StreamState]] = {}
        for holding in holdings:
            for process in holding.others:
                if process != peer and not self._membership.rows.linked(peer, process):
                    found.setdefault(process, []).append(self._state(holding, process))
        return found

    def _send_missing(self, holding: Holding, peer: str) -> None:
        """Send a carrier what it lacks, unless something is on its way to it, or somebody before us has that."""
        stream = holding.stream
        carriers = self._membership.rows.carriers(stream[2])
        if holding.is_settled or (peer, stream) in self._flights or peer not in carriers:
            return
        before = self._before(peer, stream)
        for message in holding.lacks_of(peer, AT_ONCE_BYTES):
            if not any(holding.has(each, message.first, message.last) for each in before):
                self._cast(peer, message)

    # --- Time

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "report":
            self._send_reports()
        else:
            self._repair()
