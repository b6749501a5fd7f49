"""`tidings serve`: answers requests by running a command."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.notices import log_as_notices
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
from tidings.cli.shared.subscription_options import Where, check_patterns

if TYPE_CHECKING:
    from tidings.bus.host import ApplicationHost
    from tidings.bus.serving import RequestServer

Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="/a/b, /a/* (one level) or /a/** (the subtree).", show_default=False
    ),
]
Exec = Annotated[
    str,
    option(
        "--exec",
        metavar="COMMAND",
        help="Run for each request: payload on stdin, TIDINGS_TOPIC, TIDINGS_ATTRIBUTES (JSON) and "
        "TIDINGS_ATTRIBUTE_<NAME> in its environment. Its stdout is the answer. No shell, unless COMMAND names one.",
        show_default=False,
    ),
]
Group = Annotated[
    str | None,
    option("--group", metavar="NAME", help="Share requests: each goes to one member."),
]
Concurrency = Annotated[
    int, option("--concurrency", metavar="N", min=1, max=1_000, help="Run at most N commands at once.")
]
Timeout = Annotated[
    float,
    option("--timeout", metavar="SECONDS", min=0.001, max=1e6, help="Kill a command that takes longer."),
]


def serve(
    url: Url,
    topic: Topic,
    command: Exec,
    group: Group = None,
    where: Where = None,
    concurrency: Concurrency = 16,
    timeout: Timeout = 30.0,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Answer requests with the output of a command.

    A command that fails answers with the last line of its stderr. Runs until Ctrl-C, which ends the commands, too.
    """
    from tidings.cli.shared.command_handler import CommandHandler
    from tidings.cli.shared.running import Stopped, run

    arguments = split(command)
    bus = make_bus(url, name=name, token_file=token_file, tls_authority=tls_ca, timeout_s=connect_timeout)
    check_patterns([topic], "TOPIC")
    handler = CommandHandler(arguments, timeout)
    try:
        server = bus.serve(topic, handler, group=group, where=where, concurrency=concurrency)
    except ValueError as error:  # the others are checked by their flags
        raise typer.BadParameter(str(error), param_hint="--group") from None
    try:
        with log_as_notices(as_json=json):
            run(answer(bus, server, as_json=json))
    except Stopped:
        return  # the user stopped it


def split(command: str) -> list[str]:
    """Split a command into its words, and find its program, before any request arrives."""
    from shutil import which

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"{command!r}: {error}".lower(), param_hint="--exec") from None
    if not words:
        raise typer.BadParameter("expected a command", param_hint="--exec")
    if which(words[0]) is None:
        raise typer.BadParameter(f"there is no program {words[0]!r}", param_hint="--exec")
    return words


async def answer(bus: ApplicationHost, server: RequestServer, *, as_json: bool) -> None:
    async with bus, server:
        # On stderr, for scripts that must not ask earlier.
        sys.stderr.write('{"event": "serving"}\n' if as_json else "serving\n")
        sys.stderr.flush()
        await server.wait()
