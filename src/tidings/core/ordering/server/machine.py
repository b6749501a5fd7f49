"""A server as a deterministic state machine: inputs in, outputs out, and a state that can be serialized.

Every replica that gets the same inputs in the same order has the same state and makes the same outputs. Besides the
server itself, the state includes what must survive a takeover:

* unacknowledged items of the chain, numbered, so that the link is reliable and FIFO over any transport, across restarts
  and takeovers;
* no-ops that the event service has not confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from tidings.core.errors import OrderError
from tidings.core.events.timestamp import Timestamp
from tidings.core.facts import Output
from tidings.core.kernel import RandomSource, Send, TimerName
from tidings.core.messages import Message
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.messages import (
    AnswersTaken,
    Between,
    ChainItem,
    ChainMessage,
    ChainTaken,
    ChangeSubscription,
    Create,
    CreateRelay,
    NoOpsPublished,
    PublisherAlive,
    PublisherExpired,
    PublisherGone,
    StampsAgain,
    SubscriberAlive,
    SubscriberExpired,
    SubscribeWalk,
    WalkAgain,
)
from tidings.core.ordering.server.server import NoOps, SequencerServer, ServerState

Input = (
    Create
    | ChangeSubscription
    | PublisherAlive
    | PublisherGone
    | SubscriberAlive
    | ChainItem
    | ChainTaken
    | Between
    | PublisherExpired
    | SubscriberExpired
    | NoOpsPublished
)
Inputs = list[tuple[str, Input]]
"""(sender, message)"""

MachineOutput = tuple[str, Message] | Output
"""A message to a client's node or (items of the chain, `Between`) to a server; or an output for the driver."""

_CHAIN = (CreateRelay, AnswersTaken, SubscribeWalk)
_BETWEEN = (StampsAgain, WalkAgain)
_encode = msgspec.msgpack.Encoder().encode
_decode_inputs = msgspec.msgpack.Decoder(Inputs).decode


class MachineState(Struct, array_like=True):
    server: ServerState
    sent: int
    untaken: list[tuple[int, ChainMessage]]
    taken: int
    no_ops: list[tuple[int, Timestamp, int]]
    no_ops_made: int
    lineage: int = 0


_decode_state = msgspec.msgpack.Decoder(MachineState).decode


class PublishNoOps(Output, frozen=True, gc=False):
    """Asks the driver to publish these in the event service, then to call `no_ops_published(number)`."""

    server: str
    number: int
    stamp: Timestamp
    count: int


class _CapturingPort:
    """The server's port: turns what it sends and emits into outputs. It has no clock and no randomness."""

    random: RandomSource

    def __init__(
        self, server: str, send: Callable[[str, Message], None], emit: Callable[[object], None]
    ) -> None:
        self.node = server
        self.send = send
        self.emit = emit

    @property
    def now(self) -> int:
        raise NotImplementedError("a machine has no clock")

    def sender(self, to: str) -> Send:
        return lambda message: self.send(to, message)

    def set_timer(self, name: TimerName, at: int) -> None:
        raise NotImplementedError("a machine has no timers")

    def cancel_timer(self, name: TimerName) -> None:
        raise NotImplementedError("a machine has no timers")


