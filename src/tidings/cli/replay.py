"""`tidings replay`: publishes the events of an archive again."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.shared.archive_source import ArchiveOrUrl, EndOffset, Offset, TopicPatterns, archive_source
from tidings.cli.shared.instants import Since
from tidings.cli.shared.options import (
    ClientName,
    ConnectTimeout,
    Json,
    Quiet,
    TlsAuthority,
    TokenFile,
    check_name,
    check_tls_ca,
    check_url,
    option,
    read_token,
)
from tidings.cli.shared.output import counted, print_json, print_line, progress_bar
from tidings.cli.shared.subscription_options import Where

Target = Annotated[str, typer.Argument(metavar="[URL]", help="Broker to publish to.", show_default=False)]
Rate = Annotated[
    float | None, option("--rate", metavar="HZ", min=0.001, max=1e7, help="At most HZ events per second.")
]
Speed = Annotated[
    float | None,
    option(
        "--speed", metavar="FACTOR", min=1e-6, max=1e6, help="Keep the original timing, FACTOR times as fast."
    ),
]
Once = Annotated[
    str | None,
    option(
        "--once",
        metavar="NAME",
        help="Publish each event once, however often this replay runs (guaranteed networks).",
    ),
]


def replay(
    archive: ArchiveOrUrl,
    url: Target,
    offset: Offset = "earliest",
    since: Since = None,
    end: EndOffset = "latest",
    topic: TopicPatterns = None,
    where: Where = None,
    rate: Rate = None,
    speed: Speed = None,
    once: Once = None,
    name: ClientName = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Publish the events of an archive again.

    Events keep their order. They are published as fast as they are confirmed, unless --rate or --speed is given.
    """
    from tidings.cli.shared.running import Stopped, run
    from tidings.core.errors import TidingsError
    from tidings.recording.replay import Replay

    if rate is not None and speed is not None:
        raise typer.BadParameter("not allowed with --rate", param_hint="--speed")
    if once is not None and name is not None:
        raise typer.BadParameter("not allowed with --once, which names the publisher", param_hint="--name")
    check_url(url)
    check_tls_ca(tls_ca, url)
    for given, flag in ((name, "--name"), (once, "--once")):
        if given is not None:
            check_name(given, flag)
    source = archive_source(archive, offset, end, topic, where, token_file, tls_ca, connect_timeout, since)
    with progress_bar("replay", quiet=quiet) as progress:
        work = Replay(
            source,
            url,
            once=once,
            rate_hz=rate,
            speed=speed,
            name=name,
            token=read_token(token_file),
            tls_ca=tls_ca,
            timeout_s=connect_timeout,
            progress=progress,
        )
        try:
            run(work.run())
        except (Stopped, TidingsError) as error:
            if not work.begun:
                raise
            # With --once, another offset would be another replay.
            how = f"add --offset {work.next_offset}" if once is None else "run the same command again"
            if isinstance(error, Stopped):
                raise Stopped(error.number, how) from None
            error.args = (f"{error}; to continue, {how}",)
            raise
    if json:
        print_json({"published": work.published, "next_offset": work.next_offset})
    else:
        print_line(f"published {counted(work.published)}; next offset: {work.next_offset}")
