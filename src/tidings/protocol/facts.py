"""Facts that leave the protocols through `Port.emit`: for the application, the trace, or an operator."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tidings.model.event import Publication


class Fact(Struct, frozen=True, gc=False):
    """Base of all facts."""


class Delivered(Fact, frozen=True, gc=False):
    """A client is notified of an event."""

    subscription: str
    publication: Publication
    out_of_order: bool = False


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
