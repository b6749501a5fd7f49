"""What a broker process is told: from flags, over the environment, over a file (design: command line)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import typer

from tidings.cli.options import TransportName, read_token
from tidings.cli.toml_file import read_toml
from tidings.model.errors import ConnectionFailed
from tidings.net.address import Address, Transport, parse_address
from tidings.net.security import Tls
from tidings.scenario.schema import Name, Table

DEFAULT_LISTEN = "127.0.0.1:7400"
DEFAULT_NAME = "b0"


class BrokerFile(Table, frozen=True, kw_only=True):
    """The keys of the file, called as the flags. Paths in it are relative to the file."""

    name: Name | None = None
    listen: str | None = None
    neighbours: dict[str, str] | None = None
    transport: Literal["tcp", "udp"] | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    token_file: str | None = None


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `tidings broker`, from the command line or the environment; None where not given."""

    name: str | None = None
    listen: str | None = None
    neighbours: Sequence[str] = ()
    transport: TransportName | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    token_file: Path | None = None


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    listen: Address
    neighbours: dict[str, Address]
    transport: Transport
    tls: Tls | None
    token: str


def broker_settings(flags: Flags, config: Path | None) -> BrokerSettings:
    """Flags before the file before the defaults."""
    file = BrokerFile() if config is None else read_toml(config, BrokerFile)
    beside = Path() if config is None else config.parent
    name = checked_name(flags.name or file.name or DEFAULT_NAME)
    pairs = dict(parse_neighbour(text) for text in flags.neighbours) or file.neighbours or {}
    tls = Tls(
        _path(flags.tls_cert, file.tls_cert, beside),
        _path(flags.tls_key, file.tls_key, beside),
        _path(flags.tls_ca, file.tls_ca, beside),
    )
    return BrokerSettings(
        name=name,
        listen=_address(flags.listen or file.listen or DEFAULT_LISTEN, "--listen"),
        neighbours=_neighbours(name, pairs),
        transport=(flags.transport or TransportName(file.transport or "tcp")).value,
        tls=tls if any(tls) else None,
        token=read_token(_path(flags.token_file, file.token_file, beside)),
    )


def checked_name(name: str) -> str:
    if not name.isprintable() or len(name) > 255:
        raise typer.BadParameter("a name has at most 255 printable characters", param_hint="--name")
    return name


def parse_neighbour(text: str) -> tuple[str, str]:
    """`b1=127.0.0.1:7401` as name and address."""
    name, separator, address = text.partition("=")
    if not separator or not name or not address:
        raise typer.BadParameter(f"{text!r} is not NAME=HOST:PORT", param_hint="--neighbour")
    return name, address


def _neighbours(name: str, pairs: dict[str, str]) -> dict[str, Address]:
    if name in pairs:
        raise typer.BadParameter(f"{name!r} is this broker itself", param_hint="--neighbour")
    return {checked_name(peer): _address(text, "--neighbour") for peer, text in pairs.items()}


def _address(text: str, flag: str) -> Address:
    try:
        return parse_address(text)
    except ConnectionFailed as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def _path(flag: Path | None, text: str | None, beside: Path) -> Path | None:
    if flag is not None or text is None:
        return flag
    return beside / text
