"""`tidings broker`: one broker as a process."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tidings.cli.options import (
    Json,
    ModeName,
    RecoveryName,
    TlsAuthority,
    TokenFile,
    TransportName,
    option,
)
from tidings.cli.output import print_json, print_line
from tidings.cli.record import RetainAge, RetainSize

if TYPE_CHECKING:
    from tidings.cli.settings import BrokerSettings
    from tidings.net.archive_desk import ArchiveDesk
    from tidings.net.broker import BrokerServer

Name = Annotated[str | None, option("--name", help="Unique in the network. Default: b0.")]
Listen = Annotated[
    str | None, option("--listen", metavar="HOST:PORT", help="Port 0: any. Default: 127.0.0.1:7400.")
]
Neighbours = Annotated[
    list[str] | None,
    option(
        "--neighbour",
        metavar="NAME=HOST:PORT[@LABEL]",
        help="A broker beside this one; may be repeated. Guaranteed: every broker within delta + 1 links.",
    ),
]
Mode = Annotated[
    ModeName | None, option("--mode", help="The same in the whole network. Default: best-effort.")
]
Delta = Annotated[
    int | None,
    option(
        "--delta",
        min=0,
        max=32,
        help="Guaranteed: how many failed brokers in a row are bypassed. Default: 2.",
    ),
]
Label = Annotated[
    str | None,
    option(
        "--label",
        metavar="LABEL",
        help="Guaranteed, epidemic: the path from the root, such as 0.1. Epidemic: it asks for one without.",
    ),
]
Window = Annotated[
    int | None,
    option("--window", min=1, max=1_000_000, help="Guaranteed: events under way per link. Default: 1024."),
]
Data = Annotated[
    Path | None,
    option("--data", metavar="DIR", help="Guaranteed: where the broker keeps its state, as NAME.db."),
]
New = Annotated[
    bool,
    option("--new", help="Guaranteed: the network is new; else a broker without state asks its neighbours."),
]
Recover = Annotated[
    bool, option("--recover", help="Guaranteed: set damaged state aside and fetch it from the neighbours.")
]
JoinAt = Annotated[
    str | None,
    option(
        "--join",
        metavar="HOST:PORT",
        help="Guaranteed: get a place in the tree below the broker there, once.",
    ),
]
Leave = Annotated[
    bool, option("--leave", help="Guaranteed: leave the network for good, remove the data, and end.")
]
Recovery = Annotated[
    RecoveryName | None,
    option("--recovery", help="Epidemic: how what was lost is recovered. Default: auto."),
]
RecoveryJson = Annotated[
    str | None, option("--recovery-settings", hidden=True, help="All of RecoverySettings, as JSON.")
]
LossText = Annotated[
    str | None,
    option(
        "--loss",
        metavar="RATE[:BURST]",
        help="Epidemic, for tests: lose this share of what is sent to brokers, in bursts of so many.",
    ),
]
Sequencers = Annotated[
    str | None,
    option("--sequencers", metavar="HOST:PORT[,...]", help="Where clients find who gives events one order."),
]
KeptIn = Annotated[
    Path | None,
    option("--archive", metavar="DIR", help="Keep an archive of events there, and let others read it here."),
]
ArchiveTopics = Annotated[
    list[str] | None,
    option("--archive-topic", metavar="TOPIC", help="Archive only these: /a/b, /a/*, /a/**. Repeatable."),
]
Transport = Annotated[TransportName | None, option("--transport", help="udp only on loopback. Default: tcp.")]
TlsCertificate = Annotated[
    Path | None, option("--tls-cert", help="Certificate (PEM); needed beyond loopback.")
]
TlsKey = Annotated[Path | None, option("--tls-key", help="Its key (PEM).")]
Config = Annotated[
    Path | None, option("--config", metavar="FILE", help="The same as TOML; flags go before it.")
]
StopOnEof = Annotated[bool, option("--stop-on-eof", hidden=True, help="End when stdin closes.")]


def broker(
    name: Name = None,
    listen: Listen = None,
    neighbour: Neighbours = None,
    mode: Mode = None,
    delta: Delta = None,
    label: Label = None,
    window: Window = None,
    data: Data = None,
    new: New = False,
    recover: Recover = False,
    join: JoinAt = None,
    leave: Leave = False,
    recovery: Recovery = None,
    recovery_settings: RecoveryJson = None,
    loss: LossText = None,
    sequencers: Sequencers = None,
    archive: KeptIn = None,
    archive_topic: ArchiveTopics = None,
    retain_size: RetainSize = None,
    retain_age: RetainAge = None,
    transport: Transport = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsAuthority = None,
    token_file: TokenFile = None,
    config: Config = None,
    json: Json = False,
    stop_on_eof: StopOnEof = False,
) -> None:
    """Run one broker until SIGINT or SIGTERM; prints one line once it listens."""
    from tidings.cli.running import Stopped, run
    from tidings.cli.settings import Flags, broker_settings

    flags = Flags(
        name=name,
        listen=listen,
        neighbours=neighbour or (),
        mode=mode,
        delta=delta,
        label=label,
        window=window,
        data=data,
        new=new,
        recover=recover,
        join=join,
        recovery=recovery,
        recovery_settings=recovery_settings,
        loss=loss,
        sequencers=sequencers,
        archive=archive,
        archive_topics=archive_topic or (),
        retain_size=retain_size,
        retain_age=retain_age,
        transport=transport,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        token_file=token_file,
    )
    settings = broker_settings(flags, config)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        if leave:
            run(leave_network(settings, as_json=json))
        else:
            run(serve(settings, as_json=json, stop_on_eof=stop_on_eof))
    except Stopped:
        return  # the way in which a broker is meant to end


async def leave_network(settings: BrokerSettings, *, as_json: bool) -> None:
    """Start the broker once more, let it leave, and remove what it kept."""
    import typer

    from tidings.net.guaranteed import store_path

    if settings.guaranteed is None or settings.guaranteed.data is None:
        raise typer.BadParameter("it is for --mode guaranteed", param_hint="--leave")
    server = make_server(settings)
    await server.start()
    try:
        await server.leave()
    finally:
        await server.stop()
    path = store_path(settings.guaranteed.data, settings.name)
    for suffix in ("", "-wal", ".lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    if as_json:
        print_json({"broker": server.name, "left": True})
    else:
        print_line(f"{server.name} has left the network")


async def serve(settings: BrokerSettings, *, as_json: bool, stop_on_eof: bool) -> None:
    from tidings.cli.broker_control import obey
    from tidings.cli.running import first_of

    archive = settings.archive
    if archive is None:
        server, keeping = make_server(settings), None
    else:
        from tidings.cli.broker_archive import Keeping

        keeping = Keeping(archive)
        server = make_server(settings, keeping.desk)
    await server.start()
    try:
        if keeping is not None:
            await keeping.start(server)
        announce(server, settings, as_json=as_json)
        living = [obey(server) if stop_on_eof else asyncio.Event().wait(), server.failed()]
        await first_of(*living, *([] if keeping is None else [keeping.run()]))
    finally:
        if keeping is not None:
            await keeping.stop()
        await server.stop()


def make_server(settings: BrokerSettings, desk: ArchiveDesk | None = None) -> BrokerServer:
    from tidings.net.broker import BrokerServer

    return BrokerServer(
        settings.name,
        settings.listen,
        settings.neighbours,
        mode=settings.mode,
        guaranteed=settings.guaranteed,
        epidemic=settings.epidemic,
        sequencers=settings.sequencers,
        archive=desk,
        transport=settings.transport,
        tls=settings.tls,
        token=settings.token,
    )


def announce(server: BrokerServer, settings: BrokerSettings, *, as_json: bool) -> None:
    """The line that others wait for."""
    from tidings.net.address import url

    where = url(server.address, settings.transport, tls=settings.tls is not None)
    if as_json:
        print_json({"broker": server.name, "url": where, "pid": os.getpid()})
    else:
        print_line(f"{server.name} listens on {where}")
