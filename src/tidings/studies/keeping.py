"""Finished points are kept, one small file each, so that a second call goes on where the first was cut short.

A point's file is named by a hash of the point, the study's version and the code that decides results: a result
of other code is never taken for one of this.
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
"""The packages that experiments run. As modules, not as names: one that moved is missed when this is imported."""


@cache
def code_hash() -> str:
    root = Path(tidings.__file__).parent
    digest = hashlib.sha256(tidings.__version__.encode())
    for package in DECIDING:
        for path in source_files(package):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def source_files(package: ModuleType) -> list[Path]:
    """PipelineError if there are none: the results of any code would then pass for those of this."""
    found = sorted(path for directory in package.__path__ for path in Path(directory).rglob("*.py"))
    if not found:
        raise PipelineError(f"{package.__name__} has no source files: results cannot be kept")
    return found


def key_of(study: Study, point: Point) -> str:
    told = json.dumps([study.name, study.version, code_hash(), point], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def kept(path: Path) -> dict[str, Any] | None:
    """What a point gave; None if it has not run, or its file is no such thing: it runs again then."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "rows" in found else None


def keep(path: Path, result: dict[str, Any]) -> None:
    write_whole(path, json.dumps(result).encode())


def write_whole(path: Path, content: bytes) -> None:
    """A reader, or a second call after a kill, never finds half a file."""
    with replaced(path) as draft:
        draft.write_bytes(content)
