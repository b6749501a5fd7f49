"""Chooses one of several members by rendezvous hash: every broker that knows the same members makes the same choice.

A member who joins or leaves moves only its own share (Thaler and Ravishankar, "Using name-based mappings to increase
hit rates", 1998).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

from tidings.core.errors import WireError
from tidings.core.events.text import attribute_text
from tidings.core.filters.language.predicates import Scalar

SHARE_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
"""What names of durable subscriptions and groups look like."""
MAX_GROUP_BY_LENGTH = 256
"""Of the name of an attribute by whose values members share events."""
NO_VALUE = "null"
"""The key of events that lack the attribute."""


def rendezvous(members: Iterable[str], key: str) -> str | None:
    """Return the member for that key; None if there is no member."""
    return max(members, key=lambda member: (rendezvous_weight(member, key), member), default=None)


def rendezvous_weight(member: str, key: str) -> bytes:
    """Return the weight of a member for that key: the highest wins."""
    return blake2b(f"{member}\0{key}".encode(errors="surrogatepass"), digest_size=8).digest()


def event_key(source: str, incarnation: int, sequence: int) -> str:
    """Return the key of a single event, by which events are spread evenly."""
    return f"{incarnation}\0{sequence}\0{source}"


def value_key(attributes: Callable[[], Mapping[str, Scalar]], name: str) -> str:
    """Return the key of events with an equal value of that attribute."""
    try:
        value = attributes().get(name)
    except WireError:
        value = None
    return attribute_text(value) or NO_VALUE
