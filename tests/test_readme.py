"""The README's programs and the examples run as they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MARK = "<!-- runs -->"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def marked_programs(text: str) -> list[str]:
    """The Python blocks that a line with the mark stands directly before."""
    programs = []
    for part in text.split(MARK)[1:]:
        opening, _, rest = part.strip().partition("\n")
        assert opening == "```python", f"{MARK} stands before {opening!r}, not before a Python block"
        program, closing, _ = rest.partition("\n```")
        assert closing, "a block is not closed"
        programs.append(program)
    return programs


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_programs_of_the_readme_run() -> None:
    programs = marked_programs((ROOT / "README.md").read_text(encoding="utf-8"))
    assert programs, f"README.md has no block marked {MARK}"
    for program in programs:
        assert run("-c", program).strip()


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path) -> None:
    assert run(str(path)).strip()
