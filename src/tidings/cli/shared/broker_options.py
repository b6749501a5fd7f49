"""Declares the options of `tidings broker`, each once (cli/shared/option_table.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
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
    Name,
    NodeOptions,
    RetainAge,
    RetainSize,
    Transport,
)
from tidings.cli.shared.option_table import Flag
from tidings.core.overlay.modes import BrokerMode

MAX_WINDOW = 1_000_000


def parse_neighbours(texts: list[str]) -> dict[str, str]:
    """Parse texts such as `b1=127.0.0.1:7401` into names and addresses."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, address = text.partition("=")
        if not separator or not name or not address:
            raise typer.BadParameter(f"expected NAME=HOST:PORT, not {text!r}", param_hint="--neighbour")
        found[name] = address
    return found


class BrokerOptions(NodeOptions, frozen=True, kw_only=True):
    name: Annotated[
        Name | None, Flag(metavar="NAME", help="Broker name, unique in the network. Default: b0.")
    ] = None
    listen: Annotated[
        str | None,
        Flag(metavar="HOST:PORT", help="Address to listen on; port 0 picks one. Default: 127.0.0.1:7400."),
    ] = None
    neighbours: Annotated[
        dict[str, str] | None,
        Flag(
            name="--neighbour",
            metavar="NAME=HOST:PORT",
            given_as=list[str],
            parse=parse_neighbours,
            help="Neighbour in the tree. Repeatable. Guaranteed: each broker within delta + 1 links, with @LABEL.",
        ),
    ] = None
    mode: Annotated[
        BrokerMode | None,
        Flag(metavar="MODE", help=f"{MODES}; the same in the whole network. Default: best-effort."),
    ] = None
    delta: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_DELTA)] | None,
        Flag(panel=GUARANTEED, help="Bypass up to N failed brokers in a row. Default: 2."),
    ] = None
    label: Annotated[
        str | None,
        Flag(
            metavar="LABEL",
            panel=GUARANTEED,
            help="Place in the tree, as the path from the root, such as 0.1. Also for epidemic mode.",
        ),
    ] = None
    window: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_WINDOW)] | None,
        Flag(panel=GUARANTEED, help="Events in flight per link. Default: 1024."),
    ] = None
    data: Annotated[
        Path | None, Flag(metavar="DIR", panel=GUARANTEED, help="Directory for the broker's state, NAME.db.")
    ] = None
    new: Annotated[
        bool,
        Flag(panel=GUARANTEED, help="Start a new network; otherwise, lost state is fetched from neighbours."),
    ] = False
    recover: Annotated[
        bool, Flag(panel=GUARANTEED, help="Move damaged state aside, and fetch it from neighbours.")
    ] = False
    join: Annotated[
        str | None,
        Flag(
            metavar="HOST:PORT", panel=GUARANTEED, help="Join the tree below this broker (first start only)."
        ),
    ] = None
    recovery: Annotated[
        Algorithm | None,
        Flag(
            metavar="ALGORITHM",
            panel=EPIDEMIC,
            help=f"How to recover lost events: {ALGORITHMS}. Default: auto.",
        ),
    ] = None
    loss: Annotated[
        str | int | float | None,
        Flag(
            metavar="RATE[:BURST]",
            panel=EPIDEMIC,
            help="Lose this share of messages to brokers, in bursts; for tests.",
        ),
    ] = None
    sequencers: Annotated[
        tuple[str, ...],
        Flag(
            metavar="HOST:PORT[,...]",
            given_as=str,
            parse=lambda text: tuple(text.split(",")),
            help="Sequencers to announce to clients, for total and causal order.",
        ),
    ] = ()
    archive: Annotated[
        Path | None,
        Flag(panel=ARCHIVE, metavar="DIR", help="Record events into this archive, and serve it to readers."),
    ] = None
    archive_topics: ArchiveTopics = ()
    retain_size: RetainSize = None
    retain_age: RetainAge = None
    transport: Annotated[Transport | None, Flag(help="udp works on loopback only. Default: tcp.")] = None
