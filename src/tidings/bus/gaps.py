"""What a stream is missing, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class EventsMissed(NamedTuple):
    """Events of one source that a stream misses. Not all of them need have matched the subscription.

    `first` and `last` are the sequence numbers of the first and the last one.
    """

    source: str
    incarnation: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A stream misses events, and has gone on after them.

    A stream with an order shows nothing twice and nothing late: everything after the gap comes later in the order than
    everything before it.
    """

    reason: str
    """Why they are missing."""
    at: int
    """When the stream went on, in nanoseconds since 1970."""
    count: int
    """How many events are missing, at most: not all need have matched the subscription. With an order, where events
    that were published until the stream went on may be missing as well, at least."""
    missed: tuple[EventsMissed, ...] = ()
    """Which ones, by source, if the network knows."""

    @property
    def text(self) -> str:
        """The gap in one line."""
        which = ", ".join(f"{each.first} to {each.last} of {each.source}" for each in self.missed[:MAX_NAMED])
        more = ", ..." if len(self.missed) > MAX_NAMED else ""
        return f"missed {self.count} events: {self.reason}" + (f" (events {which}{more})" if which else "")


MAX_NAMED = 3
"""How many sources the text of a gap names."""
GIVEN_UP = "the network could not keep them"
MOVED = "the client moved to another broker, and they may have waited at the old one"
DELETED = "the broker deleted them before they were read"


def gap_of(missed: EventsMissed, reason: str, at: int) -> Gap:
    """Return the gap of one source."""
    return Gap(reason, at, missed.last - missed.first + 1, (missed,))
