"""Reads a scenario file; a mistake in it is a one-line ScenarioError that names the file and the key."""

from __future__ import annotations

from pathlib import Path

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.check import check_scenario
from tidings.scenarios.file.decode import decode_scenario
from tidings.scenarios.file.schema import Scenario
from tidings.scenarios.file.text_file import parse_toml, read_text


def load_scenario(path: Path) -> Scenario:
    """Return the checked scenario in the file at `path`."""
    return parse_scenario(read_text(path), name=str(path))


def parse_scenario(text: str, *, name: str = "scenario") -> Scenario:
    """Return the checked scenario in a TOML text; messages use `name` in place of a file's name."""
    try:
        scenario = decode_scenario(parse_toml(text))
        check_scenario(scenario)
    except ScenarioError as error:
        raise ScenarioError(f"{name}: {error}") from None
    return scenario
