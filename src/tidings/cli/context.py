"""`tidings context`: keeps brokers under names, so that no command needs a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.options import (
    CONNECTION,
    Json,
    TlsAuthority,
    TokenFile,
    check_tls_ca,
    check_url,
    option,
    read_token,
)
from tidings.cli.shared.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from tidings.cli.shared.contexts import SavedContext

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.", show_default=False)]
OptionalName = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Default: the one that commands use.", show_default=False),
]
SavedUrl = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="Broker: tidings://HOST:PORT, tidings+tls://... and so on.", show_default=False
    ),
]
SavedTimeout = Annotated[
    float | None,
    option(
        "--connect-timeout",
        metavar="SECONDS",
        min=0.1,
        max=3600.0,
        rich_help_panel=CONNECTION,
        help="How long to wait for the broker.",
    ),
]
Use = Annotated[bool, option("--use", help="Make it the current one.")]
Force = Annotated[bool, option("--force", help="Replace the context of that name.")]


def context() -> None:
    """Keep brokers under names, so that no command needs a URL.

    A command without a URL uses --context, TIDINGS_URL, TIDINGS_CONTEXT or the current context, in this order.
    """


def add(
    name: Name,
    url: SavedUrl,
    use: Use = False,
    force: Force = False,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: SavedTimeout = None,
    json: Json = False,
) -> None:
    """Add a context: a broker's URL and how to connect to it.

    The first one becomes the current one. A token stays in its file; only the path is kept.
    """
    from msgspec import structs

    from tidings.cli.shared.contexts import (
        NAME_PATTERN,
        SavedContext,
        contexts_path,
        load_contexts,
        save_contexts,
    )

    if not NAME_PATTERN.fullmatch(name):
        reason = (
            f"{name!r} must have 1 to 64 letters, digits, '.', '_' or '-', and start with a letter or a digit"
        )
        raise typer.BadParameter(reason, param_hint="NAME")
    if not url.isprintable():
        raise typer.BadParameter(f"{url!r} is not a broker's URL", param_hint="URL")
    check_url(url)
    added = SavedContext(
        url=url,
        token_file=_whole(token_file, "--token-file"),
        tls_ca=_whole(tls_ca, "--tls-ca"),
        connect_timeout=connect_timeout,
    )
    check_tls_ca(tls_ca, url)
    read_token(token_file)
    path = contexts_path()
    file = load_contexts(path)
    if name in file.contexts and not force:
        raise typer.BadParameter(
            f"there is a context {name!r} already (--force replaces it)", param_hint="NAME"
        )
    current = name if use or not file.contexts else file.current
    save_contexts(path, structs.replace(file.with_context(name, added), current=current))
    told = f"added {name}" + (", the current context" if current == name else "")
    _tell(told, {"added": name, "current": current or None}, as_json=json)


def use(name: Name, json: Json = False) -> None:
    """Make a context the current one."""
    from msgspec import structs

    from tidings.cli.shared.contexts import contexts_path, load_contexts, save_contexts

    path = contexts_path()
    file = load_contexts(path)
    file.find(name)
    save_contexts(path, structs.replace(file, current=name))
    _tell(f"{name} is the current context", {"current": name}, as_json=json)


def list_(json: Json = False) -> None:
    """List the contexts; a star marks the current one."""
    from tidings.cli.shared.contexts import contexts_path, load_contexts

    file = load_contexts(contexts_path())
    rows = [
        {"name": name, "current": name == file.current, **_shown(found)}
        for name, found in file.contexts.items()
    ]
    if json:
        print_json(rows)
    elif not rows:
        print_line("no contexts; 'tidings context add NAME URL' adds one")
    else:
        columns = ("url", "token_file", "tls_ca", "connect_timeout")
        lines = [
            ("*" if row["current"] else "", row["name"], *(row.get(column) for column in columns))
            for row in rows
        ]
        headings = ("", "name", *(column.replace("_", " ") for column in columns))
        print_table("", headings, lines, keys=2)


def show(name: OptionalName = None, json: Json = False) -> None:
    """Show a context, by default what a command without a URL would use."""
    from tidings.cli.shared.connection_choice import choose_broker
    from tidings.cli.shared.contexts import without_password

    chosen = choose_broker(name)
    found = {"from": chosen.source, "url": without_password(chosen.url), **chosen.flags}
    if json:
        print_json(found)
    else:
        print_table("", ("what", "value"), [(key.replace("_", " "), value) for key, value in found.items()])


def remove(name: Name, json: Json = False) -> None:
    """Remove a context."""
    from tidings.cli.shared.contexts import contexts_path, load_contexts, save_contexts

    path = contexts_path()
    left = load_contexts(path).without(name)
    save_contexts(path, left)
    _tell(f"removed {name}", {"removed": name, "current": left.current or None}, as_json=json)


list_.__name__ = "list"
ACTIONS = (add, use, list_, show, remove)


def _whole(path: Path | None, flag: str) -> str | None:
    """Return the path so that it is found from any directory."""
    if path is None:
        return None
    if path == Path("-"):
        raise typer.BadParameter("a context needs a file, not stdin", param_hint=flag)
    whole = os.path.abspath(path)
    try:
        whole.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("the path is not valid text", param_hint=flag) from None
    return whole


def _shown(found: SavedContext) -> dict[str, Any]:
    from tidings.cli.shared.contexts import without_password

    return {"url": without_password(found.url), **found.flags()}


def _tell(text: str, fields: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print_line(text)
