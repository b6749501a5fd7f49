"""Declares the options of `tidings up`, each once (cli/shared/option_table.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from tidings.cli.shared.node_options import (
    ALGORITHMS,
    ARCHIVE,
    EPIDEMIC,
    GUARANTEED,
    MAX_DELTA,
    MODES,
    Algorithm,
    ArchiveTopics,
    LayoutOrder,
    RetainAge,
    RetainSize,
    Transport,
)
from tidings.cli.shared.option_table import Flag, Options
from tidings.core.overlay.modes import BrokerMode

MAX_PORT = 65_535
ORDER = "Order"


class UpOptions(Options, frozen=True, kw_only=True):
    """Holds the flags of `tidings up`. Its file has the same in other tables (drivers/processes/topology_file.py)."""

    brokers: Annotated[
        Annotated[int, Meta(ge=1)] | None, Flag(help="Start a binary tree of N brokers. Default: 5.")
    ] = None
    transport: Annotated[Transport | None, Flag(help="Transport; overrides the file. Default: tcp.")] = None
    base_port: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PORT)] | None,
        Flag(metavar="PORT", help="First port; overrides the file. Default: 7400."),
    ] = None
    mode: Annotated[
        BrokerMode | None, Flag(metavar="MODE", help=f"{MODES}; overrides the file. Default: best-effort.")
    ] = None
    delta: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_DELTA)] | None,
        Flag(panel=GUARANTEED, help="Bypass up to N failed brokers in a row. Default: 2."),
    ] = None
    data: Annotated[
        Path | None,
        Flag(
            metavar="DIR",
            panel=GUARANTEED,
            help="Directory for the state, also with --order. Default: deleted on exit.",
        ),
    ] = None
    recovery: Annotated[
        Algorithm | None,
        Flag(
            metavar="ALGORITHM",
            panel=EPIDEMIC,
            help=f"How to recover lost events: {ALGORITHMS}. Default: the file's, or auto.",
        ),
    ] = None
    loss: Annotated[
        str | None,
        Flag(
            metavar="RATE[:BURST]",
            panel=EPIDEMIC,
            help="Lose this share of messages between brokers, in bursts; for tests.",
        ),
    ] = None
    order: Annotated[
        LayoutOrder | None,
        Flag(panel=ORDER, help="Run sequencers, too; causal order includes total order."),
    ] = None
    order_topics: Annotated[
        tuple[str, ...],
        Flag(
            name="--order-topic",
            metavar="PATTERN",
            parse=tuple,
            panel=ORDER,
            help="Topics with a counter of their own. Repeatable. Default: /**.",
        ),
    ] = ()
    archive: Annotated[
        Path | None,
        Flag(
            panel=ARCHIVE,
            metavar="DIR",
            help="Each broker records events into an archive, DIR/<broker>, and serves it to readers.",
        ),
    ] = None
    archive_topics: ArchiveTopics = ()
    retain_size: RetainSize = None
    retain_age: RetainAge = None
