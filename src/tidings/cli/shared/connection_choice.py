"""Chooses the broker of a command that got no URL.

First `--context`, then the variable TIDINGS_URL, then the context that TIDINGS_CONTEXT names, then the current context,
then a broker on this machine. A context also has defaults for the connection's flags; flags and their environment
variables override these.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from typer.models import ArgumentInfo

from tidings.cli.shared.options import CONNECTION, option
from tidings.core.errors import TidingsError

URL_VARIABLE, CONTEXT_VARIABLE = "TIDINGS_URL", "TIDINGS_CONTEXT"
DEFAULT_URL = "tidings://127.0.0.1:7400"
PATHS = ("token_file", "tls_ca")
OPTIONAL = ("bench", "plan")
"""These mean something else without a URL: only `--context` gives them one."""

URL_ARGUMENTS = ("url", "urls", "archive", "subscriptions")
"""Arguments that are a URL, or may be one. `replay` has an archive and a URL: there the archive is none."""

ContextName = Annotated[
    str | None,
    option(
        "--context",
        metavar="NAME",
        rich_help_panel=CONNECTION,
        help="Use this context's broker and flags (see tidings context).",
    ),
]


def with_context(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the flag `--context` after its own, if it takes a URL."""
    signature = inspect.signature(verb, eval_str=True)
    parameters = list(signature.parameters.values())
    url = url_argument([parameter.name for parameter in parameters if _is_argument(parameter)])
    if url is None:
        return verb
    flag = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ContextName)
    # By name only, as Typer passes them: the URL may be missing before what is required.
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    if verb.__name__ not in OPTIONAL:
        parameters = [
            parameter.replace(default=None) if parameter.name == url else parameter
            for parameter in parameters
        ]
    names = [parameter.name for parameter in parameters]
    before = [names.index(name) for name in ("name", "token_file") if name in names]
    parameters.insert(min(before, default=len(names)), flag)

    @wraps(verb)
    def command(*, context: str | None = None, **given: Any) -> None:
        # The context has had its effect when the command line was parsed: see `with_broker`.
        verb(**given)

    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(info, ArgumentInfo) for info in getattr(parameter.annotation, "__metadata__", ()))


def url_argument(arguments: Sequence[str]) -> str | None:
    """Return which of a verb's arguments is the URL; None if none is."""
    return next((name for name in URL_ARGUMENTS if name in arguments), None)


@dataclass(frozen=True)
class ChosenBroker:
    """A broker's URL, where it comes from, and the defaults of flags that come with it."""

    url: str
    source: str
    flags: Mapping[str, Any] = field(default_factory=dict)


def choose_broker(context: str | None, environment: Mapping[str, str] = os.environ) -> ChosenBroker:
    """Return the broker of the context, or without one that of the environment or of the current context.

    Raises:
        TidingsError: The context is unknown, or the file of contexts is damaged.
    """
    if context is None and (url := environment.get(URL_VARIABLE)):
        return ChosenBroker(url, URL_VARIABLE)
    from tidings.cli.shared.contexts import contexts_path, load_contexts

    path = contexts_path(environment)
    file = load_contexts(path)
    name = context or environment.get(CONTEXT_VARIABLE) or file.current
    if not name:
        return ChosenBroker(DEFAULT_URL, "default")
    try:
        found = file.find(name)
    except TidingsError as error:
        if context:
            raise
        where = CONTEXT_VARIABLE if environment.get(CONTEXT_VARIABLE) else path
        raise TidingsError(f"{where}: {error}") from None
    flags = found.flags()
    # As in a broker's file, paths are relative to the file.
    flags |= {key: str(path.parent / Path(flags[key]).expanduser()) for key in PATHS if key in flags}
    return ChosenBroker(found.url, f"context {name}", flags)


def is_left_out(arguments: Sequence[str], given: Mapping[str, Any]) -> bool:
    """Return whether the URL is missing before the other arguments.

    `arguments` are the names of the URL's and of those after it; `given` has their values as if the URL were there.
    """
    first = given.get(arguments[0])
    if not first or len(arguments) == 1:
        return not first
    if arguments[0] != "url":  # it may also be a directory
        return first.startswith("/") and not Path(first).exists()
    # A topic starts with a slash. A single word that cannot be a URL is what follows it, such as a name.
    return first.startswith("/") or ("://" not in first and not given.get(arguments[1]))
