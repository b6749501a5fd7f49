"""Publications of the guaranteed overlay: kept until everybody behind this broker has confirmed them.

A publication is taken once, in the order of its flow (its source and the broker that took it from there), matched
against the log as it is then, and pending for every broker that wants it, reachable or not. It goes to the
nearest established broker on the way to each, when that session is ready, in the order in which it was taken.
When nothing is pending any more, whoever sent it is told (overlay.md, 'Publications').

Windows bound what is on its way. A sender waits while too many of its publications are not *taken*; a broker
says that it takes them while not too many of that sender's wait here. As nothing goes back to where it came from,
waiting follows the tree away from the sender, and ends. (Counting what is not confirmed by all subscribers instead
would allow one window per round trip through the whole network.)

What waits only for somebody who cannot be reached is *parked*: it holds up nobody, the publisher's broker has it on
disk then, and confirms it to the publisher. Parked publications are bounded; beyond the bound their place is taken
by a gap, of which the subscribers hear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidings.model.errors import WireError
from tidings.model.event import Publication, strip_publication
from tidings.model.messages import Forward, ForwardGap, Message, Missed, Notify, Parked, Passed, Taken
from tidings.model.subscription import Interest
from tidings.protocol.arrivals import Ranges
from tidings.protocol.facts import Misbehaviour, SpillFailed
from tidings.protocol.hops import Hops, Senders
from tidings.protocol.kernel import Part, Port, TimerName
from tidings.protocol.labels import Label, on_path
from tidings.protocol.queued import CLIENT, Flow, Queued
from tidings.protocol.sessions import Sessions
from tidings.protocol.spill import Spill, Spilled, SpillLimits
from tidings.protocol.store import Store
from tidings.protocol.subscription_log import Destination, Entry
from tidings.protocol.subscriptions import Subscriptions

SWEEP_NS = 250_000_000
SLOW_NS = 1_000_000_000
"""A client that has not taken a notification for this long counts as one that cannot be reached."""
PROMPT_NS = 20_000_000
"""So does one for whose sake a sender waits that has only a few on their way: it may be waiting for just these."""
FEW = 16
SOON_NS = 2_000_000
SOON_PER_WAITING_NS = 4_000
"""A sweep that comes before its time looks at all that waits, and comes the later the more that is."""
MAX_FLOWS = 262_144
"""Flows that are remembered; the least recent ones are forgotten first."""
PARKED_MEMORY_BYTES = 16 * 1024 * 1024
"""Parked publications of other brokers' clients go to disk beyond this; those of our own always do."""
LocalTargets = Callable[[Publication, tuple[Entry, ...]], dict[str, tuple[str, ...]]]


