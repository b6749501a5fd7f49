"""Declares the options of `tidings sequencer` and its layout file's tables, each once (cli/shared/option_table.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from tidings.cli.shared.node_options import LayoutOrder, Name, NodeOptions
from tidings.cli.shared.option_table import Flag, Options


class _LayoutOptions(NodeOptions, frozen=True, kw_only=True):
    """Holds the flags of a sequencer that its layout file has, too."""

    order: Annotated[
        LayoutOrder | None,
        Flag(help="Order to offer; causal includes total. Overrides the file. Default: causal."),
    ] = None
    data: Annotated[
        Path | None,
        Flag(metavar="DIR", help="Directory for its state, NAME.order. Default: none, in memory."),
    ] = None
    service: Annotated[
        str | None,
        Flag(metavar="URL", help="Broker at which to fill the numbers of publishers that died."),
    ] = None


class SequencerOptions(_LayoutOptions, frozen=True, kw_only=True):
    name: Annotated[
        Name | None, Flag(metavar="NAME", help="Node of the layout to run. Default: s0, or the only one.")
    ] = None
    listen: Annotated[
        str | None,
        Flag(metavar="HOST:PORT", help="Address to listen on. Default: the layout's, or 127.0.0.1:7500."),
    ] = None
    layout: Annotated[
        Path | None,
        Flag(metavar="FILE", help="Layout file (TOML), the same for all nodes; - is stdin."),
    ] = None
    topics: Annotated[
        tuple[str, ...],
        Flag(
            name="--topic",
            metavar="PATTERN",
            parse=tuple,
            help="Without --layout: topics with a counter of their own. Repeatable. Default: /**.",
        ),
    ] = ()


class ServerTable(Options, frozen=True, kw_only=True):
    """A table `[[server]]`, which numbers these topics. Topics are listed by precedence."""

    name: Name
    topics: Annotated[tuple[str, ...], Meta(min_length=1)]
    node: Name | None = None
    standby: Name | None = None
    witness: Name | None = None


class LayoutFile(_LayoutOptions, frozen=True, kw_only=True):
    """The layout file, the same for all nodes."""

    server: Annotated[tuple[ServerTable, ...], Meta(min_length=1)]
    nodes: dict[Name, str] | None = None
