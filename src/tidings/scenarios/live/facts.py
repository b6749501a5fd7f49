"""Defines the messages between a live scenario's conductor and its client processes, one JSON value per line.

The conductor sends a `ClientWork`, and a `Go` once all processes are ready. A client process answers with reports, in
the order in which its applications saw the facts. Times are nanoseconds since the common start.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns
from typing import Any

import msgspec

from tidings.core.client.bookmark import Reached
from tidings.core.ordering.subscriber import Patience
from tidings.drivers.address import Address
from tidings.scenarios.file.schema import Order, Publisher, Start
from tidings.scenarios.file.shares import PlannedShare
from tidings.scenarios.file.timeline import Step

Interval = tuple[int, int]
"""Includes the first instant, excludes the second."""


class KeptSubscription(msgspec.Struct, frozen=True):
    """A subscription that a subscriber had when it crashed."""

    subscription: str
    topics: tuple[str, ...]
    requested_ns: int
    accepted: bool
    cancelled_ns: int | None


class SubscriberWork(msgspec.Struct, frozen=True):
    """Describes one subscriber. The fields below `timeline` are for one that restarts after a crash."""

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
    """The topics it started with."""
    kept: bool = False
    """Its broker keeps its subscriptions while it is down, and it continues with them."""
    reached: Reached | None = None
    """With an order that resumes: its position."""
    crashed_ns: int | None = None
    """With an order that resumes: when it was killed."""
    held: tuple[KeptSubscription, ...] = ()
    resume_points: Mapping[str, Mapping[str, int]] = {}
    """Subscription -> source -> the last sequence that it was shown, as its disk would hold it."""
    topics: tuple[str, ...] | None = None
    """If it begins anew, and of a durable subscription or group: the topics to subscribe to."""
    entries: tuple[str, ...] = ()
    """If it begins anew: earlier subscriptions that its broker may still know (`EntriesReport`)."""
    share: PlannedShare | None = None
    """Its durable subscription or group."""
    position: int = 0
    """Of a durable subscription or group: how many events it was given."""
    start: Start = "new"


class PublisherWork(msgspec.Struct, frozen=True):
    """Describes one publisher. Events due while it is `absent` are not published."""

    plan: Publisher
    absent: tuple[Interval, ...] = ()
    lives: int = 0
    """How often it was started before."""


class OrderingWork(msgspec.Struct, frozen=True):
    """Describes the sequencers, and how long an event is held back."""

    layout: str
    nodes: dict[str, Address]
    patience: Patience | None
    """None: events wait as long as it takes."""


class Go(msgspec.Struct, frozen=True):
    """The common start, by both clocks. The monotonic clock is the same in all processes of a machine."""

    wall_ns: int
    monotonic_ns: int

    @property
    def now(self) -> int:
        """Nanoseconds since the start; never goes back, whatever happens to the wall clock."""
        return monotonic_ns() - self.monotonic_ns


class ClientWork(msgspec.Struct, frozen=True):
    """Describes what one client process has to do."""

    seed: int
    end_ns: int
    """When publishing ends."""
    brokers: dict[str, Address]
    publishers: tuple[PublisherWork, ...]
    subscribers: tuple[SubscriberWork, ...]
    go: Go | None = None
    """The common start, for a process that restarts after a crash."""
    ordering: OrderingWork | None = None


class Report(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all reports of a client process."""


class ReadyReport(Report, frozen=True, gc=False):
    """All clients of the process are connected."""


class PublishedReport(Report, frozen=True, gc=False):
    source: str
    sequence: int
    topic: str
    attributes: dict[str, Any]
    size_bytes: int
    at_ns: int
    expires_ns: int | None = None


class Confirmed(Report, frozen=True, gc=False):
    source: str
    first: int
    last: int
    at_ns: int


class Requested(Report, frozen=True, gc=False):
    """A subscription was requested."""

    subscriber: str
    subscription: str
    topics: tuple[str, ...]
    at_ns: int
    start: str | None = None


class StepTaken(Report, frozen=True, gc=False):
    """The subscriber has taken the next step of its timeline."""

    subscriber: str


class Accepted(Report, frozen=True, gc=False):
    subscriber: str
    subscription: str
    at_ns: int
    reached: Reached | None = None
    """With an order that resumes: the subscriber's position."""


class Cancelled(Report, frozen=True, gc=False):
    subscriber: str
    subscription: str
    at_ns: int


class Ended(Report, frozen=True, gc=False):
    """A subscription that was cancelled a while ago shows no more events."""

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
    """With an order that resumes: the subscriber's position after this event."""


class JoinedReport(Report, frozen=True, gc=False):
    """It is attached to the durable subscription or group with that life."""

    subscriber: str
    subscription: str
    life: str


class HandedReport(Report, frozen=True, gc=False):
    """A durable subscriber or a member of a group has the next event, at its next position."""

    subscriber: str
    subscription: str
    source: str
    sequence: int
    at_ns: int
    attempt: int
    out_of_order: bool = False


class AcknowledgedReport(Report, frozen=True, gc=False):
    """Its application is done with the event at that position."""

    subscriber: str
    position: int
    at_ns: int


class AnsweredReport(Report, frozen=True, gc=False):
    """Its broker has answered the acknowledgement."""

    subscriber: str
    position: int
    accepted: bool


class DetachedReport(Report, frozen=True, gc=False):
    """It has left its durable subscription or group, for now."""

    subscriber: str
    subscription: str
    at_ns: int


class ExpiredReport(Report, frozen=True, gc=False):
    """An event came after it had expired, and was not shown."""

    subscriber: str
    subscription: str
    source: str
    sequence: int
    published_ns: int


class MissedReport(Report, frozen=True, gc=False):
    """A broker reported that it dropped this range of a source's events."""

    subscriber: str
    subscription: str
    source: str
    first: int
    last: int


class StampedReport(Report, frozen=True, gc=False):
    """An event got its timestamp, with so many entries."""

    entries: int


class EntriesReport(Report, frozen=True, gc=False):
    """Lists the names of all subscriptions in the service of a subscriber that begins anew after a crash."""

    subscriber: str
    entries: tuple[str, ...]


class Broken(Report, frozen=True, gc=False):
    """A subscriber's order broke; it has no subscription until its topics change."""

    subscriber: str
    reason: str


class FailedReport(Report, frozen=True, gc=False):
    """The scenario cannot continue."""

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
    | JoinedReport
    | HandedReport
    | AcknowledgedReport
    | AnsweredReport
    | DetachedReport
    | ExpiredReport
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
    """Return the line to write to a pipe."""
    return msgspec.json.encode(words) + b"\n"
