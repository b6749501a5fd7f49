"""Delivery in the guaranteed overlay: a broker keeps publications until everybody behind it has confirmed them.

A broker takes a publication once, in the order of its flow (its source and the broker that took it from there). It
matches the publication against the log of that moment, and the publication is pending for every broker that wants it,
reachable or not. For each of these it goes to the nearest established broker on the path, once that session is ready,
in the order in which it was taken. When nothing is pending any more, the broker confirms it to its senders.

Consecutive publications of a source with the same destinations travel, wait and are confirmed as one entry (`Queued`).
The entry is split where one of them differs: a window ends, a part is confirmed, a copy arrives by another path.

Windows bound what is in flight. A sender waits while too many of its publications are not *taken*; a broker reports
them as taken unless too many of that sender's wait here. Nothing goes back to where it came from, so waiting follows
the tree away from the sender, and ends. (A window of publications that subscribers have not confirmed would allow one
window per round trip through the whole network.) Publications that wait only for somebody unreachable are parked
(core/overlay/guaranteed/parking.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tidings.core.errors import WireError
from tidings.core.events.run import Run, Stretch, stripped
from tidings.core.events.subscription import Interest
from tidings.core.facts import Misbehaviour, SpillFailed
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.messages import Message, Notify, PublishFailed
from tidings.core.overlay.guaranteed.confirmations import Confirmations
from tidings.core.overlay.guaranteed.hops import Hops, Senders
from tidings.core.overlay.guaranteed.local_subscriptions import LocalSubscriptions
from tidings.core.overlay.guaranteed.messages import Forward, ForwardGap, Missed, Parked, Passed, Taken
from tidings.core.overlay.guaranteed.parking import Parking
from tidings.core.overlay.guaranteed.queued import Flow, Hop, LocalClient, Queue, Queued, Row
from tidings.core.overlay.guaranteed.sessions import SessionListener, Sessions
from tidings.core.overlay.guaranteed.spill import Spill, Spilled, SpillLimits
from tidings.core.overlay.guaranteed.subscription_log import Destination, LogEntry, Route
from tidings.core.overlay.guaranteed.subscriptions import SubscriptionListener, Subscriptions
from tidings.core.overlay.labels import Label, on_path
from tidings.core.overlay.matching import selected
from tidings.core.store import Store
from tidings.core.structures.ranges import Ranges

MAX_FLOWS = 262_144
"""How many flows are remembered; the least recent are forgotten first."""


class _Verdict(Struct, frozen=True, gc=False):
    """Decides who may get some publications of a flow."""

    flow: Flow
    label: Label
    log_position: int
    excluded: tuple[str, ...]

    def here(self, route: Route, name: str) -> tuple[LogEntry, ...]:
        """Return the records of broker `name` that get them."""
        for to in route:
            if to.broker == name:
                return _admitted(to, self.log_position, self.excluded)
        return ()


class Delivery(Part, SessionListener, SubscriptionListener):
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
        local: LocalSubscriptions,
        store: Store,
        *,
        generation: int,
        window: int,
        limits: SpillLimits,
    ) -> None:
        super().__init__(port)
        self.window = window
        self.generation = generation
        self.queue = Queue()
        self.hops = Hops(self.queue, window)
        self.seen: dict[Flow, int] = {}
        self.duplicates = 0
        self._name = port.node
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._log = subscriptions.log
        self._local = local
        self._senders = Senders(port, sessions, window)
        self._confirmations = Confirmations(port, self.hops)
        self._spill = Spill(port.node, store, lambda reason: port.emit(SpillFailed(reason)))
        self._parking = Parking(
            port,
            (self.name, "sweep"),
            sessions=sessions,
            log=self._log,
            queue=self.queue,
            hops=self.hops,
            senders=self._senders,
            confirmations=self._confirmations,
            spill=self._spill,
            limits=limits,
        )
        self._serial = 0
        sessions.listeners.append(self)
        subscriptions.listeners.append(self)

    @property
    def last_serial(self) -> int:
        """The serial of the last publication taken here."""
        return self._serial

    @property
    def is_drained(self) -> bool:
        """True if nothing waits here, and no client of ours wants anything."""
        return not self.queue and not any(entry.record.broker == self._name for entry in self._log)

    def start(self) -> None:
        for row, spilled, stretch in self._spill.reload():
            self._reload(row, spilled, stretch)
        self._spill.sweep()

    # --- Status

    @property
    def queued_count(self) -> int:
        return sum(queued.count for queued in self.queue.entries())

    @property
    def parked_count(self) -> int:
        return sum(queued.count for queued in self.queue.entries() if queued.parked)

    @property
    def gaps(self) -> int:
        """How many publications were given up."""
        return self._parking.gaps

    @property
    def spilled_bytes(self) -> int:
        return self._spill.size_bytes

    def waiting_for(self) -> dict[Hop, int]:
        """Return how many publications each broker or client has not confirmed."""
        counts: dict[Hop, int] = {}
        for queued in self.queue.entries():
            for name in queued.pending:
                counts[name] = counts.get(name, 0) + queued.count
        return counts

    def recent_flows(self, limit: int) -> list[tuple[str, int, int]]:
        """Return (source, incarnation, highest sequence taken here), the most recent flows first."""
        highest: dict[tuple[str, int], int] = {}
        for (_, source, incarnation), sequence in reversed(self.seen.items()):
            highest[source, incarnation] = max(highest.get((source, incarnation), 0), sequence)
            if len(highest) == limit:
                break
        return [(*source, sequence) for source, sequence in highest.items()]

    def waits_behind(self, peer: str) -> bool:
        """Return True if anything waits for somebody who can only be reached through that peer."""
        towards, frontier = self._sessions.neighbourhood.towards, self._sessions.frontier
        names = {
            name for queued in self.queue.entries() for name, hop in queued.pending.items() if hop is None
        }
        labels = [self._log.labels[name] for name in names if not isinstance(name, LocalClient)]
        return any(frontier(label) is None and peer in towards(label) for label in labels)

    # --- Sessions and clients as hops

    def deactivated(self, hop: Hop) -> None:
        """Take back what the hop has not confirmed, to send it by another path or there again."""
        self.hops.take_all_back(hop)
        if self.queue:
            self._parking.set_sweep()

    def lost(self, hop: str) -> None:
        """The connection to that broker broke: it will resend whatever we have not confirmed."""
        self.hops.close(hop)
        self._senders.forget(hop)
        for queued in self.queue.entries():
            queued.senders = [sender for sender in queued.senders if sender[0] != hop]

    def ready(self, peer: str) -> None:
        """The session is synchronised: send everything pending that takes this path, before anything newer."""
        frontier = self._sessions.frontier
        for queued in self.queue.entries():
            names: list[Hop] = [
                name
                for name, hop in queued.pending.items()
                if hop is None
                and not isinstance(name, LocalClient)
                and frontier(self._log.labels[name]) == peer
            ]
            if names:
                self.hops.hand_over(queued, peer, names)
        self._pump(peer)

    def client_ready(self, client: str) -> None:
        hop = LocalClient(client)
        self.hops.open(hop)
        self._hand_over_all(hop)

    def _hand_over_all(self, hop: LocalClient) -> None:
        """Send the client everything that is pending for it, in the order in which it was taken."""
        for queued in self.queue.entries():
            if hop in queued.pending and queued.pending[hop] is None:
                self.hops.hand_over(queued, hop, [hop])
        self._pump(hop)

    def client_gone(self, client: str) -> None:
        hop = LocalClient(client)
        self.deactivated(hop)
        self.hops.close(hop)
        self._senders.forget(hop)

    def client_took(self, client: str, granted: int, done: Ranges) -> bool:
        """The client has room for notifications after the first `granted`, and is done with these. Return False, and
        change nothing, if it was never sent so many."""
        hop = LocalClient(client)
        outgoing = self.hops.outgoing.get(hop)
        if outgoing is None:
            return True
        last = granted
        for _, end in done:
            last = end if end > last else last
        if last > outgoing.count:
            return False
        if granted > outgoing.taken:
            outgoing.taken = granted
        for queued in self.hops.passed(hop, done):
            self._finish(queued)
        if outgoing.turns:
            self._pump(hop)
        return True

    def _pump(self, hop: Hop) -> None:
        outgoing = self.hops.outgoing.get(hop)
        while outgoing is not None and outgoing.turns:
            queued = self.hops.next_due(hop)
            if queued is None:
                return
            if isinstance(hop, LocalClient):
                self.port.send(hop.name, self._notification(queued, hop.name))
            else:
                self.port.send(hop, self._message(queued))

    # --- Taking publications

    def on_forward(self, sender: str, message: Forward) -> None:
        if not self._sessions.established(sender):
            return
        stretch = message.stretch
        number = self._senders.count(sender, stretch.count)
        lacking = self._subscriptions.peer_lacks(sender)
        if lacking is None:
            self.port.emit(Misbehaviour(sender, "sent a publication before synchronising its subscriptions"))
            return
        flow = (message.origin, stretch.source, stretch.incarnation)
        fresh = self._first_unseen(flow, stretch.first, stretch.last, sender, number)
        if fresh > stretch.last:
            return

        def complain(error: WireError) -> None:
            self.port.emit(Misbehaviour(sender, str(error)))

        position, taken = self._log.position, fresh - 1
        fresh_ones = stretch if fresh == stretch.first else _from(stretch, fresh)
        for part, route in self._log.routes(fresh_ones, message.label, complain):
            if part.first > taken + 1:
                self._pass_over(flow, stretch, taken + 1, part.first - 1, sender, number)
            excluded = message.excluded
            if lacking:
                lacked = [entry.id for to in route for entry in to.entries if entry.id in lacking]
                excluded = tuple(dict.fromkeys((*excluded, *lacked)))
            verdict = _Verdict(flow, message.label, position, excluded)
            carried = message if part is stretch else _with(message, part)
            self._take(verdict, carried, part, route, (sender, number + part.first - stretch.first))
            taken = part.last
        if taken < stretch.last:
            self._pass_over(flow, stretch, taken + 1, stretch.last, sender, number)

    def _pass_over(
        self, flow: Flow, stretch: Stretch, first: int, last: int, sender: str, number: int
    ) -> None:
        """Confirm publications that do not decode: nobody gets them."""
        self._tell_sender(sender, flow, number + first - stretch.first, last - first + 1)

    def publish(self, client: str, generation: int, stamp: int, stretch: Stretch) -> None:
        """Take publications of one of our own clients. A stamp of a lost log certifies everything known now."""
        own = self._sessions.neighbourhood
        flow = (own.name, stretch.source, stretch.incarnation)
        hop = LocalClient(client)
        self._senders.count(hop, stretch.count)
        fresh = self._first_unseen(flow, stretch.first, stretch.last, hop, stretch.first)
        if fresh > stretch.last:
            return
        position = self._log.position
        log_position = min(stamp, position) if generation == self.generation else position
        verdict = _Verdict(flow, own.label, log_position, ())
        reasons: list[WireError] = []
        refused: list[int] = []
        taken = fresh - 1
        fresh_ones = stretch if fresh == stretch.first else _from(stretch, fresh)
        for part, route in self._log.routes(fresh_ones, own.label, reasons.append):
            refused += range(taken + 1, part.first)
            carried = Forward(own.name, own.label, generation, stamp, (), part)
            self._take(verdict, carried, part, route, (hop, part.first))
            taken = part.last
        refused += range(taken + 1, stretch.last + 1)
        for sequence in refused:
            self.port.emit(Misbehaviour(client, str(reasons[0])))
            self.port.send(client, PublishFailed(sequence, str(reasons[0])))

    def on_forward_gap(self, sender: str, message: ForwardGap) -> None:
        if not self._sessions.established(sender):
            return
        number = self._senders.count(sender, 1)
        flow = (message.origin, message.source, message.incarnation)
        if self._first_unseen(flow, message.last, message.last, sender, number) > message.last:
            return
        count = message.last - message.first + 1
        queued = Queued(
            self._serial + 1, flow, message.label, message.first, message.last, count, self.port.now
        )
        self._serial += count
        queued.make_gap(message)
        queued.senders.append((sender, number))
        self._set_pending_of_gap(queued, message.subscriptions)
        self._place(queued)

    def _first_unseen(self, flow: Flow, first: int, last: int, sender: Hop, number: int) -> int:
        """Return the first sequence that is not a duplicate, and mark all as seen. Duplicates are confirmed to their
        sender when everybody has them."""
        seen = self.seen.pop(flow, 0)  # reinserted at the end, so the least recent flow comes first
        self.seen[flow] = max(seen, last)
        if first > seen:
            if len(self.seen) > MAX_FLOWS:
                del self.seen[next(iter(self.seen))]
            return first
        last_seen = min(last, seen)
        self.duplicates += last_seen - first + 1
        self._add_sender(flow, first, last_seen, sender, number)
        return last_seen + 1

    def _add_sender(self, flow: Flow, first: int, last: int, sender: Hop, number: int) -> None:
        """Add a sender to those of these duplicates that are queued, and confirm the rest, which everybody has."""
        begin = first
        for low, high, queued in self.queue.of_flow(flow, first, last):
            if not queued.is_gap:
                if low > queued.first:
                    queued = self.hops.split(queued, low)
                if high < queued.last:
                    self.hops.split(queued, high + 1)
            if begin < low:
                self._tell_sender(sender, flow, number + begin - first, low - begin)
            begin = high + 1
            copy = (sender, number + low - first)
            if copy not in queued.senders:
                queued.senders.append(copy)
            if queued.parked:
                self._confirmations.parked(queued, [copy])
        if begin <= last:
            self._tell_sender(sender, flow, number + begin - first, last - begin + 1)

    def _take(
        self, verdict: _Verdict, message: Forward, stretch: Stretch, route: Route, sender: tuple[Hop, int]
    ) -> None:
        """Queue these for everybody who must get them, and send them."""
        hop, number = sender
        here = verdict.here(route, self._name)
        parts = self._local.targets(stretch, here) if here else [(stretch, {})]
        for part, targets in parts:
            first, count = part.first, part.count
            queued = Queued(
                self._serial + 1,
                verdict.flow,
                verdict.label,
                first,
                part.last,
                count,
                self.port.now,
                message if part is stretch else _with(message, part),
                part.size_bytes,
                verdict.log_position,
                verdict.excluded,
                targets,
            )
            self._serial += count
            queued.senders.append((hop, number + first - stretch.first))
            self._set_pending(queued, route)
            self._place(queued)

    def _set_pending(self, queued: Queued, route: Route) -> None:
        pending, log_position, excluded = queued.pending, queued.log_position, queued.excluded
        for to in route:
            broker = to.broker
            if broker == self._name:
                for client in queued.local:
                    pending[LocalClient(client)] = None
            elif (not excluded and to.newest <= log_position) or _admitted(to, log_position, excluded):
                pending[broker] = None

    def _place(self, queued: Queued) -> None:
        if not queued.pending:
            self._confirmations.finished(queued)
            return
        self.queue.add(queued)
        self._senders.wait(queued)
        self._assign(queued)
        if queued.serial in self.queue:
            self._parking.placed(queued)

    def _assign(self, queued: Queued) -> None:
        """Hand it over to every ready hop that leads to somebody who does not have it."""
        names_of: dict[Hop, list[Hop]] = {}
        frontier, labels = self._sessions.frontier, self._log.labels
        for name, chosen in queued.pending.items():
            if chosen is not None:
                continue
            if isinstance(name, LocalClient):
                if name in self.hops.outgoing:
                    names_of[name] = [name]
                continue
            hop = frontier(labels[name])
            if hop in names_of:
                names_of[hop].append(name)
            elif hop is not None and self._subscriptions.ready(hop):
                names_of[hop] = [name]
        for to, names in names_of.items():
            self.hops.hand_over(queued, to, names)
        for to in names_of:
            self._pump(to)

    # --- Messages

    def _message(self, queued: Queued) -> Message:
        """Return the message for another broker. It excludes records that entered the log after it was taken."""
        message = self._spill.body(queued)
        if isinstance(message, ForwardGap):
            return message
        excluded = queued.excluded
        if queued.log_position < self._log.position:
            newer = [
                entry.id
                for to in self._log.route(message.stretch, queued.label)
                for entry in to.entries
                if entry.position > queued.log_position
            ]
            excluded = tuple(dict.fromkeys((*excluded, *newer)))
        if excluded == message.excluded:
            return message
        return Forward(
            message.origin, message.label, message.generation, message.stamp, excluded, message.stretch
        )

    def _notification(self, queued: Queued, client: str) -> Message:
        message = self._spill.body(queued)
        subscriptions = queued.local[client]
        if isinstance(message, ForwardGap):
            return Missed(subscriptions, message.source, message.incarnation, message.first, message.last)
        stretch = message.stretch
        if self._local.headers and self._local.only_headers(client, subscriptions):
            stretch = stripped(stretch)
        return Notify(subscriptions, stretch)

    # --- Confirmations

    def on_passed(self, sender: str, message: Passed) -> None:
        self._check_numbers(sender, message.ranges)
        self._confirmed(sender, message.ranges)

    def on_taken(self, sender: str, message: Taken) -> None:
        self._check_numbers(sender, ((message.count, message.count),))
        self.hops.taken(sender, message.count)
        self._pump(sender)

    def on_parked(self, sender: str, message: Parked) -> None:
        self._check_numbers(sender, message.ranges)
        self.hops.parked(sender, message.ranges)
        self._parking.sweep_soon()

    def _check_numbers(self, sender: str, ranges: Ranges) -> None:
        for _, last in ranges:
            if not self.hops.knows(sender, last):
                self.port.emit(Misbehaviour(sender, f"confirms publication {last}, which it was never sent"))
                return

    def _confirmed(self, hop: Hop, ranges: Ranges) -> None:
        for queued in self.hops.passed(hop, ranges):
            self._finish(queued)

    def _finish(self, queued: Queued) -> None:
        """Dequeue and confirm it: everybody has it."""
        was_parked = queued.parked
        if not self.queue.remove(queued):
            return
        if not was_parked:
            self._senders.go_on(queued)
        self._parking.finished(queued)
        self._confirmations.finished(queued)

    def _tell_sender(self, sender: Hop, flow: Flow, number: int, count: int) -> None:
        self._confirmations.passed(sender, flow, number, count)

    # --- Ended records

    def records_changed(self, entries: Sequence[LogEntry]) -> None:
        """Stop waiting for records that ended. (New records do not get what was taken before.)"""
        ended = {entry.record.broker for entry in entries if entry.dead}
        if ended:
            for queued in self.queue.entries():
                if not ended.isdisjoint(queued.pending):
                    self._withdraw(queued, ended)

    def _withdraw(self, queued: Queued, brokers: set[str]) -> None:
        """Stop waiting for those of the brokers that no longer want it."""
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
                for to in self._log.route(message.stretch, queued.label)
                if any(
                    entry.position <= queued.log_position and entry.id not in queued.excluded
                    for entry in to.entries
                )
            }
        self._strike(queued, [name for name in queued.pending if name in brokers and name not in wanted])

    def last_for(self, client: str, subscription: str) -> int:
        """Return the serial of the last publication that waits for that subscription; 0 if none does."""
        hop = LocalClient(client)
        return max(
            (
                queued.serial + queued.last - queued.first
                for queued in self.queue.entries()
                if hop in queued.pending and subscription in queued.local.get(client, ())
            ),
            default=0,
        )

    def client_wants_no_more(self, client: str, subscription: str) -> None:
        """A client's subscription ended. Its other subscriptions may want the same events."""
        hop = LocalClient(client)
        for queued in self.queue.entries():
            wanted = queued.local.get(client, ())
            if hop not in queued.pending or subscription not in wanted:
                continue
            left = tuple(other for other in wanted if other != subscription)
            if left:
                queued.local = {**queued.local, client: left}
            elif not queued.hops.get(hop):  # what is in flight will be acknowledged as usual
                queued.local = {name: names for name, names in queued.local.items() if name != client}
                self._strike(queued, [hop])

    def adopt(self, placeholder: str, client: str, subscription: str, interest: Interest) -> None:
        """Add the client to whatever is kept for unknown clients and matches its subscription."""
        hop = LocalClient(client)
        in_flight = False
        for queued in self.queue.entries():
            for part in self._selected(queued, interest) if placeholder in queued.local else ():
                names = tuple(sorted({*part.local.get(client, ()), subscription}))
                part.local = {**part.local, client: names}
                part.pending.setdefault(hop, None)
                in_flight = in_flight or part.hops.get(hop, 0) > 0
        if in_flight:  # for another subscription of the client: resend it for both, in order
            self.hops.take_all_back(hop)
        if hop in self.hops.outgoing:
            self._hand_over_all(hop)

    def _selected(self, queued: Queued, interest: Interest) -> list[Queued]:
        """Split off and return what the interest selects of the entry."""
        message = self._spill.body(queued)
        if isinstance(message, ForwardGap):
            return [queued]
        parts: list[Queued] = []
        for first, last in selected(message.stretch, interest):
            if first > queued.first:
                queued = self.hops.split(queued, first)
            rest = self.hops.split(queued, last + 1) if last < queued.last else queued
            parts.append(queued)
            queued = rest
        return parts

    def _strike(self, queued: Queued, names: list[Hop]) -> None:
        for name in names:
            hop = queued.pending.pop(name)
            if hop is not None and hop not in queued.pending.values() and queued.hops.get(hop) == 0:
                del queued.hops[hop]
        if names and not queued.pending:
            hops = list(queued.hops)
            self.hops.take_back(queued)
            self._finish(queued)
            for hop in hops:
                self._pump(hop)

    # --- Gaps

    def _set_pending_of_gap(self, queued: Queued, subscriptions: Sequence[str]) -> None:
        here: list[str] = []
        own = self._sessions.neighbourhood
        for record_id in subscriptions:
            entry = self._log.get(record_id)
            if entry is None or entry.dead or not on_path(own.label, queued.label, entry.record.label):
                continue
            if entry.record.broker == self._name:
                here.append(record_id)
            else:
                queued.pending[entry.record.broker] = None
        queued.local = self._local.gap_targets(here)
        for client in queued.local:
            queued.pending[LocalClient(client)] = None

    def on_timer(self, name: TimerName) -> None:
        for gap in self._parking.sweep():
            self._assign(gap)

    # --- After a restart

    def _reload(self, row: Row, spilled: Spilled, stretch: Stretch) -> None:
        """Queue a spilled row of our own clients, whom we told that it is safe."""
        flow = (self._name, stretch.source, stretch.incarnation)
        self.seen[flow] = max(self.seen.get(flow, 0), stretch.last)
        verdict = _Verdict(flow, spilled.label, spilled.log_position, spilled.excluded)
        self._serial = max(self._serial, spilled.serial + stretch.count - 1)

        def complain(error: WireError) -> None:
            self.port.emit(SpillFailed(f"dropped a publication from the spill that does not decode: {error}"))

        for routed, route in self._log.routes(stretch, spilled.label, complain):
            here = verdict.here(route, self._name)
            parts = self._local.targets(routed, here) if here else [(routed, {})]
            for part, targets in parts:
                serial = spilled.serial + part.first - stretch.first
                queued = Queued(serial, flow, spilled.label, part.first, part.last, part.count, self.port.now)
                queued.log_position, queued.excluded = spilled.log_position, spilled.excluded
                queued.size_bytes = part.size_bytes
                queued.local = targets
                self._set_pending(queued, route)
                if queued.pending:
                    queued.senders.append((LocalClient(stretch.source), part.first))
                    queued.parked = True
                    queued.keep_in(row)
                    self.queue.add(queued)


def _admitted(to: Destination, log_position: int, excluded: tuple[str, ...]) -> tuple[LogEntry, ...]:
    """Return the destination's records that get publications taken at that position of the log."""
    if not excluded and to.newest <= log_position:
        return to.entries
    return tuple(entry for entry in to.entries if entry.position <= log_position and entry.id not in excluded)


def _from(stretch: Stretch, first: int) -> Stretch:
    return (
        stretch
        if first <= stretch.first or not isinstance(stretch, Run)
        else stretch.cut(first, stretch.last)
    )


def _with(message: Forward, stretch: Stretch) -> Forward:
    return Forward(
        message.origin, message.label, message.generation, message.stamp, message.excluded, stretch
    )
