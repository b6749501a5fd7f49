"""What a sequencer process is told: from flags, over the environment, over the layout file (design: command line)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from msgspec import Meta

from tidings.cli.options import LayoutOrder, read_token
from tidings.cli.settings import checked_name
from tidings.cli.toml_file import read_toml
from tidings.model.errors import ConnectionFailed, NotYetAvailable, OrderError, ScenarioError
from tidings.net.address import SEQUENCER_PORT, Address, parse_address
from tidings.net.security import Tls
from tidings.protocol.sequencing.layout import EVERYTHING, Layout, Place, single
from tidings.scenario.schema import Name, Table

DEFAULT_NAME = "s0"


class ServerTable(Table, frozen=True, kw_only=True):
    """`[[server]]`: who numbers these topics. The order of the listing is the precedence of the topics."""

    name: Name
    topics: Annotated[tuple[str, ...], Meta(min_length=1)]
    node: Name | None = None
    standby: Name | None = None
    witness: Name | None = None


class LayoutFile(Table, frozen=True, kw_only=True):
    """The same file for all nodes. Paths in it are relative to the file."""

    order: Literal["total", "causal"] | None = None
    server: Annotated[tuple[ServerTable, ...], Meta(min_length=1)]
    nodes: dict[Name, str] | None = None
    service: str | None = None
    data: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    token_file: str | None = None


class SequencerFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `tidings sequencer`, from the command line or the environment; None where not given."""

    name: str | None = None
    listen: str | None = None
    layout: Path | None = None
    topics: Sequence[str] = ()
    order: LayoutOrder | None = None
    data: Path | None = None
    service: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    token_file: Path | None = None


class SequencerSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    listen: Address
    layout: Layout
    addresses: dict[str, Address]
    """Of the nodes."""
    data: Path | None
    service: str | None
    tls: Tls | None
    token: str


def sequencer_settings(flags: SequencerFlags) -> SequencerSettings:
    """Flags before the file before the defaults."""
    file = None if flags.layout is None else read_toml(flags.layout, LayoutFile)
    if file is not None and flags.topics:
        raise typer.BadParameter("the layout file lists the topics", param_hint="--topic")
    name = checked_name(flags.name or _only_node(file))
    layout = _layout(name, flags, file)
    if name not in layout.nodes:
        reason = f"{name!r} is no node of the layout; its nodes are {', '.join(layout.nodes)}"
        raise typer.BadParameter(reason, param_hint="--name")
    addresses = _addresses(flags.layout, file, layout)
    listen = flags.listen and _address(flags.listen, "--listen")
    paths = {key: _path(flags, file, key) for key in ("data", "tls_cert", "tls_key", "tls_ca", "token_file")}
    tls = Tls(paths["tls_cert"], paths["tls_key"], paths["tls_ca"])
    return SequencerSettings(
        name=name,
        listen=listen or addresses.get(name) or Address(port=SEQUENCER_PORT),
        layout=layout,
        addresses=addresses,
        data=paths["data"],
        service=_service(flags.service or (file.service if file is not None else None)),
        tls=tls if any(tls) else None,
        token=read_token(paths["token_file"]),
    )


def _only_node(file: LayoutFile | None) -> str:
    if file is None:
        return DEFAULT_NAME
    places = map(_place, file.server)
    nodes = {node for place in places for node in (place.primary, place.standby) if node}
    if len(nodes) > 1:
        raise typer.BadParameter("the layout has several nodes: say which this one is", param_hint="--name")
    return nodes.pop()


def _layout(name: str, flags: SequencerFlags, file: LayoutFile | None) -> Layout:
    order = flags.order or LayoutOrder(file.order if file is not None and file.order else "causal")
    causal = order is LayoutOrder.CAUSAL
    try:
        if file is None:
            return single(name, flags.topics or (EVERYTHING,), causal=causal)
        return Layout(map(_place, file.server), causal=causal)
    except OrderError as error:
        if file is None:
            raise typer.BadParameter(str(error), param_hint="--topic") from None
        raise ScenarioError(f"{flags.layout}: {error}") from None


def _place(table: ServerTable) -> Place:
    """A node that has the server's name is not named: said or not, it is the same layout."""
    node = "" if table.node in (None, table.name) else str(table.node)
    return Place(table.name, table.topics, node, table.standby or "", table.witness or "")


def _addresses(path: Path | None, file: LayoutFile | None, layout: Layout) -> dict[str, Address]:
    """Every node of a layout of several has an address, and nobody else."""
    if file is None:
        return {}
    listed = file.nodes or {}
    missing = [node for node in layout.nodes if node not in listed]
    if missing and len(layout.nodes) > 1:
        raise ScenarioError(f'{path}: [nodes] lacks {missing[0]} = "HOST:PORT"')
    found = {}
    for node, text in listed.items():
        if node not in layout.nodes:
            raise ScenarioError(f"{path}: nodes.{node}: no server is at that node")
        try:
            found[node] = parse_address(text, default_port=SEQUENCER_PORT)
        except ConnectionFailed as error:
            raise ScenarioError(f"{path}: nodes.{node}: {error}") from None
    return found


def _service(text: str | None) -> str | None:
    """A mistake in the URL shows now, not when somebody dies."""
    if text is None:
        return None
    from tidings.opening import connect

    try:
        connect(text)
    except (ConnectionFailed, NotYetAvailable) as error:
        raise typer.BadParameter(str(error), param_hint="--service") from None
    return text


def _address(text: str, flag: str) -> Address:
    try:
        return parse_address(text, default_port=SEQUENCER_PORT)
    except ConnectionFailed as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def _path(flags: SequencerFlags, file: LayoutFile | None, key: str) -> Path | None:
    flag: Path | None = getattr(flags, key)
    text: str | None = None if file is None else getattr(file, key)
    if flag is not None or text is None or flags.layout is None:
        return flag
    return flags.layout.parent / text


def layout_text(layout: Layout, addresses: dict[str, Address]) -> str:
    """The layout as a file that `tidings sequencer --layout` takes."""
    lines = [f"order = {_quoted('causal' if layout.causal else 'total')}", ""]
    for place in layout.servers:
        lines += ["[[server]]", f"name = {_quoted(place.name)}"]
        lines.append(f"topics = [{', '.join(map(_quoted, place.topics))}]")
        keys = {"node": place.node, "standby": place.standby, "witness": place.witness}
        lines += [f"{key} = {_quoted(node)}" for key, node in keys.items() if node]
        lines.append("")
    lines += ["[nodes]", *(f"{_quoted(node)} = {_quoted(str(where))}" for node, where in addresses.items())]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """JSON's strings are TOML's, too."""
    return msgspec.json.encode(text).decode()
