"""A class name says one thing: no two public classes share one, unless they are listed here as one idea."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
ONE_IDEA: frozenset[str] = frozenset()


def shared_names(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names of public classes that several files define, with these files."""
    defined: defaultdict[str, list[str]] = defaultdict(list)
    for path, text in sources:
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(path)
    return {name: paths for name, paths in defined.items() if len(paths) > 1 and name not in ONE_IDEA}


def test_no_two_classes_share_a_name() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert files, f"no source files in {SOURCE}"
    assert shared_names((str(path), path.read_text(encoding="utf-8")) for path in files) == {}


def test_a_shared_name_is_found() -> None:
    sources = [
        ("a.py", "class Session: ...\nclass _Own: ...\n"),
        ("b.py", "class Session: ...\nclass _Own: ...\n"),
    ]
    assert shared_names(sources) == {"Session": ["a.py", "b.py"]}
