"""What brokers tell each other of interests (core/overlay/forwarding.py)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tidings.core.events.event import Counter
from tidings.core.messages import Key, PatternCount, Text, Topics, WireMessage


class LinkOpen(WireMessage, frozen=True, gc=False, tag=10):
    """'I live, in this incarnation, and know you in that one (0: not at all).'"""

    incarnation: Counter
    heard: Counter
    answer_wanted: bool


class AddInterest(WireMessage, frozen=True, gc=False, tag=11):
    key: Key
    topics: Topics
    filter: Text | None = None
    serial: Counter = 0
    """Tells the additions of one interest apart: it may be removed and added again before it is settled."""


class RemoveInterest(WireMessage, frozen=True, gc=False, tag=12):
    key: Key


class Settled(WireMessage, frozen=True, gc=False, tag=13):
    """The interest that you sent with that serial is installed in the whole network behind me."""

    key: Key
    serial: Counter = 0
    numbers: Annotated[tuple[PatternCount, ...], Meta(max_length=4096)] = ()
    """Epidemic mode: how far origins behind me have counted the interest's patterns."""


class TableSent(WireMessage, frozen=True, gc=False, tag=14):
    """What you had from me in an earlier life and I have not sent again is void."""


Change = AddInterest | RemoveInterest | Settled | TableSent


class Changes(WireMessage, frozen=True, gc=False, tag=15):
    """A numbered batch of changes; one batch is on its way at a time, and is repeated until taken."""

    incarnation: Counter
    to_incarnation: Counter
    number: Counter
    changes: Annotated[tuple[Change, ...], Meta(max_length=4096)]


class ChangesTaken(WireMessage, frozen=True, gc=False, tag=16):
    incarnation: Counter
    to_incarnation: Counter
    number: Counter
