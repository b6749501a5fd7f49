"""`tidings sub`: prints events as they arrive."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.event_printer import PayloadForm, Printer
from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.notices import log_as_notices
from tidings.cli.shared.options import (
    ClientName,
    ConnectTimeout,
    Json,
    TlsAuthority,
    TokenFile,
    Url,
    make_bus,
)
from tidings.cli.shared.output import discard_output
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
    from tidings.bus.host import ApplicationHost
    from tidings.bus.stream import Stream


Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC...", help="/a/b, /a/* (one level) or /a/** (the subtree).", show_default=False
    ),
]


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
    """Subscribe to topics, and print their events.

    Runs until Ctrl-C, --count or --timeout.
    """
    from tidings.cli.shared.running import Stopped, run

    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    check_patterns(topics, "TOPIC")
    stream = bus.subscribe(*topics, where=where, order=order.value)
    printer = Printer(payload, as_json=json)
    try:
        with log_as_notices(as_json=json):
            run(print_events(bus, stream, printer, count, timeout))
    except Stopped:
        return  # the user stopped it
    except BrokenPipeError:
        discard_output()
        return
    if timeout is not None and printer.printed < (count or 1):
        raise typer.Exit(ExitCode.TIMEOUT)


async def print_events(
    bus: ApplicationHost, stream: Stream, printer: Printer, count: int | None, timeout_s: float | None
) -> None:
    """Print events until there are `count` or the time, which starts with the subscription, is over."""
    async with bus, stream:
        # On stderr, for scripts that must not publish earlier.
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
