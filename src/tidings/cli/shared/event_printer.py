"""Prints events as lines, for `sub` and `get`."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tidings.cli.shared.output import json_line, printable

if TYPE_CHECKING:
    from tidings.core.events.event import Event


class PayloadForm(StrEnum):
    TEXT = "text"
    HEX = "hex"
    NONE = "none"


class Printer:
    """Formats events as lines and collects them until `flush`."""

    def __init__(self, payload: PayloadForm, *, as_json: bool) -> None:
        self.payload = payload
        self.as_json = as_json
        self.printed = 0
        self._lines: list[str] = []

    def add(self, event: Event, offset: int | None = None) -> None:
        """Add an event; `offset` is its position in an archive."""
        self.printed += 1
        if self.as_json:
            fields = self._fields(event)
            self._lines.append(json_line(fields if offset is None else {"offset": offset, **fields}))
        else:
            text = self._text(event)
            self._lines.append(text if offset is None else f"{offset} {text}")

    @property
    def waiting(self) -> int:
        return len(self._lines)

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()

    def _text(self, event: Event) -> str:
        from tidings.cli.shared.values import attribute_text

        attributes = (
            f"{printable(name)}={attribute_text(value)}" for name, value in event.attributes.items()
        )
        words = [event.topic, *attributes]
        if self.payload is PayloadForm.HEX:
            words.append(f"| {event.payload.hex()}")
        elif self.payload is PayloadForm.TEXT and event.payload:
            words.append(f"| {printable(event.payload.decode(errors='backslashreplace'))}")
        return " ".join(words)

    def _fields(self, event: Event) -> dict[str, Any]:
        from tidings.cli.shared.values import attribute_json

        fields: dict[str, Any] = {
            "id": str(event.id),
            "topic": event.topic,
            "attributes": {name: attribute_json(value) for name, value in event.attributes.items()},
            "published_at": event.published_at,
        }
        if event.out_of_order:
            fields["out_of_order"] = True
        if event.recovered_by is not None:
            fields["recovered_by"] = event.recovered_by
        if self.payload is PayloadForm.HEX:
            fields["payload_hex"] = event.payload.hex()
        elif self.payload is PayloadForm.TEXT:
            fields |= _text_payload(event.payload)
        return fields


def _text_payload(payload: bytes) -> dict[str, str]:
    """Return the payload as text if it is UTF-8; programs must be able to tell the difference."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_hex": payload.hex()}
