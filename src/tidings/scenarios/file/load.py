"""Reading a scenario file: every mistake in it is one ScenarioError line that names the file and the key."""

from __future__ import annotations

from pathlib import Path

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.check import check_scenario
from tidings.scenarios.file.decode import decode_scenario
from tidings.scenarios.file.schema import Scenario
from tidings.scenarios.file.text_file import parse_toml, read_text


def load_scenario(path: Path) -> Scenario:
    """The checked scenario in the file at `path`."""
    return parse_scenario(read_text(path), name=str(path))


def parse_scenario(text: str, *, name: str = "scenario") -> Scenario:
    """The checked scenario in a TOML text; `name` stands in messages where the file's name would."""
    try:
        scenario = decode_scenario(parse_toml(text))
        check_scenario(scenario)
    except ScenarioError as error:
        raise ScenarioError(f"{name}: {error}") from None
    return scenario
