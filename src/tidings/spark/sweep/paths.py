"""Paths to keys of a scenario, as a sweep's grid names them, and documents with other values there.

`recovery.fanout` is a key of a table; `publisher.p0.rate_hz` names an entry of an array, and `publisher.0.rate_hz` is
its index, from 0. A name with a dot in it is quoted: `publisher."p.0".rate_hz`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.decode import listed, nearest, shown

Path = tuple[str, ...]

_KEY = re.compile(r'(?:"[^"]+"|[^."]+)(?:\.(?:"[^"]+"|[^."]+))*')
_SEGMENT = re.compile(r'"([^"]+)"|([^."]+)')


def split_path(text: str) -> Path:
    """Return the segments of a dotted key; ScenarioError if it is malformed."""
    if _KEY.fullmatch(text) is None:
        raise ScenarioError(f"{shown(text)} is not a dotted key such as network.loss.rate")
    return tuple(quoted or plain.strip() for quoted, plain in _SEGMENT.findall(text))


def join_path(path: Path) -> str:
    return ".".join(f'"{segment}"' if "." in segment else segment for segment in path)


def placed(document: Mapping[str, Any], values: Sequence[tuple[Path, Any]]) -> dict[str, Any]:
    """Return the document with the values at their paths, without changing the document itself.

    Shorter paths come first: a whole table before a key in it. Missing tables are created; the scenario's check finds
    what does not belong there.
    """
    result: Any = document
    for path, value in sorted(values, key=lambda item: len(item[0])):
        result = _with(result, path, 0, value)
    return dict(result)


def _with(inside: Any, path: Path, depth: int, value: Any) -> Any:
    if depth == len(path):
        return value
    key = path[depth]
    if isinstance(inside, dict):
        return {**inside, key: _with(inside.get(key, {}), path, depth + 1, value)}
    if isinstance(inside, list):
        index = _index_of(inside, path, depth)
        return [*inside[:index], _with(inside[index], path, depth + 1, value), *inside[index + 1 :]]
    raise ScenarioError(f"{join_path(path)}: {join_path(path[:depth])} is {shown(inside)}, not a table")


def _index_of(entries: list[Any], path: Path, depth: int) -> int:
    """Return the index of the entry that a segment names, by name or else by number."""
    key, where = path[depth], join_path(path[:depth])
    names = [str(entry["name"]) for entry in entries if isinstance(entry, dict) and "name" in entry]
    for index, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("name") == key:
            return index
    if key.isascii() and key.isdigit() and len(key) <= 9:
        if int(key) < len(entries):
            return int(key)
        raise ScenarioError(f"{join_path(path)}: {where} has {len(entries)} entries, counted from 0")
    near = nearest(key, names)
    if near is not None:
        hint = f"did you mean {near!r}?"
    else:
        hint = f"names: {listed(names)}" if names else f"use a number from 0 to {len(entries) - 1}"
    raise ScenarioError(f"{join_path(path)}: {where} has no entry named {key!r}; {hint}")
