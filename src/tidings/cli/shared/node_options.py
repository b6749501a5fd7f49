"""Declares the options that brokers and sequencers share, and the values that several verbs take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Meta

from tidings.cli.shared.option_table import Flag, Options
from tidings.core.overlay import modes

MAX_DELTA = 32
GUARANTEED = "Guaranteed mode"
EPIDEMIC = "Epidemic mode"
ARCHIVE = "Archive"
SECURITY = "Security"
"""Headings in the help."""

MODES = f"{', '.join(modes.MODES[:-1])} or {modes.MODES[-1]}"
Algorithm = Literal["auto", "none", "push", "subscriber-pull", "publisher-pull", "combined", "push+pull"]
ALGORITHMS = ", ".join(get_args(Algorithm))
Transport = Literal["tcp", "udp"]
LayoutOrder = Literal["total", "causal"]
Name = Annotated[str, Meta(min_length=1, max_length=255, extra={"printable": True})]

ArchiveTopics = Annotated[
    tuple[str, ...],
    Flag(
        name="--archive-topic",
        metavar="TOPIC",
        parse=tuple,
        panel=ARCHIVE,
        help="Record only these topics: /a/b, /a/*, /a/**. Repeatable.",
    ),
]
RetainSize = Annotated[
    str | None, Flag(panel=ARCHIVE, metavar="SIZE", help="Keep at most this much, such as 500M or 20G.")
]
RetainAge = Annotated[
    str | None, Flag(panel=ARCHIVE, metavar="TIME", help="Keep events for this long, such as 12h or 30d.")
]


class NodeOptions(Options, frozen=True, kw_only=True):
    """Holds the options that brokers and sequencers share."""

    tls_cert: Annotated[
        Path | None,
        Flag(panel=SECURITY, metavar="FILE", help="TLS certificate (PEM); required beyond loopback."),
    ] = None
    tls_key: Annotated[
        Path | None, Flag(panel=SECURITY, metavar="FILE", help="Key of the certificate (PEM).")
    ] = None
    tls_ca: Annotated[
        Path | None,
        Flag(
            panel=SECURITY,
            metavar="FILE",
            help="Certificates to trust (PEM). Default: the system's.",
            envvar="TIDINGS_TLS_CA",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Flag(
            panel=SECURITY, metavar="FILE", help="File with the network's token.", envvar="TIDINGS_TOKEN_FILE"
        ),
    ] = None
