"""Flags that several commands share, and what they mean together."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidings.bus.host import ApplicationHost

MAX_TOKEN_BYTES = 4096

option = partial(typer.Option, show_envvar=False)
"""A flag. All can come from the environment, by one rule that the manual gives once."""

Json = Annotated[bool, option("--json", help="Print JSON, for programs.")]
Quiet = Annotated[bool, option("--quiet", "-q", help="No progress bar.")]
Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="A broker: tidings://HOST:PORT, tidings+udp://... or tidings+tls://...",
        show_default=False,
    ),
]
ClientName = Annotated[
    str | None,
    option("--name", help="This client's name, unique in the network; drawn at random without."),
]
TokenFile = Annotated[
    Path | None,
    option("--token-file", envvar="TIDINGS_TOKEN_FILE", help="File with the token that brokers ask for."),
]
TlsAuthority = Annotated[
    Path | None,
    option("--tls-ca", envvar="TIDINGS_TLS_CA", help="Certificates to trust (PEM); the system's without."),
]
ConnectTimeout = Annotated[
    float, option("--connect-timeout", min=0.1, max=3600.0, help="Seconds to wait for the broker's answer.")
]

StopOnEof = Annotated[bool, option("--stop-on-eof", hidden=True, help="End when stdin closes.")]


def read_token(path: Path | None) -> str:
    """The token in a file, without the line's end; empty without a file."""
    if path is None:
        return ""
    try:
        token = path.read_bytes()[: MAX_TOKEN_BYTES + 2].decode().strip()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text", param_hint="--token-file") from None
    if not token or len(token.encode()) > MAX_TOKEN_BYTES or not token.isprintable():
        reason = f"{path} must hold one line of at most {MAX_TOKEN_BYTES} bytes"
        raise typer.BadParameter(reason, param_hint="--token-file")
    return token


def make_bus(
    url: str,
    *,
    name: str | None = None,
    token_file: Path | None = None,
    tls_authority: Path | None = None,
    timeout_s: float = 5.0,
) -> ApplicationHost:
    """A bus that is not open yet; a URL that is none is a mistake in the usage."""
    from tidings.bus.connect import connect
    from tidings.core.errors import ConnectionFailed, NotYetAvailable

    token = read_token(token_file)
    try:
        return connect(url, name=name, token=token, tls_ca=tls_authority, timeout_s=timeout_s)
    except (ConnectionFailed, NotYetAvailable) as error:
        raise typer.BadParameter(str(error), param_hint="URL") from None
