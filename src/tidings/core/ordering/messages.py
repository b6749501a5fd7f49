"""What publishers, subscribers and sequencer servers say to each other to give events one order.

The base and the other messages are in core/messages.py; the files beside this one say what these are for. A topic is
named by its rank, 0 being the highest precedence. Clocks travel as two tuples of one length: the ranks, ascending,
and their values.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tidings.core.events.event import Counter, Name
from tidings.core.events.timestamp import MAX_ENTRIES
from tidings.core.messages import WireMessage

MAX_TOPICS = MAX_ENTRIES
"""Topics of one subscriber, present and past, and entries of one timestamp."""
MAX_BATCH = 1_024

Rank = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Ranks = Annotated[tuple[Rank, ...], Meta(max_length=MAX_TOPICS)]
Values = Annotated[tuple[Counter, ...], Meta(max_length=MAX_TOPICS)]
Identity = tuple[Name, Counter]
"""(node, incarnation): who lost its state, or was declared dead, comes back with another incarnation."""
Batch = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
Request = Annotated[int, Meta(ge=1, le=2**63 - 1)]
MAX_PART_BYTES = 32_768
MAX_INPUT_BYTES = 1024 * 1024


class Create(WireMessage, frozen=True, gc=False, tag=100):
    """A publisher wants numbers for `count` events of a topic; it counts its requests to each server from 1."""

    publisher: Identity
    request: Request
    topic: Rank
    count: Batch
    acknowledged: Counter
    """The answers to all requests up to this one have come, and their events have been published."""


class CreateRelay(WireMessage, frozen=True, gc=False, tag=101):
    """A request on its way up the chain; each server fills in the clocks of its own topics."""

    publisher: Identity
    server: Name
    """Where the request entered, which counts the publisher's requests."""
    request: Request
    acknowledged: Counter
    topic: Rank
    base: Counter
    count: Batch
    index: Ranks
    values: Values


class EventStamps(WireMessage, frozen=True, gc=False, tag=102):
    """The answer: the events are number `base` + 1 to `base` + `count` of the topic, all with these entries."""

    publisher: Identity
    server: Name
    request: Request
    topic: Rank
    base: Counter
    count: Batch
    index: Ranks
    values: Values


class AnswersTaken(WireMessage, frozen=True, gc=False, tag=103):
    """Up the chain: the publisher has the answers to its requests to `server` up to `acknowledged`; 0: it has left."""

    publisher: Identity
    server: Name
    acknowledged: Counter
    highest: Name
    """The last server that remembers one of them."""


class StampsAgain(WireMessage, frozen=True, gc=False, tag=104):
    """Between servers, as a datagram: the publisher repeated this request; send it your answer again."""

    publisher: Identity
    server: Name
    request: Request


class PublisherDisowned(WireMessage, frozen=True, gc=False, tag=105):
    """To a publisher that was declared dead: what it did not publish was replaced; it needs a new identity."""

    publisher: Identity


class ChangeSubscription(WireMessage, frozen=True, gc=False, tag=106):
    """A subscriber wants these topics from now on; `ghosts` are all others that it ever had."""

    subscriber: Identity
    version: Request
    topics: Ranks
    ghosts: Ranks
    resumes: bool = False
    """It goes on where an earlier life ended: it must be known where it has topics."""


class SubscribeWalk(WireMessage, frozen=True, gc=False, tag=107):
    """A change of subscription on its way up the chain; each server writes the clocks of its own topics."""

    subscriber: Identity
    version: Request
    topics: Ranks
    ghosts: Ranks
    index: Ranks
    values: Values
    resumes: bool = False


class WalkDone(WireMessage, frozen=True, gc=False, tag=108):
    """The subscription is recorded everywhere; the clocks of all its topics, present and past, as it passed."""

    subscriber: Identity
    version: Request
    index: Ranks
    values: Values


class WalkAgain(WireMessage, frozen=True, gc=False, tag=109):
    """Between servers, as a datagram: the subscriber repeated this change; send it your answer again."""

    subscriber: Identity
    version: Request


# --- Life and death of clients ----------------------------------------------------------------------------


class PublisherAlive(WireMessage, frozen=True, gc=False, tag=110):
    """'I live', now and then, to every server; the one that counts my requests may forget these answers."""

    publisher: Identity
    server: Name
    acknowledged: Counter


class PublisherGone(WireMessage, frozen=True, gc=False, tag=111):
    """The publisher gives this identity up: what it did not publish is to be replaced now."""

    publisher: Identity
    server: Name
    acknowledged: Counter


class SubscriberAlive(WireMessage, frozen=True, gc=False, tag=112):
    """'I live', now and then, to the server of the subscriber's lowest topic; and what it lacks, for operators."""

    subscriber: Identity
    server: Name
    topic: Rank = 0
    number: Counter = 0
    buffered: Counter = 0
    """So many events wait for that one; 0: none does."""


