"""The options of `tidings sequencer` and the tables of its layout file, each said once (cli/shared/option_table.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from tidings.cli.shared.node_options import LayoutOrder, Name, NodeOptions
from tidings.cli.shared.option_table import Flag, Options


class _LayoutOptions(NodeOptions, frozen=True, kw_only=True):
    """Flags of a sequencer that its layout file has, too."""

    order: Annotated[
        LayoutOrder | None, Flag(help="causal is total, too; before the file's. Default: causal.")
    ] = None
    data: Annotated[
        Path | None, Flag(metavar="DIR", help="Where it keeps its state, as NAME.order. Default: nowhere.")
    ] = None
    service: Annotated[
        str | None,
        Flag(metavar="URL", help="Where events are published: there the dead are stood in for."),
    ] = None


class SequencerOptions(_LayoutOptions, frozen=True, kw_only=True):
    name: Annotated[
        Name | None, Flag(help="Which node of the layout this is. Default: s0, or the only one.")
    ] = None
    listen: Annotated[
        str | None,
        Flag(metavar="HOST:PORT", help="Port 0: any. Default: as the layout says, or 127.0.0.1:7500."),
    ] = None
    layout: Annotated[
        Path | None,
        Flag(metavar="FILE", help="Topics, servers and nodes (TOML); the same at every node."),
    ] = None
    topics: Annotated[
        tuple[str, ...],
        Flag(
            name="--topic",
            metavar="PATTERN",
            parse=tuple,
            help="Without a layout file: topics numbered apart, by precedence; may be repeated. Default: /**.",
        ),
    ] = ()


class ServerTable(Options, frozen=True, kw_only=True):
    """`[[server]]`: who numbers these topics. The order of the listing is the precedence of the topics."""

    name: Name
    topics: Annotated[tuple[str, ...], Meta(min_length=1)]
    node: Name | None = None
    standby: Name | None = None
    witness: Name | None = None


class LayoutFile(_LayoutOptions, frozen=True, kw_only=True):
    """The same file for all nodes."""

    server: Annotated[tuple[ServerTable, ...], Meta(min_length=1)]
    nodes: dict[Name, str] | None = None