class Delivery(Part):
    name = "delivery"
    handles = {
        Forward: "on_forward",
        ForwardGap: "on_forward_gap",
        Passed: "on_passed",
        Taken: "on_taken",
        Parked: "on_parked",
    }

    def __init__(
        self,
        port: Port,
        sessions: Sessions,
        subscriptions: Subscriptions,
        store: Store,
        *,
        generation: int,
        window: int,
        limits: SpillLimits,
    ) -> None:
        super().__init__(port)
        self.window = window
        self.generation = generation
        self.entries: dict[int, Queued] = {}
        """In the order in which they were taken."""
        self.seen: dict[Flow, int] = {}
        self.headers: set[tuple[str, str]] = set()
        """(client, subscription): for these a client gets headers. What waits here is whole."""
        self.gaps = 0
        self.duplicates = 0
        self.local_targets: LocalTargets = lambda publication, entries: {}
        self.gap_targets: Callable[[Sequence[str]], dict[str, tuple[str, ...]]] = lambda records: {}
        self.confirm_client: Callable[[str, Queued, bool], None] = lambda client, queued, kept: None
        """(client, publication, kept): it is done, or (kept) on disk."""
        self._name = port.node
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._log = subscriptions.log
        self._spill = Spill(port.node, store, lambda reason: port.emit(SpillFailed(reason)))
        self._limits = limits
        self._by_id: dict[tuple[Flow, int], Queued] = {}
        self._unparked: dict[int, Queued] = {}
        self._parked_count = 0
        self._parked_memory_bytes = 0
        self.hops = Hops(port, window, self._message_for)
        self._senders = Senders(port, self._window_of)
        self._serial = 0
        self._last_gaps: dict[Flow, Queued] = {}
        self._away: dict[str, int] = {}
        """Those who cannot be reached, with the last that was parked for them."""
        self._sweep_at: int | None = None
        self._sweep_all = False

    def start(self) -> None:
        self._reload()

    # --- State for operators

    @property
    def parked_count(self) -> int:
        return self._parked_count

    @property
    def spilled_bytes(self) -> int:
        return self._spill.size_bytes

    def waiting_for(self) -> dict[str, int]:
        """How many publications each broker or client has not confirmed."""
        counts: dict[str, int] = {}
        for queued in self.entries.values():
            for name in queued.pending:
                counts[name] = counts.get(name, 0) + 1
        return counts

    def recent_flows(self, limit: int) -> list[tuple[str, int, int]]:
        """(source, incarnation, highest sequence) of what was taken here, the most recent flows first."""
        marks: dict[tuple[str, int], int] = {}
        for (_, source, incarnation), sequence in reversed(self.seen.items()):
            marks[source, incarnation] = max(marks.get((source, incarnation), 0), sequence)
            if len(marks) == limit:
                break
        return [(*source, sequence) for source, sequence in marks.items()]

    def waits_behind(self, peer: str) -> bool:
        """Does anything wait for somebody who is reached through that peer only?"""
        towards, frontier = self._sessions.neighbourhood.towards, self._sessions.frontier
        names = {
            name for queued in self.entries.values() for name, hop in queued.pending.items() if hop is None
        }
        labels = [self._log.labels[name] for name in names if not name.startswith(CLIENT)]
        return any(frontier(label) is None and peer in towards(label) for label in labels)

    # --- Sessions and clients as hops

    def deactivated(self, hop: str) -> None:
        """What went there and is not confirmed will go another way, or there again."""
        self.hops.take_all_back(hop)
        if self.entries:
            self._set_sweep()

    def lost(self, hop: str) -> None:
        """The connection with that broker is gone: it will send again what it has not heard of."""
        self.hops.close(hop)
        self._senders.forget(hop)
        for queued in self.entries.values():
            queued.senders = [sender for sender in queued.senders if sender[0] != hop]

    def ready(self, peer: str) -> None:
        """The session is synchronised: everything pending that goes this way goes now, before anything newer."""
        frontier = self._sessions.frontier
        for queued in self.entries.values():
            names = [
                name
                for name, hop in queued.pending.items()
                if hop is None and not name.startswith(CLIENT) and frontier(self._log.labels[name]) == peer
            ]
            if names:
                self.hops.hand_over(queued, peer, names)
        self.hops.pump(peer)

    def client_ready(self, client: str) -> None:
        hop = CLIENT + client
        self.hops.open(hop)
        self._hand_over_all(hop)

    def _hand_over_all(self, hop: str) -> None:
        """Everything that is pending for that client goes there, in the order in which it was taken."""
        for queued in self.entries.values():
            if hop in queued.pending and queued.pending[hop] is None:
                self.hops.hand_over(queued, hop, [hop])
        self.hops.pump(hop)

    def client_gone(self, client: str) -> None:
        self.deactivated(CLIENT + client)
        self.hops.close(CLIENT + client)
        self._senders.forget(CLIENT + client)

    def client_took(self, client: str, granted: int, done: Ranges) -> bool:
        """The client has room for more than the first `granted` notifications, and is done with these; False, and
        nothing has changed, if it never got so many."""
        hop = CLIENT + client
        named = [number for number in (granted, *(last for _, last in done)) if number]
        if not all(self.hops.knows(hop, number) for number in named):
            return False
        for first, last in done:
            self._confirmed(hop, self.hops.sent(hop, first, last))
        self.hops.taken(hop, granted)
        return True

    # --- Taking a publication

    def on_forward(self, sender: str, message: Forward) -> None:
        if not self._sessions.established(sender):
            return
        count = self._senders.count(sender)
        lacking = self._subscriptions.peer_lacks(sender)
        if lacking is None:
            self.port.emit(Misbehaviour(sender, "it sent a publication before it synchronised"))
            return
        publication = message.publication
        flow = (message.origin, publication.source, publication.incarnation)
        if self._is_duplicate(flow, publication.sequence, sender, count):
            return
        try:
            route = self._log.route(publication, message.label)
        except WireError as error:
            self.port.emit(Misbehaviour(sender, str(error)))
            self.port.send(sender, Passed((count,)))
            return
        excluded = message.excluded
        if lacking:
            lacked = [entry.id for to in route for entry in to.entries if entry.id in lacking]
            if lacked:
                excluded = tuple(dict.fromkeys((*excluded, *lacked)))
        queued = self._new(flow, message.label, publication.sequence)
        queued.mark = self._log.position
        queued.excluded = excluded
        queued.message = message
        queued.size_bytes = publication.size_bytes
        queued.senders.append((sender, count))
        self._take(queued, publication, route)

    def publish(self, client: str, generation: int, stamp: int, publication: Publication) -> None:
        """One of our own clients publishes; a stamp of a log that is lost certifies for all we know now."""
        own = self._sessions.neighbourhood
        flow = (own.name, publication.source, publication.incarnation)
        hop = CLIENT + client
        self._senders.count(hop)
        if self._is_duplicate(flow, publication.sequence, hop, publication.sequence):
            return
        route = self._log.route(publication, own.label)
        queued = self._new(flow, own.label, publication.sequence)
        position = self._log.position
        queued.mark = min(stamp, position) if generation == self.generation else position
        queued.message = Forward(own.name, own.label, generation, stamp, (), publication)
        queued.size_bytes = publication.size_bytes
        queued.senders.append((hop, publication.sequence))
        self._take(queued, publication, route)

    def on_forward_gap(self, sender: str, message: ForwardGap) -> None:
        if not self._sessions.established(sender):
            return
        count = self._senders.count(sender)
        flow = (message.origin, message.source, message.incarnation)
        if self._is_duplicate(flow, message.last, sender, count):
            return
        queued = self._new(flow, message.label, message.last)
        queued.first = message.first
        queued.message = message
        queued.senders.append((sender, count))
        self._set_pending_of_gap(queued, message.subscriptions)
        self._place(queued)

    def _is_duplicate(self, flow: Flow, sequence: int, sender: str, count: int) -> bool:
        seen = self.seen.pop(flow, 0)  # popped and set again: the least recent flow comes first
        self.seen[flow] = max(seen, sequence)
        if sequence > seen:
            if len(self.seen) > MAX_FLOWS:
                del self.seen[next(iter(self.seen))]
            return False
        self.duplicates += 1
        queued = self._by_id.get((flow, sequence))
        if queued is None:
            self._tell_sender(sender, count, flow, sequence)
        else:
            if (sender, count) not in queued.senders:
                queued.senders.append((sender, count))
            if queued.parked:
                self._tell_parked(queued, [(sender, count)])
        return True

    def _new(self, flow: Flow, label: Label, sequence: int) -> Queued:
        self._serial += 1
        return Queued(self._serial, flow, label, sequence, self.port.now)

    def _take(self, queued: Queued, publication: Publication, route: tuple[Destination, ...]) -> None:
        """Find who must get it, and send it there."""
        self._set_pending(queued, publication, route)
        self._place(queued)

    def _set_pending(self, queued: Queued, publication: Publication, route: tuple[Destination, ...]) -> None:
        mark, excluded = queued.mark, queued.excluded
        for to in route:
            entries = to.entries
            if excluded or to.newest > mark:
                entries = tuple(
                    entry for entry in entries if entry.position <= mark and entry.id not in excluded
                )
            if not entries:
                continue
            if to.broker == self._name:
                queued.local = self.local_targets(publication, entries)
                for client in queued.local:
                    queued.pending[CLIENT + client] = None
            else:
                queued.pending[to.broker] = None

    def _place(self, queued: Queued) -> None:
        if not queued.pending:
            self._tell_senders(queued)
            return
        self.entries[queued.serial] = self._unparked[queued.serial] = queued
        self._by_id[queued.flow, queued.sequence] = queued
        self._senders.wait(queued)
        self._assign(queued)
        self._set_sweep()
        if self._parked_count and self._is_stuck(queued):
            self._sweep_soon(SOON_NS)
        elif self._is_waited_for(queued):
            self._sweep_soon(PROMPT_NS)

    def _assign(self, queued: Queued) -> None:
        """Hand it to every ready hop that leads to somebody who has not got it."""
        names_of: dict[str, list[str]] = {}
        for name, chosen in queued.pending.items():
            if chosen is not None:
                continue
            if name.startswith(CLIENT):
                if name in self.hops:
                    names_of[name] = [name]
                continue
            hop = self._sessions.frontier(self._log.labels[name])
            if hop is not None and self._subscriptions.ready(hop):
                names_of.setdefault(hop, []).append(name)
        for hop, names in names_of.items():
            self.hops.hand_over(queued, hop, names)
            self.hops.pump(hop)

    # --- Messages

    def _window_of(self, sender: str) -> int:
        return self.window if sender.startswith(CLIENT) else self._sessions.window_of(sender)

    def _message_for(self, queued: Queued, hop: str) -> Message:
        if hop.startswith(CLIENT):
            return self._notification(queued, hop.removeprefix(CLIENT))
        return self._message(queued)

    def _message(self, queued: Queued) -> Message:
        """As it goes to another broker: what came into the log since it was taken is named as excluded."""
        message = self._spill.body(queued)
        if isinstance(message, ForwardGap):
            return message
        excluded = queued.excluded
        if queued.mark < self._log.position:
            newer = [
                entry.id
                for to in self._log.route(message.publication, queued.label)
                for entry in to.entries
                if entry.position > queued.mark
            ]
            excluded = tuple(dict.fromkeys((*excluded, *newer)))
        if excluded == message.excluded:
            return message
        return Forward(
            message.origin, message.label, message.generation, message.stamp, excluded, message.publication
        )

    def _notification(self, queued: Queued, client: str) -> Message:
        message = self._spill.body(queued)
        subscriptions = queued.local[client]
        if isinstance(message, ForwardGap):
            return Missed(subscriptions, message.source, message.incarnation, message.first, message.last)
        publication = message.publication
        if self.headers and all((client, name) in self.headers for name in subscriptions):
            publication = strip_publication(publication)
        return Notify(subscriptions, publication)

    # --- Confirmations

    def on_passed(self, sender: str, message: Passed) -> None:
        self._check_counts(sender, message.counts)
        self._confirmed(sender, message.counts)

    def on_taken(self, sender: str, message: Taken) -> None:
        self._check_counts(sender, (message.count,))
        self.hops.taken(sender, message.count)

    def on_parked(self, sender: str, message: Parked) -> None:
        self._check_counts(sender, message.counts)
        self.hops.parked(sender, message.counts)
        self._sweep_soon(SOON_NS)

    def _check_counts(self, sender: str, counts: Sequence[int]) -> None:
        unknown = [count for count in counts if not self.hops.knows(sender, count)]
        if unknown:
            self.port.emit(
                Misbehaviour(sender, f"it confirms publication {unknown[0]}, it never got so many")
            )

    def _confirmed(self, hop: str, counts: Sequence[int]) -> None:
        for queued in self.hops.passed(hop, counts):
            self._finish(queued)
        self.hops.pump(hop)

    def _finish(self, queued: Queued) -> None:
        """Everybody has it."""
        if self.entries.pop(queued.serial, None) is None:
            return
        if self._last_gaps.get(queued.flow) is queued:
            del self._last_gaps[queued.flow]
        if self._unparked.pop(queued.serial, None) is not None:
            self._senders.go_on(queued)
        del self._by_id[queued.flow, queued.sequence]
        self._release(queued)
        self._tell_senders(queued)

    def _release(self, queued: Queued) -> None:
        if queued.parked:
            self._parked_count -= 1
            if queued.message is not None:
                self._parked_memory_bytes -= queued.size_bytes
        if queued.on_disk:
            self._spill.forget(queued)
            self._set_sweep()

    def _tell_senders(self, queued: Queued) -> None:
        for sender, count in queued.senders:
            if sender.startswith(CLIENT):
                self.confirm_client(sender[1:], queued, False)
            else:
                self.port.send(sender, Passed((count,)))

    def _tell_sender(self, sender: str, count: int, flow: Flow, sequence: int) -> None:
        if sender.startswith(CLIENT):
            self.confirm_client(sender[1:], Queued(0, flow, (), sequence, 0), False)
        else:
            self.port.send(sender, Passed((count,)))

    # --- Records that end

    def records_changed(self, entries: Sequence[Entry]) -> None:
        """What ends need not be delivered any more. (What is new is not owed what was taken before.)"""
        ended = {entry.record.broker for entry in entries if entry.dead}
        if ended:
            for queued in list(self.entries.values()):
                if not ended.isdisjoint(queued.pending):
                    self._withdraw(queued, ended)

    def _withdraw(self, queued: Queued, brokers: set[str]) -> None:
        """Strike out those of the brokers that want it no more."""
        message = self._spill.body(queued)
        if isinstance(message, ForwardGap):
            wanted = {
                entry.record.broker
                for entry in map(self._log.get, message.subscriptions)
                if entry is not None and not entry.dead
            }
        else:
            wanted = {
                to.broker
                for to in self._log.route(message.publication, queued.label)
                if any(
                    entry.position <= queued.mark and entry.id not in queued.excluded for entry in to.entries
                )
            }
        self._strike(queued, [name for name in queued.pending if name in brokers and name not in wanted])

    def client_wants_no_more(self, client: str, subscription: str) -> None:
        """A client's subscription is gone; it may have others that want the same."""
        hop = CLIENT + client
        for queued in list(self.entries.values()):
            wanted = queued.local.get(client, ())
            if hop not in queued.pending or subscription not in wanted:
                continue
            left = tuple(other for other in wanted if other != subscription)
            if left:
                queued.local[client] = left
            elif not queued.hops.get(hop):  # what is on its way is acknowledged like anything else
                del queued.local[client]
                self._strike(queued, [hop])

    def adopt(self, placeholder: str, client: str, subscription: str, interest: Interest) -> None:
        """What is kept for unknown clients is for this one, too, where the subscription selects it."""
        hop = CLIENT + client
        on_its_way = False
        for queued in self.entries.values():
            if placeholder in queued.local and self._is_for(queued, interest):
                queued.local[client] = tuple(sorted({*queued.local.get(client, ()), subscription}))
                queued.pending.setdefault(hop, None)
                on_its_way = on_its_way or queued.hops.get(hop, 0) > 0
        if on_its_way:  # for another subscription of the client: it goes again, for both, and in order
            self.hops.take_all_back(hop)
        if hop in self.hops:
            self._hand_over_all(hop)

    def _is_for(self, queued: Queued, interest: Interest) -> bool:
        message = self._spill.body(queued)
        try:
            return isinstance(message, ForwardGap) or interest.matches(message.publication)
        except WireError:
            return False

    def _strike(self, queued: Queued, names: list[str]) -> None:
        for name in names:
            hop = queued.pending.pop(name)
            if hop is not None and hop not in queued.pending.values() and queued.hops.get(hop) == 0:
                del queued.hops[hop]
        if names and not queued.pending:
            hops = list(queued.hops)
            self.hops.take_back(queued)
            self._finish(queued)
            for hop in hops:
                self.hops.pump(hop)

    # --- Parking

    def on_timer(self, name: TimerName) -> None:
        self._sweep_at = None
        self._sweep()
        if self._unparked or self._spill.has_doomed:
            self._set_sweep()

    def _set_sweep(self, after_ns: int = SWEEP_NS) -> None:
        at = self.port.now + after_ns
        if self._sweep_at is None or at < self._sweep_at:
            self._sweep_at = at
            self.port.set_timer((self.name, "sweep"), at)

    def _sweep_soon(self, after_ns: int) -> None:
        """Something that came just now may be parked: whoever published it should not wait."""
        self._sweep_all = True
        self._set_sweep(after_ns + SOON_PER_WAITING_NS * len(self._unparked))

    def _sweep(self) -> None:
        """Park what waits only for those who cannot be reached; delete from disk what is done."""
        newest = self.port.now if self._sweep_all else self.port.now - SWEEP_NS
        self._sweep_all = False
        self._away = {name: last for name, last in self._away.items() if last in self.entries}
        stuck: list[Queued] = []
        blocked: set[Flow] = set()
        for queued in self._unparked.values():
            if queued.taken_at > newest:
                break
            # In the order of each flow: a publisher's client forgets what is confirmed, and sends the rest again.
            if queued.flow not in blocked and self._is_stuck(queued):
                stuck.append(queued)
                continue
            blocked.add(queued.flow)
            if self.port.now - queued.taken_at < PROMPT_NS and self._is_waited_for(queued):
                self._sweep_soon(PROMPT_NS)
        self._park(stuck)
        self._spill.sweep()

    def _is_stuck(self, queued: Queued) -> bool:
        waited_ns = self.port.now - queued.taken_at
        for name, hop in queued.pending.items():
            if hop is None:
                if not name.startswith(CLIENT):
                    frontier = self._sessions.frontier(self._log.labels[name])
                    if frontier is not None:
                        return False  # on its way to being ready
                if waited_ns < SWEEP_NS and self._away.get(name) not in self.entries:
                    return False  # it may be back at once
            elif hop.startswith(CLIENT):
                if waited_ns < self._patience_ns(queued) and not self.hops.is_behind(hop):
                    return False
            elif not self.hops.has_parked(queued, hop):
                return False
        return True

    def _patience_ns(self, queued: Queued) -> int:
        return PROMPT_NS if self._is_waited_for(queued) else SLOW_NS

    def _is_waited_for(self, queued: Queued) -> bool:
        """By a publisher that publishes one by one, for clients of ours."""
        return bool(queued.local) and self._senders.waiting(queued) <= FEW

    def _park(self, stuck: list[Queued]) -> None:
        room = self._limits.entries - self._parked_count
        kept, given_up = stuck[: max(room, 0)], stuck[max(room, 0) :]
        to_disk: list[Queued] = []
        room_bytes = self._limits.size_bytes - self.spilled_bytes
        for position, queued in enumerate(kept):
            if not isinstance(queued.message, Forward) or not self._belongs_on_disk(queued):
                continue
            room_bytes -= queued.size_bytes
            if room_bytes < 0:
                given_up = kept[position:] + given_up
                kept = kept[:position]
                break
            to_disk.append(queued)
        if to_disk and not self._spill.keep(to_disk):
            # A full disk gives nothing up: these hold up their publishers until there is room again.
            first = to_disk[0].serial
            kept = [queued for queued in kept if queued.serial < first]
            given_up = []
        for queued in kept:
            self._set_parked(queued)
        for queued in given_up:
            self._give_up(queued)

    def _belongs_on_disk(self, queued: Queued) -> bool:
        return queued.flow[0] == self._name or self._parked_memory_bytes > PARKED_MEMORY_BYTES

    def _set_parked(self, queued: Queued) -> None:
        queued.parked = True
        self._away |= {name: queued.serial for name, hop in queued.pending.items() if hop is None}
        del self._unparked[queued.serial]
        self._senders.go_on(queued)
        self._parked_count += 1
        if queued.message is not None:
            self._parked_memory_bytes += queued.size_bytes
        self._tell_parked(queued, queued.senders)

    def _tell_parked(self, queued: Queued, senders: Sequence[tuple[str, int]]) -> None:
        for sender, count in senders:
            if sender.startswith(CLIENT):
                self.confirm_client(sender[1:], queued, True)
            else:
                self.port.send(sender, Parked((count,)))

    # --- Beyond the bounds

    def _give_up(self, queued: Queued) -> None:
        """No room: whoever it waits for gets a gap in its place, one for as many in a row as possible."""
        subscriptions = self._unserved(queued)
        gap = self._last_gaps.get(queued.flow)
        extends = (
            gap is not None
            and gap.serial in self.entries
            and isinstance(gap.message, ForwardGap)
            and gap.message.subscriptions == subscriptions
            and gap.local == queued.local
            and gap.pending.keys() == queued.pending.keys()
            and not any(gap.hops.values())
        )
        self.gaps += 1
        self.hops.take_back(queued)
        origin, source, incarnation = queued.flow
        if extends and gap is not None:
            del self.entries[queued.serial], self._unparked[queued.serial]
            self._senders.go_on(queued)
            del self._by_id[queued.flow, queued.sequence], self._by_id[gap.flow, gap.sequence]
            gap.sequence = queued.sequence
        else:
            gap = self._last_gaps[queued.flow] = queued
            gap.size_bytes = 0
        gap.message = ForwardGap(
            origin, gap.label, source, incarnation, gap.first, gap.sequence, subscriptions
        )
        self._by_id[gap.flow, gap.sequence] = gap
        if gap is queued:
            self._set_parked(gap)
            self._assign(gap)
        senders, queued.senders = queued.senders, []
        for sender, count in senders:
            self._tell_sender(sender, count, queued.flow, queued.sequence)

    def _unserved(self, queued: Queued) -> tuple[str, ...]:
        """The records of other brokers that it is pending for."""
        message = self._spill.body(queued)
        if isinstance(message, ForwardGap):
            return message.subscriptions
        return tuple(
            entry.id
            for to in self._log.route(message.publication, queued.label)
            if to.broker in queued.pending
            for entry in to.entries
            if entry.position <= queued.mark and entry.id not in queued.excluded
        )

    def _set_pending_of_gap(self, queued: Queued, subscriptions: Sequence[str]) -> None:
        here: list[str] = []
        own = self._sessions.neighbourhood
        for known in subscriptions:
            entry = self._log.get(known)
            if entry is None or entry.dead or not on_path(own.label, queued.label, entry.record.label):
                continue
            if entry.record.broker == self._name:
                here.append(known)
            else:
                queued.pending[entry.record.broker] = None
        queued.local = self.gap_targets(here)
        for client in queued.local:
            queued.pending[CLIENT + client] = None

    # --- After a restart

    def _reload(self) -> None:
        for spilled, publication in self._spill.reload():
            self._reload_own(spilled, publication)
        self._spill.sweep()

    def _reload_own(self, spilled: Spilled, publication: Publication) -> None:
        flow = (self._name, publication.source, publication.incarnation)
        self._serial = max(self._serial, spilled.serial)
        self.seen[flow] = max(self.seen.get(flow, 0), publication.sequence)
        queued = Queued(spilled.serial, flow, spilled.label, publication.sequence, self.port.now)
        queued.mark, queued.excluded = spilled.mark, spilled.excluded
        queued.size_bytes = publication.size_bytes
        queued.on_disk = True
        self._set_pending(queued, publication, self._log.route(publication, spilled.label))
        if not queued.pending:
            self._spill.forget(queued)
            return
        queued.senders.append((CLIENT + publication.source, publication.sequence))
        queued.parked = True
        self._parked_count += 1
        self.entries[queued.serial] = queued
        self._by_id[flow, queued.sequence] = queued
