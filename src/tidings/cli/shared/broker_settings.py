"""Checks the options of a broker process and turns them into its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import typer

from tidings.cli.shared.broker_options import BrokerOptions
from tidings.cli.shared.loss import parse_loss
from tidings.cli.shared.node_options import NodeOptions
from tidings.cli.shared.option_table import over
from tidings.cli.shared.options import check_name, check_tls_ca, read_token
from tidings.cli.shared.subscription_options import check_patterns
from tidings.cli.shared.up_options import UpOptions
from tidings.core.errors import ConnectionFailed, TopicError
from tidings.core.events.subscription import make_interest
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.overlay.guaranteed.neighbourhood import Neighbourhood
from tidings.core.overlay.labels import Label, label_text, parse_label, path
from tidings.core.overlay.modes import BrokerMode
from tidings.drivers.address import DEFAULT_PORT, SEQUENCER_PORT, Address, Transport, parse_address
from tidings.drivers.sockets.epidemic import EpidemicSettings
from tidings.drivers.sockets.guaranteed import DEFAULT_DELTA, DEFAULT_WINDOW, GuaranteedSettings, store_path
from tidings.drivers.sockets.security import Tls, server_context
from tidings.scenarios.file.toml_file import read_toml

DEFAULT_LISTEN = "127.0.0.1:7400"
DEFAULT_NAME = "b0"
MAX_SEQUENCERS = 64

OPTIONS_OF_MODES: Mapping[str, tuple[BrokerMode, ...]] = {
    **dict.fromkeys(("delta", "window", "data", "new", "recover", "join"), ("guaranteed",)),
    "label": ("guaranteed", "epidemic"),
    **dict.fromkeys(("recovery", "recovery_settings", "loss"), ("epidemic",)),
}
"""Options that only some modes use."""


class KeptArchive(msgspec.Struct, frozen=True):
    """Describes what a broker records; `size` and `age` are as users write them."""

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


def broker_settings(
    options: BrokerOptions, config: Path | None = None, recovery_settings: str | None = None
) -> BrokerSettings:
    """Return the settings; flags override the file, the file overrides the defaults. `recovery_settings` is JSON from a
    scenario's run, which starts brokers."""
    if config is not None:
        options = over(options, read_toml(config, BrokerOptions), config.parent)
    name = check_name(DEFAULT_NAME if options.name is None else options.name)
    pairs = options.neighbours or {}
    mode: BrokerMode = options.mode or "best-effort"
    transport: Transport = options.transport or "tcp"
    _check_mode(mode, transport, options, recovery_settings)
    guaranteed = None
    if mode == "guaranteed":
        guaranteed = _guaranteed(name, options, pairs)
        pairs = {peer: text.rpartition("@")[0] for peer, text in pairs.items()}
    return BrokerSettings(
        name=name,
        listen=_address(options.listen or DEFAULT_LISTEN, "--listen"),
        neighbours=_neighbours(name, pairs),
        mode=mode,
        guaranteed=guaranteed,
        epidemic=_epidemic(options, recovery_settings) if mode == "epidemic" else None,
        sequencers=_sequencers(options.sequencers),
        archive=kept_archive(options),
        transport=transport,
        tls=tls_of(options),
        token=read_token(options.token_file),
    )


def tls_of(options: NodeOptions) -> Tls | None:
    """Return the TLS files, None without TLS; errors name the flag."""
    tls = Tls(options.tls_cert, options.tls_key, options.tls_ca)
    if not any(tls):
        return None
    if tls.certificate is None or tls.key is None:
        given = [name for name, file in (("--tls-cert", tls.certificate), ("--tls-key", tls.key)) if file]
        reason = "TLS needs both --tls-cert and --tls-key"
        raise typer.BadParameter(reason, param_hint=(*given, "--tls-ca")[0])
    check_tls_ca(options.tls_ca)
    try:
        server_context(tls)
    except ConnectionFailed as error:
        raise typer.BadParameter(str(error), param_hint="--tls-cert") from None
    return tls


def kept_archive(options: BrokerOptions | UpOptions) -> KeptArchive | None:
    """Return what the options say about an archive; None without one."""
    topics, size, age = options.archive_topics, options.retain_size, options.retain_age
    if options.archive is None:
        for given, flag in ((topics, "--archive-topic"), (size, "--retain-size"), (age, "--retain-age")):
            if given:
                raise typer.BadParameter("requires --archive", param_hint=flag)
        return None
    check_patterns(topics, "--archive-topic")
    try:
        make_interest(topics, None)
    except TopicError as error:
        raise typer.BadParameter(str(error), param_hint="--archive-topic") from None
    return KeptArchive(options.archive, topics, size, age)


