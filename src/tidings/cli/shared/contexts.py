"""Keeps named contexts, each a broker and how to connect to it, in a file of the user's configuration directory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from tidings.core.errors import TidingsError
from tidings.scenarios.file.toml_file import read_toml

FILE_VARIABLE = "TIDINGS_CONFIG"
NAME_PATTERN = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
SHOWN_NAMES = 10


class SavedContext(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A broker's URL, and defaults for the flags of the same names. A token is never in here, only its file."""

    url: str
    token_file: str | None = None
    tls_ca: str | None = None
    connect_timeout: float | None = None

    def flags(self) -> dict[str, Any]:
        """Return the defaults for flags."""
        given = structs.asdict(self)
        return {key: value for key, value in given.items() if key != "url" and value is not None}


class ContextFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    current: str = ""
    """The context that commands use by default; empty: none."""
    contexts: dict[str, SavedContext] = {}

    def find(self, name: str) -> SavedContext:
        """Return the context; raise TidingsError with the nearest names if it is unknown."""
        found = self.contexts.get(name)
        if found is None:
            raise TidingsError(f"unknown context {name!r}; {self._hint(name)}")
        return found

    def _hint(self, name: str) -> str:
        known = list(self.contexts)
        if not known:
            return "there are none yet: 'tidings context add NAME URL' adds one"
        near = get_close_matches(name, known, n=3)
        if near:
            return f"did you mean {' or '.join(map(repr, near))}?"
        more = "" if len(known) <= SHOWN_NAMES else " and more"
        return f"known: {', '.join(known[:SHOWN_NAMES])}{more}"

    def with_context(self, name: str, context: SavedContext) -> ContextFile:
        return structs.replace(self, contexts={**self.contexts, name: context})

    def without(self, name: str) -> ContextFile:
        self.find(name)
        kept = {other: context for other, context in self.contexts.items() if other != name}
        return ContextFile(current="" if self.current == name else self.current, contexts=kept)


def contexts_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the file is: `TIDINGS_CONFIG`, or `tidings/contexts.toml` in the user's configuration directory."""
    if given := environment.get(FILE_VARIABLE):
        return Path(given)
    base = environment.get("XDG_CONFIG_HOME", "")
    # The XDG specification has relative paths ignored.
    home = Path(base) if Path(base).is_absolute() else Path("~/.config").expanduser()
    return home / "tidings" / "contexts.toml"


def load_contexts(path: Path) -> ContextFile:
    """Return the content of the file, which may be missing; raise TidingsError with its path if it is damaged."""
    if not path.exists():
        return ContextFile()
    try:
        return read_toml(path, ContextFile)
    except TidingsError as error:
        raise TidingsError(f"{error} (the file of contexts: correct or remove it)") from None


def save_contexts(path: Path, file: ContextFile) -> None:
    """Replace the file atomically. Only its owner may read it."""
    from tidings.storage.files import replaced

    path = path.resolve()  # a link to the file stays one
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replaced(path) as draft:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8") as writer:
                writer.write(_toml(file))
    except OSError as error:
        raise TidingsError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None


def _toml(file: ContextFile) -> str:
    lines = ["# Written by 'tidings context'. Tokens are in files of their own."]
    if file.current:
        lines.append(f"current = {_quoted(file.current)}")
    for name, context in file.contexts.items():
        lines += ["", f"[contexts.{_quoted(name)}]"]
        fields = {"url": context.url, **context.flags()}
        lines += [
            f"{key} = {_quoted(value) if isinstance(value, str) else value}" for key, value in fields.items()
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a basic string of TOML, which has JSON's escapes, and wants DEL escaped as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def without_password(url: str) -> str:
    """Return the URL as it may be shown."""
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1:***@", url)
