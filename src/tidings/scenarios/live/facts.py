"""What the conductor of a live scenario and its client processes say to each other, one JSON value per line.

The conductor sends a `ClientWork`, and a `Go` once all are ready; whoever gets them answers with facts, in the order
in which its applications saw them. Times are nanoseconds since the common start.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns
from typing import Any

import msgspec

from tidings.core.client.bookmark import Reached
from tidings.core.ordering.subscriber import Patience
from tidings.drivers.address import Address
from tidings.scenarios.file.schema import Order, Publisher
from tidings.scenarios.file.timeline import Step

Interval = tuple[int, int]
"""From the first nanosecond to before the second."""


class KeptSubscription(msgspec.Struct, frozen=True):
    """A subscription that a subscriber had made when it crashed."""

    subscription: str
    topics: tuple[str, ...]
    requested_ns: int
    accepted: bool
    cancelled_ns: int | None


class SubscriberWork(msgspec.Struct, frozen=True):
    """One subscriber. What is below `timeline` is for one that comes back from a crash."""

    name: str
    at: str
    filter: str | None
    order: Order
    timeline: tuple[Step, ...]
    done: int = 0
    """How many steps of the timeline it has taken."""
    made: int = 0
    """How many subscriptions it has made."""
    begun: tuple[str, ...] | None = None
    """With which topics it began."""
    kept: bool = False
    """Its broker keeps its subscriptions while it is down, and it goes on with them."""
    reached: Reached | None = None
    """With an order that goes on: how far it has come, and when it was killed."""
    crashed_ns: int | None = None
    held: tuple[KeptSubscription, ...] = ()
    resume_points: Mapping[str, Mapping[str, int]] = {}
    """Subscription -> source -> the last sequence that it was shown; what its disk would hold."""
    topics: tuple[str, ...] | None = None
    """With an order that begins anew: what it is to be subscribed to."""
    entries: tuple[str, ...] = ()
    """With an order that begins anew: what its broker may still know of the life before (`EntriesReport`)."""


class PublisherWork(msgspec.Struct, frozen=True):
    """One publisher; what falls due while it is `absent` is not published."""

    plan: Publisher
    absent: tuple[Interval, ...] = ()
    lives: int = 0
    """How often it was started before."""


class OrderingWork(msgspec.Struct, frozen=True):
    """Who numbers the events, and how long one is held back."""

    layout: str
    nodes: dict[str, Address]
    patience: Patience | None
    """None: as long as it takes."""


class Go(msgspec.Struct, frozen=True):
    """The common start, by both clocks. The monotonic one is the same in all processes of a machine."""

    wall_ns: int
    monotonic_ns: int

    @property
    def now(self) -> int:
        """Nanoseconds since the start; it never goes back, whatever is done to the wall clock."""
        return monotonic_ns() - self.monotonic_ns


class ClientWork(msgspec.Struct, frozen=True):
    """What one client process is to do."""

    seed: int
    end_ns: int
    """When publishing ends."""
    brokers: dict[str, Address]
    publishers: tuple[PublisherWork, ...]
    subscribers: tuple[SubscriberWork, ...]
    go: Go | None = None
    """For one that comes back from a crash: the start, which was."""
    ordering: OrderingWork | None = None


class Report(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all that a client process reports."""


class ReadyReport(Report, frozen=True, gc=False):
    """All its clients are connected."""


class PublishedReport(Report, frozen=True, gc=False):
    source: str
    sequence: int
    topic: str
    attributes: dict[str, Any]
    size_bytes: int
    at_ns: int


class Confirmed(Report, frozen=True, gc=False):
    source: str
    first: int
    last: int
    at_ns: int


class Requested(Report, frozen=True, gc=False):
    """A subscription was asked for."""

    subscriber: str
    subscription: str
    topics: tuple[str, ...]
    at_ns: int


class StepTaken(Report, frozen=True, gc=False):
    """The subscriber has done what its timeline asked for next."""

    subscriber: str


class Accepted(Report, frozen=True, gc=False):
    subscriber: str
    subscription: str
    at_ns: int
    reached: Reached | None = None
    """With an order that goes on after a crash: how far it has come."""


class Cancelled(Report, frozen=True, gc=False):
    subscriber: str
    subscription: str
    at_ns: int


class Ended(Report, frozen=True, gc=False):
    """Nothing more is shown for this subscription, which was cancelled a while ago."""

    subscriber: str
    subscription: str


class DeliveredReport(Report, frozen=True, gc=False):
    subscriber: str
    subscription: str
    source: str
    sequence: int
    published_ns: int
    at_ns: int
    out_of_order: bool
    recovered_by: str = ""
    reached: Reached | None = None
    """With an order that goes on after a crash: how far it has come with this event."""


class MissedReport(Report, frozen=True, gc=False):
    """A broker said that it gave up so much of a source."""

    subscriber: str
    subscription: str
    source: str
    first: int
    last: int


class StampedReport(Report, frozen=True, gc=False):
    """An event has its number, in a timestamp of so many entries."""

    entries: int


class EntriesReport(Report, frozen=True, gc=False):
    """Of a subscriber with an order that begins anew after a crash: all its subscriptions in the service, by name."""

    subscriber: str
    entries: tuple[str, ...]


class Broken(Report, frozen=True, gc=False):
    """The order of a subscriber was given up; it is subscribed to nothing until its topics change."""

    subscriber: str
    reason: str


class FailedReport(Report, frozen=True, gc=False):
    """The scenario cannot go on."""

    reason: str


AnyFact = (
    ReadyReport
    | PublishedReport
    | Confirmed
    | Requested
    | StepTaken
    | Accepted
    | Cancelled
    | Ended
    | DeliveredReport
    | MissedReport
    | StampedReport
    | EntriesReport
    | Broken
    | FailedReport
)

decode_fact = msgspec.json.Decoder(AnyFact).decode
decode_work = msgspec.json.Decoder(ClientWork).decode
decode_go = msgspec.json.Decoder(Go).decode


def line_of(words: ClientWork | Go | Report) -> bytes:
    """As it goes through a pipe."""
    return msgspec.json.encode(words) + b"\n"
