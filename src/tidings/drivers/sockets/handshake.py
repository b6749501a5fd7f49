"""Decides who may open a session: the checks of a Hello and of a Welcome. The reasons are sent to the peer."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from typing import NamedTuple

from tidings.core.messages import PROTOCOL_VERSION, Hello, Welcome

BROKER, CLIENT = "broker", "client"
SEQUENCER, ORDERED = "sequencer", "ordered"
"""A node of the ordering, and the ordering module of a client (drivers/sockets/ordering_links.py)."""

NAME_TAKEN = "another connection took the name"
CROSSING = "the other side's connection is taken: both were opened at the same time"
"""Compared with what a peer sends, so its text is part of the protocol."""


class HandshakeRules(NamedTuple):
    """What a broker checks a Hello against."""

    node: str
    mode: str
    neighbours: Collection[str]
    token: str
    open: bool = False
    """True if brokers that are not neighbours may connect: they join, or the protocol refuses them."""


def hello_refusal(hello: Hello, us: HandshakeRules) -> str | None:
    """Return why that Hello is refused, or None if it is accepted."""
    if hello.version != PROTOCOL_VERSION:
        return f"unsupported protocol version {hello.version}; this broker speaks {PROTOCOL_VERSION}"
    if not same_token(hello.token, us.token):
        return "wrong or missing token"
    if hello.role == CLIENT:
        taken = hello.node == us.node or hello.node in us.neighbours
        return f"the name {hello.node!r} belongs to a broker" if taken else None
    if hello.role != BROKER:
        return f"unknown role {hello.role!r}"
    if hello.node == us.node:
        return f"there are two brokers named {us.node}"
    if hello.node not in us.neighbours and not us.open:
        return f"{hello.node} is not a neighbour of {us.node}"
    return _mode_refusal(hello.mode, us)


def welcome_refusal(welcome: Welcome, us: HandshakeRules, expected: str) -> str | None:
    """Return why a broker that dialled `expected` rejects the one that answered, or None."""
    if welcome.version != PROTOCOL_VERSION:
        return (
            f"{welcome.node} speaks protocol version {welcome.version}, {us.node} speaks {PROTOCOL_VERSION}"
        )
    if welcome.node != expected:
        return f"{welcome.node} answered where {expected} was expected"
    return _mode_refusal(welcome.mode, us)


def same_token(given: str, wanted: str) -> bool:
    """Compare tokens in constant time; if none is wanted, any will do."""
    return not wanted or hmac.compare_digest(given.encode(), wanted.encode())


def _mode_refusal(mode: str, us: HandshakeRules) -> str | None:
    return None if mode == us.mode else f"{us.node} runs in mode {us.mode!r}, not {mode!r}"
