"""What a broker process is told: from flags, over the environment, over a file (design: command line)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from msgspec import Meta

from tidings.cli.loss import parse_loss
from tidings.cli.options import ModeName, RecoveryName, TransportName, read_token
from tidings.cli.toml_file import read_toml
from tidings.model.errors import ConnectionFailed, TopicError
from tidings.model.subscription import make_interest
from tidings.net.address import DEFAULT_PORT, SEQUENCER_PORT, Address, Transport, parse_address
from tidings.net.epidemic import EpidemicSettings
from tidings.net.guaranteed import DEFAULT_DELTA, DEFAULT_WINDOW, GuaranteedSettings, store_path
from tidings.net.security import Tls
from tidings.protocol.labels import Label, label_text, parse_label, path
from tidings.protocol.neighbourhood import Neighbourhood
from tidings.protocol.recovery.settings import Algorithm, RecoverySettings
from tidings.scenario.schema import Name, Table

DEFAULT_LISTEN = "127.0.0.1:7400"
DEFAULT_NAME = "b0"
MAX_DELTA = 32
MAX_WINDOW = 1_000_000
MAX_SEQUENCERS = 64

FLAGS_OF_MODES: Mapping[str, tuple[ModeName, ...]] = {
    **dict.fromkeys(("delta", "window", "data", "new", "recover", "join"), (ModeName.GUARANTEED,)),
    "label": (ModeName.GUARANTEED, ModeName.EPIDEMIC),
    **dict.fromkeys(("recovery", "recovery_settings", "loss"), (ModeName.EPIDEMIC,)),
}
"""What only some modes have a use for."""


class BrokerFile(Table, frozen=True, kw_only=True):
    """The keys of the file, called as the flags. Paths in it are relative to the file."""

    name: Name | None = None
    listen: str | None = None
    neighbours: dict[str, str] | None = None
    mode: Literal["best-effort", "guaranteed", "epidemic"] | None = None
    delta: Annotated[int, Meta(ge=0, le=MAX_DELTA)] | None = None
    label: str | None = None
    window: Annotated[int, Meta(ge=1, le=MAX_WINDOW)] | None = None
    data: str | None = None
    new: bool = False
    recover: bool = False
    join: str | None = None
    recovery: Algorithm | None = None
    loss: str | int | float | None = None
    sequencers: tuple[str, ...] = ()
    archive: str | None = None
    archive_topics: tuple[str, ...] = ()
    retain_size: str | None = None
    retain_age: str | None = None
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
    mode: ModeName | None = None
    delta: int | None = None
    label: str | None = None
    window: int | None = None
    data: Path | None = None
    new: bool = False
    recover: bool = False
    join: str | None = None
    recovery: RecoveryName | None = None
    recovery_settings: str | None = None
    """All of it, as JSON: from whoever starts brokers for a scenario."""
    loss: str | None = None
    sequencers: str | None = None
    archive: Path | None = None
    archive_topics: Sequence[str] = ()
    retain_size: str | None = None
    retain_age: str | None = None
    transport: TransportName | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    token_file: Path | None = None


class KeptArchive(msgspec.Struct, frozen=True):
    """What a broker records; `size` and `age` as users write them."""

    directory: Path
    topics: tuple[str, ...]
    size: str | None
    age: str | None


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    listen: Address
    neighbours: dict[str, Address]
    mode: str
    guaranteed: GuaranteedSettings | None
    epidemic: EpidemicSettings | None
    sequencers: tuple[Address, ...]
    archive: KeptArchive | None
    transport: Transport
    tls: Tls | None
    token: str


def broker_settings(flags: Flags, config: Path | None) -> BrokerSettings:
    """Flags before the file before the defaults."""
    file = BrokerFile() if config is None else read_toml(config, BrokerFile)
    beside = Path() if config is None else config.parent
    name = checked_name(flags.name or file.name or DEFAULT_NAME)
    pairs = dict(parse_neighbour(text) for text in flags.neighbours) or file.neighbours or {}
    mode = flags.mode or ModeName(file.mode or ModeName.BEST_EFFORT)
    transport = flags.transport or TransportName(file.transport or "tcp")
    _check_flags(mode, transport, flags, file)
    guaranteed = None
    if mode is ModeName.GUARANTEED:
        guaranteed = _guaranteed(name, flags, file, beside, pairs)
        pairs = {peer: text.rpartition("@")[0] for peer, text in pairs.items()}
    tls = Tls(
        _path(flags.tls_cert, file.tls_cert, beside),
        _path(flags.tls_key, file.tls_key, beside),
        _path(flags.tls_ca, file.tls_ca, beside),
    )
    return BrokerSettings(
        name=name,
        listen=_address(flags.listen or file.listen or DEFAULT_LISTEN, "--listen"),
        neighbours=_neighbours(name, pairs),
        mode=mode.value,
        guaranteed=guaranteed,
        epidemic=_epidemic(flags, file) if mode is ModeName.EPIDEMIC else None,
        sequencers=_sequencers(file.sequencers if flags.sequencers is None else flags.sequencers.split(",")),
        archive=_archive(flags, file, beside),
        transport=transport.value,
        tls=tls if any(tls) else None,
        token=read_token(_path(flags.token_file, file.token_file, beside)),
    )


def _archive(flags: Flags, file: BrokerFile, beside: Path) -> KeptArchive | None:
    directory = _path(flags.archive, file.archive, beside)
    topics = tuple(flags.archive_topics) or file.archive_topics
    size, age = flags.retain_size or file.retain_size, flags.retain_age or file.retain_age
    if directory is None:
        for given, flag in ((topics, "--archive-topic"), (size, "--retain-size"), (age, "--retain-age")):
            if given:
                raise typer.BadParameter("it is for a broker with --archive", param_hint=flag)
        return None
    try:
        make_interest(topics, None)
    except TopicError as error:
        raise typer.BadParameter(str(error), param_hint="--archive-topic") from None
    return KeptArchive(directory, topics, size, age)


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


def _check_flags(mode: ModeName, transport: TransportName, flags: Flags, file: BrokerFile) -> None:
    """Nothing is given that means nothing in that mode."""
    for key, modes in FLAGS_OF_MODES.items():
        given = (getattr(flags, key), getattr(file, key, None))
        if mode not in modes and any(value not in (None, False) for value in given):
            raise typer.BadParameter(f"it is for --mode {' or '.join(modes)}", param_hint=_flag(key))
    if mode is not ModeName.BEST_EFFORT and transport is not TransportName.TCP:
        reason = f"--mode {mode} needs tcp"
        if mode is ModeName.EPIDEMIC:
            reason += " for clients; its brokers speak udp"
        raise typer.BadParameter(reason, param_hint="--transport")


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _epidemic(flags: Flags, file: BrokerFile) -> EpidemicSettings:
    label = flags.label or file.label
    loss = file.loss if flags.loss is None else flags.loss
    return EpidemicSettings(
        recovery=_recovery(flags, file),
        label=None if label is None else _label(label, "--label"),
        loss=None if loss is None else parse_loss(str(loss)),
    )


def _recovery(flags: Flags, file: BrokerFile) -> RecoverySettings:
    if flags.recovery_settings is not None:
        try:
            return msgspec.json.decode(flags.recovery_settings, type=RecoverySettings)
        except msgspec.MsgspecError as error:
            raise typer.BadParameter(str(error), param_hint="--recovery-settings") from None
    if flags.recovery is not None:
        return RecoverySettings(algorithm=flags.recovery.value)
    return RecoverySettings(algorithm=file.recovery or "auto")


def _guaranteed(
    name: str, flags: Flags, file: BrokerFile, beside: Path, pairs: Mapping[str, str]
) -> GuaranteedSettings:
    text = flags.label or file.label
    join = flags.join or file.join
    if text is not None and join is not None:
        raise typer.BadParameter("a broker that joins is given its label", param_hint="--join")
    data = _path(flags.data, file.data, beside)
    if data is None:
        raise typer.BadParameter("--mode guaranteed needs a directory", param_hint="--data")
    label = None if text is None else _label(text, "--label")
    delta = _first(flags.delta, file.delta, DEFAULT_DELTA)
    if label is None:
        _check_joining(name, data, join, pairs)
    return GuaranteedSettings(
        label=label,
        labels={} if label is None else _labels(name, label, delta, pairs),
        join=None if join is None else _address(join, "--join"),
        delta=delta,
        window=_first(flags.window, file.window, DEFAULT_WINDOW),
        data=data,
        new=flags.new or file.new,
        recover=flags.recover or file.recover,
    )


def _check_joining(name: str, data: Path, join: str | None, pairs: Mapping[str, str]) -> None:
    """Without a label a broker joins, or has joined before: then its data know its place."""
    if pairs:
        raise typer.BadParameter("a broker without --label learns its neighbours", param_hint="--neighbour")
    if join is None and not store_path(data, name).exists():
        reason = "--mode guaranteed needs the broker's place in the tree, or --join HOST:PORT"
        raise typer.BadParameter(reason, param_hint="--label")


def _labels(name: str, label: Label, delta: int, pairs: Mapping[str, str]) -> dict[str, Label]:
    """The neighbours' labels, which must be all within delta + 1 links, and none left out on the way."""
    around = Neighbourhood(name, label, delta + 1)
    found: dict[str, Label] = {}
    for peer, text in pairs.items():
        _, separator, label_part = text.rpartition("@")
        if not separator:
            reason = f"{peer}={text} has no label: --mode guaranteed needs NAME=HOST:PORT@LABEL"
            raise typer.BadParameter(reason, param_hint="--neighbour")
        found[peer] = _label(label_part, "--neighbour")
        try:
            around.add(peer, found[peer])
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--neighbour") from None
    for peer, peer_label in found.items():
        for between in path(label, peer_label)[1:-1]:
            if around.name_of(between) is None:
                reason = f"the broker with label {label_text(between)}, between {name} and {peer}, is missing"
                raise typer.BadParameter(reason, param_hint="--neighbour")
    return found


def _label(text: str, flag: str) -> Label:
    try:
        return parse_label(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def _first(flag: int | None, key: int | None, default: int) -> int:
    return flag if flag is not None else default if key is None else key


def _neighbours(name: str, pairs: dict[str, str]) -> dict[str, Address]:
    if name in pairs:
        raise typer.BadParameter(f"{name!r} is this broker itself", param_hint="--neighbour")
    return {checked_name(peer): _address(text, "--neighbour") for peer, text in pairs.items()}


def _sequencers(texts: Sequence[str]) -> tuple[Address, ...]:
    if len(texts) > MAX_SEQUENCERS:
        reason = f"{len(texts)} addresses; at most {MAX_SEQUENCERS} are told to clients"
        raise typer.BadParameter(reason, param_hint="--sequencers")
    return tuple(_address(text.strip(), "--sequencers", SEQUENCER_PORT) for text in texts)


def _address(text: str, flag: str, default_port: int = DEFAULT_PORT) -> Address:
    try:
        return parse_address(text, default_port=default_port)
    except ConnectionFailed as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def _path(flag: Path | None, text: str | None, beside: Path) -> Path | None:
    if flag is not None or text is None:
        return flag
    return beside / text