def _check_mode(
    mode: BrokerMode, transport: Transport, options: BrokerOptions, recovery_settings: str | None
) -> None:
    """Reject options that the mode does not use."""
    for key, modes in OPTIONS_OF_MODES.items():
        value = recovery_settings if key == "recovery_settings" else getattr(options, key)
        if mode not in modes and value not in (None, False):
            raise typer.BadParameter(
                f"requires --mode {' or '.join(modes)}", param_hint=f"--{key.replace('_', '-')}"
            )
    if mode != "best-effort" and transport != "tcp":
        reason = f"--mode {mode} requires tcp"
        if mode == "epidemic":
            reason += " (for clients; brokers use udp among themselves)"
        raise typer.BadParameter(reason, param_hint="--transport")


def _epidemic(options: BrokerOptions, recovery_settings: str | None) -> EpidemicSettings:
    return EpidemicSettings(
        recovery=_recovery(options, recovery_settings),
        label=None if options.label is None else _label(options.label, "--label"),
        loss=None if options.loss is None else parse_loss(str(options.loss)),
    )


def _recovery(options: BrokerOptions, recovery_settings: str | None) -> RecoverySettings:
    if recovery_settings is None:
        return RecoverySettings(algorithm=options.recovery or "auto")
    try:
        return msgspec.json.decode(recovery_settings, type=RecoverySettings)
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(str(error), param_hint="--recovery-settings") from None


def _guaranteed(name: str, options: BrokerOptions, pairs: Mapping[str, str]) -> GuaranteedSettings:
    text, join, data = options.label, options.join, options.data
    if text is not None and join is not None:
        raise typer.BadParameter(
            "not allowed with --label: a broker that joins is given one", param_hint="--join"
        )
    if data is None:
        raise typer.BadParameter("required with --mode guaranteed", param_hint="--data")
    label = None if text is None else _label(text, "--label")
    delta = DEFAULT_DELTA if options.delta is None else options.delta
    if label is None:
        _check_joining(name, data, join, pairs)
    return GuaranteedSettings(
        label=label,
        labels={} if label is None else _labels(name, label, delta, pairs),
        join=None if join is None else _address(join, "--join"),
        delta=delta,
        window=options.window or DEFAULT_WINDOW,
        data=data,
        new=options.new,
        recover=options.recover,
    )


def _check_joining(name: str, data: Path, join: str | None, pairs: Mapping[str, str]) -> None:
    """Check that a broker without a label joins, or has joined before and so has its label in its data."""
    if pairs:
        raise typer.BadParameter(
            "requires --label; a broker without one learns its neighbours", param_hint="--neighbour"
        )
    if join is None and not store_path(data, name).exists():
        reason = "required with --mode guaranteed, or give --join HOST:PORT"
        raise typer.BadParameter(reason, param_hint="--label")


def _labels(name: str, label: Label, delta: int, pairs: Mapping[str, str]) -> dict[str, Label]:
    """Return the neighbours' labels, which must be within delta + 1 links, with no broker missing in between."""
    around = Neighbourhood(name, label, delta + 1)
    found: dict[str, Label] = {}
    for peer, text in pairs.items():
        _, separator, label_part = text.rpartition("@")
        if not separator:
            reason = f"--mode guaranteed expects NAME=HOST:PORT@LABEL, not '{peer}={text}'"
            raise typer.BadParameter(reason, param_hint="--neighbour")
        found[peer] = _label(label_part, "--neighbour")
        try:
            around.add(peer, found[peer])
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--neighbour") from None
    for peer, peer_label in found.items():
        for between in path(label, peer_label)[1:-1]:
            if around.name_of(between) is None:
                reason = f"broker {label_text(between)}, between {name} and {peer}, is missing"
                raise typer.BadParameter(reason, param_hint="--neighbour")
    return found


def _label(text: str, flag: str) -> Label:
    try:
        return parse_label(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def _neighbours(name: str, pairs: dict[str, str]) -> dict[str, Address]:
    if name in pairs:
        raise typer.BadParameter(f"{name!r} is this broker's own name", param_hint="--neighbour")
    return {check_name(peer, "--neighbour"): _address(text, "--neighbour") for peer, text in pairs.items()}


def _sequencers(texts: Sequence[str]) -> tuple[Address, ...]:
    if len(texts) > MAX_SEQUENCERS:
        reason = f"at most {MAX_SEQUENCERS} addresses, not {len(texts)}"
        raise typer.BadParameter(reason, param_hint="--sequencers")
    return tuple(_address(text.strip(), "--sequencers", SEQUENCER_PORT) for text in texts)


def _address(text: str, flag: str, default_port: int = DEFAULT_PORT) -> Address:
    try:
        return parse_address(text, default_port=default_port)
    except ConnectionFailed as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None
