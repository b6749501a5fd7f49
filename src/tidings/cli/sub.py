"""`tidings sub`: prints events as they arrive."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.durable_options import (
    DeadLetter,
    Durable,
    Group,
    GroupBy,
    KeepFor,
    MaxDeliveries,
    MaxUnacked,
    Takeover,
    durable_arguments,
)
from tidings.cli.shared.event_printer import PayloadForm, Printer
from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.instants import OrderedArchive, StartFlag, parse_start
from tidings.cli.shared.line_options import (
    LineFormat,
    NoNewline,
    Raw,
    Timestamps,
    make_printer,
)
from tidings.cli.shared.notices import log_as_notices, notice
from tidings.cli.shared.options import (
    ClientName,
    ConnectTimeout,
    Json,
    TlsAuthority,
    TokenFile,
    Url,
    make_bus,
)
from tidings.cli.shared.output import counted, discard_output, json_line
from tidings.cli.shared.subscription_options import (
    Count,
    OrderFlag,
    OrderName,
    PayloadFlag,
    Timeout,
    Where,
    check_patterns,
)

if TYPE_CHECKING:
    from tidings.bus.gaps import Gap
    from tidings.bus.host import ApplicationHost
    from tidings.bus.stream import Stream
    from tidings.core.events.event import Event
    from tidings.storage.starts import Start


Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC...", help="/a/b, /a/* (one level) or /a/** (the subtree).", show_default=False
    ),
]
MOST_WAITING = 1_000
"""Lines to collect at most before they are printed and their events acknowledged."""
ACKNOWLEDGE_TIMEOUT_S = 30.0
"""Ctrl-C must not wait for ever for a broker that is gone."""


def sub(
    url: Url,
    topics: Topics,
    where: Where = None,
    order: OrderFlag = OrderName.NONE,
    start: StartFlag = "new",
    archive: OrderedArchive = None,
    count: Count = None,
    timeout: Timeout = None,
    payload: PayloadFlag = PayloadForm.TEXT,
    line_format: LineFormat = None,
    raw: Raw = False,
    no_newline: NoNewline = False,
    timestamps: Timestamps = False,
    durable: Durable = None,
    group: Group = None,
    group_by: GroupBy = None,
    takeover: Takeover = False,
    keep_for: KeepFor = None,
    max_unacked: MaxUnacked = None,
    max_deliveries: MaxDeliveries = None,
    dead_letter: DeadLetter = None,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Subscribe to topics, and print their events.

    Runs until Ctrl-C, --count or --timeout. With --durable or --group, an event is done once it is printed.
    """
    from tidings.cli.shared.running import Stopped, run

    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    check_patterns(topics, "TOPIC")
    printer = make_printer(
        payload, line_format, raw=raw, no_newline=no_newline, timestamps=timestamps, as_json=json
    )
    held = durable_arguments(
        durable, group, group_by, takeover, keep_for, max_unacked, max_deliveries, dead_letter
    )
    first = parse_start(start, "--start")
    stream = subscribe(bus, topics, where, order, held, start=first, archive=archive)
    try:
        with log_as_notices(as_json=json):
            run(print_events(bus, stream, printer, count, timeout, held=bool(held)))
    except Stopped:
        return  # the user stopped it
    except BrokenPipeError:
        discard_output()
        return
    if timeout is not None and printer.printed < (count or 1):
        raise typer.Exit(ExitCode.TIMEOUT)


def subscribe(
    bus: ApplicationHost,
    topics: list[str],
    where: str | None,
    order: OrderName,
    held: dict[str, Any],
    *,
    start: Start,
    archive: str | None,
) -> Stream:
    """Return the stream; report options that do not fit together."""
    from tidings.bus.durable_stream import DurableStream
    from tidings.core.errors import TidingsError, TopicError

    # We acknowledge when the lines are printed: many at once, which is later than when the next one is read.
    acknowledging: dict[str, Any] = {"ack": "manual", **held} if held else {}
    try:
        stream = bus.subscribe(
            *topics, where=where, order=order.value, start=start, archive=archive, **acknowledging
        )
    except (ValueError, TopicError) as error:
        text = str(error)
        if text.startswith("dead_letter"):
            reason = text.removeprefix("dead_letter").lstrip(": ")
            raise typer.BadParameter(reason, param_hint="--dead-letter") from None
        if isinstance(error, TidingsError):
            raise
        flag = "--durable" if "durable" in held else "--group"
        raise typer.BadParameter(text, param_hint="--start" if start != "new" else flag) from None
    if isinstance(stream, DurableStream):
        stream.may_do_without("ack")
    return stream


async def print_events(
    bus: ApplicationHost,
    stream: Stream,
    printer: Printer,
    count: int | None,
    timeout_s: float | None,
    *,
    held: bool,
) -> None:
    """Print events until there are `count` or the time, which starts with the subscription, is over."""
    printed: list[Event] = []

    async def flush() -> None:
        done = printed[:]
        printed.clear()
        printer.flush()  # if it fails, they are not done: they come again
        await acknowledge(done)

    stream.on_gap = lambda gap: print_gap(gap, as_json=printer.as_json)
    async with bus, stream:
        # On stderr, for scripts that must not publish earlier.
        sys.stderr.write('{"event": "subscribed"}\n' if printer.as_json else "subscribed\n")
        sys.stderr.flush()
        if held and stream.uncovered:
            notice(f"waits for what broker {' and '.join(stream.uncovered)} keeps", as_json=printer.as_json)
        try:
            async with asyncio.timeout(timeout_s):
                async for event in stream:
                    printer.add(event)
                    if held:
                        printed.append(event)
                    if printer.printed == count:
                        return
                    if not len(stream) or (held and printer.waiting >= MOST_WAITING):  # the batch is over
                        await flush()
        except TimeoutError:
            return
        finally:
            await flush()
            if stream.expired:
                were = "was" if stream.expired == 1 else "were"
                notice(f"{counted(stream.expired)} had expired and {were} not shown", as_json=printer.as_json)


async def acknowledge(events: list[Event]) -> None:
    """Acknowledge events. One that has gone to another reader meanwhile comes again there; that is no error here."""
    from tidings.core.errors import ConnectionFailed, NotHeld

    if not events:
        return
    try:
        async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT_S):
            results = await asyncio.gather(*(event.ack() for event in events), return_exceptions=True)
    except TimeoutError:
        raise ConnectionFailed(
            f"the broker did not take acknowledgements for {ACKNOWLEDGE_TIMEOUT_S:g} s"
        ) from None
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, NotHeld):
            raise result


def print_gap(gap: Gap, *, as_json: bool) -> None:
    """Print one line to stderr about events that the stream misses."""
    missed = [each._asdict() for each in gap.missed]
    fields = {"event": "gap", "reason": gap.reason, "at": gap.at, "count": gap.count, "missed": missed}
    sys.stderr.write((json_line(fields) if as_json else f"tidings: {gap.text}") + "\n")
    sys.stderr.flush()
