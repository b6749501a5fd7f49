"""A replica of a sequencer server: active, or a standby that continues where the active one stopped.

The active replica writes each batch of inputs to its disk and, while its standby is in step, waits until the standby
has the batch on its own disk. Only then do the outputs leave. So both know everything that anybody was told. The
standby takes over when it has heard nothing for a while; the active replica continues alone when its standby is silent.
Both need the witness, which grants one claim per term (witness.py). The loser learns that from the witness or from the
other replica, discards its state and requests the other's. A lease only decides when to ask: a wrong guess costs a
change of roles, never a number used twice.

    waiting  no state, or not sure that it is still active: asks the other for its state, the witness for a ruling
    standby  has the state up to some batch, takes further ones
    active   answers; gated: sends nothing that the standby does not have; alone: does not wait for the standby
    lost     the witness says that this replica continued alone, but its disk is empty: its numbers are unknown
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Raw, Struct

from tidings.core.errors import OrderError, StoreError
from tidings.core.facts import Fact, Misbehaviour
from tidings.core.kernel import Port
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.messages import (
    Between,
    ChainItem,
    ChainTaken,
    ChangeSubscription,
    Claim,
    Create,
    NoOpsPublished,
    NoState,
    NotActive,
    PublisherAlive,
    PublisherExpired,
    PublisherGone,
    Replicate,
    Replicated,
    Ruling,
    StatePart,
    StateTaken,
    StateWanted,
    SubscriberAlive,
    SubscriberExpired,
)
from tidings.core.ordering.replication.early_items import EarlyItems, EarlyRequests
from tidings.core.ordering.replication.journal import Journal
from tidings.core.ordering.replication.output_gate import OutputGate
from tidings.core.ordering.replication.standby_link import StandbyLink
from tidings.core.ordering.replication.transfer import StateReceiver
from tidings.core.ordering.routes import Routes
from tidings.core.ordering.server.leases import Leases
from tidings.core.ordering.server.machine import Input, SequencerMachine, decode_inputs
from tidings.core.store import Store

MAX_BATCH_BYTES = 256 * 1024
MAX_UNTAKEN = 16_384
"""Unacknowledged items of the chain; beyond, requests are ignored, and clients retry."""
NO_TERM = 2**63 - 1
"""The term of a claim that is never granted: it asks for the current ruling."""
EXPIRE_TICKS = 4
"""Leases are long, so checking all clients every few ticks is enough."""

ClientMessage = Create | ChangeSubscription | PublisherAlive | PublisherGone | SubscriberAlive
_OF_SUBSCRIBERS = (ChangeSubscription, SubscriberAlive)
_encode = msgspec.msgpack.Encoder().encode


class Times(Struct, frozen=True):
    sign_ns: int = 200_000_000
    """Interval of heartbeats, resends and checks of leases."""
    lease_ns: int = 2_000_000_000
    """A standby that has heard nothing for this long takes over; an active replica continues alone after half of it."""
    publisher_ns: int = 10_000_000_000
    """A publisher that is silent for this long is dead."""
    subscriber_ns: int = 24 * 3_600_000_000_000


class ReplicaRole(StrEnum):
    WAITING = "waiting"
    STANDBY = "standby"
    ACTIVE = "active"
    LOST = "lost"


class RoleChanged(Fact, frozen=True, gc=False):
    server: str
    role: str
    term: int
    alone: bool


class Replica:
    """One replica. `first` means that there never was a state; it matters only for servers without a standby."""

    def __init__(
        self,
        port: Port,
        server: str,
        layout: Layout,
        store: Store,
        routes: Routes,
        times: Times,
        *,
        first: bool,
    ) -> None:
        self.port = port
        self.server = server
        self.role = ReplicaRole.WAITING
        self.term = 0
        self.alone = True
        self.trouble = ""
        """Why the disk does not take writes; empty if it does."""
        self.machine: SequencerMachine | None = None
        self._layout = layout
        self._routes = routes
        self._times = times
        self._first = first
        place = layout.place(server)
        self._witness = place.witness
        self._peer = next((node for node in layout.replicas(server) if node != port.node), "")
        self._above = layout.chain.above(server)
        self._below = layout.chain.below(server)
        self._journal = Journal(store, server, layout)
        drawn = port.random.randrange(1, 2**62)
        self._claim_nonce = drawn if self._journal.standing.term else self._journal.claim_nonce or drawn
        self._number = 0
        """The number of the last batch on disk."""
        self._batch: list[Raw] = []
        self._batch_bytes = 0
        self._committing = False
        self._output_gate = OutputGate(port, server, layout, routes)
        self._leases = Leases()
        self._ticked_at = port.now
        self._ticks = 0
        # The other replica
        self._peer_heard_at = port.now
        self._claiming: bool | None = None
        """True while it claims to continue alone, False while it claims to be in step; None: no claim."""
        self._send_to_peer = port.sender(self._peer or port.node)  # unused without a peer
        self._standby = StandbyLink(server, self._send_to_peer)
        self._state_term = 0
        """The last term in which a state was sent; acknowledgements in it may be for a state that is gone."""
        self._floor = 0
        """The last term in which this replica had a state; states of it or of earlier terms are out of date."""
        self._receiver = StateReceiver()
        self._received: list[bytes] = []
        self._peer_has_none = False
        """The other replica never had a state."""
        self._early_requests = EarlyRequests()
        self._early_items: EarlyItems[tuple[str, ChainItem]] = EarlyItems()
        self._early_batches: EarlyItems[bytes] = EarlyItems()

    # --- Roles

    def start(self) -> None:
        standing = self._journal.standing
        self.term, self.alone = standing.term, standing.alone
        self._floor = self._state_term = standing.term
        if standing.stated:
            self.machine, self._number = self._journal.load()
            if not self._peer or (standing.active == self.port.node and standing.alone):
                self._become_active()
            elif standing.active == self.port.node:
                self._claiming = True
            else:
                self._become(ReplicaRole.STANDBY)
        elif not self._peer:
            if self._first:
                self._begin()
            else:
                self._become(ReplicaRole.LOST)
        self._set_timer("tick", self._times.sign_ns)
        self._ask_around()

    def _begin(self) -> None:
        """Start numbering: the server never had a state."""
        self.machine, self._number = SequencerMachine(self.server, self._layout), 0
        self.machine.lineage = self.port.random.randrange(1, 2**62)
        try:
            self._journal.replace(self.machine.written(), 0, self.term, self.port.node, alone=True)
        except StoreError as error:
            self.trouble = str(error)
            self.machine = None  # retried at the next tick
            return
        self.trouble = ""
        self._become_active()

    def _become(self, role: ReplicaRole) -> None:
        self.role = role
        self.port.emit(RoleChanged(self.server, role, self.term, self.alone))

    def _become_active(self) -> None:
        assert self.machine is not None
        self._routes.speaks(self.server, self.port.node)
        self._leases.clear()
        self._forget_early()
        self._become(ReplicaRole.ACTIVE)
        self._output_gate.begin(self.machine)
        if self._peer:  # a peer that believes it is in step no longer is, and should soon ask for the state
            self.port.send(self._peer, Ruling(self.server, self.term, self.port.node, self.alone, 0))
            self._announce()

    def _announce(self) -> None:
        """Announce that this replica is active to all that may have asked the other in vain."""
        assert self.machine is not None
        speaks = NotActive(self.server, self.port.node)
        nodes = {*self._layout.nodes, *self.machine.server.clients} - {self.port.node}
        for node in sorted(nodes):
            self.port.send(node, speaks)

    def _step_down(self, term: int, active: str, *, alone: bool) -> None:
        """Discard the state: the other continued, and nobody was told anything that it does not have."""
        try:
            self._journal.forget(term, active, alone=alone)
        except StoreError as error:  # a state found again is harmless: the witness has a later term
            self.trouble = str(error)
        self._floor = max(self._floor, self.term)
        self.term, self.alone = term, alone
        self.machine = None
        self._number = 0
        self._drop_batch()
        self._received.clear()
        self._forget_early()
        self._standby.leave_behind()
        self._claiming = None
        self._routes.speaks(self.server, active)
        self._become(ReplicaRole.WAITING)
        self._ask_around()

    def _forget_early(self) -> None:
        self._early_requests.clear()
        self._early_items.clear()
        self._early_batches.clear()

    def _drop_batch(self) -> None:
        self._batch.clear()
        self._batch_bytes = 0
        self._output_gate.forget()

    def _set_timer(self, what: str, after_ns: int) -> None:
        self.port.set_timer(("sequencer", self.server, what), self.port.now + after_ns)

    def on_timer(self, what: str) -> None:
        if what == "commit":
            self._committing = False
            self._commit()
            self._commit_received()
        else:
            self._tick()
            self._set_timer("tick", self._times.sign_ns)

    def _tick(self) -> None:
        now = self.port.now
        if now - self._ticked_at > self._times.lease_ns // 2:
            self._leases.clear()  # this process was suspended: messages to us are still unread
            self._peer_heard_at = now
        self._ticked_at = now
        self._ticks += 1
        if self.role is ReplicaRole.ACTIVE:
            assert self.machine is not None
            self._commit()
            if self._ticks % EXPIRE_TICKS == 0:
                self._expire()
            self._output_gate.repeat_chain(self.machine)
            self._tend_standby()
        elif self.role is ReplicaRole.STANDBY:
            self._commit_received()
            if now - self._peer_heard_at > self._times.lease_ns:
                self._claim(alone=True)
        else:
            self._ask_around()

    def _ask_around(self) -> None:
        if self._peer and self._claiming:
            self._claim(alone=True)
            if self.machine is not None and not self.alone:
                self.port.send(self._peer, Replicate(self.server, self.term, self._number))
        elif self._peer:
            if self.role is ReplicaRole.WAITING:
                self.port.send(self._peer, StateWanted(self.server))
            self._claim_first()  # or learn who is active; a late ruling may have made us believe that all is lost

    def _claim_first(self) -> None:
        """Make the server's very first claim or, while the other may have a state, only ask who is active.

        A witness that lost its disk would grant the claim.
        """
        if not self._peer_has_none:
            self.port.send(self._witness, Claim(self.server, NO_TERM, True, self._claim_nonce))
            return
        if not self._journal.standing.term and self._journal.claim_nonce is None:
            try:
                self._journal.keep_claim_nonce(self._claim_nonce)
            except StoreError as error:
                self.trouble = str(error)
                return
        self.port.send(self._witness, Claim(self.server, 0, True, self._claim_nonce))

    # --- Inputs

    def on_client(self, sender: str, message: ClientMessage) -> None:
        if self.role is not ReplicaRole.ACTIVE:
            self._redirect(sender)
            return
        machine = self.machine
        assert machine is not None
        if isinstance(message, _OF_SUBSCRIBERS):
            identity = message.subscriber
        else:
            identity = message.publisher
        if sender == identity[0]:
            self._leases.hear(identity, self.port.now)
        if isinstance(message, SubscriberAlive):
            if sender != identity[0]:
                return
            self._leases.note_stall(message, self.port.now)
            if machine.server.has_subscriber(identity):
                return
        # An unknown client is told so only when the standby agrees, like all else: we may be deposed.
        if not self._is_full():
            if isinstance(message, Create):
                self._take_request(sender, message)
            else:
                self._input(sender, message)

    def _take_request(self, sender: str, message: Create) -> None:
        """Take a request and those that follow it and arrived early."""
        assert self.machine is not None
        if sender == message.publisher[0] and self.machine.server.is_early(message):
            self._early_requests.keep(message)
            return
        self._input(sender, message)
        for following in self._early_requests.after(message):
            self._input(following.publisher[0], following)

    def _redirect(self, sender: str) -> None:
        lost = self.role is ReplicaRole.LOST
        self.port.send(sender, NotActive(self.server, "" if lost else self._peer, lost))

    def on_chain_item(self, sender: str, message: ChainItem) -> None:
        if self._is_from_neighbour(sender, self._below):
            assert self.machine is not None and self._below is not None
            self._routes.speaks(self._below, sender)
            if message.number <= self.machine.taken:  # a duplicate changes nothing, and is acknowledged
                if not self._output_gate.is_full:
                    self.machine.apply(sender, message)
                    self._collect()
            elif message.number > self.machine.taken + 1:
                self._early_items.keep(message.number, (sender, message))
            elif not self._is_full():
                self._early_items.pop(message.number)
                self._input(sender, message)
                while (item := self._early_items.pop(self.machine.taken + 1)) is not None:
                    self._input(*item)

    def on_chain_taken(self, sender: str, message: ChainTaken) -> None:
        if self._is_from_neighbour(sender, self._above) and self._above is not None:
            assert self.machine is not None
            self._routes.speaks(self._above, sender)
            if next(iter(self.machine.untaken), message.number + 1) <= message.number:
                self._output_gate.was_heard()
                self._input(sender, message)

    def on_between(self, sender: str, message: Between) -> None:
        if self.role is ReplicaRole.ACTIVE and sender in self._layout.nodes and not self._is_full():
            self._input(sender, message)

    def no_ops_published(self, number: int) -> None:
        if self.role is ReplicaRole.ACTIVE and self.machine is not None and number in self.machine.no_ops:
            self._input(self.port.node, NoOpsPublished(number))

    def _is_from_neighbour(self, sender: str, server: str | None) -> bool:
        if self._routes.is_replica(server, sender):
            if self.role is not ReplicaRole.ACTIVE:
                self._redirect(sender)
            return self.role is ReplicaRole.ACTIVE
        self.port.emit(Misbehaviour(sender, f"sends along the chain to {self.server} but is not next to it"))
        return False

    def _is_full(self) -> bool:
        """Return whether new inputs must be ignored; their senders retry."""
        assert self.machine is not None
        return (
            len(self.machine.untaken) >= MAX_UNTAKEN
            or self._standby.is_full
            or self._output_gate.is_full
            or bool(self.trouble)
        )

    def _input(self, sender: str, message: Input) -> None:
        machine = self.machine
        assert machine is not None
        machine.apply(sender, message)
        written = _encode((sender, message))
        self._batch.append(Raw(written))
        self._batch_bytes += len(written)
        self._output_gate.hold(self._number + 1, machine)
        if self._batch_bytes > MAX_BATCH_BYTES:
            self._commit()
        elif not self._committing:
            self._committing = True
            self._set_timer("commit", 0)

    def _collect(self) -> None:
        """Hold or send the outputs of an input that is not written."""
        assert self.machine is not None
        self._output_gate.hold(self._number + bool(self._batch), self.machine)
        if not self._batch:
            self._release()

    def _commit(self) -> None:
        """Write the inputs since the last commit as one batch; none of their outputs has left."""
        if self.role is not ReplicaRole.ACTIVE:
            return
        if not self._batch:
            self.trouble = ""  # the next write shows whether it lasts
            return
        inputs = _encode(self._batch)
        try:
            self._journal.append(self._number + 1, [inputs])
        except StoreError as error:
            self.trouble = str(error)
            return  # retried at the next tick
        self.trouble = ""
        self._number += 1
        self._batch.clear()
        self._batch_bytes = 0
        self._standby.written(self.term, self._number, inputs)
        self._release()
        self._compact()

    def _compact(self) -> None:
        if self._journal.is_long and self.machine is not None:
            standing = self._journal.standing
            try:
                self._journal.replace(
                    self.machine.written(), self._number, standing.term, standing.active, alone=standing.alone
                )
            except StoreError as error:  # the batches are still there
                self.trouble = str(error)

    def _release(self) -> None:
        self._output_gate.release(self._standby.safe(self._number))

    # --- Leases of clients

    def _expire(self) -> None:
        assert self.machine is not None
        now, server, leases = self.port.now, self.machine.server, self._leases
        publishers, subscribers = server.publishers, server.subscribers
        known = {*publishers, *subscribers}
        leases.keep_only(known)
        self._early_requests.keep_only(known)
        for publisher in leases.overdue(publishers, now, self._times.publisher_ns):
            self._input(self.port.node, PublisherExpired(publisher))
        for subscriber in leases.overdue(subscribers, now, self._times.subscriber_ns):
            self._input(self.port.node, SubscriberExpired(subscriber))

    # --- The active replica and its standby

    def _tend_standby(self) -> None:
        if not self._peer:
            return
        silent_ns = self.port.now - self._peer_heard_at
        if self._standby.is_receiving_state and silent_ns > self._times.lease_ns:
            self._standby.leave_behind()  # it asks again when it is back
        self._standby.tick(self.term, self._number)
        if self._standby.follows and silent_ns > self._times.lease_ns // 2:
            self._claiming = True
        if self._claiming is not None:
            self._claim(alone=self._claiming)

    def on_no_state(self, sender: str, message: NoState) -> None:
        if sender == self._peer and self.machine is None and not self._journal.standing.term:
            self._peer_has_none = True
            self._claim_first()

    def on_state_wanted(self, sender: str, message: StateWanted) -> None:
        if sender != self._peer:
            return
        if self.machine is None and not self.term:
            self.port.send(self._peer, NoState(self.server))
        if self.role is ReplicaRole.STANDBY:  # the active replica has lost its state
            self._claim(alone=True)
        elif self.role is ReplicaRole.ACTIVE and not self._standby.is_receiving_state:
            if self._standby.is_gated or self._state_term == self.term:
                self._claiming = True
                self._claim(alone=True)
            else:
                self._send_state()

    def _send_state(self) -> None:
        assert self.machine is not None
        self._commit()
        if self._batch:
            return  # the disk does not take writes
        self._peer_heard_at = self.port.now
        self._state_term = self.term
        self._standby.send_state(self.term, self._number, self.machine.written())

    def on_state_taken(self, sender: str, message: StateTaken) -> None:
        if sender == self._peer and self._standby.state_taken(message):
            self._peer_heard_at = self.port.now

    def _resume(self, message: Replicated) -> None:
        """Continue as the active replica after a restart: the standby has not taken over.

        That needs no ruling: a standby with a ruling of its own no longer answers in this term.
        """
        missing = self._journal.batches_after(message.number, self._number)
        if missing is None:
            return
        self._claiming = None
        self.alone = True  # the witness may not know that the standby is in step: that is claimed again
        self._become_active()
        self._standby.resume(self._number, message.number, missing)

    def on_replicated(self, sender: str, message: Replicated) -> None:
        if sender != self._peer or message.term != self.term:
            return
        if (
            self.role is ReplicaRole.WAITING
            and self.machine is not None
            and self._claiming
            and not self.alone
        ):
            self._resume(message)
        if self.role is not ReplicaRole.ACTIVE:
            return
        self._peer_heard_at = self.port.now
        if self._standby.has(message.number, self.term, self._number):
            self._release()
            self._maybe_claim_step()

    def _maybe_claim_step(self) -> None:
        """Claim to be in step once the standby has all that was sent while alone: then it may take over."""
        if self._standby.may_take_over and self.alone and self._claiming is None:
            # Written first: if we stop before we learn the ruling, we must not continue alone.
            try:
                self._journal.stand(self.term, self.port.node, alone=False)
            except StoreError as error:
                self.trouble = str(error)
                return  # retried at the standby's next message
            self._claiming = False
            self._claim(alone=False)

    # --- The standby

    def on_state_part(self, sender: str, message: StatePart) -> None:
        if sender != self._peer or self.role is ReplicaRole.ACTIVE or message.term < self.term:
            return
        if message.term <= self._floor:
            if self.role is ReplicaRole.STANDBY and message.term == self.term:
                self._acknowledge()
            return
        state = self._receiver.take(message)
        self.port.send(self._peer, StateTaken(self.server, message.number, self._receiver.count))
        if state is not None:
            machine = SequencerMachine(self.server, self._layout)
            try:
                machine.restore(state)
                self._journal.replace(state, message.number, message.term, self._peer, alone=True)
            except (OrderError, StoreError) as error:
                self.trouble = str(error)
                return
            self.trouble = ""
            self.machine, self._number = machine, message.number
            self._floor = message.term
            self.term, self.alone = message.term, True
            self._claiming = None
            self._received.clear()
            self._forget_early()
            self._peer_heard_at = self.port.now
            self._routes.speaks(self.server, self._peer)
            self._become(ReplicaRole.STANDBY)
            self._acknowledge()

    def on_replicate(self, sender: str, message: Replicate) -> None:
        if sender != self._peer:
            return
        if message.term < self.term or (self.role is ReplicaRole.ACTIVE and message.term == self.term):
            if self.role is ReplicaRole.ACTIVE:
                ruling = Ruling(self.server, self.term, self.port.node, self.alone, 0)
                self.port.send(self._peer, ruling)
            return
        if self.role is ReplicaRole.ACTIVE:
            self._step_down(message.term, sender, alone=True)
        elif self.role is ReplicaRole.STANDBY:
            if message.term != self.term:
                self._early_batches.clear()
            self.term = self._floor = message.term
            self._peer_heard_at = self.port.now
            self._take_batch(message)

    def _take_batch(self, message: Replicate) -> None:
        if not message.inputs:
            self._acknowledge()
            if message.number > self._number + len(self._received):
                return  # the active replica resends what is missing
        elif (following := self._number + len(self._received) + 1) < message.number:
            self._early_batches.keep(message.number, message.inputs)
            self._acknowledge()
        elif message.number == following:
            self._early_batches.pop(following)
            batch: bytes | None = message.inputs
            while batch is not None:
                self._received.append(batch)
                following += 1
                batch = self._early_batches.pop(following)
            if not self._committing:
                self._committing = True
                self._set_timer("commit", 0)
        else:
            self._acknowledge()

    def _commit_received(self) -> None:
        machine = self.machine
        if not self._received or machine is None or self.role is ReplicaRole.ACTIVE:
            return
        batches, self._received = self._received, []
        try:
            inputs = [decode_inputs(batch) for batch in batches]
            self._journal.append(self._number + 1, batches)
        except (OrderError, StoreError) as error:
            self.trouble = str(error)  # not acknowledged: if it lasts, the active replica continues alone
            return
        self.trouble = ""
        for batch in inputs:
            for sender, message in batch:
                machine.apply(sender, message)
        machine.outputs.clear()
        self._number += len(batches)
        self._acknowledge()
        self._compact()

    def _acknowledge(self) -> None:
        self._send_to_peer(Replicated(self.server, self.term, self._number))

    # --- The witness

    def _claim(self, *, alone: bool) -> None:
        if self.machine is not None and self._witness:
            self.port.send(self._witness, Claim(self.server, self.term, alone, self._claim_nonce))

    def on_ruling(self, sender: str, message: Ruling) -> None:
        if sender not in (self._witness, self._peer) or message.term < self.term:
            return
        if message.active == self.port.node:
            self._on_own_ruling(message)
        elif message.active == self._peer and sender == self._peer and message.term == self.term:
            return
        elif message.active == self._peer:
            self._on_other_ruling(message)

    def _on_own_ruling(self, message: Ruling) -> None:
        if self.machine is None:
            if message.claim_nonce == self._claim_nonce and message.term == 1:
                self.term = 1
                self._begin()
            else:
                self.term = message.term
                if message.alone and self.role is not ReplicaRole.LOST:
                    self._become(ReplicaRole.LOST)
            return
        if message.claim_nonce != self._claim_nonce:
            self.term = message.term  # granted to an earlier run; claim from there
            return
        if message.term == self.term:
            return
        try:
            self._journal.stand(message.term, self.port.node, alone=message.alone)
        except StoreError as error:
            self.trouble = str(error)
            return  # the next claim gets the same ruling
        self.term, self.alone = message.term, message.alone
        if self.alone or self._claiming is False:
            self._claiming = None
        if self.role is not ReplicaRole.ACTIVE:
            self._commit_received()
            self._standby.leave_behind()
            self._become_active()
        elif self.alone:
            self._standby.leave_behind()
            self.port.emit(RoleChanged(self.server, self.role, self.term, self.alone))
            self._release()
        else:
            self.port.emit(RoleChanged(self.server, self.role, self.term, self.alone))
            self._standby.repeat(self.term)

    def _on_other_ruling(self, message: Ruling) -> None:
        """Handle a ruling that the other replica is active."""
        if self.role is ReplicaRole.ACTIVE or self._claiming:
            if message.term > self.term or self.role is not ReplicaRole.ACTIVE:
                self._step_down(message.term, message.active, alone=message.alone)
        elif self.role is ReplicaRole.STANDBY:
            if message.alone:
                silent = self.port.now - self._peer_heard_at > self._times.lease_ns
                if message.term > self.term or silent:  # else our state is of this very term
                    self._step_down(message.term, message.active, alone=True)
            else:
                self.term = self._floor = message.term  # in step in this term: claim from there
        else:
            self.term = message.term
            self._routes.speaks(self.server, message.active)
            if self.role is ReplicaRole.LOST:
                self._become(ReplicaRole.WAITING)

    # --- Status

    def status(self) -> dict[str, object]:
        found: dict[str, object] = {"role": str(self.role), "term": self.term, "batches": self._number}
        if self._peer:
            found["standby"] = "none" if self.alone else "in step"
        if self.trouble:
            found["trouble"] = self.trouble
        if self.role is ReplicaRole.LOST:
            found["trouble"] = "its state is lost, so its topics get no more numbers: start a new layout"
        if self.machine is not None:
            server = self.machine.server
            found |= {
                "topics": len(server.own),
                "subscribers": server.subscriptions,
                "publishers": len(server.publishers),
                "unacknowledged": server.unacknowledged,
                "up_the_chain": len(self.machine.untaken),
                "no_ops": len(self.machine.no_ops),
                "stalled": self._leases.stalled(self._layout, self.port.now),
            }
        return found
