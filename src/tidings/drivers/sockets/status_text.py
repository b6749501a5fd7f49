"""Encodes a server's status as a text that fits into one message."""

from __future__ import annotations

import msgspec

MAX_STATUS_CHARACTERS = 65_536


def status_text(status: dict[str, object]) -> str:
    """Return the status as JSON. If it is too long, the longest values are replaced by their lengths."""
    status = dict(status)
    text = msgspec.json.encode(status).decode()
    while len(text) > MAX_STATUS_CHARACTERS:
        longest = max(status, key=lambda key: len(msgspec.json.encode(status[key])))
        value = status[longest]
        status[longest] = len(value) if isinstance(value, dict | list | tuple) else "..."
        text = msgspec.json.encode(status).decode()
    return text
