"""What publishers, subscribers and sequencer servers say to each other to give events one order.

The base and the other messages are in model/messages.py; protocol/sequencing says what these are for. A topic is
named by its rank, 0 being the highest precedence. Clocks travel as two tuples of one length: the ranks, ascending,
and their values.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tidings.model.event import Counter, Name
from tidings.model.messages import WireMessage

MAX_TOPICS = 4096
"""Topics of one subscriber, present and past, and entries of one timestamp."""
MAX_BATCH = 65_536

Rank = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Ranks = Annotated[tuple[Rank, ...], Meta(max_length=MAX_TOPICS)]
Values = Annotated[tuple[Counter, ...], Meta(max_length=MAX_TOPICS)]
Identity = tuple[Name, Counter]
"""(node, incarnation): who lost its state, or was declared dead, comes back with another incarnation."""
Batch = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
Request = Annotated[int, Meta(ge=1, le=2**63 - 1)]


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
    """Up the chain: the publisher has the answers to its requests to `server` up to `acknowledged`."""

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


class SubscribeWalk(WireMessage, frozen=True, gc=False, tag=107):
    """A change of subscription on its way up the chain; each server writes the clocks of its own topics."""

    subscriber: Identity
    version: Request
    topics: Ranks
    ghosts: Ranks
    index: Ranks
    values: Values


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
