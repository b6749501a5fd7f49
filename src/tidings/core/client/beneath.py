"""What a client's application needs of the event service beneath it: a session with a broker, or an adapter.

A few operations go down. What comes back are facts (core/facts.py): publications confirmed or failed, subscriptions
accepted or refused, events delivered with a ticket, events missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tidings.core.events.run import Stretch
from tidings.core.events.subscription import Subscription
from tidings.core.filters.language.predicates import Scalar

if TYPE_CHECKING:  # facts carry tickets, and bookmarks are told of by facts
    from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks

END = 2**63
"""Beyond all sequences."""


class Beneath(Protocol):
    @property
    def bookmarks(self) -> LeftBookmarks | None:
        """Where it keeps, for the client's next life, how far this one has come; None: nowhere."""

    @property
    def identity(self) -> tuple[str, int]:
        """The source of what is published, and its incarnation."""

    @property
    def next_sequence(self) -> int:
        """That `reserve` will give."""

    def reserve(self) -> int:
        """The sequence of the next event; events are published in the order of their sequences."""

    def publish_stretch(self, stretch: Stretch) -> object:
        """Events that have their sequences."""

    def publish_as(
        self, sequence: int, topic: str, attributes: Mapping[str, Scalar], payload: bytes, published_at: int
    ) -> object: ...

    def subscribe(self, *subscriptions: Subscription) -> None:
        """What came for them before, for an earlier life of this client, is shown in the order in which it came."""

    def shown(self, subscription_id: str) -> Mapping[tuple[str, int], int] | None:
        """The last sequence that it was shown, by source and incarnation; None: events of a source may come in any
        order, or in that of each subscription."""

    def unsubscribe(self, subscription_id: str, *, drain: bool = False) -> None:
        """`drain`: what is on its way for it alone still comes, where the service can bring it. SubscriptionCancelled
        follows when all has."""


class Taking(Protocol):
    """A ticket for some consecutive events of a source: they are kept beneath until they are done with."""

    def grant(self, first: int = 0, last: int = END) -> None:
        """These sequences, or all, are buffered here, within bounds: more may come."""

    def done(self, first: int = 0, last: int = END) -> None:
        """The application is done with these sequences, or with all."""


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
    """For a service that keeps nothing."""

    def grant(self, first: int = 0, last: int = END) -> None:
        pass

    def done(self, first: int = 0, last: int = END) -> None:
        pass


NOTHING: Taking = _Nothing()