class SubscriberDisowned(WireMessage, frozen=True, gc=False, tag=113):
    """To a subscriber that was away for too long: nobody counts on it any more; it needs a new identity."""

    subscriber: Identity


class NotActive(WireMessage, frozen=True, gc=False, tag=114):
    """To whoever asks a replica that does not speak for the server now; and from one that begins to, of itself."""

    server: Name
    active: Annotated[str, Meta(max_length=256)]
    """Who does, as far as it knows; may be empty."""
    lost: bool = False
    """Nobody ever will: the state of the server is gone."""


# --- Between servers --------------------------------------------------------------------------------------

ChainMessage = CreateRelay | AnswersTaken | SubscribeWalk
Datagram = StampsAgain | WalkAgain


class ChainItem(WireMessage, frozen=True, gc=False, tag=115):
    """Number `number` of what goes from one server up to the next, in order, each once."""

    server: Name
    """Whom it is for."""
    number: Request
    message: ChainMessage


class ChainTaken(WireMessage, frozen=True, gc=False, tag=116):
    """Down the chain: everything up to `number` has been taken, for good."""

    server: Name
    """Whom it is for."""
    number: Counter


class Between(WireMessage, frozen=True, gc=False, tag=117):
    """A datagram from one server to another."""

    server: Name
    message: Datagram


# --- A server and its standby -----------------------------------------------------------------------------


class Replicate(WireMessage, frozen=True, gc=False, tag=118):
    """The inputs of a server from the active replica to its standby, batch by batch; empty: a sign of life."""

    server: Name
    term: Counter
    number: Counter
    """Of the batch; of a sign of life: of the last one."""
    inputs: Annotated[bytes, Meta(max_length=MAX_INPUT_BYTES)] = b""


class Replicated(WireMessage, frozen=True, gc=False, tag=119):
    """The standby has everything up to this batch, on disk."""

    server: Name
    term: Counter
    number: Counter


class StateWanted(WireMessage, frozen=True, gc=False, tag=120):
    """A replica without the state asks for it."""

    server: Name


class NoState(WireMessage, frozen=True, gc=False, tag=129):
    """The answer of a replica that never had a state."""

    server: Name


class StatePart(WireMessage, frozen=True, gc=False, tag=121):
    """A piece of the state as it was after batch `number`."""

    server: Name
    term: Counter
    number: Counter
    part: Counter
    parts: Request
    data: Annotated[bytes, Meta(max_length=MAX_PART_BYTES)]


class StateTaken(WireMessage, frozen=True, gc=False, tag=122):
    """The pieces before `part` have come."""

    server: Name
    number: Counter
    part: Counter


class Claim(WireMessage, frozen=True, gc=False, tag=123):
    """To the witness: I want to speak for the server in the term after `term`; alone, or with a standby in step."""

    server: Name
    term: Counter
    alone: bool
    claim_nonce: Counter
    """Of the claimant's present life."""


class Ruling(WireMessage, frozen=True, gc=False, tag=124):
    """The witness: this replica speaks for the server, in this term. Term 0: nobody ever did."""

    server: Name
    term: Counter
    active: Annotated[str, Meta(max_length=256)]
    alone: bool
    claim_nonce: Counter
    """Of the claim that was granted."""


# --- Inputs that a replica makes itself; they travel within `Replicate` only -------------------------------


class PublisherExpired(WireMessage, frozen=True, gc=False, tag=125):
    publisher: Identity


class SubscriberExpired(WireMessage, frozen=True, gc=False, tag=126):
    subscriber: Identity


class NoOpsPublished(WireMessage, frozen=True, gc=False, tag=127):
    """The no-ops of this number are with the event service."""

    number: Request


# --- Meeting ----------------------------------------------------------------------------------------------


MAX_LAYOUT_BYTES = 1024 * 1024


class OrderLayout(WireMessage, frozen=True, gc=False, tag=128):
    """The first message between two nodes of the ordering, both ways: they must mean the same topics.

    Later ones tell what has changed besides.
    """

    json: Annotated[str, Meta(max_length=MAX_LAYOUT_BYTES)]
    """Empty: a client that takes the other's, or nothing new."""
    addresses: Annotated[
        tuple[tuple[Name, Annotated[str, Meta(max_length=300)]], ...], Meta(max_length=1024)
    ] = ()
    """Where the nodes listen, as far as the sender knows."""
    lineages: Annotated[tuple[tuple[Name, Counter], ...], Meta(max_length=256)] = ()
    """Server -> a number drawn when its numbering began. Another one than before: its state was lost in between."""
