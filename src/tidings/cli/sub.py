"""`tidings sub`: prints events as they come."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.options import (
    ClientName,
    ConnectTimeout,
    Json,
    TlsAuthority,
    TokenFile,
    Url,
    make_bus,
    option,
)
from tidings.cli.shared.output import discard_output, json_line, printable

if TYPE_CHECKING:
    from tidings.bus.host import ApplicationHost
    from tidings.bus.stream import Stream
    from tidings.core.events.event import Event


class PayloadForm(StrEnum):
    TEXT = "text"
    HEX = "hex"
    NONE = "none"


class OrderName(StrEnum):
    NONE = "none"
    FIFO = "fifo"
    CAUSAL = "causal"
    TOTAL = "total"


Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="/a/b, /a/* or /a/** (the subtree).", show_default=False),
]
Where = Annotated[str | None, option("--where", metavar="SQL", help="Only events for which this is true.")]
OrderFlag = Annotated[OrderName, option("--order", help="The order in which events are shown.")]
Count = Annotated[int | None, option("--count", "-n", min=1, help="End after so many events.")]
Timeout = Annotated[
    float | None,
    option("--timeout", min=0.0, help="End after so many seconds; exit code 3 if too little came."),
]
PayloadFlag = Annotated[PayloadForm, option("--payload", help="How payloads are shown.")]


def sub(
    url: Url,
    topics: Topics,
    where: Where = None,
    order: OrderFlag = OrderName.NONE,
    count: Count = None,
    timeout: Timeout = None,
    payload: PayloadFlag = PayloadForm.TEXT,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Subscribe, and print every event on a line; until Ctrl-C, --count or --timeout."""
    from tidings.cli.shared.running import Stopped, run

    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    stream = bus.subscribe(*topics, where=where, order=order.value)
    printer = Printer(payload, as_json=json)
    try:
        run(print_events(bus, stream, printer, count, timeout))
    except Stopped:
        return  # somebody has seen enough
    except BrokenPipeError:
        discard_output()
        return
    if timeout is not None and printer.printed < (count or 1):
        raise typer.Exit(ExitCode.TIMEOUT)


async def print_events(
    bus: ApplicationHost, stream: Stream, printer: Printer, count: int | None, timeout_s: float | None
) -> None:
    """Until `count` events are printed or the time is over, which starts with the subscription."""
    async with bus, stream:
        # On stderr, for who must not publish before.
        sys.stderr.write('{"event": "subscribed"}\n' if printer.as_json else "subscribed\n")
        sys.stderr.flush()
        try:
            async with asyncio.timeout(timeout_s):
                async for event in stream:
                    printer.add(event)
                    if printer.printed == count:
                        return
                    if not len(stream):  # the batch is over
                        printer.flush()
        except TimeoutError:
            return
        finally:
            printer.flush()


class Printer:
    """Events as lines, collected until `flush`."""

    def __init__(self, payload: PayloadForm, *, as_json: bool) -> None:
        self.payload = payload
        self.as_json = as_json
        self.printed = 0
        self._lines: list[str] = []

    def add(self, event: Event, offset: int | None = None) -> None:
        """`offset` is its place in an archive."""
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
    """Text where it is text; a program must be able to tell."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_hex": payload.hex()}
