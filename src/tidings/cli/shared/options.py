"""Declares and checks the flags that several verbs share."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidings.bus.host import ApplicationHost

MAX_NAME_CHARACTERS = 255
MAX_TOKEN_BYTES = 4096
STDIN = Path("-")

CONNECTION = "Connection"
"""A heading in the help."""

option = partial(typer.Option, show_envvar=False)
"""Declares a flag. Each can come from the environment; the manual gives the rule once."""

Json = Annotated[bool, option("--json", help="Print JSON instead of text.")]
Quiet = Annotated[bool, option("--quiet", "-q", help="Show no progress bar.")]
Url = Annotated[
    str,
    typer.Argument(
        metavar="[URL]",
        help="Broker: tidings://HOST:PORT, tidings+tls://... or tidings+udp://... "
        "Default: TIDINGS_URL, or the context's.",
        show_default=False,
    ),
]
ClientName = Annotated[
    str | None,
    option(
        "--name",
        metavar="NAME",
        rich_help_panel=CONNECTION,
        help="Client name, unique in the network. Default: random.",
    ),
]
TokenFile = Annotated[
    Path | None,
    option(
        "--token-file",
        metavar="FILE",
        envvar="TIDINGS_TOKEN_FILE",
        rich_help_panel=CONNECTION,
        help="File with the network's token.",
    ),
]
TlsAuthority = Annotated[
    Path | None,
    option(
        "--tls-ca",
        metavar="FILE",
        envvar="TIDINGS_TLS_CA",
        rich_help_panel=CONNECTION,
        help="Certificates to trust (PEM). Default: the system's.",
    ),
]
ConnectTimeout = Annotated[
    float,
    option(
        "--connect-timeout",
        metavar="SECONDS",
        min=0.1,
        max=3600.0,
        rich_help_panel=CONNECTION,
        help="How long to wait for the broker.",
    ),
]
StopOnEof = Annotated[bool, option("--stop-on-eof", hidden=True, help="Exit when stdin closes.")]


def check_name(name: str, flag: str = "--name") -> str:
    if len(name) > MAX_NAME_CHARACTERS:
        reason = f"a name has at most {MAX_NAME_CHARACTERS} characters, this one has {len(name)}"
        raise typer.BadParameter(reason, param_hint=flag)
    if not name or not name.isprintable():
        raise typer.BadParameter("a name has 1 to 255 printable characters", param_hint=flag)
    return name


def read_file(path: Path, flag: str) -> bytes:
    """Return the content of the file; `-` is stdin."""
    try:
        return sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {reason_of(error)}", param_hint=flag) from None


def reason_of(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def read_token(path: Path | None) -> str:
    """Return the token in a file, without the line's end; empty without a file."""
    if path is None:
        return ""
    try:
        token = read_file(path, "--token-file")[: MAX_TOKEN_BYTES + 2].decode().strip()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text", param_hint="--token-file") from None
    if not token or len(token.encode()) > MAX_TOKEN_BYTES or not token.isprintable():
        reason = f"{path} must hold one line of at most {MAX_TOKEN_BYTES} bytes"
        raise typer.BadParameter(reason, param_hint="--token-file")
    return token


def check_tls_ca(path: Path | None, url: str | None = None) -> None:
    """Check that the file can be used and that the URL uses TLS."""
    if path is None:
        return
    from tidings.core.errors import ConnectionFailed
    from tidings.drivers.sockets.security import Tls, client_context

    if url is not None and url.startswith(("tidings://", "tidings+udp://")):
        reason = f"{url} is not encrypted; use tidings+tls://, or leave out the certificates"
        raise typer.BadParameter(reason, param_hint="--tls-ca")
    try:
        client_context(Tls(authority=path))
    except ConnectionFailed as error:
        raise typer.BadParameter(str(error), param_hint="--tls-ca") from None


def check_url(url: str, hint: str = "URL") -> None:
    """Report a malformed URL as a usage error, before anything happens."""
    from tidings.bus.connect import connect
    from tidings.core.errors import ConnectionFailed, NotYetAvailable

    try:
        connect(url)
    except (ConnectionFailed, NotYetAvailable) as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def make_bus(
    url: str,
    *,
    name: str | None = None,
    token_file: Path | None = None,
    tls_authority: Path | None = None,
    timeout_s: float = 5.0,
) -> ApplicationHost:
    """Return a bus that is not open yet."""
    from tidings.bus.connect import connect

    check_url(url)
    check_tls_ca(tls_authority, url)
    if name is not None:
        check_name(name)
    return connect(url, name=name, token=read_token(token_file), tls_ca=tls_authority, timeout_s=timeout_s)
