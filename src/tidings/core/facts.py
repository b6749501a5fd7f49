"""What protocols emit through `Port.emit`: facts for the application, the trace or an operator, and commands to the
driver."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tidings.core.client.beneath import Taking
from tidings.core.events.run import Stretch
from tidings.core.events.timestamp import Timestamp


class Output(Struct, frozen=True, gc=False):
    """Base of everything that a protocol emits. Direct subclasses are commands to the driver."""


class Fact(Output, frozen=True, gc=False):
    """Something that has happened."""


class Delivered(Fact, frozen=True, gc=False):
    """A client was notified of an event or, if it takes runs, of several."""

    subscription: str
    stretch: Stretch
    out_of_order: bool = False
    recovered_by: str = ""
    ticket: Taking | None = None
    """Set by services that keep events until the application is done with them."""
    stamp: Timestamp | None = None
    """The first event's timestamp, if the subscription orders several topics."""


class SubscriptionAccepted(Fact, frozen=True, gc=False):
    """From now on the subscription gets every event that matches it."""

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
    """The publication got no number and was not published."""


class PublicationSent(Fact, frozen=True, gc=False):
    """Publications `first` to `last` went to the service, in their turn; an order may have held them back before."""

    first: int
    last: int


class PublicationNumbered(Fact, frozen=True, gc=False):
    """Publications `first` to `last` have their timestamps, of `entries` entries each."""

    first: int
    last: int
    entries: int


class SubscriptionChanged(Fact, frozen=True, gc=False):
    """From now on the subscription gets only what matches its new form."""

    subscription: str


class ChangeFailed(Fact, frozen=True, gc=False):
    """The change was rejected; the subscription stays as it was."""

    subscription: str
    reason: str


class SubscriptionBroken(Fact, frozen=True, gc=False):
    """The subscription's order cannot be continued; no more events are delivered."""

    subscription: str
    reason: str


class NotificationsDropped(Fact, frozen=True, gc=False):
    """The broker dropped `count` notifications because this client was too slow."""

    count: int


class Misbehaviour(Fact, frozen=True, gc=False):
    """A peer broke the protocol; its message was ignored."""

    peer: str
    what: str


class StatusReceived(Fact, frozen=True, gc=False):
    """The broker's answer to a request for its status."""

    status: dict[str, Any]


class NobodySubscribed(Fact, frozen=True, gc=False):
    """The broker's answer to a request for responders: there are none."""

    number: int


class SessionWanted(Output, frozen=True, gc=False):
    """To the driver: keep a connection to that peer open from now on, and dial again whenever it breaks.

    The driver reports `link_up` and `link_down`. Between the two, messages of either side arrive in order and without
    gaps. Messages in flight when the connection breaks are lost and never arrive later.
    """

    peer: str
    address: str = ""


class SessionUnwanted(Output, frozen=True, gc=False):
    """To the driver: close the connection to that peer, if any, and stop dialling it.

    `link_down` follows if there was one. The peer may still dial us.
    """

    peer: str


class ShareAttached(Fact, frozen=True, gc=False):
    """The client is attached to a durable subscription or group; what is published at `uncovered` does not reach it."""

    subscription: str
    uncovered: tuple[str, ...]
    life: str = ""
    """Tells the share from others that had or will have its name; empty: as before."""
    apart_ns: int = 0
    """For how long it was not attached, if it was before."""


class ShareDetached(Fact, frozen=True, gc=False):
    """The client is not attached, or no longer; without a reason, because it left."""

    subscription: str
    reason: str


class ShareDelivered(Fact, frozen=True, gc=False):
    """Events of a share for this client, numbered from `first` on. `before`: how many attempts were before they were
    set aside and released."""

    subscription: str
    first: int
    attempt: int
    stretch: Stretch
    recovered_by: str = ""
    out_of_order: bool = False
    before: int = 0


class ShareFinished(Fact, frozen=True, gc=False):
    """The broker answers what the client was done with: these count, and `refused` do not, because somebody else has
    them or was done with them first, or for the given reason."""

    subscription: str
    done: tuple[tuple[int, int], ...]
    refused: tuple[tuple[int, int], ...]
    reason: str = ""


