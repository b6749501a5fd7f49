"""Names the sequencers' nodes: each is placed beside a broker and named after it."""

from __future__ import annotations

NODE_PREFIX = "order:"


def order_node(broker: str) -> str:
    """Return the name of the sequencer's node beside a broker."""
    return NODE_PREFIX + broker


def is_order_node(name: str) -> bool:
    return name.startswith(NODE_PREFIX)


def host_of(name: str) -> str:
    """Return the broker beside a sequencer's node; any other node is its own host."""
    return name.removeprefix(NODE_PREFIX)
