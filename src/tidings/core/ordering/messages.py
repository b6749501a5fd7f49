"""The messages between publishers, subscribers and sequencer servers.

Base class and common messages are in core/messages.py. Topics are given by rank; 0 is the highest precedence. Clocks
travel as two tuples of equal length: the ranks, ascending, and their values.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tidings.core.events.event import Counter, Name
from tidings.core.events.timestamp import MAX_ENTRIES
from tidings.core.messages import WireMessage

MAX_TOPICS = MAX_ENTRIES
"""Limit for the topics of one subscriber, present and past, and for the entries of one timestamp."""
MAX_BATCH = 1_024

Rank = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Ranks = Annotated[tuple[Rank, ...], Meta(max_length=MAX_TOPICS)]
Values = Annotated[tuple[Counter, ...], Meta(max_length=MAX_TOPICS)]
Identity = tuple[Name, Counter]
"""(node, incarnation). A client that lost its state or was declared dead returns with another incarnation."""
Batch = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
Request = Annotated[int, Meta(ge=1, le=2**63 - 1)]
MAX_PART_BYTES = 32_768
MAX_INPUT_BYTES = 1024 * 1024


class Create(WireMessage, frozen=True, gc=False, tag=100):
    """A publisher requests numbers for `count` events of a topic. Requests to each server count from 1."""

    publisher: Identity
    request: Request
    topic: Rank
    count: Batch
    acknowledged: Counter
    """The publisher has the answers to all requests up to this one and has published their events."""


class CreateRelay(WireMessage, frozen=True, gc=False, tag=101):
    """A request that climbs the chain; each server fills in the clocks of its own topics."""

    publisher: Identity
    server: Name
    """The server where the request entered; it counts the publisher's requests."""
    request: Request
    acknowledged: Counter
    topic: Rank
    base: Counter
    count: Batch
    index: Ranks
    values: Values


class EventStamps(WireMessage, frozen=True, gc=False, tag=102):
    """Answers Create: the events are `base` + 1 to `base` + `count` of the topic, all with these entries."""

    publisher: Identity
    server: Name
    request: Request
    topic: Rank
    base: Counter
    count: Batch
    index: Ranks
    values: Values


class AnswersTaken(WireMessage, frozen=True, gc=False, tag=103):
    """Up the chain: the publisher has acknowledged its requests to `server` up to `acknowledged`; 0: it has left."""

    publisher: Identity
    server: Name
    acknowledged: Counter
    highest: Name
    """The highest server that remembers one of the answers."""


class StampsAgain(WireMessage, frozen=True, gc=False, tag=104):
    """Between servers, as a datagram: the publisher repeated this request; send your answer again."""

    publisher: Identity
    server: Name
    request: Request


class PublisherDisowned(WireMessage, frozen=True, gc=False, tag=105):
    """Tells a publisher that it was declared dead: no-ops replace what it did not publish; it needs a new identity."""

    publisher: Identity


class ChangeSubscription(WireMessage, frozen=True, gc=False, tag=106):
    """A subscriber requests these topics from now on; `ghosts` are all others that it ever had."""

    subscriber: Identity
    version: Request
    topics: Ranks
    ghosts: Ranks
    resumes: bool = False
    """The subscriber continues after a restart: servers of its topics must know it."""


class SubscribeWalk(WireMessage, frozen=True, gc=False, tag=107):
    """A change of subscription that climbs the chain; each server fills in the clocks of its own topics."""

    subscriber: Identity
    version: Request
    topics: Ranks
    ghosts: Ranks
    index: Ranks
    values: Values
    resumes: bool = False


class WalkDone(WireMessage, frozen=True, gc=False, tag=108):
    """All servers have recorded the change; with the clocks of all its topics, present and past, as it passed."""

    subscriber: Identity
    version: Request
    index: Ranks
    values: Values


class WalkAgain(WireMessage, frozen=True, gc=False, tag=109):
    """Between servers, as a datagram: the subscriber repeated this change; send your answer again."""

    subscriber: Identity
    version: Request


# --- Heartbeats and expiry of clients ---------------------------------------------------------------------


class PublisherAlive(WireMessage, frozen=True, gc=False, tag=110):
    """A publisher's heartbeat to every server; the one that counts its requests may forget these answers."""

    publisher: Identity
    server: Name
    acknowledged: Counter


class PublisherGone(WireMessage, frozen=True, gc=False, tag=111):
    """The publisher abandons this identity: no-ops must replace what it did not publish."""

    publisher: Identity
    server: Name
    acknowledged: Counter


class SubscriberAlive(WireMessage, frozen=True, gc=False, tag=112):
    """A subscriber's heartbeat to the server of its lowest topic; for operators, also the event it waits for."""

    subscriber: Identity
    server: Name
    topic: Rank = 0
    number: Counter = 0
    buffered: Counter = 0
    """How many events wait for that one; 0: none."""


