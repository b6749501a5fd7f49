"""The messages with which brokers exchange interests (core/overlay/forwarding.py)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tidings.core.events.event import Counter
from tidings.core.messages import Key, PatternCount, Text, Topics, WireMessage


class LinkOpen(WireMessage, frozen=True, gc=False, tag=10):
    """Gives the sender's incarnation, and in `heard` the receiver's as the sender knows it (0: not at all)."""

    incarnation: Counter
    heard: Counter
    answer_wanted: bool


class AddInterest(WireMessage, frozen=True, gc=False, tag=11):
    key: Key
    topics: Topics
    filter: Text | None = None
    serial: Counter = 0
    """Distinguishes the additions of one interest: it may be removed and added again before it is settled."""


class RemoveInterest(WireMessage, frozen=True, gc=False, tag=12):
    key: Key


class Settled(WireMessage, frozen=True, gc=False, tag=13):
    """The interest that the receiver sent with that serial is installed in the whole network behind the sender."""

    key: Key
    serial: Counter = 0
    numbers: Annotated[tuple[PatternCount, ...], Meta(max_length=4096)] = ()
    """Epidemic mode: how far origins behind the sender have counted the interest's patterns."""


class TableSent(WireMessage, frozen=True, gc=False, tag=14):
    """Ends the sender's table: interests from its earlier incarnations that it has not resent are void."""


Change = AddInterest | RemoveInterest | Settled | TableSent


class Changes(WireMessage, frozen=True, gc=False, tag=15):
    """A numbered batch of changes. One batch is in flight at a time, and is resent until acknowledged."""

    incarnation: Counter
    to_incarnation: Counter
    number: Counter
    changes: Annotated[tuple[Change, ...], Meta(max_length=4096)]


class ChangesTaken(WireMessage, frozen=True, gc=False, tag=16):
    incarnation: Counter
    to_incarnation: Counter
    number: Counter


class StillHere(WireMessage, frozen=True, gc=False, tag=173):
    """Members of groups are at the sender or behind it, and it is alive (core/overlay/link_watch.py)."""

    incarnation: Counter
