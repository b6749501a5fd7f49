"""Writes a scenario's document as TOML for `tidings sim` to replay; `tomllib` reads back the same document."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(document: Mapping[str, Any]) -> str:
    """Return the TOML: top-level tables and arrays of tables under headers, everything in them inline."""
    plain = [
        f"{key_text(key)} = {value_text(value)}" for key, value in document.items() if not _headed(value)
    ]
    return "\n".join([*plain, *_headed_tables(document)]) + "\n"


def _headed(value: Any) -> bool:
    tables = value if isinstance(value, list) and value else [value]
    return all(isinstance(table, dict) for table in tables)


def _headed_tables(document: Mapping[str, Any]) -> Iterator[str]:
    for key, value in document.items():
        if _headed(value):
            several = isinstance(value, list)
            for table in value if several else [value]:
                yield f"\n[[{key_text(key)}]]" if several else f"\n[{key_text(key)}]"
                yield from (f"{key_text(name)} = {value_text(item)}" for name, item in table.items())


def key_text(key: str) -> str:
    return key if _BARE.fullmatch(key) else string_text(key)


def value_text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        case int() | float():
            return repr(value)
        case str():
            return string_text(value)
        case dict():
            items = ", ".join(f"{key_text(key)} = {value_text(item)}" for key, item in value.items())
            return f"{{ {items} }}" if items else "{}"
        case list():
            return f"[{', '.join(map(value_text, value))}]"
        case _:  # a date or a time
            return str(value)


def string_text(text: str) -> str:
    """Quote a string: JSON's escapes are TOML's, except one character that only TOML escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
