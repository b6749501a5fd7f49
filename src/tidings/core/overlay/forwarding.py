"""Content-based subscription forwarding on an unrooted tree (epidemic, section 2.1).

An interest is forwarded to every neighbour except the one it came from: once per direction however many
subscriptions share it, and not at all where a wider interest already went that way. Publications follow the
interests back. A broker reports an interest `Settled` to the neighbour that sent it once all its other
neighbours have reported the same, so a subscription is accepted when the whole tree routes towards it.

A broker that restarts takes a new incarnation. Its neighbours resend their interests and keep routing by its old ones
until it has resent its own table. It does that, for each neighbour, once it has the tables of all the others, because
they make up most of its own. A tree has no cycles, so brokers cannot wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidings.core.errors import FilterError, TopicError
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.overlay.links import LAST_RETRY_NS, NeighbourLink, Numbers, changes, retry_delay_ns
from tidings.core.overlay.messages import (
    AddInterest,
    Changes,
    ChangesTaken,
    LinkOpen,
    RemoveInterest,
    Settled,
    TableSent,
)
from tidings.core.overlay.routing import RoutingTable

ABSENT_AFTER_NS = 3_000_000_000
"""We stop waiting for a neighbour that has not answered this long after our start."""


class ForwardingListener:
    """Callbacks for the parts above the forwarding."""

    def settled(self, interest: Interest) -> None:
        """The whole tree now routes this interest of local subscriptions."""


class SettledNumbers:
    """The origins' counters that neighbours attach to `Settled`. Empty except in epidemic mode."""

    def numbers_of(self, interest: Interest) -> Numbers:
        return ()

    def numbers_told(self, peer: str, numbers: Numbers) -> None: ...


