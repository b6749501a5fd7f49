"""Writes the file from which sequencer processes read their layout of topics."""

from __future__ import annotations

import msgspec

from tidings.core.ordering.layout import Layout
from tidings.drivers.address import Address


def layout_text(layout: Layout, addresses: dict[str, Address]) -> str:
    """Return the layout as the content of a file for `tidings sequencer --layout`."""
    lines = [f"order = {_quoted('causal' if layout.causal else 'total')}", ""]
    for place in layout.servers:
        lines += ["[[server]]", f"name = {_quoted(place.name)}"]
        lines.append(f"topics = [{', '.join(map(_quoted, place.topics))}]")
        keys = {"node": place.node, "standby": place.standby, "witness": place.witness}
        lines += [f"{key} = {_quoted(node)}" for key, node in keys.items() if node]
        lines.append("")
    lines += ["[nodes]", *(f"{_quoted(node)} = {_quoted(str(where))}" for node, where in addresses.items())]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Quote a string for TOML; JSON strings are valid TOML."""
    return msgspec.json.encode(text).decode()
