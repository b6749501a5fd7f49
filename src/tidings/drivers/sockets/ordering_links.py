"""What sequencers and their clients share on the wire: comparing layouts, addresses, and links that may drop messages.

A session of the ordering begins like any other, with Hello and Welcome. Then both sides send their layout of topics,
and continue only if the two are the same. Messages of the ordering may be lost: a slow peer misses some, and gets them
when they are repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from tidings.core.errors import ConnectionFailed, OrderError
from tidings.core.messages import Message
from tidings.core.ordering.layout import Layout, parse_layout
from tidings.core.ordering.messages import (
    MAX_LAYOUT_BYTES,
    Between,
    ChainItem,
    ChainTaken,
    ChangeSubscription,
    Claim,
    Create,
    EventStamps,
    NoState,
    NotActive,
    OrderLayout,
    PublisherAlive,
    PublisherDisowned,
    PublisherGone,
    Replicate,
    Replicated,
    Ruling,
    StatePart,
    StateTaken,
    StateWanted,
    SubscriberAlive,
    SubscriberDisowned,
    WalkDone,
)
from tidings.drivers.address import Address, parse_address
from tidings.drivers.sockets.outbox import Policy
from tidings.drivers.sockets.session import HANDSHAKE_SECONDS, Handler, SessionState, SocketSession

SEQUENCER_MODE = "sequencer"
"""The mode in the Welcome of a sequencer, which is not a broker."""
LIMIT_BYTES = 8 * 1024 * 1024
"""Beyond this, messages to a peer that does not read are dropped."""
POLICY = Policy(LIMIT_BYTES, reports_drops=False)

FROM_CLIENTS = (Create, ChangeSubscription, PublisherAlive, PublisherGone, SubscriberAlive)
TO_CLIENTS = (EventStamps, PublisherDisowned, WalkDone, SubscriberDisowned, NotActive)
BETWEEN_SEQUENCERS = (
    Between,
    ChainItem,
    ChainTaken,
    Claim,
    NoState,
    NotActive,
    Replicate,
    Replicated,
    Ruling,
    StatePart,
    StateTaken,
    StateWanted,
)


class OrderingLink:
    """A port's sink for one session; it drops messages while too much waits."""

    __slots__ = ("left_out", "session")

    def __init__(self, session: SocketSession) -> None:
        self.session = session
        self.left_out = 0

    def send(self, message: Message) -> None:
        if self.session.outbox.size_bytes < LIMIT_BYTES:
            self.session.send(message)
        else:
            self.left_out += 1


def expect_layout(session: SocketSession) -> asyncio.TimerHandle:
    """Refuse the peer if it does not send its layout in time."""

    def give_up() -> None:
        if session.state is not SessionState.ENDED:
            session.refuse(f"no layout of topics within {HANDSHAKE_SECONDS:g} seconds")

    return asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS, give_up)


def accept_only(
    kinds: Iterable[type], take: Handler, who: str, session: SocketSession
) -> tuple[dict[type, Handler], Handler]:
    """Return handlers for these kinds of messages, and one that refuses a peer that sends others."""

    def refuse(message: Message) -> None:
        session.refuse(f"{who} does not send {type(message).__name__}")

    return dict.fromkeys(kinds, take), refuse


def layout_refusal(layout: Layout, theirs: str, where: str) -> str | None:
    """Return why node `where` refuses a peer with that layout; None if the layouts agree."""
    if theirs == layout.text:
        return None
    try:
        difference = layout.difference(parse_layout(theirs))
    except OrderError as error:
        return str(error)
    return f"the layouts of topics differ ('here' is {where}): {difference}" if difference else None


def check_layout_size(layout: Layout) -> None:
    size_bytes = len(layout.text.encode())
    if size_bytes > MAX_LAYOUT_BYTES:
        raise OrderError(f"the layout of topics has {size_bytes} bytes; the limit is {MAX_LAYOUT_BYTES}")


def format_addresses(addresses: Mapping[str, Address]) -> tuple[tuple[str, str], ...]:
    return tuple((node, str(address)) for node, address in sorted(addresses.items()))


def parse_addresses(message: OrderLayout, known: Callable[[str], bool]) -> dict[str, Address]:
    """Return the addresses of known nodes, ignoring invalid ones."""
    found = {}
    for node, text in message.addresses:
        try:
            address = parse_address(text)
        except ConnectionFailed:
            continue
        if known(node) and address.port:
            found[node] = address
    return found