class ShareDropped(Fact, frozen=True, gc=False):
    """The client must drop these; those in the application's hands can no longer be acknowledged, for the given
    reason or because they come again."""

    subscription: str
    numbers: tuple[tuple[int, int], ...]
    reason: str = ""


class ShareCancelled(Fact, frozen=True, gc=False):
    """A share was cancelled; with a reason, it was not."""

    name: str
    reason: str


class ShareAsideShown(Fact, frozen=True, gc=False):
    """How a share is, as JSON, and events that it has set aside; with a reason, the request failed."""

    name: str
    events: tuple[tuple[int, int, bytes], ...]
    changed: int
    more: bool
    reason: str
    status: str = ""


class SharesListed(Fact, frozen=True, gc=False):
    """Shares of the network by name, as JSON, and whether there are more."""

    rows: str
    more: bool


class ShareFailed(Fact, frozen=True, gc=False):
    """A durable subscription or group of this broker could not keep events, or ended with events waiting."""

    name: str
    reason: str


class SpillFailed(Fact, frozen=True, gc=False):
    """Publications for an unreachable subscriber could not be written to disk, read from it, or removed."""

    reason: str


class SubscriptionProgress(Fact, frozen=True, gc=False):
    """Lists the brokers that do not know the subscription yet. It already holds for events published elsewhere."""

    subscription: str
    uncovered: tuple[str, ...]


class EventsGivenUp(Fact, frozen=True, gc=False):
    """Events `first` to `last` of a source are lost to the subscription: its broker could not keep them."""

    subscription: str
    source: str
    incarnation: int
    first: int
    last: int
    certain: bool = True
    """False: the client changed its broker, and these may have waited at the old one."""
    ticket: Taking | None = None
    """As for an event: the broker reports the gap again until the application is done with it."""


class LostEvents(Struct, frozen=True, gc=False):
    """Events `first` to `last` of a source; not all of them need have matched the subscription."""

    source: str
    incarnation: int
    first: int
    last: int


class OrderGap(Fact, frozen=True, gc=False):
    """An ordered subscription goes on without events that are lost to it. What it shows from now on comes after
    everything that it has shown, in the order of all others."""

    subscription: str
    reason: str
    count: int
    """How many numbers of the order are missing; not all of their events need have matched the subscription."""
    lost: tuple[LostEvents, ...]
    """Where the service has reported what it lost."""
    joins_anew: bool
    """True: nothing is shown until SubscriptionChanged follows, and events published before that may be missing, too.
    False: nothing else is missing."""
    ticket: Taking | None = None
    """As for an event: the broker reports the lost events again until the application is done with the gap."""


class BrokerChanged(Fact, frozen=True, gc=False):
    """The client moved. What waited for its subscriptions will not come, whether reported as missed yet or not."""


class BookmarksKnown(Fact, frozen=True, gc=False):
    """The client's broker has sent the bookmarks that an earlier incarnation of the client left there."""


class BookmarkIsKept(Fact, frozen=True, gc=False):
    """The bookmark of that number is on the broker's disk and outlives the client."""

    subscription: str
    number: int


class JoinAnswered(Fact, frozen=True, gc=False):
    """To the driver of a joining broker: start it as a guaranteed broker with this label and neighbourhood."""

    label: tuple[int, ...]
    delta: int
    neighbours: dict[str, tuple[tuple[int, ...], str]]


class JoinRefused(Fact, frozen=True, gc=False):
    reason: str


class LeftNetwork(Fact, frozen=True, gc=False):
    """To the driver: the broker has left and nothing waits for it. Stop it; its data can be removed."""


class BrokerKnown(Fact, frozen=True, gc=False):
    """To the driver: send messages for that broker to this address from now on."""

    broker: str
    address: str


class PeerKnown(Fact, frozen=True, gc=False):
    """A process without brokers heard of another one, which listens at that address."""

    process: str
    address: str


class ViewChanged(Fact, frozen=True, gc=False):
    """Who of this partition takes part in a topic, and whether everybody in the partition knows the same."""

    topic: str
    members: tuple[str, ...]
    stable: bool
