"""Reads the TOML files of the command line into typed tables; every mistake is one line that names the key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from tidings.model.errors import ScenarioError
from tidings.scenario.decode import inspect_value

MAX_FILE_BYTES = 16 * 1024 * 1024

Decoded = TypeVar("Decoded", bound=msgspec.Struct)


def read_toml(path: Path, kind: type[Decoded]) -> Decoded:
    """The file's content as `kind`; ScenarioError names the file and the key, and the nearest known one."""
    document = _parse(_read(path), path)
    try:
        inspect_value(inspect.type_info(kind), document, "")
        return msgspec.convert(document, kind)
    except (ScenarioError, msgspec.ValidationError) as error:
        raise ScenarioError(f"{path}: {error}") from None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ScenarioError(f"{path}: is larger than {MAX_FILE_BYTES // (1024 * 1024)} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise ScenarioError(f"{path}: not valid TOML: {' '.join(str(error).split())}") from None
