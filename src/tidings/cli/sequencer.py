"""`tidings sequencer`: runs one node of an order's sequencers as a process."""

from __future__ import annotations

import asyncio
import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Annotated

from tidings.cli.shared.option_table import verb
from tidings.cli.shared.options import Json, StopOnEof, option
from tidings.cli.shared.output import print_json, print_line
from tidings.cli.shared.sequencer_options import SequencerOptions

if TYPE_CHECKING:
    from tidings.bus.service import EventService
    from tidings.cli.shared.sequencer_settings import SequencerSettings
    from tidings.drivers.sockets.sequencer import SequencerHost

NotNew = Annotated[
    bool,
    option("--not-new", help="It ran before: without its state and a standby, it must not start over."),
]


log = logging.getLogger("tidings.cli")


def run_sequencer(
    options: SequencerOptions,
    json: Json = False,
    stop_on_eof: StopOnEof = False,
    not_new: NotNew = False,
) -> None:
    """Run a sequencer, for total and causal order.

    It prints a line once it listens, and runs until Ctrl-C or SIGTERM.
    """
    from tidings.cli.shared.running import Stopped, run
    from tidings.cli.shared.sequencer_settings import sequencer_settings

    settings = sequencer_settings(options)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        run(serve(settings, as_json=json, stop_on_eof=stop_on_eof, first=not not_new))
    except Stopped:
        return  # the normal end of a sequencer


sequencer = verb("sequencer", SequencerOptions, run_sequencer)


async def serve(settings: SequencerSettings, *, as_json: bool, stop_on_eof: bool, first: bool = True) -> None:
    from tidings.bus.no_op_publisher import NoOpPublisher
    from tidings.cli.shared.running import first_of
    from tidings.drivers.processes.control import obey
    from tidings.drivers.sockets.sequencer import SequencerHost

    def make_service() -> EventService:
        from tidings.bus.connect import connect

        authority = None if settings.tls is None else settings.tls.authority
        assert settings.service is not None
        # Without an order: what is published there has its numbers already.
        return connect(settings.service, token=settings.token, tls_ca=authority).without_order()

    host = SequencerHost(
        settings.name,
        settings.listen,
        settings.layout,
        settings.addresses,
        data=settings.data,
        token=settings.token,
        tls=settings.tls,
        on_no_ops=lambda fact: tell_no_service() if settings.service is None else no_ops.add(fact),
        first=first,
    )
    no_ops = NoOpPublisher(make_service, settings.layout, host.no_ops_published)
    await host.start()
    try:
        announce(host, tls=settings.tls is not None, as_json=as_json)
        await first_of(obey(host) if stop_on_eof else asyncio.Event().wait(), host.failed())
    finally:
        await no_ops.close()
        await host.stop()


@cache
def tell_no_service() -> None:
    """Report it once; no-ops stay in the outbox."""
    log.warning(
        "a publisher died; subscribers may wait for its events until you restart this sequencer with --service"
    )


def announce(host: SequencerHost, *, tls: bool, as_json: bool) -> None:
    """Print the line that scripts wait for."""
    from tidings.drivers.address import url

    where = url(host.address, tls=tls)
    if as_json:
        print_json({"sequencer": host.name, "url": where, "pid": os.getpid()})
    else:
        print_line(f"{host.name} listens on {where}")
