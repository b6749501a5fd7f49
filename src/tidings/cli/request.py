"""`tidings request`: publishes a request and prints its answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.event_printer import PayloadForm, Printer
from tidings.cli.shared.options import (
    ClientName,
    ConnectTimeout,
    Json,
    TlsAuthority,
    TokenFile,
    Url,
    make_bus,
    option,
    read_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidings.bus.host import ApplicationHost
    from tidings.core.events.event import Event
    from tidings.core.filters.language.predicates import Scalar

STDIN = "-"

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Where to ask, such as /price.", show_default=False)
]
Payload = Annotated[
    str | None,
    typer.Argument(metavar="[PAYLOAD]", help="Text; - is what stdin has.", show_default=False),
]
File = Annotated[Path | None, option("--file", metavar="FILE", help="Send this file's content; - is stdin.")]
Attributes = Annotated[
    list[str] | None,
    option(
        "--attribute",
        "--attr",
        "-a",
        metavar="NAME=VALUE",
        help="Attribute, such as symbol=ABB or size=12. Repeatable.",
    ),
]
Timeout = Annotated[
    float, option("--timeout", metavar="SECONDS", min=0.001, max=1e6, help="How long to wait for the answer.")
]


def request(
    url: Url,
    topic: Topic,
    payload: Payload = None,
    file: File = None,
    attribute: Attributes = None,
    timeout: Timeout = 5.0,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Ask a question, and print the payload of the answer.

    Exits with 3 if no answer came in time, 5 if nobody is subscribed, 6 if the answer is an error.
    """
    from tidings.cli.shared.running import run
    from tidings.cli.shared.values import parse_attributes
    from tidings.core.events.event import check_attributes
    from tidings.core.events.topics import check_topic

    if payload is not None and file is not None:
        raise typer.BadParameter("not allowed with a payload", param_hint="--file")
    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    attributes = parse_attributes(attribute or ())
    check_topic(topic)
    check_attributes(attributes)
    if payload == STDIN:
        file = Path(STDIN)
    content = (payload or "").encode(errors="surrogateescape") if file is None else read_file(file, "--file")
    print_answer(run(ask(bus, topic, attributes, content, timeout)), as_json=json)


async def ask(
    bus: ApplicationHost, topic: str, attributes: Mapping[str, Scalar], payload: bytes, timeout_s: float
) -> Event:
    async with bus:
        return await bus.request(topic, attributes, payload, timeout=timeout_s)


def print_answer(answer: Event, *, as_json: bool) -> None:
    """Print the answer as JSON, or its payload as it is; a terminal gets an end of line."""
    if as_json:
        printer = Printer(PayloadForm.TEXT, as_json=True)
        printer.add(answer)
        printer.flush()
        return
    sys.stdout.buffer.write(answer.payload)
    if sys.stdout.isatty() and not answer.payload.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
