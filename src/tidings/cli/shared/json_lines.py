"""Reads events from JSON lines: what `tidings sub --json` and `tidings get --json` print."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Meta, Struct

from tidings.cli.shared.notices import notice
from tidings.cli.shared.options import STDIN, reason_of
from tidings.cli.shared.values import attribute_of_json
from tidings.core.errors import TidingsError
from tidings.core.events.event import MAX_EVENT_BYTES, make_publication
from tidings.core.events.payload import PayloadItem, TypedPayload
from tidings.drivers.processes.stdin import lines_of

if TYPE_CHECKING:
    from tidings.bus.service import PublishedEvent

MAX_LINE_BYTES = 8 * MAX_EVENT_BYTES
"""JSON may need six characters for a byte."""
MAX_LINES = 100_000
MAX_BYTES = 64 * 1024 * 1024
"""How much `--all-or-nothing` reads before it publishes the first event."""


IGNORED = frozenset(
    {"id", "published_at", "out_of_order", "recovered_by", "attempt", "offset"}
    | {"event", "subscription", "deliveries", "reason", "given_up_at"}
)
"""Keys of what `sub`, `get` and `dead` print that do not count for a new event."""


class JsonEvent(Struct, frozen=True):
    """What counts of a line."""

    topic: str
    attributes: dict[str, Any] = {}
    payload: str | None = None
    payload_hex: str | None = None
    content_type: str = ""
    expires_at: Annotated[int, Meta(ge=1)] | None = None


KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
}
"""How users call what the decoder calls so."""
KEYS = frozenset(JsonEvent.__struct_fields__)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def parse_line(line: bytes) -> PublishedEvent:
    """Return the event of a line; raise ValueError with the reason if it cannot be published."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes")
    try:
        keys = _decode(line)
        _check_keys(keys)
        found = msgspec.convert(keys, JsonEvent)
        if found.payload is not None and found.payload_hex is not None:
            raise ValueError("has both payload and payload_hex")
        attributes = {name: _attribute(name, value) for name, value in found.attributes.items()}
        payload = _payload(found)
        make_publication("-", 0, 0, found.topic, attributes, payload, 0)  # checks everything
    except msgspec.ValidationError as error:
        raise ValueError(_plain(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("not valid JSON") from None
    except TidingsError as error:
        raise ValueError(str(error)) from None
    return found.topic, attributes, payload


def _plain(problem: str) -> str:
    """Return a problem of the decoder's as we say it: `payload: expected text or null, got an array`."""
    missing = re.fullmatch(r"Object missing required field `(\w+)`", problem)
    if missing:
        return f"has no {missing[1]}"
    words, _, place = problem.partition(" - at `$")
    words = re.sub(r"`([^`]*)`", lambda found: " or ".join(map(_kind, found[1].split(" | "))), words)
    where = place.rstrip("`").lstrip(".")
    return f"{where}: {words[:1].lower()}{words[1:]}" if where else words[:1].lower() + words[1:]


def _kind(name: str) -> str:
    return KINDS.get(name, name)


def _check_keys(keys: Iterable[str]) -> None:
    for key in keys:
        if key not in KEYS and key not in IGNORED:
            near = get_close_matches(key, sorted(KEYS | IGNORED), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known ones: {', '.join(sorted(KEYS))}"
            raise ValueError(f"unknown key {key!r}; {hint}")


def _attribute(name: str, value: object) -> Any:
    try:
        return attribute_of_json(value)
    except ValueError as error:
        raise ValueError(f"attribute {name!r}: {error}") from None


def _payload(found: JsonEvent) -> PayloadItem:
    if found.payload_hex is None:
        data = (found.payload or "").encode()
    else:
        try:
            data = bytes.fromhex(found.payload_hex)
        except ValueError:
            raise ValueError("payload_hex: expected hexadecimal digits") from None
    if found.expires_at is None and not found.content_type:
        return data
    return TypedPayload(data, found.content_type, found.expires_at or 0)


class JsonLines:
    """The events of a file or of stdin, in batches as they arrive. Bad lines are reported with their numbers."""

    def __init__(
        self, path: Path | None, count: int | None, *, keep_expired: bool = False, as_json: bool
    ) -> None:
        """`keep_expired`: also events whose time is over, because they get a new one."""
        self._path = path
        self._keep_expired = keep_expired
        self._left = count
        self._as_json = as_json
        self.lines = 0
        """Lines read, without empty ones."""
        self.bad = 0
        """Lines that are no event."""
        self.expired = 0
        """Lines left out because nobody would be shown their events."""

    async def batches(self) -> AsyncIterator[list[PublishedEvent]]:
        """Yield what can be read at a time."""
        async for _, events in self._parsed():
            if events:
                yield events

    async def all_or_nothing(self) -> AsyncIterator[list[PublishedEvent]]:
        """Read everything before the first event is yielded; yield none if a line is bad."""
        found: list[PublishedEvent] = []
        size_bytes = 0
        async for read_bytes, events in self._parsed():
            found += events
            size_bytes += read_bytes
            if self.lines > MAX_LINES or size_bytes > MAX_BYTES:
                reason = f"more than {MAX_LINES:,} lines or {MAX_BYTES >> 20} MiB; publish them in parts or without it"
                raise typer.BadParameter(reason, param_hint="--all-or-nothing")
        if found and not self.bad:
            yield found

    async def _parsed(self) -> AsyncIterator[tuple[int, list[PublishedEvent]]]:
        """Yield the bytes and the events of lines that arrived together."""
        number = 0
        descriptor = self._open()
        try:
            async for several in lines_of(descriptor, MAX_LINE_BYTES):
                events: list[PublishedEvent] = []
                for line in several:
                    number += 1
                    if self._left == 0:
                        break
                    if line and not line.isspace():
                        self._add(line, number, events)
                yield sum(map(len, several)), events
                if self._left == 0:
                    return
        except OSError as error:
            raise self._unreadable(error) from None

    def _add(self, line: bytes, number: int, events: list[PublishedEvent]) -> None:
        self.lines += 1
        if self._left is not None:
            self._left -= 1
        try:
            event = parse_line(line)
        except ValueError as error:
            self.bad += 1
            notice(f"line {number}: {error}", as_json=self._as_json)
            return
        payload = event[2]
        expires_at = payload.expires_at if isinstance(payload, TypedPayload) else 0
        if expires_at and expires_at <= time.time_ns() and not self._keep_expired:
            self.expired += 1
        else:
            events.append(event)

    def _open(self) -> int:
        """Return the file's descriptor. It stays open until the command ends, for a thread may still read ahead."""
        if self._path is None or self._path == STDIN:
            import sys

            return sys.stdin.fileno()
        try:
            return os.open(self._path, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> typer.BadParameter:
        reason = f"cannot read {self._path or 'stdin'}: {reason_of(error)}"
        return typer.BadParameter(reason, param_hint="--file")
