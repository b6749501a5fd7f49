"""What a client's application needs from the event service below it: a session with a broker, or an adapter.

The application calls a few operations. The service answers with facts (core/facts.py): publications confirmed or
failed, subscriptions accepted or refused, events delivered with a ticket, events missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tidings.core.events.payload import Payload
from tidings.core.events.run import Stretch
from tidings.core.events.subscription import Subscription
from tidings.core.filters.language.predicates import Scalar

if TYPE_CHECKING:  # a cycle: facts carry tickets, and bookmarks emit facts
    from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks

END = 2**63
"""Above all sequences."""


class Beneath(Protocol):
    """The event service below an application."""

    @property
    def bookmarks(self) -> LeftBookmarks | None:
        """Where the service keeps the client's progress across restarts; None: nowhere."""

    @property
    def is_connected(self) -> bool:
        """False while nothing can arrive, because the connection is lost."""

    @property
    def identity(self) -> tuple[str, int]:
        """The source of publications, and its incarnation."""

    @property
    def next_sequence(self) -> int:
        """The sequence that `reserve` will return."""

    def reserve(self) -> int:
        """Reserve and return the next event's sequence; events are published in the order of their sequences."""

    def publish_stretch(self, stretch: Stretch) -> object:
        """Publish events that have their sequences."""

    def publish_as(
        self, sequence: int, topic: str, attributes: Mapping[str, Scalar], payload: Payload, published_at: int
    ) -> object: ...

    def subscribe(self, *subscriptions: Subscription) -> None:
        """Subscribe. What arrived for them before, for an earlier run of this client, is shown in order of arrival."""

    def shown(self, subscription_id: str) -> Mapping[tuple[str, int], int] | None:
        """Return the last sequence shown, by source and incarnation. None: the service does not keep one order of a
        source's events across subscriptions."""

    def unsubscribe(self, subscription_id: str, *, drain: bool = False) -> None:
        """Unsubscribe. With `drain`, what is in flight for this subscription alone is still delivered, if the service
        can do that. SubscriptionCancelled follows at the end."""


class Taking(Protocol):
    """A ticket for consecutive events of a source; the service keeps them until they are done."""

    def grant(self, first: int = 0, last: int = END) -> None:
        """Report that these sequences, or all, are buffered within a limit: more may be sent."""

    def done(self, first: int = 0, last: int = END) -> None:
        """Report that the application is done with these sequences, or with all."""


class PartOfTicket:
    """A ticket for some of the events of another."""

    __slots__ = ("_first", "_last", "_whole")

    def __init__(self, whole: Taking, first: int, last: int) -> None:
        self._whole = whole
        self._first = first
        self._last = last

    def grant(self, first: int = 0, last: int = END) -> None:
        self._whole.grant(max(first, self._first), min(last, self._last))

    def done(self, first: int = 0, last: int = END) -> None:
        self._whole.done(max(first, self._first), min(last, self._last))


class _Nothing:
    """The ticket of a service that keeps nothing."""

    def grant(self, first: int = 0, last: int = END) -> None:
        pass

    def done(self, first: int = 0, last: int = END) -> None:
        pass


NOTHING: Taking = _Nothing()
