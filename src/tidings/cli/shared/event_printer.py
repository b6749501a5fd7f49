"""Prints events as lines, for `sub` and `get`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tidings.cli.shared.event_format import attributes_text, payload_text
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
        self.format_line: Callable[[Event], str] = self.text
        self._lines: list[str] = []

    def add(self, event: Event, offset: int | None = None) -> None:
        """Add an event; `offset` is its position in an archive."""
        self.printed += 1
        if self.as_json:
            fields = self.fields(event)
            self._lines.append(json_line(fields if offset is None else {"offset": offset, **fields}))
        else:
            text = self.format_line(event)
            self._lines.append(text if offset is None else f"{offset} {text}")

    @property
    def waiting(self) -> int:
        return len(self._lines)

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()

    def text(self, event: Event) -> str:
        """Return the usual line of an event."""
        words = f" {attributes_text(event)}" if event.attributes else ""
        return event.topic + words + self.payload_words(event)

    def payload_words(self, event: Event) -> str:
        """Return the end of a line."""
        if self.payload is PayloadForm.HEX:
            return f" | {event.payload.hex()}"
        if self.payload is PayloadForm.TEXT and event.payload:
            return f" | {printable(payload_text(event.payload))}"
        return ""

    def fields(self, event: Event) -> dict[str, Any]:
        """Return what `--json` prints."""
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
        if event.content_type:
            fields["content_type"] = event.content_type
        if event.expires_at is not None:
            fields["expires_at"] = event.expires_at
        if event.attempt > 1:
            fields["attempt"] = event.attempt
        return fields | self.payload_fields(event)

    def payload_fields(self, event: Event) -> dict[str, str]:
        """Return the payload as text if it is UTF-8; programs must be able to tell the difference."""
        if self.payload is PayloadForm.NONE:
            return {}
        if self.payload is PayloadForm.TEXT:
            with suppress(UnicodeDecodeError):
                return {"payload": event.payload.decode()}
        return {"payload_hex": event.payload.hex()}


class RawPrinter(Printer):
    """Prints nothing but payloads, as they are."""

    def __init__(self, *, newline: bool) -> None:
        super().__init__(PayloadForm.NONE, as_json=False)
        self._end = b"\n" if newline else b""
        self._payloads: list[bytes] = []

    def add(self, event: Event, offset: int | None = None) -> None:
        self.printed += 1
        self._payloads.append(bytes(event.payload))

    @property
    def waiting(self) -> int:
        return len(self._payloads)

    def flush(self) -> None:
        payloads, self._payloads = self._payloads, []
        if payloads:
            sys.stdout.flush()
            sys.stdout.buffer.write(b"".join(payload + self._end for payload in payloads))
            sys.stdout.buffer.flush()
