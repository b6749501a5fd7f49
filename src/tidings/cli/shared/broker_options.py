"""The options of brokers, of sequencers and of `tidings up`, each said once (cli/shared/option_table.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from msgspec import Meta

from tidings.cli.shared.option_table import Flag, Options
from tidings.core.overlay.modes import BrokerMode

MAX_DELTA = 32
MAX_PORT = 65_535
MAX_WINDOW = 1_000_000

Algorithm = Literal["auto", "none", "push", "subscriber-pull", "publisher-pull", "combined", "push+pull"]
Transport = Literal["tcp", "udp"]
LayoutOrder = Literal["total", "causal"]
Name = Annotated[str, Meta(min_length=1, max_length=255, extra={"printable": True})]


def parse_neighbours(texts: list[str]) -> dict[str, str]:
    """`b1=127.0.0.1:7401` each, as name and address."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, address = text.partition("=")
        if not separator or not name or not address:
            raise typer.BadParameter(f"{text!r} is not NAME=HOST:PORT", param_hint="--neighbour")
        found[name] = address
    return found


class NodeOptions(Options, frozen=True, kw_only=True):
    """What brokers and sequencers share."""

    tls_cert: Annotated[Path | None, Flag(help="Certificate (PEM); needed beyond loopback.")] = None
    tls_key: Annotated[Path | None, Flag(help="Its key (PEM).")] = None
    tls_ca: Annotated[
        Path | None,
        Flag(help="Certificates to trust (PEM); the system's without.", envvar="TIDINGS_TLS_CA"),
    ] = None
    token_file: Annotated[
        Path | None, Flag(help="File with the token that brokers ask for.", envvar="TIDINGS_TOKEN_FILE")
    ] = None


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
    mode: Annotated[BrokerMode | None, Flag(help="The same in the whole network. Default: best-effort.")] = (
        None
    )
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


class UpOptions(Options, frozen=True, kw_only=True):
    """The flags of `tidings up`. Its file says the same in tables of its own (drivers/processes/topology_file.py)."""

    brokers: Annotated[
        Annotated[int, Meta(ge=1)] | None, Flag(help="Without a file: a binary tree of so many. Default: 5.")
    ] = None
    transport: Annotated[Transport | None, Flag(help="Before the file's. Default: tcp.")] = None
    base_port: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PORT)] | None,
        Flag(help="The first port; before the file's. Default: 7400."),
    ] = None
    mode: Annotated[BrokerMode | None, Flag(help="Before the file's. Default: best-effort.")] = None
    delta: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_DELTA)] | None,
        Flag(help="Guaranteed: failed brokers in a row that are bypassed. Default: 2."),
    ] = None
    data: Annotated[
        Path | None,
        Flag(
            metavar="DIR",
            help="Guaranteed, --order: where brokers and sequencers keep their state. Default: until the end.",
        ),
    ] = None
    recovery: Annotated[
        Algorithm | None,
        Flag(help="Epidemic: how what was lost is recovered; before the file's. Default: auto."),
    ] = None
    loss: Annotated[
        str | None,
        Flag(
            metavar="RATE[:BURST]",
            help="Epidemic, for tests: lose this share of what brokers send to each other; before the file's.",
        ),
    ] = None
    order: Annotated[
        LayoutOrder | None,
        Flag(help="Run sequencers, too: a primary, a standby, a witness. causal is total, too."),
    ] = None
    order_topics: Annotated[
        tuple[str, ...],
        Flag(
            name="--order-topic",
            metavar="PATTERN",
            parse=tuple,
            help="With --order: topics numbered apart, by precedence; may be repeated. Default: /**.",
        ),
    ] = ()


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
