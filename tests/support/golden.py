"""What must stay as it is, kept as text in tests/protection/golden: a change shows as a diff."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "protection" / "golden"
REWRITE = "REWRITE_GOLDEN=1 python -m pytest tests/protection"


def check_golden(name: str, lines: Iterable[str]) -> None:
    """Fails with what changed; where the environment has REWRITE_GOLDEN, the file is written instead.

    One test per file: so tests that run side by side never write the same one.
    """
    path, found = GOLDEN / name, list(lines)
    if os.environ.get("REWRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
        pytest.skip(f"{name} was written")
    changes = list(difflib.unified_diff(golden_lines(name), found, "golden", "now", lineterm="", n=0))
    shown = "\n".join(line for line in changes if not line.startswith("@@"))
    assert not changes, f"{path.name} is not what it was:\n{shown}\nIf that is meant: {REWRITE}"


def golden_lines(name: str) -> list[str]:
    path = GOLDEN / name
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
