"""The options of `tidings broker`, each said once (cli/shared/option_table.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Meta

from tidings.cli.shared.node_options import MAX_DELTA, Algorithm, Mode, Name, NodeOptions, Transport
from tidings.cli.shared.option_table import Flag

MAX_WINDOW = 1_000_000


def parse_neighbours(texts: list[str]) -> dict[str, str]:
    """`b1=127.0.0.1:7401` each, as name and address."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, address = text.partition("=")
        if not separator or not name or not address:
            raise typer.BadParameter(f"{text!r} is not NAME=HOST:PORT", param_hint="--neighbour")
        found[name] = address
    return found


class BrokerOptions(NodeOptions, frozen=True, kw_only=True):
    name: Annotated[Name | None, Flag(help="Unique in the network. Default: b0.")] = None
    listen: Annotated[str | None, Flag(metavar="HOST:PORT", help="Port 0: any. Default: 127.0.0.1:7400.")] = (
        None
    )
    neighbours: Annotated[
        dict[str, str] | None,
        Flag(
            name="--neighbour",
            metavar="NAME=HOST:PORT[@LABEL]",
            given_as=list[str],
            parse=parse_neighbours,
            help="A broker beside this one; may be repeated. Guaranteed: every broker within delta + 1 links.",
        ),
    ] = None
    mode: Annotated[Mode | None, Flag(help="The same in the whole network. Default: best-effort.")] = None
    delta: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_DELTA)] | None,
        Flag(help="Guaranteed: how many failed brokers in a row are bypassed. Default: 2."),
    ] = None
    label: Annotated[
        str | None,
        Flag(
            metavar="LABEL",
            help="Guaranteed, epidemic: the path from the root, such as 0.1. Epidemic: it asks for one without.",
        ),
    ] = None
    window: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_WINDOW)] | None,
        Flag(help="Guaranteed: events under way per link. Default: 1024."),
    ] = None
    data: Annotated[
        Path | None, Flag(metavar="DIR", help="Guaranteed: where the broker keeps its state, as NAME.db.")
    ] = None
    new: Annotated[
        bool, Flag(help="Guaranteed: the network is new; else a broker without state asks its neighbours.")
    ] = False
    recover: Annotated[
        bool, Flag(help="Guaranteed: set damaged state aside and fetch it from the neighbours.")
    ] = False
    join: Annotated[
        str | None,
        Flag(metavar="HOST:PORT", help="Guaranteed: get a place in the tree below the broker there, once."),
    ] = None
    recovery: Annotated[
        Algorithm | None, Flag(help="Epidemic: how what was lost is recovered. Default: auto.")
    ] = None
    loss: Annotated[
        str | int | float | None,
        Flag(
            metavar="RATE[:BURST]",
            help="Epidemic, for tests: lose this share of what is sent to brokers, in bursts of so many.",
        ),
    ] = None
    sequencers: Annotated[
        tuple[str, ...],
        Flag(
            metavar="HOST:PORT[,...]",
            given_as=str,
            parse=lambda text: tuple(text.split(",")),
            help="Where clients find who gives events one order.",
        ),
    ] = ()
    archive: Annotated[
        Path | None,
        Flag(metavar="DIR", help="Keep an archive of events there, and let others read it here."),
    ] = None
    archive_topics: Annotated[
        tuple[str, ...],
        Flag(
            name="--archive-topic",
            metavar="TOPIC",
            parse=tuple,
            help="Archive only these: /a/b, /a/*, /a/**. Repeatable.",
        ),
    ] = ()
    retain_size: Annotated[
        str | None, Flag(metavar="SIZE", help="Keep at most so much, such as 500M or 20G.")
    ] = None
    retain_age: Annotated[
        str | None, Flag(metavar="TIME", help="Keep it for so long, such as 12h or 30d.")
    ] = None
    transport: Annotated[Transport | None, Flag(help="udp only on loopback. Default: tcp.")] = None
