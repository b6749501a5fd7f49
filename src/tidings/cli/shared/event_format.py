"""Formats events as the user's template says: `{topic} {payload}`.

Only the fields listed here exist. The template never reaches `str.format`, which would let it read attributes of
Python's objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from string import Formatter
from typing import TYPE_CHECKING

import typer

from tidings.cli.shared.output import printable

if TYPE_CHECKING:
    from tidings.core.events.event import Event
    from tidings.core.filters.language.predicates import Scalar

Part = Callable[["Event"], str]

ATTRIBUTE = re.compile(r"(?:attributes\.(?P<dotted>.+)|(?:a|attributes)\[(?P<indexed>[^\[\]]+)\])", re.DOTALL)
ALIGNMENT = re.compile(r"(?:(?P<fill>[^{}])?(?P<side>[<>^]))?(?P<width>[0-9]{1,4})?")
ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\t": "\t", "\\0": "\0"}
NS_PER_S = 1_000_000_000


def time_text(time_ns: int) -> str:
    """Return an instant in ISO 8601, in UTC, with microseconds; the nanoseconds if it is too far away for a date."""
    seconds, rest_ns = divmod(time_ns, NS_PER_S)
    try:
        whole = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    return whole.replace(microsecond=rest_ns // 1_000, tzinfo=None).isoformat(timespec="microseconds") + "Z"


def payload_text(payload: bytes) -> str:
    """Return the payload as text; bytes that are not UTF-8 as `\\x..`."""
    return payload.decode(errors="backslashreplace")


def attributes_text(event: Event) -> str:
    """Return the attributes as words, `size=12 name=BBC`."""
    from tidings.cli.shared.values import attribute_text

    return " ".join(f"{printable(name)}={attribute_text(value)}" for name, value in event.attributes.items())


def _order_text(event: Event) -> str:
    return "" if event.order is None else f"{event.order.topic}:{event.order.number}"


def _value_text(value: Scalar) -> str:
    """Return one attribute's value: text as it is, without quotes."""
    from tidings.cli.shared.values import attribute_text

    return printable(value) if isinstance(value, str) else attribute_text(value)


FIELDS: dict[str, Part] = {
    "topic": lambda event: event.topic,
    "payload": lambda event: printable(payload_text(event.payload)),
    "text": lambda event: payload_text(event.payload),
    "hex": lambda event: event.payload.hex(),
    "size": lambda event: str(len(event.payload)),
    "attributes": attributes_text,
    "id": lambda event: str(event.id),
    "source": lambda event: event.source,
    "incarnation": lambda event: str(event.incarnation),
    "sequence": lambda event: str(event.sequence),
    "published_at": lambda event: str(event.published_at),
    "time": lambda event: time_text(event.published_at),
    "order": _order_text,
    "attempt": lambda event: str(event.attempt),
}


def parse_format(template: str, flag: str = "--format") -> Part:
    """Return the function that formats an event; report a mistake in the template."""
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        reason = f"{template!r}: {error}; write '{{{{' and '}}}}' for braces"
        raise typer.BadParameter(reason, param_hint=flag) from None
    parts: list[str | Part] = []
    for literal, name, alignment, conversion in parsed:
        if literal:
            parts.append(_unescaped(literal))
        if name is not None:
            parts.append(_field(name, alignment or "", conversion, flag))

    def formatted(event: Event) -> str:
        return "".join([part if isinstance(part, str) else part(event) for part in parts])

    return formatted


def _unescaped(literal: str) -> str:
    return re.sub(r"\\[\\nt0]", lambda found: ESCAPES[found[0]], literal)


def _field(name: str, alignment: str, conversion: str | None, flag: str) -> Part:
    if conversion is not None:
        raise typer.BadParameter(f"{{{name}!{conversion}}}: no conversion is possible", param_hint=flag)
    value = _value(name, flag)
    if not alignment:
        return value
    found = ALIGNMENT.fullmatch(alignment)
    if found is None or found["width"] is None:
        reason = f"{{{name}:{alignment}}}: expected a width of at most 9999, such as {{{name}:20}} or {{{name}:>20}}"
        raise typer.BadParameter(reason, param_hint=flag)
    adjust = {"<": str.ljust, ">": str.rjust, "^": str.center}[found["side"] or "<"]
    width, fill = int(found["width"]), found["fill"] or " "
    return lambda event: adjust(value(event), width, fill)


def _value(name: str, flag: str) -> Part:
    if (known := FIELDS.get(name)) is not None:
        return known
    if (found := ATTRIBUTE.fullmatch(name)) is not None:
        wanted = found["dotted"] or found["indexed"]
        return lambda event: _value_text(event.attributes[wanted]) if wanted in event.attributes else ""
    near = get_close_matches(name, FIELDS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    reason = (
        f"unknown field {name!r}; {hint}{'K' if near else 'k'}nown ones: {', '.join(FIELDS)}, attributes.NAME"
    )
    raise typer.BadParameter(reason, param_hint=flag)
