"""`tidings broker`: runs one broker as a process."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tidings.cli.shared.broker_options import BrokerOptions
from tidings.cli.shared.node_options import GUARANTEED
from tidings.cli.shared.option_table import verb
from tidings.cli.shared.options import Json, StopOnEof, option
from tidings.cli.shared.output import print_json, print_line

if TYPE_CHECKING:
    from tidings.cli.shared.broker_settings import BrokerSettings
    from tidings.drivers.sockets.archive_read_service import ArchiveReadService
    from tidings.drivers.sockets.broker import BrokerServer

RecoveryJson = Annotated[
    str | None, option("--recovery-settings", hidden=True, help="All of RecoverySettings, as JSON.")
]
Leave = Annotated[
    bool,
    option(
        "--leave",
        rich_help_panel=GUARANTEED,
        help="Leave the network for good, delete the data, and exit.",
    ),
]
Config = Annotated[
    Path | None,
    option(
        "--config", metavar="FILE", help="Read options from this TOML file, or stdin (-); flags override it."
    ),
]


def run_broker(
    options: BrokerOptions,
    leave: Leave = False,
    recovery_settings: RecoveryJson = None,
    config: Config = None,
    json: Json = False,
    stop_on_eof: StopOnEof = False,
) -> None:
    """Run a broker.

    It prints a line once it listens, and runs until Ctrl-C or SIGTERM.
    """
    from tidings.cli.shared.broker_settings import broker_settings
    from tidings.cli.shared.running import Stopped, run

    settings = broker_settings(options, config, recovery_settings)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        if leave:
            run(leave_network(settings, as_json=json))
        else:
            run(serve(settings, as_json=json, stop_on_eof=stop_on_eof))
    except Stopped:
        return  # the normal end of a broker


broker = verb("broker", BrokerOptions, run_broker)


async def leave_network(settings: BrokerSettings, *, as_json: bool) -> None:
    """Start the broker once more, let it leave the network, and delete its data."""
    import typer

    from tidings.drivers.sockets.guaranteed import store_path

    if settings.guaranteed is None or settings.guaranteed.data is None:
        raise typer.BadParameter("requires --mode guaranteed", param_hint="--leave")
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
    from tidings.cli.shared.running import first_of
    from tidings.drivers.processes.control import obey

    archive = settings.archive
    if archive is None:
        server, keeping = make_server(settings), None
    else:
        from tidings.cli.shared.broker_archive import Keeping

        keeping = Keeping(archive)
        server = make_server(settings, keeping.read_service)
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


def make_server(settings: BrokerSettings, read_service: ArchiveReadService | None = None) -> BrokerServer:
    from tidings.drivers.sockets.broker import BrokerServer

    return BrokerServer(
        settings.name,
        settings.listen,
        settings.neighbours,
        mode=settings.mode,
        guaranteed=settings.guaranteed,
        epidemic=settings.epidemic,
        sequencers=settings.sequencers,
        archive=read_service,
        transport=settings.transport,
        tls=settings.tls,
        token=settings.token,
    )


def announce(server: BrokerServer, settings: BrokerSettings, *, as_json: bool) -> None:
    """Print the line that scripts wait for."""
    from tidings.drivers.address import url

    where = url(server.address, settings.transport, tls=settings.tls is not None)
    if as_json:
        print_json({"broker": server.name, "url": where, "pid": os.getpid()})
    else:
        print_line(f"{server.name} listens on {where}")
