"""What code and pages cite exists: files by their paths, or by a name that one of them has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.(?:md|py))\b")
MADE = {"report.md"}
"""What tidings makes for its users."""


def listed(*patterns: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def missing(text: str, files: set[str]) -> list[str]:
    ends = {
        "/".join(parts[start:])
        for parts in (name.split("/") for name in files)
        for start in range(len(parts))
    }
    return [cited for cited in CITED.findall(text) if cited not in ends and cited not in MADE]


FILES = set(listed())
READ = [name for name in listed("src/*.py", "docs/*.md", "*.md") if name != "CHANGELOG.md"]


@pytest.mark.parametrize("name", READ)
def test_what_is_cited_exists(name: str) -> None:
    assert missing((ROOT / name).read_text(encoding="utf-8"), FILES) == []


def test_a_file_that_is_gone_is_found() -> None:
    assert missing("see core/kernel.py and simulator/kernel.py, docs/cli.md and overlay.md", FILES) == [
        "simulator/kernel.py",
        "overlay.md",
    ]
