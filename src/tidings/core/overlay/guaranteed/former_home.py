"""A broker that was the home of a share which has moved on: it sends on what still comes here for it.

Events that were published before the whole network knew the next home come only here. So the subscription stays for
seven days, or for as long as the share is kept without a holder, if that is longer. Of sources that the next home has
said to be complete, nothing is sent on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from tidings.core.client.arrivals import Arrivals
from tidings.core.events.run import Stretch
from tidings.core.messages import Message, Notify, Subscribed
from tidings.core.overlay.guaranteed.held_share import inside_client
from tidings.core.overlay.guaranteed.merged_sources import MAX_COMPLETE, Done, MergedSources, SourceId
from tidings.core.overlay.guaranteed.messages import Coverage, Missed
from tidings.core.overlay.guaranteed.share_definition import ShareDefinition
from tidings.core.overlay.guaranteed.share_messages import ShareForward
from tidings.core.overlay.labels import Label
from tidings.core.structures.highest import Highest


class Place(NamedTuple):
    """A broker."""

    broker: str
    label: Label


class FormerHome:
    """`send` reaches the next home, or loses the message if the link is down. The share's inbox becomes ours."""

    def __init__(
        self,
        definition: ShareDefinition,
        successor: Place,
        now: int,
        send: Callable[[ShareForward], None],
        inbox: deque[Message] | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        self.definition = definition
        self.successor = successor
        self.since = now
        self.inbox = deque() if inbox is None else inbox
        self.arrivals = arrivals or Arrivals(lambda: None)
        self.covered_at: int | None = None
        """Since when the whole network knows our subscription."""
        self.missed = 0
        """Events that the network gave up."""
        self.merged: MergedSources | None = None
        """Set if the share had moved here."""
        self._send = send
        self._next = 1
        self._unanswered: dict[int, tuple[bytes, Done]] = {}
        """Bounded by what the broker sends before anything is acknowledged."""
        self._highest: Highest[SourceId, int] = Highest(MAX_COMPLETE)
        self._complete: Highest[SourceId, int] = Highest(MAX_COMPLETE // 2)
        """Sources of which the next home gets everything by itself."""

    @property
    def client(self) -> str:
        return inside_client(self.definition)

    @property
    def is_idle(self) -> bool:
        """True if nothing waits here."""
        return not self.inbox and not self._unanswered and (self.merged is None or self.merged.is_idle)

    def read(self, now: int) -> None:
        """Send on what arrived."""
        while self.inbox and not (self.merged is not None and self.merged.is_full):
            message = self.inbox.popleft()
            match message:
                case Notify(stretch=stretch):
                    self._arrived(stretch)
                case Missed(first=first, last=last):
                    self.missed += last - first + 1
                    self.arrivals.arrive(last, 1).close()
                case Subscribed():
                    self.covered_at = now
                case Coverage():
                    self.covered_at = None

    def _arrived(self, stretch: Stretch) -> None:
        notice = self.arrivals.arrive(stretch.first, stretch.count)
        if self.merged is not None:
            self.merged.arrived(stretch, notice)
        else:
            notice.hold(stretch.first, stretch.last)
            self.take(stretch, partial(notice.release, stretch.first, stretch.last))
        notice.close()

    def start_with(self, highest: Iterable[tuple[SourceId, int]]) -> None:
        """Set the last sequences that the share took here."""
        for source, sequence in highest:
            self._highest.raise_to(source, sequence)

    # --- As a sink of merged sources

    def highest(self, source: SourceId) -> int:
        return self._highest.get(source, 0)

    def take(self, stretch: Stretch, done: Done) -> bool:
        source = (stretch.source, stretch.incarnation)
        self._highest.raise_to(source, stretch.last)
        if source in self._complete:
            self._complete.raise_to(source, 0)
            done()
            return True
        raw = bytes(stretch.raw)
        self._unanswered[self._next] = (raw, done)
        self._transmit(self._next, raw)
        self._next += 1
        return True

    def _transmit(self, number: int, raw: bytes) -> None:
        self._send(ShareForward(self.definition.name, self.definition.epoch + 1, number, raw))

    def repeat(self) -> None:
        """Send again what was not answered, over a new link."""
        for number, (raw, _) in self._unanswered.items():
            self._transmit(number, raw)

    def answered(self, number: int, complete: Iterable[SourceId]) -> None:
        """The next home, or the one after it, has these events on disk."""
        for source in complete:
            self._complete.raise_to(source, 0)
        answered = self._unanswered.pop(number, None)
        if answered is not None:
            answered[1]()
