"""A client of one broker: publishes, subscribes, and handles notifications.

    idle -> requested -> accepted -> cancelling -> gone
              |  ^           |           ^
              |  +-----------+           |   reconnected: requested again, accepted stays accepted
              |              +-> draining
              +-> failed

Requests are retried until answered, so the client works over datagrams, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from tidings.core.client.group_member import GroupMember
from tidings.core.errors import WireError
from tidings.core.events.event import WHOLE, Publication, make_publication, no_event
from tidings.core.events.payload import Payload
from tidings.core.events.run import Run, RunMaker, Stretch
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import (
    Delivered,
    Misbehaviour,
    NobodySubscribed,
    NotificationsDropped,
    PublicationConfirmed,
    PublicationFailed,
    StatusReceived,
    SubscriptionAccepted,
    SubscriptionCancelled,
    SubscriptionFailed,
)
from tidings.core.filters.language.predicates import Scalar
from tidings.core.kernel import Node, Part, Port, TimerName
from tidings.core.messages import (
    Confirm,
    Dropped,
    JoinGroup,
    NoResponders,
    Notify,
    PublishFailed,
    RespondersRequest,
    Status,
    StatusRequest,
    Subscribe,
    SubscribeAfterHistory,
    Subscribed,
    SubscribeFailed,
    Unsubscribe,
    Unsubscribed,
)
from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks
from tidings.core.overlay.guaranteed.messages import Drain
from tidings.core.overlay.links import retry_delay_ns
from tidings.core.structures.highest import Highest
from tidings.core.structures.recent_ids import RecentIds

MAX_TRACKED_SOURCES = 65_536
RECENT_EVENTS = 4_096
"""Per source; an event further behind counts as a duplicate."""
DRAIN_NS = 5_000_000_000
"""How long a left subscription stays in the network, for events in flight."""


class SubscriptionState(StrEnum):
    REQUESTED = "requested"
    ACCEPTED = "accepted"
    DRAINING = "draining"
    """The subscription has been left; what is in flight for it alone is still shown."""
    CANCELLING = "cancelling"


CANCELLING = SubscriptionState.CANCELLING
ENDING = (SubscriptionState.DRAINING, CANCELLING)


class OwnSubscription:
    """One subscription of this client."""

    __slots__ = ("fifo", "highest", "state", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.fifo = subscription.order is Order.FIFO
        self.state = SubscriptionState.REQUESTED
        self.highest: Highest[tuple[str, int], int] = Highest(MAX_TRACKED_SOURCES)
        """(source, incarnation) -> highest sequence shown, where tracked (order fifo, reliable sessions)."""


class ClientSession(Part):
    """A session with a best-effort broker."""

    name = "client"
    lossless = False
    """True: what is not acknowledged waits at the broker."""
    generation = 0
    """The generation of a guaranteed broker's disk; 0: unknown."""
    end_of_drain: type[Unsubscribe | Drain] = Unsubscribe
    handles = {
        Notify: "on_notify",
        Confirm: "on_confirm",
        PublishFailed: "on_publish_failed",
        Subscribed: "on_subscribed",
        SubscribeFailed: "on_subscribe_failed",
        Unsubscribed: "on_unsubscribed",
        Dropped: "on_dropped",
        Status: "on_status",
        NoResponders: "on_no_responders",
    }

    def __init__(self, port: Port, broker: str, *, incarnation: int) -> None:
        super().__init__(port)
        self.members: Callable[[object], None] = port.emit
        """Takes the facts about subscriptions that are members of groups."""
        self.broker = broker
        self.bookmarks: LeftBookmarks | None = None
        """What the broker keeps across restarts; None: nothing."""
        self.incarnation = incarnation
        self.next_sequence = 1
        self.takes_runs = False
        """True: runs of events are shown as runs, else event by event."""
        self._made = RunMaker(port.node, incarnation)
        self._recent = RecentIds(RECENT_EVENTS)
        self._held: dict[str, OwnSubscription] = {}
        self._unanswered: dict[str, OwnSubscription] = {}
        self._attempt = 0

    # --- Requests of the application

    def publish(
        self, topic: str, attributes: Mapping[str, Scalar], payload: Payload, published_at: int
    ) -> Publication:
        publication = self.publish_as(self.next_sequence, topic, attributes, payload, published_at)
        self.next_sequence += 1
        return publication

    def reserve(self) -> int:
        """Reserve and return the next sequence; publications must have ascending ones."""
        self.next_sequence += 1
        return self.next_sequence - 1

    @property
    def is_connected(self) -> bool:
        return True

    @property
    def identity(self) -> tuple[str, int]:
        return self.port.node, self.incarnation

    def publish_stretch(self, stretch: Stretch) -> None:
        """Publish events made by this client, with reserved sequences."""
        if self._made:
            self.flush()
        self._publish(stretch)

    def publish_as(
        self, sequence: int, topic: str, attributes: Mapping[str, Scalar], payload: Payload, published_at: int
    ) -> Publication:
        if self._made:
            self.flush()
        publication = make_publication(
            self.port.node, self.incarnation, sequence, topic, attributes, payload, published_at
        )
        self._publish(publication)
        return publication

    def add(
        self,
        topic: str,
        attributes: Mapping[str, Scalar],
        payload: Payload,
        published_at: int,
    ) -> bool:
        """Add an event to be published with the next `flush`; True if a run is full."""
        full = self._made.add(self.next_sequence, topic, attributes, payload, published_at)
        self.next_sequence += 1
        return full

    def add_some(self, events: Iterable[Any]) -> bool:
        """Add events, each (topic, attributes, payload), until a run is full; True if one is."""
        made, port = self._made, self.port
        for event in events:
            try:
                topic, attributes, payload = event
            except (TypeError, ValueError):
                raise no_event(event) from None
            full = made.add(self.next_sequence, topic, attributes, payload, port.now)
            self.next_sequence += 1
            if full:
                return True
        return False

    def add_as(
        self, sequence: int, topic: str, attributes: Mapping[str, Scalar], payload: Payload, published_at: int
    ) -> bool:
        """Add an event with a reserved sequence."""
        return self._made.add(sequence, topic, attributes, payload, published_at)

    def flush(self, *, full_only: bool = False) -> list[Stretch]:
        """Publish what was added, or only its full runs."""
        made = self._made.take_full() if full_only else self._made.take_all()
        for stretch in made:
            self._publish(stretch)
        return made

    def _publish(self, stretch: Stretch) -> None:
        self.port.send(self.broker, stretch)

    def subscribe(self, *subscriptions: Subscription) -> None:
        for subscription in subscriptions:
            if subscription.id in self._held:
                raise ValueError(f"subscription {subscription.id!r} already exists")
            held = self._held[subscription.id] = OwnSubscription(subscription)
            self._ask(held)

    def unsubscribe(self, subscription_id: str, *, drain: bool = False) -> None:
        """Unsubscribe. With `drain`, what was published before everybody knew of the successor, or of the end, is
        still delivered."""
        held = self._held[subscription_id]
        if drain:
            self._drain(held)
        else:
            held.state = CANCELLING
            self._ask(held)

    def _drain(self, held: OwnSubscription) -> None:
        held.state = SubscriptionState.DRAINING
        self._answered(held.subscription.id)
        self.port.set_timer((self.name, "drain", held.subscription.id), self.port.now + DRAIN_NS)

    def shown(self, subscription_id: str) -> Mapping[tuple[str, int], int] | None:
        return None

    def end_earlier(self, subscription_id: str, *, drain: bool = False) -> None:
        """End a subscription of an earlier run that the broker may still know. With `drain`, what is in flight or waits
        for it is still delivered with its body, for other subscriptions of this client as well."""
        held = self._held[subscription_id] = OwnSubscription(Subscription(subscription_id))
        if drain:
            self._drain(held)
        else:
            held.state = CANCELLING
            self._ask(held)

    def stop_acknowledging(self) -> None:
        """Acknowledge nothing more: the broker keeps the rest for a restart of this client, if it can."""

    def request_status(self) -> None:
        """Ask the broker for its state; StatusReceived follows."""
        self.port.send(self.broker, StatusRequest())

    def ask_for_responders(self, number: int, topic: str, attributes: Mapping[str, Scalar]) -> None:
        """Ask whether anything is subscribed to such an event; NobodySubscribed follows if not."""
        self.port.send(self.broker, RespondersRequest(number, topic, dict(attributes)))

    # --- Answers of the broker

    def on_notify(self, sender: str, message: Notify) -> None:
        stretch = message.stretch
        if isinstance(stretch, Run):
            self._take_run(sender, stretch, message.subscriptions, message.by)
        else:
            self._take(stretch, message.subscriptions, message.by)

    def _take(self, publication: Publication, subscriptions: tuple[str, ...], by: str) -> None:
        # A broker forgets in a crash what it sent: a copy that the network delayed meanwhile is dropped here.
        source, incarnation, sequence = publication.source, publication.incarnation, publication.sequence
        if not self._recent.first_time(source, incarnation, sequence):
            return
        for subscription_id in subscriptions:
            held = self._held.get(subscription_id)
            if held is None or held.state is CANCELLING:
                continue  # in flight when we unsubscribed
            late = held.fifo and sequence < self._shown_before(held, source, incarnation, sequence)
            self._tell(held, Delivered(subscription_id, publication, late, by))

    def _take_run(self, sender: str, run: Run, subscriptions: tuple[str, ...], by: str) -> None:
        """Take a run as if its events arrived one by one."""
        try:
            if not self.takes_runs and run.kind == WHOLE:
                for publication in run.publications():
                    self._take(publication, subscriptions, by)
                return
            for first, last in self._recent.fresh(run.source, run.incarnation, run.first, run.last):
                self._show(subscriptions, run.cut(first, last), by)
        except WireError as error:
            self.port.emit(Misbehaviour(sender, str(error)))

    def _show(self, subscriptions: tuple[str, ...], stretch: Stretch, by: str) -> None:
        for subscription_id in subscriptions:
            held = self._held.get(subscription_id)
            if held is None or held.state is CANCELLING:
                continue
            before = (
                self._shown_before(held, stretch.source, stretch.incarnation, stretch.last)
                if held.fifo
                else 0
            )
            for part, late in parted(stretch, before):
                self._tell(held, Delivered(subscription_id, part, late, by))

    def on_confirm(self, sender: str, message: Confirm) -> None:
        if message.incarnation == self.incarnation:
            self.port.emit(PublicationConfirmed(message.first, message.last))

    def on_publish_failed(self, sender: str, message: PublishFailed) -> None:
        self.port.emit(PublicationFailed(message.sequence, message.reason))

    def on_subscribed(self, sender: str, message: Subscribed) -> None:
        held = self._held.get(message.subscription)
        if held is None:  # a retry of our request arrived after we unsubscribed
            self.port.send(self.broker, Unsubscribe(message.subscription))
            return
        if held.state in ENDING:
            return
        self._answered(message.subscription)
        if held.state is SubscriptionState.REQUESTED:
            held.state = SubscriptionState.ACCEPTED
            self._tell(held, SubscriptionAccepted(message.subscription))

    def on_subscribe_failed(self, sender: str, message: SubscribeFailed) -> None:
        held = self._held.pop(message.subscription, None)
        if held is not None:
            self._answered(message.subscription)
            self._tell(held, SubscriptionFailed(message.subscription, message.reason))

    def on_unsubscribed(self, sender: str, message: Unsubscribed) -> None:
        held = self._held.get(message.subscription)
        if held is not None and held.state in ENDING:
            del self._held[message.subscription]
            self._answered(message.subscription)
            self._tell(held, SubscriptionCancelled(message.subscription))

    def _tell(self, held: OwnSubscription, fact: object) -> None:
        (self.members if held.subscription.group else self.port.emit)(fact)

    def on_dropped(self, sender: str, message: Dropped) -> None:
        self.port.emit(NotificationsDropped(message.count))

    def on_status(self, sender: str, message: Status) -> None:
        try:
            status = msgspec.json.decode(message.json, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            self.port.emit(Misbehaviour(sender, f"sent an invalid status: {error}"))
            return
        self.port.emit(StatusReceived(status))

    def on_no_responders(self, sender: str, message: NoResponders) -> None:
        self.port.emit(NobodySubscribed(message.number))

    # --- The connection

    def on_link_up(self, peer: str) -> None:
        for held in self._held.values():
            if held.state is not SubscriptionState.DRAINING or held.subscription.id in self._unanswered:
                self._ask(held)

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "drain":
            drained = self._held.get(str(name[2]))
            if drained is not None and drained.state is SubscriptionState.DRAINING:
                self._ask(drained)
            return
        for held in self._unanswered.values():
            self._send_request(held)
        self._attempt += 1
        self._set_retry()

    def _ask(self, held: OwnSubscription) -> None:
        """Send the request, and retry until it is answered."""
        self._unanswered[held.subscription.id] = held
        self._send_request(held)
        if self._attempt or len(self._unanswered) == 1:
            self._attempt = 0
            self._set_retry()

    def _answered(self, subscription_id: str) -> None:
        self._unanswered.pop(subscription_id, None)
        if not self._unanswered:
            self.port.cancel_timer((self.name, "retry"))

    def _set_retry(self) -> None:
        self.port.set_timer((self.name, "retry"), self.port.now + 2 * retry_delay_ns(self._attempt))

    def _send_request(self, held: OwnSubscription) -> None:
        subscription = held.subscription
        if held.state in ENDING:
            kind = self.end_of_drain if held.state is SubscriptionState.DRAINING else Unsubscribe
            self.port.send(self.broker, kind(subscription.id))
        else:
            self.port.send(self.broker, _request(subscription))

    @staticmethod
    def _shown_before(held: OwnSubscription, source: str, incarnation: int, last: int) -> int:
        """Return the highest sequence of the source shown before, and raise it to at least `last`."""
        return held.highest.raise_to((source, incarnation), last) or 0


def parted(stretch: Stretch, before: int) -> list[tuple[Stretch, bool]]:
    """Split into the part below that sequence, which is late, and the rest."""
    if stretch.last < before or stretch.first >= before:
        return [(stretch, stretch.last < before)]
    assert isinstance(stretch, Run)
    return [(stretch.cut(stretch.first, before - 1), True), (stretch.cut(before, stretch.last), False)]


def _request(subscription: Subscription) -> Subscribe:
    asked = (
        subscription.id,
        subscription.topics,
        subscription.filter,
        subscription.order,
        subscription.headers,
    )
    if subscription.group:
        return JoinGroup(*asked, subscription.group, subscription.group_by)
    return SubscribeAfterHistory(*asked) if subscription.history else Subscribe(*asked)


class BestEffortClient(Node):
    """A node with one best-effort session."""

    def __init__(self, port: Port, broker: str, *, incarnation: int = 0) -> None:
        self.session = ClientSession(port, broker, incarnation=incarnation)
        self.publish = self.session.publish
        self.flush = self.session.flush
        self.subscribe = self.session.subscribe
        self.unsubscribe = self.session.unsubscribe
        self.request_status = self.session.request_status
        self.shares = GroupMember(port, self.session)
        self.session.members = self.shares.on_fact
        super().__init__((self.session,))
