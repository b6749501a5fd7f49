"""The options that brokers and sequencers share, and the values that several verbs take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from tidings.cli.shared.option_table import Flag, Options

MAX_DELTA = 32

Mode = Literal["best-effort", "guaranteed", "epidemic"]
Algorithm = Literal["auto", "none", "push", "subscriber-pull", "publisher-pull", "combined", "push+pull"]
Transport = Literal["tcp", "udp"]
LayoutOrder = Literal["total", "causal"]
Name = Annotated[str, Meta(min_length=1, max_length=255, extra={"printable": True})]


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
