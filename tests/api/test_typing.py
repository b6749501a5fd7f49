"""The public API is typed: a user's program passes `mypy --strict`, and its mistakes do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

PROGRAM = Path(__file__).parent / "typed_program.py"
EXPECTED = re.compile(r"# error: ([\w-]+)$")
FOUND = re.compile(r"^[^:]+:(\d+): error: .*\[([\w-]+)\]$")


@pytest.mark.slow
def test_a_typed_program_passes_and_its_mistakes_do_not(tmp_path: Path) -> None:
    lines = enumerate(PROGRAM.read_text(encoding="utf-8").splitlines(), 1)
    expected = {(number, match[1]) for number, line in lines if (match := EXPECTED.search(line))}
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    out, errors, _ = api.run(
        ["--config-file", str(config), "--cache-dir", str(tmp_path / "cache"), str(PROGRAM)]
    )
    found = {(int(match[1]), match[2]) for line in out.splitlines() if (match := FOUND.match(line))}
    assert not errors
    assert found == expected, out