class SequencerMachine:
    def __init__(self, server: str, layout: Layout) -> None:
        self.outputs: list[MachineOutput] = []
        self.untaken: dict[int, ChainMessage] = {}
        """Number -> item that went up the chain and is not acknowledged."""
        self.no_ops: dict[int, PublishNoOps] = {}
        self.lineage = 0
        """Drawn when the numbering began, and part of the state since: a server that lost its state has another."""
        self._name = server
        self._above = layout.chain.above(server)
        self._below = layout.chain.below(server)
        self._servers = frozenset(layout.chain.servers)
        self._sent = 0
        self._taken = 0
        """The number of the last item from below."""
        self._no_ops_made = 0
        port = _CapturingPort(server, self._on_send, self._on_emit)
        self.server = SequencerServer(port, layout.chain, threshold=layout.threshold)
        self._handlers: dict[type, Callable[[str, Any], None]] = {
            Create: self.server.on_create,
            ChangeSubscription: self.server.on_change_subscription,
            PublisherAlive: self.server.on_publisher_alive,
            PublisherGone: self.server.on_publisher_gone,
            SubscriberAlive: self.server.on_subscriber_alive,
            ChainItem: self._on_chain_item,
            ChainTaken: self._on_chain_taken,
            Between: self._on_between,
            PublisherExpired: self._on_publisher_expired,
            SubscriberExpired: self._on_subscriber_expired,
            NoOpsPublished: self._on_no_ops_published,
        }

    @property
    def sent(self) -> int:
        """The number of the last item that went up the chain."""
        return self._sent

    @property
    def taken(self) -> int:
        """The number of the last item that came from below."""
        return self._taken

    def apply(self, sender: str, message: Input) -> None:
        """Apply one input and append its results to `outputs`."""
        self._handlers[message.__class__](sender, message)

    # --- The chain

    def _on_chain_item(self, sender: str, item: ChainItem) -> None:
        assert self._below is not None
        if item.number == self._taken + 1:
            self._taken += 1
            message = item.message
            if isinstance(message, CreateRelay):
                self.server.on_create_relay(self._below, message)
            elif isinstance(message, SubscribeWalk):
                self.server.on_subscribe_walk(self._below, message)
            else:
                self.server.on_answers_taken(self._below, message)
        # Duplicates are acknowledged, too: the earlier acknowledgement may be lost.
        self.outputs.append((self._below, ChainTaken(self._below, self._taken)))

    def _on_chain_taken(self, sender: str, message: ChainTaken) -> None:
        while self.untaken and (first := next(iter(self.untaken))) <= message.number:
            del self.untaken[first]

    def _on_between(self, sender: str, message: Between) -> None:
        inner = message.message
        if isinstance(inner, StampsAgain):
            self.server.on_stamps_again(sender, inner)
        else:
            self.server.on_walk_again(sender, inner)

    def _on_send(self, to: str, message: Message) -> None:
        if isinstance(message, _CHAIN):
            self._sent += 1
            self.untaken[self._sent] = message
            self.outputs.append((to, ChainItem(to, self._sent, message)))
        elif isinstance(message, _BETWEEN):
            self.outputs.append((to, Between(to, message)))
        else:
            self.outputs.append((to, message))

    # --- No-ops and expired clients

    def _on_emit(self, fact: object) -> None:
        if isinstance(fact, NoOps):
            self._no_ops_made += 1
            fact = PublishNoOps(self._name, self._no_ops_made, fact.stamp, fact.count)
            self.no_ops[self._no_ops_made] = fact
        assert isinstance(fact, Output)
        self.outputs.append(fact)

    def _on_no_ops_published(self, sender: str, message: NoOpsPublished) -> None:
        self.no_ops.pop(message.number, None)

    def _on_publisher_expired(self, sender: str, message: PublisherExpired) -> None:
        self.server.publisher_dead(message.publisher)

    def _on_subscriber_expired(self, sender: str, message: SubscriberExpired) -> None:
        self.server.subscriber_gone(message.subscriber)

    # --- State

    def written(self) -> bytes:
        return _encode(
            MachineState(
                self.server.state(),
                self._sent,
                list(self.untaken.items()),
                self._taken,
                [(no_ops.number, no_ops.stamp, no_ops.count) for no_ops in self.no_ops.values()],
                self._no_ops_made,
                self.lineage,
            )
        )

    def restore(self, written: bytes) -> None:
        """Restore a state into a new machine. Raises OrderError if it is not a state of this server."""
        try:
            state = _decode_state(written)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise OrderError(f"not a valid state of a sequencer server: {error}") from None
        if len(state.server.clock) != len(self.server.clock):
            raise OrderError(
                f"the state of server {self._name!r} has {len(state.server.clock)} topics, "
                f"the layout {len(self.server.clock)}"
            )
        self.server.restore(state.server)
        self._sent, self._taken = state.sent, state.taken
        self.untaken = dict(state.untaken)
        self._no_ops_made = state.no_ops_made
        self.lineage = state.lineage
        self.no_ops = {
            number: PublishNoOps(self._name, number, stamp, count) for number, stamp, count in state.no_ops
        }


def encode_inputs(inputs: Inputs) -> bytes:
    return _encode(inputs)


def decode_inputs(written: bytes) -> Inputs:
    """Decode a batch of inputs; raises OrderError if it is invalid."""
    try:
        return _decode_inputs(written)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise OrderError(f"not valid inputs of a sequencer server: {error}") from None
