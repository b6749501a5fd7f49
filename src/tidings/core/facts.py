"""What leaves the protocols through `Port.emit`: facts for the application, the trace or an operator, and commands to
the driver."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tidings.core.client.beneath import Taking
from tidings.core.events.run import Stretch
from tidings.core.events.timestamp import Timestamp


class Output(Struct, frozen=True, gc=False):
    """Base of all that leaves a protocol. A direct subclass is a command to the driver."""


class Fact(Output, frozen=True, gc=False):
    """Something that has happened."""


class Delivered(Fact, frozen=True, gc=False):
    """A client is notified of an event or, if it takes runs, of several."""

    subscription: str
    stretch: Stretch
    out_of_order: bool = False
    recovered_by: str = ""
    ticket: Taking | None = None
    """Of a service that keeps events until the application says that it is done with them."""
    stamp: Timestamp | None = None
    """The first event's timestamp, where the subscription has an order of several topics."""


class SubscriptionAccepted(Fact, frozen=True, gc=False):
    """From now on the subscription gets what matches it."""

    subscription: str


class SubscriptionFailed(Fact, frozen=True, gc=False):
    subscription: str
    reason: str


class SubscriptionCancelled(Fact, frozen=True, gc=False):
    subscription: str


class PublicationConfirmed(Fact, frozen=True, gc=False):
    """The client's broker took the publications `first` to `last`."""

    first: int
    last: int


class PublicationFailed(Fact, frozen=True, gc=False):
    sequence: int
    reason: str
    unordered: bool = False
    """It got no number, and was not published."""


class PublicationSent(Fact, frozen=True, gc=False):
    """The service has the publications `first` to `last`, in their turn; an order may have held them back."""

    first: int
    last: int


class PublicationNumbered(Fact, frozen=True, gc=False):
    """The publications `first` to `last` have their timestamps, of so many entries each."""

    first: int
    last: int
    entries: int


class SubscriptionChanged(Fact, frozen=True, gc=False):
    """From now on the subscription gets what matches its new form, and nothing else."""

    subscription: str


class ChangeFailed(Fact, frozen=True, gc=False):
    """The subscription stays as it was."""

    subscription: str
    reason: str


class SubscriptionBroken(Fact, frozen=True, gc=False):
    """Its order cannot be continued; nothing more is shown."""

    subscription: str
    reason: str


class NotificationsDropped(Fact, frozen=True, gc=False):
    """The broker left out so many notifications because this client did not keep up."""

    count: int


class Misbehaviour(Fact, frozen=True, gc=False):
    """A peer sent something that makes no sense; it was ignored."""

    peer: str
    what: str


class StatusReceived(Fact, frozen=True, gc=False):
    """The broker's answer to a request for its status."""

    status: dict[str, Any]


class SessionWanted(Output, frozen=True, gc=False):
    """To the driver: keep a connection to that peer open, from now on, dialling again whenever there is none.

    The driver answers with `link_up` and `link_down`. Between the two, what either side sends arrives in order
    and without gaps; what was on its way when the connection broke is lost, and never arrives later.
    """

    peer: str
    address: str = ""


class SessionUnwanted(Output, frozen=True, gc=False):
    """To the driver: close the connection to that peer, if there is one, and stop dialling it.

    `link_down` follows if there was one. The peer may dial us.
    """

    peer: str


class SpillFailed(Fact, frozen=True, gc=False):
    """What waits for somebody who cannot be reached could not be written to disk, or not be removed from it."""

    reason: str


class SubscriptionProgress(Fact, frozen=True, gc=False):
    """Who does not know the subscription yet. It holds for what is published elsewhere."""

    subscription: str
    uncovered: tuple[str, ...]


class EventsGivenUp(Fact, frozen=True, gc=False):
    """So much of a source was given up for the subscription: its broker could not keep it any longer."""

    subscription: str
    source: str
    incarnation: int
    first: int
    last: int
    certain: bool = True
    """False: it changed its broker, and these may have waited at the old one."""
    ticket: Taking | None = None
    """As of an event: the broker says it again until somebody is done with it."""


class BrokerChanged(Fact, frozen=True, gc=False):
    """The client moved; what waited for its subscriptions does not come, be it reported as missed or not yet."""


class BookmarksKnown(Fact, frozen=True, gc=False):
    """The client's broker has said what an earlier life of the client has left there."""


class BookmarkIsKept(Fact, frozen=True, gc=False):
    """What the client said of how far a subscription has come outlives it from now on."""

    subscription: str
    number: int


class JoinAnswered(Fact, frozen=True, gc=False):
    """To the driver of a broker that joins: start it as a guaranteed broker with this label and neighbourhood."""

    label: tuple[int, ...]
    delta: int
    neighbours: dict[str, tuple[tuple[int, ...], str]]


class JoinRefused(Fact, frozen=True, gc=False):
    reason: str


class LeftNetwork(Fact, frozen=True, gc=False):
    """To the driver: the broker has left, nothing waits for it; it can be stopped and its data removed."""


class BrokerKnown(Fact, frozen=True, gc=False):
    """To the driver: messages for that broker go to this address from now on."""

    broker: str
    address: str