class Forwarding(Part):
    name = "forwarding"
    handles = {LinkOpen: "on_link_open", Changes: "on_changes", ChangesTaken: "on_changes_taken"}

    def __init__(
        self,
        port: Port,
        neighbours: Sequence[str],
        table: RoutingTable,
        numbers: SettledNumbers,
        *,
        incarnation: int,
        covering: bool = True,
        absent_after_ns: int = ABSENT_AFTER_NS,
        longest_retry_ns: int = LAST_RETRY_NS,
    ) -> None:
        """Without `covering` every broker learns of every interest. Lossy links need a longer `absent_after_ns`."""
        super().__init__(port)
        self._absent_after_ns = absent_after_ns
        self._longest_retry_ns = longest_retry_ns
        self.incarnation = incarnation
        self.links = {peer: NeighbourLink(peer, covering=covering) for peer in neighbours}
        self._table = table
        self._numbers = numbers
        self._waiting: dict[Interest, None] = {}
        self.listeners: list[ForwardingListener] = []
        """Called in this order."""

    # --- Called by the edge

    def interest_gained(self, interest: Interest) -> None:
        """A local subscription now has this interest. `settled` follows, at once or later."""
        self._waiting[interest] = None
        self._reconcile(interest, None)
        self._check_settled(interest)
        self._flush_all()

    def interest_lost(self, interest: Interest) -> None:
        """A local subscription with this interest ended. Others may still have it."""
        if not self._table.subscriptions(interest):
            self._waiting.pop(interest, None)
        self._reconcile(interest, None)
        self._flush_all()

    # --- Opening a link

    def start(self) -> None:
        for link in self.links.values():
            self._open(link)
        self.port.set_timer((self.name, "absent"), self.port.now + self._absent_after_ns)

    def on_link_up(self, peer: str) -> None:
        link = self.links.get(peer)
        if link is not None:
            link.present = True
            link.open_attempt = 0
            self._open(link)
            self._repeat(link)

    def on_link_down(self, peer: str) -> None:
        link = self.links.get(peer)
        if link is not None:
            self._set_absent(link)

    def on_link_open(self, sender: str, message: LinkOpen) -> None:
        link = self.links.get(sender)
        if link is None:
            self.port.emit(Misbehaviour(sender, "opened a link, but is not a neighbour"))
            return
        if message.incarnation < link.heard:
            return  # delayed, from an earlier incarnation of the neighbour
        if message.incarnation > link.heard:
            link.restart(message.incarnation)
            self._send_table(link)
        self.heard_of(sender)
        link.present = True
        if message.answer_wanted:
            self.port.send(sender, LinkOpen(self.incarnation, link.heard, False))
        if message.heard == self.incarnation:
            self.port.cancel_timer((self.name, "open", sender))
        self._flush(link)

    def _open(self, link: NeighbourLink) -> None:
        self.port.send(link.peer, LinkOpen(self.incarnation, link.heard, True))
        delay_ns = retry_delay_ns(link.open_attempt, self._longest_retry_ns)
        link.open_attempt += 1
        self.port.set_timer((self.name, "open", link.peer), self.port.now + delay_ns)

    def _send_table(self, link: NeighbourLink) -> None:
        # Interests without a filter first: they cover most.
        for interest in sorted(self._table, key=lambda held: held.pattern is not None):
            if self._table.wanted_by_others(interest, link.peer):
                link.forward(interest)
        link.owes_table = True
        self._finish_tables()

    def _finish_tables(self) -> None:
        for link in self.links.values():
            others = (other for other in self.links.values() if other is not link)
            if link.owes_table and all(other.has_table or not other.present for other in others):
                link.owes_table = False
                link.stream.table_sent()

    def _set_absent(self, link: NeighbourLink) -> None:
        link.present = False
        self.fell_silent(link.peer)
        for interest in tuple(self._table):
            self._check_settled(interest)
        self._finish_tables()
        self._flush_all()

    # --- Members of groups behind a neighbour that is silent do not count, but are not forgotten

    def fell_silent(self, peer: str) -> None:
        """Nothing was heard from the neighbour for too long, or its connection is lost."""
        link = self.links[peer]
        if not link.silent:
            link.silent = True
            for interest in tuple(link.members_received):
                self._table.remove_neighbour(interest, peer)
                self._reconcile(interest, link)
            self._flush_all()

    def heard_of(self, peer: str) -> None:
        """The neighbour is there."""
        link = self.links[peer]
        if link.silent:
            link.silent = False
            for interest in tuple(link.members_received):
                self._table.add_neighbour(interest, peer)
                self._reconcile(interest, link)
            self._flush_all()

    # --- The stream of changes

    def on_changes(self, sender: str, message: Changes) -> None:
        link = self.links.get(sender)
        if link is None:
            self.port.emit(Misbehaviour(sender, "sent interests, but is not a neighbour"))
            return
        if message.to_incarnation != self.incarnation or message.incarnation != link.heard:
            self.port.send(sender, LinkOpen(self.incarnation, link.heard, True))
            return
        self.heard_of(sender)
        if message.number == link.taken + 1:
            link.taken = message.number
            for change in message.changes:
                self._apply(link, change)
        self.port.send(sender, ChangesTaken(self.incarnation, link.heard, link.taken))
        self._flush_all()

    def on_changes_taken(self, sender: str, message: ChangesTaken) -> None:
        link = self.links.get(sender)
        if link is None or message.to_incarnation != self.incarnation or message.incarnation != link.heard:
            return
        if link.stream.taken(message.number):
            self.port.cancel_timer((self.name, "repeat", sender))
            self._flush(link)

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "absent":
            for link in self.links.values():
                if link.heard == 0:
                    self._set_absent(link)
            return
        link = self.links[str(name[2])]
        if name[1] == "open":
            self._open(link)
        else:
            self._repeat(link)

    def _flush_all(self) -> None:
        for link in self.links.values():
            self._flush(link)

    def _flush(self, link: NeighbourLink) -> None:
        if link.heard == 0:
            return
        batch = link.stream.next_batch()
        if batch is not None:
            self._send_batch(link)

    def _repeat(self, link: NeighbourLink) -> None:
        if link.stream.in_flight is not None and link.heard:
            link.stream.attempt += 1
            self._send_batch(link)

    def _send_batch(self, link: NeighbourLink) -> None:
        assert link.stream.in_flight is not None
        self.port.send(link.peer, changes(self.incarnation, link, link.stream.in_flight))
        delay_ns = retry_delay_ns(link.stream.attempt, self._longest_retry_ns)
        self.port.set_timer((self.name, "repeat", link.peer), self.port.now + delay_ns)

    # --- Changes from a neighbour

    def _apply(self, link: NeighbourLink, change: object) -> None:
        if isinstance(change, AddInterest):
            self._apply_add(link, change)
        elif isinstance(change, RemoveInterest):
            link.stale.pop(change.key, None)
            self._apply_remove(link, change.key)
        elif isinstance(change, Settled):
            self._apply_settled(link, change)
        elif isinstance(change, TableSent):
            for key in link.stale:
                self._apply_remove(link, key)
            link.stale.clear()
            link.has_table = True
            self._finish_tables()

    def _apply_add(self, link: NeighbourLink, change: AddInterest) -> None:
        key = change.key
        link.stale.pop(key, None)
        interest = link.received.get(key)
        if interest is None:
            interest = self._readable_interest(link, change)
            link.receive(key, interest)
            self._table.add_neighbour(interest, link.peer)
            self._reconcile(interest, link)
        link.owed.setdefault(interest, {})[key] = change.serial
        self._check_settled(interest)

    def _readable_interest(self, link: NeighbourLink, change: AddInterest) -> Interest:
        """Return the interest. Widen one that this version cannot read, so that no event is withheld."""
        try:
            return make_interest(change.topics, change.filter)
        except FilterError as error:
            self.port.emit(
                Misbehaviour(link.peer, f"cannot read its filter, so sending it all of its topics: {error}")
            )
        except TopicError as error:
            self.port.emit(
                Misbehaviour(link.peer, f"cannot read its topics, so sending it everything: {error}")
            )
            return make_interest((), None)
        return make_interest(change.topics, None)

    def _apply_remove(self, link: NeighbourLink, key: bytes) -> None:
        interest = link.received.pop(key, None)
        if interest is None:
            return
        keys = link.keys[interest]
        del keys[key]
        link.owed.get(interest, {}).pop(key, None)
        if not keys:
            del link.keys[interest]
            link.owed.pop(interest, None)
            link.members_received.pop(interest, None)
            self._table.remove_neighbour(interest, link.peer)
            self._reconcile(interest, link)

    def _apply_settled(self, link: NeighbourLink, change: Settled) -> None:
        interest = link.by_key.get(change.key)
        if interest is not None and link.sent[interest] == change.serial:
            link.settled[interest] = None
            self._numbers.numbers_told(link.peer, change.numbers)
            self._check_settled(interest)
            for covered in tuple(link.covering.get(interest, ())):
                self._check_settled(covered)

    def _reconcile(self, interest: Interest, source: NeighbourLink | None) -> None:
        for link in self.links.values():
            if link is source or link.heard == 0:
                continue  # a neighbour that has not answered yet gets the whole table when it does
            wanted = self._table.wanted_by_others(interest, link.peer)
            if wanted and not link.forwards(interest):
                link.forward(interest)
            elif not wanted and link.forwards(interest):
                for dependant in link.withdraw(interest):
                    self._check_settled(dependant)

    def _check_settled(self, interest: Interest) -> None:
        """Report the interest as settled to whoever waits for it, if everybody except them routes it."""
        unsettled: NeighbourLink | None = None
        for link in self.links.values():
            if not link.is_settled(interest):
                if unsettled is not None:
                    return
                unsettled = link
        for link in self.links.values():
            if (unsettled is None or unsettled is link) and interest in link.owed:
                for key, serial in link.owed.pop(interest).items():
                    link.stream.settled(key, serial, self._numbers.numbers_of(interest))
        if unsettled is None and interest in self._waiting:
            del self._waiting[interest]
            for listener in self.listeners:
                listener.settled(interest)
