"""Keeps finished points, one small file each, so that a second call continues where the first was interrupted.

A point's file is named by a hash of the point, the study's version and the code that determines results, so results of
other code are never reused.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import tidings
from tidings import core, drivers, scenarios, storage
from tidings.core.errors import PipelineError
from tidings.storage.files import replaced
from tidings.studies.study import Point, Study

DECIDING = (core, drivers, scenarios, storage)
"""The packages that experiments run. As modules, not as names, so that a moved one fails at import."""


@cache
def code_hash() -> str:
    root = Path(tidings.__file__).parent
    digest = hashlib.sha256(tidings.__version__.encode())
    for package in DECIDING:
        for path in source_files(package):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def source_files(package: ModuleType) -> list[Path]:
    """Return the sources of a package; PipelineError if there are none, since results of any code would then look
    valid."""
    found = sorted(path for directory in package.__path__ for path in Path(directory).rglob("*.py"))
    if not found:
        raise PipelineError(
            f"{package.__name__} has no source files: cannot identify the code of kept results"
        )
    return found


def key_of(study: Study, point: Point) -> str:
    identity = json.dumps([study.name, study.version, code_hash(), point], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def kept(path: Path) -> dict[str, Any] | None:
    """Return a point's result; None if it has not run or its file is damaged, so that it runs again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "rows" in found else None


def keep(path: Path, result: dict[str, Any]) -> None:
    write_whole(path, json.dumps(result).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: neither a reader nor a second call after a kill finds half a file."""
    with replaced(path) as draft:
        draft.write_bytes(content)
