"""`tidings pub`: publishes events and prints the ids of confirmed ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from tidings.cli.shared.output import json_line, print_line

if TYPE_CHECKING:
    from tidings.bus.host import ApplicationHost
    from tidings.core.filters.language.predicates import Scalar

STDIN = "-"
MAX_BATCH = 512
"""The most events under way at once."""

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Where to publish, such as /news/bbc.", show_default=False)
]
Payload = Annotated[
    str | None,
    typer.Argument(
        metavar="[PAYLOAD]", help="Text; - publishes each line of stdin as an event.", show_default=False
    ),
]
File = Annotated[
    Path | None, option("--file", metavar="FILE", help="Publish this file's content; - is stdin.")
]
Attributes = Annotated[
    list[str] | None,
    option(
        "--attribute",
        "-a",
        metavar="NAME=VALUE",
        help="Attribute, such as size=12, urgent=true or 'code=\"12\"'. Repeatable.",
    ),
]
Count = Annotated[
    int | None,
    option("--count", "-n", metavar="N", min=1, help="Publish N times; with stdin, at most N lines."),
]
Rate = Annotated[
    float | None, option("--rate", metavar="HZ", min=0.001, max=1e6, help="At most HZ events per second.")
]
Timeout = Annotated[
    float, option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for each confirmation.")
]


def pub(
    url: Url,
    topic: Topic,
    payload: Payload = None,
    file: File = None,
    attribute: Attributes = None,
    count: Count = None,
    rate: Rate = None,
    timeout: Timeout = 30.0,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Publish events.

    Prints the id of each event once it is confirmed.
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
        payloads = stdin_payloads(count)
    else:
        text = (payload or "").encode(errors="surrogateescape")
        payloads = repeated(text if file is None else read_file(file, "--file"), count or 1)
    run(publish_all(bus, topic, attributes, paced(payloads, rate), timeout, as_json=json))


async def publish_all(
    bus: ApplicationHost,
    topic: str,
    attributes: Mapping[str, Scalar],
    batches: AsyncIterator[list[bytes]],
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    """Publish batch after batch; print the ids of confirmed events even if another one fails."""

    async def publish(payload: bytes) -> str:
        try:
            return str(await asyncio.wait_for(bus.publish(topic, attributes, payload), timeout_s))
        except TimeoutError:
            raise TimeoutError(f"not confirmed within {timeout_s:g} s") from None

    async with bus:
        async for batch in batches:
            results = await asyncio.gather(*map(publish, batch), return_exceptions=True)
            print_ids([result for result in results if isinstance(result, str)], topic, as_json=as_json)
            for result in results:
                if isinstance(result, BaseException):
                    raise result


def print_ids(ids: list[str], topic: str, *, as_json: bool) -> None:
    if ids:
        print_line("\n".join(json_line({"id": name, "topic": topic}) if as_json else name for name in ids))


async def repeated(content: bytes, count: int) -> AsyncIterator[list[bytes]]:
    """Yield the same payload `count` times, in batches."""
    for begin in range(0, count, MAX_BATCH):
        yield [content] * min(MAX_BATCH, count - begin)


async def stdin_payloads(count: int | None) -> AsyncIterator[list[bytes]]:
    """Yield the lines of stdin as they arrive, in batches of those available."""
    from tidings.drivers.processes.stdin import stdin_lines

    left = count
    async for lines in stdin_lines():
        for begin in range(0, len(lines), MAX_BATCH):
            batch = lines[begin : begin + MAX_BATCH][:left]
            yield batch
            if left is not None:
                left -= len(batch)
                if left == 0:
                    return


async def paced(batches: AsyncIterator[list[bytes]], rate_hz: float | None) -> AsyncIterator[list[bytes]]:
    """Yield the payloads, none before its time: event number i is due i / rate_hz seconds after the first."""
    loop = asyncio.get_running_loop()
    began_at: float | None = None
    sent = 0
    async for batch in batches:
        if rate_hz is None:
            yield batch
            continue
        began_at = loop.time() if began_at is None else began_at
        while batch:
            due = int((loop.time() - began_at) * rate_hz) + 1 - sent
            if due > 0:
                yield batch[:due]
                sent += len(batch[:due])
                batch = batch[due:]
            else:
                await asyncio.sleep(max(0.0, began_at + sent / rate_hz - loop.time()))
