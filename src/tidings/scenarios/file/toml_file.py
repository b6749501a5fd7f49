"""Reads the command line's TOML files into typed tables; a mistake is reported in one line that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import inspect

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.decode import inspect_value
from tidings.scenarios.file.text_file import parse_toml, read_text

Decoded = TypeVar("Decoded", bound=msgspec.Struct)


def read_toml(path: Path, kind: type[Decoded]) -> Decoded:
    """Return the file's content as `kind`; ScenarioError names the file, the key and the nearest known one."""
    text = read_text(path)
    try:
        document = parse_toml(text)
        inspect_value(inspect.type_info(kind), document, "")
        return msgspec.convert(document, kind, dec_hook=_decode)
    except (ScenarioError, msgspec.ValidationError) as error:
        raise ScenarioError(f"{path}: {error}") from None


def _decode(kind: type, value: object) -> object:
    """Decode paths, the only type of these tables that TOML lacks."""
    assert kind is Path and isinstance(value, str)
    return Path(value)