class SubscriberDisowned(WireMessage, frozen=True, gc=False, tag=113):
    """Tells a subscriber that it was away for too long: servers no longer consider it; it needs a new identity."""

    subscriber: Identity


class NotActive(WireMessage, frozen=True, gc=False, tag=114):
    """The answer of a replica that is not active; also the announcement of one that becomes active."""

    server: Name
    active: Annotated[str, Meta(max_length=256)]
    """The active node as far as the sender knows; may be empty."""
    lost: bool = False
    """The server's state is gone: no replica will ever be active."""


# --- Between servers --------------------------------------------------------------------------------------

ChainMessage = CreateRelay | AnswersTaken | SubscribeWalk
Datagram = StampsAgain | WalkAgain


class ChainItem(WireMessage, frozen=True, gc=False, tag=115):
    """Item `number` from one server up to the next; items are taken in order, each once."""

    server: Name
    """The recipient."""
    number: Request
    message: ChainMessage


class ChainTaken(WireMessage, frozen=True, gc=False, tag=116):
    """Down the chain: acknowledges all items up to `number`."""

    server: Name
    """The recipient."""
    number: Counter


class Between(WireMessage, frozen=True, gc=False, tag=117):
    """A datagram from one server to another."""

    server: Name
    message: Datagram


# --- Replication ------------------------------------------------------------------------------------------


class Replicate(WireMessage, frozen=True, gc=False, tag=118):
    """A batch of a server's inputs, from the active replica to its standby; empty: a heartbeat."""

    server: Name
    term: Counter
    number: Counter
    """The batch's number; in a heartbeat, that of the last batch."""
    inputs: Annotated[bytes, Meta(max_length=MAX_INPUT_BYTES)] = b""


class Replicated(WireMessage, frozen=True, gc=False, tag=119):
    """The standby has all batches up to this one on disk."""

    server: Name
    term: Counter
    number: Counter


class StateWanted(WireMessage, frozen=True, gc=False, tag=120):
    """A replica without state asks for it."""

    server: Name


class NoState(WireMessage, frozen=True, gc=False, tag=129):
    """Answers StateWanted: this replica never had a state."""

    server: Name


class StatePart(WireMessage, frozen=True, gc=False, tag=121):
    """One part of the state after batch `number`."""

    server: Name
    term: Counter
    number: Counter
    part: Counter
    parts: Request
    data: Annotated[bytes, Meta(max_length=MAX_PART_BYTES)]


class StateTaken(WireMessage, frozen=True, gc=False, tag=122):
    """Acknowledges the parts before `part`."""

    server: Name
    number: Counter
    part: Counter


class Claim(WireMessage, frozen=True, gc=False, tag=123):
    """Asks the witness to make the sender active in the term after `term`, alone or with a standby in step."""

    server: Name
    term: Counter
    alone: bool
    claim_nonce: Counter
    """Drawn by the claimant's current run."""


class Ruling(WireMessage, frozen=True, gc=False, tag=124):
    """The witness rules that this replica is active in this term. Term 0: none ever was."""

    server: Name
    term: Counter
    active: Annotated[str, Meta(max_length=256)]
    alone: bool
    claim_nonce: Counter
    """That of the granted claim."""


# --- Inputs that a replica makes itself, sent within `Replicate` only -------------------------------------


class PublisherExpired(WireMessage, frozen=True, gc=False, tag=125):
    publisher: Identity


class SubscriberExpired(WireMessage, frozen=True, gc=False, tag=126):
    subscriber: Identity


class NoOpsPublished(WireMessage, frozen=True, gc=False, tag=127):
    """The event service has confirmed the no-ops of this number."""

    number: Request


# --- Meeting ----------------------------------------------------------------------------------------------


MAX_LAYOUT_BYTES = 1024 * 1024


class OrderLayout(WireMessage, frozen=True, gc=False, tag=128):
    """The first message between two nodes, in both directions: their layouts must be equal.

    Later ones carry new addresses and lineages.
    """

    json: Annotated[str, Meta(max_length=MAX_LAYOUT_BYTES)]
    """Empty: the sender is a client that takes the other's layout, or has nothing new."""
    addresses: Annotated[
        tuple[tuple[Name, Annotated[str, Meta(max_length=300)]], ...], Meta(max_length=1024)
    ] = ()
    """The nodes' listening addresses, as far as the sender knows."""
    lineages: Annotated[tuple[tuple[Name, Counter], ...], Meta(max_length=256)] = ()
    """Server -> a number drawn when its numbering began. If it differs from before, the server lost its state."""
