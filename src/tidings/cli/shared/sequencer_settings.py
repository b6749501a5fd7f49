"""Checks the options and the layout of a sequencer process and turns them into its settings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer

from tidings.cli.shared.broker_settings import tls_of
from tidings.cli.shared.option_table import over
from tidings.cli.shared.options import check_name, check_url, read_token
from tidings.cli.shared.sequencer_options import LayoutFile, SequencerOptions, ServerTable
from tidings.cli.shared.subscription_options import check_patterns
from tidings.core.errors import ConnectionFailed, OrderError, ScenarioError
from tidings.core.ordering.layout import EVERYTHING, Layout, ServerPlacement, single
from tidings.drivers.address import SEQUENCER_PORT, Address, parse_address
from tidings.drivers.sockets.security import Tls
from tidings.scenarios.file.toml_file import read_toml

DEFAULT_NAME = "s0"


class SequencerSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    listen: Address
    layout: Layout
    addresses: dict[str, Address]
    """The nodes' addresses."""
    data: Path | None
    service: str | None
    tls: Tls | None
    token: str


def sequencer_settings(options: SequencerOptions) -> SequencerSettings:
    """Return the settings; flags override the layout file, the file overrides the defaults."""
    file = None if options.layout is None else read_toml(options.layout, LayoutFile)
    if file is not None and options.layout is not None:
        if options.topics:
            raise typer.BadParameter(
                "not allowed with --layout, which lists the topics", param_hint="--topic"
            )
        options = over(options, file, options.layout.parent)
    check_patterns(options.topics, "--topic")
    name = check_name(_only_node(file) if options.name is None else options.name)
    layout = _layout(name, options, file)
    if name not in layout.nodes:
        reason = f"{name!r} is not a node of the layout; its nodes: {', '.join(layout.nodes)}"
        raise typer.BadParameter(reason, param_hint="--name")
    addresses = _addresses(options.layout, file, layout)
    listen = options.listen and _address(options.listen, "--listen")
    return SequencerSettings(
        name=name,
        listen=listen or addresses.get(name) or Address(port=SEQUENCER_PORT),
        layout=layout,
        addresses=addresses,
        data=options.data,
        service=_service(options.service),
        tls=tls_of(options),
        token=read_token(options.token_file),
    )


def _only_node(file: LayoutFile | None) -> str:
    if file is None:
        return DEFAULT_NAME
    places = map(_place, file.server)
    nodes = {node for place in places for node in (place.primary, place.standby) if node}
    if len(nodes) > 1:
        raise typer.BadParameter("required, as the layout has several nodes", param_hint="--name")
    return nodes.pop()


def _layout(name: str, options: SequencerOptions, file: LayoutFile | None) -> Layout:
    causal = options.order != "total"
    try:
        if file is None:
            return single(name, options.topics or (EVERYTHING,), causal=causal)
        return Layout(map(_place, file.server), causal=causal)
    except OrderError as error:
        if file is None:
            raise typer.BadParameter(str(error), param_hint="--topic") from None
        raise ScenarioError(f"{options.layout}: {error}") from None


def _place(table: ServerTable) -> ServerPlacement:
    """Leave out a node with the server's name, so that giving it or not makes the same layout."""
    node = "" if table.node in (None, table.name) else str(table.node)
    return ServerPlacement(table.name, table.topics, node, table.standby or "", table.witness or "")


def _addresses(path: Path | None, file: LayoutFile | None, layout: Layout) -> dict[str, Address]:
    """Check that in a layout of several nodes each node, and nothing else, has an address."""
    if file is None:
        return {}
    listed = file.nodes or {}
    missing = [node for node in layout.nodes if node not in listed]
    if missing and len(layout.nodes) > 1:
        raise ScenarioError(f'{path}: nodes: missing {missing[0]} = "HOST:PORT"')
    found = {}
    for node, text in listed.items():
        if node not in layout.nodes:
            raise ScenarioError(f"{path}: nodes.{node}: no server runs on this node")
        try:
            found[node] = parse_address(text, default_port=SEQUENCER_PORT)
        except ConnectionFailed as error:
            raise ScenarioError(f"{path}: nodes.{node}: {error}") from None
    return found


def _service(text: str | None) -> str | None:
    """Check the service's URL now, not when a publisher dies and it is first used."""
    if text is None:
        return None
    check_url(text, "--service")
    return text


def _address(text: str, flag: str) -> Address:
    try:
        return parse_address(text, default_port=SEQUENCER_PORT)
    except ConnectionFailed as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None
