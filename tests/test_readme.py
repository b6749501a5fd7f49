"""The programs of the README and the manual, and the examples, run as they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MARK = "<!-- runs -->"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


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


PROGRAMS = [
    (page, program) for page in PAGES for program in marked_programs(page.read_text(encoding="utf-8"))
]


def test_the_readme_has_programs() -> None:
    assert any(page.name == "README.md" for page, _ in PROGRAMS), f"README.md has no block marked {MARK}"


@pytest.mark.parametrize(
    "program", [program for _, program in PROGRAMS], ids=[page.stem for page, _ in PROGRAMS]
)
def test_a_program_of_the_manual_runs(program: str) -> None:
    assert run("-c", program).strip()


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path) -> None:
    assert run(str(path)).strip()
