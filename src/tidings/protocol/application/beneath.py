"""What a client's application needs of the event service beneath it: a session with a broker, or an adapter.

Four operations go down. What comes back are facts (protocol/facts.py): publications confirmed or failed, subscriptions
accepted or refused, events delivered with a ticket, events missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tidings.model.predicates import Scalar
from tidings.model.subscription import Subscription

if TYPE_CHECKING:  # facts carry tickets, and bookmarks are told of by facts
    from tidings.protocol.bookmarks import LeftBookmarks


class Beneath(Protocol):
    @property
    def bookmarks(self) -> LeftBookmarks | None:
        """Where it keeps, for the client's next life, how far this one has come; None: nowhere."""

    def reserve(self) -> int:
        """The sequence of the next event; events are published in the order of their sequences."""

    def publish_as(
        self, sequence: int, topic: str, attributes: Mapping[str, Scalar], payload: bytes, published_at: int
    ) -> object: ...

    def subscribe(self, subscription: Subscription) -> None: ...

    def unsubscribe(self, subscription_id: str) -> None: ...


class Taking(Protocol):
    """A ticket: what came is kept beneath until it is done with."""

    def grant(self) -> None:
        """It is buffered here, within bounds: more may come."""

    def done(self) -> None: ...


class _Nothing:
    """For a service that keeps nothing."""

    def grant(self) -> None:
        pass

    def done(self) -> None:
        pass


NOTHING: Taking = _Nothing()
