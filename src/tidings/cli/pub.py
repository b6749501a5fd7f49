"""`tidings pub`: publishes events and prints the ids of confirmed ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidings.cli.shared.exits import ExitCode, report
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
    from tidings.bus.service import PublishedEvent
    from tidings.cli.shared.json_lines import JsonLines

Item = TypeVar("Item")
STDIN = "-"
MAX_BATCH = 512
"""The most events under way at once."""

Topic = Annotated[
    str | None,
    typer.Argument(metavar="[TOPIC]", help="Where to publish, such as /news/bbc.", show_default=False),
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
AsJsonLines = Annotated[
    bool,
    option(
        "--json-lines",
        help="Publish the events that stdin or --file has, one on a line, as sub --json prints them.",
    ),
]
AllOrNothing = Annotated[
    bool,
    option("--all-or-nothing", help="With --json-lines: publish nothing if a line is bad."),
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
Expires = Annotated[
    str | None,
    option("--expires", metavar="TIME", help="Show the event to nobody after this long, such as 30s or 2h."),
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
    topic: Topic = None,
    payload: Payload = None,
    file: File = None,
    json_lines: AsJsonLines = False,
    all_or_nothing: AllOrNothing = False,
    attribute: Attributes = None,
    expires: Expires = None,
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
    from tidings.cli.shared.retention import parse_duration
    from tidings.cli.shared.running import run

    if payload is not None and file is not None:
        raise typer.BadParameter("not allowed with a payload", param_hint="--file")
    if all_or_nothing and not json_lines:
        raise typer.BadParameter("requires --json-lines", param_hint="--all-or-nothing")
    expires_s = None if expires is None else parse_duration(expires, "--expires", "30s or 2h")
    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    if json_lines:
        from tidings.cli.shared.json_lines import JsonLines
        from tidings.cli.shared.notices import notice

        if topic is not None or attribute:
            told = "TOPIC" if topic is not None else "--attribute"
            reason = "not allowed with --json-lines: the lines have it; name their file with --file"
            raise typer.BadParameter(reason, param_hint=told)
        lines = JsonLines(file, count, keep_expired=expires is not None, as_json=json)
        batches = in_parts(lines.all_or_nothing() if all_or_nothing else lines.batches())
        run(publish_all(bus, paced(batches, rate), timeout, expires_s=expires_s, as_json=json))
        if lines.expired:
            notice(f"{lines.expired:,} of {lines.lines:,} lines had expired and were left out", as_json=json)
        if lines.bad:
            report_bad(lines, published=not all_or_nothing, as_json=json)
        return
    events = paced(events_of(topic, payload, file, attribute, count), rate)
    run(publish_all(bus, events, timeout, expires_s=expires_s, as_json=json))


def events_of(
    topic: str | None, payload: str | None, file: Path | None, attribute: list[str] | None, count: int | None
) -> AsyncIterator[list[PublishedEvent]]:
    """Return the events to publish on one topic, in batches; report what cannot be published."""
    from tidings.cli.shared.values import parse_attributes
    from tidings.core.events.event import check_attributes
    from tidings.core.events.topics import check_topic

    if topic is None:
        raise typer.BadParameter("missing argument 'TOPIC'; only --json-lines does without")
    attributes = parse_attributes(attribute or ())
    check_topic(topic)
    check_attributes(attributes)
    if payload == STDIN:
        payloads = stdin_payloads(count)
    else:
        text = (payload or "").encode(errors="surrogateescape")
        payloads = repeated(text if file is None else read_file(file, "--file"), count or 1)

    async def events() -> AsyncIterator[list[PublishedEvent]]:
        async for batch in payloads:
            yield [(topic, attributes, content) for content in batch]

    return events()


def report_bad(lines: JsonLines, *, published: bool, as_json: bool) -> None:
    """Say how many lines were bad, and exit with the code for it."""
    told = f"{lines.bad:,} of {lines.lines:,} lines are bad"
    some = published and lines.bad + lines.expired < lines.lines
    report(f"{told}; {'the others were' if some else 'nothing was'} published", as_json=as_json)
    raise typer.Exit(ExitCode.BAD_INPUT)


async def publish_all(
    bus: ApplicationHost,
    batches: AsyncIterator[list[PublishedEvent]],
    timeout_s: float,
    *,
    expires_s: float | None = None,
    as_json: bool,
) -> None:
    """Publish batch after batch; print the ids of confirmed events even if another one fails."""

    async def publish(event: PublishedEvent) -> tuple[str, str]:
        topic, attributes, payload = event
        try:
            published = bus.publish(topic, attributes, payload, expires=expires_s)
            return str(await asyncio.wait_for(published, timeout_s)), topic
        except TimeoutError:
            raise TimeoutError(f"not confirmed within {timeout_s:g} s") from None

    async with bus:
        async for batch in batches:
            results = await asyncio.gather(*map(publish, batch), return_exceptions=True)
            print_ids([result for result in results if isinstance(result, tuple)], as_json=as_json)
            for result in results:
                if isinstance(result, BaseException):
                    raise result


def print_ids(published: list[tuple[str, str]], *, as_json: bool) -> None:
    if published:
        print_line(
            "\n".join(
                json_line({"id": name, "topic": topic}) if as_json else name for name, topic in published
            )
        )


async def repeated(content: bytes, count: int) -> AsyncIterator[list[bytes]]:
    """Yield the same payload `count` times, in batches."""
    for begin in range(0, count, MAX_BATCH):
        yield [content] * min(MAX_BATCH, count - begin)


async def stdin_payloads(count: int | None) -> AsyncIterator[list[bytes]]:
    """Yield the lines of stdin as they arrive, in batches of those available."""
    from tidings.drivers.processes.stdin import stdin_lines

    left = count
    async for batch in in_parts(stdin_lines()):
        yield batch[:left]
        if left is not None:
            left -= len(batch[:left])
            if left == 0:
                return


async def in_parts(batches: AsyncIterator[list[Item]]) -> AsyncIterator[list[Item]]:
    """Yield the same items, at most `MAX_BATCH` at once."""
    async for batch in batches:
        for begin in range(0, len(batch), MAX_BATCH):
            yield batch[begin : begin + MAX_BATCH]


async def paced(batches: AsyncIterator[list[Item]], rate_hz: float | None) -> AsyncIterator[list[Item]]:
    """Yield the events, none before its time: event number i is due i / rate_hz seconds after the first."""
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
