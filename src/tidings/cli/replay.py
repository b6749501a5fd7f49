"""`tidings replay`: publishes the events of an archive again."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.shared.archive_source import ArchiveOrUrl, EndOffset, Offset, TopicPatterns, archive_source
from tidings.cli.shared.options import (
    ClientName,
    ConnectTimeout,
    Json,
    Quiet,
    TlsAuthority,
    TokenFile,
    option,
    read_token,
)
from tidings.cli.shared.output import print_json, print_line, progress_bar
from tidings.cli.shared.subscription_options import Where

Target = Annotated[
    str, typer.Argument(metavar="URL", help="The network that they are published to.", show_default=False)
]
Rate = Annotated[float | None, option("--rate", min=0.001, max=1e7, help="Events per second at most.")]
Speed = Annotated[
    float | None,
    option("--speed", min=1e-6, max=1e6, help="At the times of the original, so many times as fast."),
]
Once = Annotated[
    str | None,
    option(
        "--once",
        metavar="NAME",
        help="Guaranteed networks: however often a replay of that name is started, each event is taken once.",
    ),
]


def replay(
    archive: ArchiveOrUrl,
    url: Target,
    offset: Offset = "earliest",
    end: EndOffset = None,
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
    """Publish the events of an archive again, in its order: as fast as they are confirmed, or at a pace."""
    from tidings.cli.shared.running import Stopped, run
    from tidings.core.errors import TidingsError
    from tidings.recording.replay import Replay

    if rate is not None and speed is not None:
        raise typer.BadParameter("give a rate or a speed, not both", param_hint="--speed")
    if once is not None and name is not None:
        raise typer.BadParameter("--once names the publisher", param_hint="--name")
    source = archive_source(archive, offset, end, topic, where, token_file, tls_ca, connect_timeout)
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
            if once is not None and work.begun:  # another offset would make it another replay
                error.args = (f"{error}; to go on, start it again as it was",)
            elif work.begun:
                error.args = (f"{error}; to go on: --offset {work.next_offset}",)
            raise
    if json:
        print_json({"published": work.published, "next_offset": work.next_offset})
    else:
        print_line(f"published {work.published:,} events; the next offset is {work.next_offset}")
