"""Reads TOML files; a mistake is a one-line ScenarioError."""

from __future__ import annotations

import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tidings.core.errors import ScenarioError

STDIN = Path("-")
MAX_FILE_BYTES = 64 * 1024 * 1024


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; ScenarioError says where it is invalid."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = " ".join(str(error).splitlines())
        raise ScenarioError(f"not valid TOML: {message.replace('end of document', _end(text))}") from None
    except RecursionError:
        raise ScenarioError("not valid TOML: nested too deeply") from None
    except ValueError:
        # tomllib lets one ValueError through: Python's limit on the digits of an integer.
        raise ScenarioError("not valid TOML: a number has too many digits") from None


def _end(text: str) -> str:
    """Return where a text ends, in tomllib's words for other positions."""
    return f"line {text.count(chr(10)) + 1}, column {len(text) - text.rfind(chr(10))}"


def read_text(path: Path) -> str:
    """Return the text of a file (`-` is stdin); ScenarioError says why it cannot be read."""
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ScenarioError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ScenarioError(f"{path}: is a directory, not a file") from None
    except PermissionError:
        raise ScenarioError(f"{path}: permission denied") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ScenarioError(f"{path}: cannot be read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ScenarioError(f"{path}: is larger than {MAX_FILE_BYTES // (1024 * 1024)} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: is not UTF-8 text (byte {error.start})") from None
