"""A client's side of groups in a network without a guarantee, with the interface of `ShareHolder`.

The broker sends each event once and forgets it. So every attempt is the first, and what the application is done with is
done at once.
"""

from __future__ import annotations

from typing import Protocol

from tidings.core.events.event import WHOLE
from tidings.core.events.subscription import Subscription
from tidings.core.facts import (
    Delivered,
    ShareAsideShown,
    ShareAttached,
    ShareCancelled,
    ShareDelivered,
    ShareDetached,
    ShareFinished,
    SubscriptionAccepted,
    SubscriptionFailed,
)
from tidings.core.kernel import Port
from tidings.core.overlay.guaranteed.share_messages import ShareAttach
from tidings.core.structures.ranges import Ranges

NEEDS_GUARANTEE = "start the network with mode guaranteed"
NOTHING_KEPT = f"this network keeps nothing for durable subscriptions and groups: {NEEDS_GUARANTEE}"


class Subscribes(Protocol):
    """The session with the broker."""

    def subscribe(self, *subscriptions: Subscription) -> None: ...
    def unsubscribe(self, subscription_id: str, *, drain: bool = False) -> None: ...


class GroupMember:
    """Joins groups over a session without acknowledgements."""

    def __init__(self, port: Port, session: Subscribes) -> None:
        self._port = port
        self._session = session
        self._next: dict[str, int] = {}
        """Subscription -> the number of its next event."""

    def attach(self, request: ShareAttach) -> None:
        """Join a group; ShareAttached or ShareDetached follows."""
        if request.subscription in self._next:
            raise ValueError(f"subscription {request.subscription!r} already exists")
        self._next[request.subscription] = 1
        asked = (request.subscription, request.topics, request.filter)
        self._session.subscribe(Subscription(*asked, group=request.name, group_by=request.group_by))

    def finish(
        self, subscription: str, first: int, last: int, *, expired: bool = False, reports: bool = False
    ) -> None:
        self._port.emit(ShareFinished(subscription, ((first, last),), ()))

    def report(self) -> None:
        """Nobody waits for it."""

    def give_back(self, subscription: str, number: int, after_ns: int = 0, *, aside: bool = False) -> None:
        """Nobody takes the event back: it is done."""
        self.finish(subscription, number, number)

    def leave(self, subscription: str, unseen: Ranges = ()) -> None:
        """Leave the group at once; what the application has not seen is lost."""
        if self._next.pop(subscription, None) is not None:
            self._session.unsubscribe(subscription)
            self._port.emit(ShareDetached(subscription, ""))

    def end(self, name: str) -> None:
        self._port.emit(ShareCancelled(name, f"{name!r} ends with its last member: {NOTHING_KEPT}"))

    def ask_aside(self, name: str, after: int = 0, release: Ranges = (), drop: Ranges = ()) -> None:
        self._port.emit(ShareAsideShown(name, (), 0, False, NOTHING_KEPT))

    def on_fact(self, fact: object) -> None:
        """Handle a fact of the session about one of these subscriptions."""
        match fact:
            case Delivered(subscription=subscription, stretch=stretch, recovered_by=by) if (
                subscription in self._next and stretch.kind == WHOLE
            ):
                first = self._next[subscription]
                self._next[subscription] = first + stretch.count
                self._port.emit(ShareDelivered(subscription, first, 1, stretch, by))
            case SubscriptionAccepted(subscription=subscription) if subscription in self._next:
                self._port.emit(ShareAttached(subscription, ()))
            case SubscriptionFailed(subscription=subscription, reason=reason):
                if self._next.pop(subscription, None) is not None:
                    self._port.emit(ShareDetached(subscription, reason))
