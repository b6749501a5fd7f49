"""The names of the nodes that number events: each sits beside a broker and is named after it."""

from __future__ import annotations

NODE_PREFIX = "order:"


def order_node(broker: str) -> str:
    """The node of the ordering beside a broker."""
    return NODE_PREFIX + broker


def is_order_node(name: str) -> bool:
    return name.startswith(NODE_PREFIX)


def host_of(name: str) -> str:
    """The broker that a node of the ordering sits beside; any other node is its own."""
    return name.removeprefix(NODE_PREFIX)
