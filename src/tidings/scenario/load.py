"""Reading a scenario file: every mistake in it is one ScenarioError line that names the file and the key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tidings.model.errors import ScenarioError
from tidings.scenario.check import check_scenario
from tidings.scenario.decode import decode_scenario
from tidings.scenario.schema import Scenario

MAX_FILE_BYTES = 64 * 1024 * 1024


def load_scenario(path: Path) -> Scenario:
    """The checked scenario in the file at `path`."""
    return parse_scenario(_read(path), name=str(path))


def parse_scenario(text: str, *, name: str = "scenario") -> Scenario:
    """The checked scenario in a TOML text; `name` stands in messages where the file's name would."""
    try:
        scenario = decode_scenario(_parse(text))
        check_scenario(scenario)
    except ScenarioError as error:
        raise ScenarioError(f"{name}: {error}") from None
    return scenario


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = " ".join(str(error).splitlines())
        raise ScenarioError(f"not valid TOML: {message.replace('end of document', _end(text))}") from None
    except RecursionError:
        raise ScenarioError("not valid TOML: nested too deeply") from None
    except ValueError:
        # The only error that tomllib leaves as it is: Python's own limit on the digits of an integer.
        raise ScenarioError("not valid TOML: a number has too many digits") from None


def _end(text: str) -> str:
    """Where a text ends, in the words that tomllib has for other places."""
    return f"line {text.count(chr(10)) + 1}, column {len(text) - text.rfind(chr(10))}"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ScenarioError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ScenarioError(f"{path}: is a directory, not a file") from None
    except PermissionError:
        raise ScenarioError(f"{path}: no permission to read it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ScenarioError(f"{path}: cannot be read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ScenarioError(f"{path}: is larger than {MAX_FILE_BYTES // (1024 * 1024)} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: is not UTF-8 text (byte {error.start})") from None
