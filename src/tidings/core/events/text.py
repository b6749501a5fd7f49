"""Attribute values as text, for the `map<string,string>` column of a trace.

The text is what a reader expects (`12`, `12.5`, `true`, `BBC`, `X'0AFF'`), and lossless: a string that would read back
as something else is written in double quotes, as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from tidings.core.errors import AttributeValueError, TraceError
from tidings.core.filters.language.predicates import Scalar

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BYTES = re.compile(r"X'(([0-9A-F]{2})*)'")
_WORDS: dict[str, Scalar] = {
    "true": True,
    "false": False,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
# Every text that is not plain starts with one of these, so for most strings the first character decides.
_SUSPECT_STARTS = frozenset('0123456789+-.X"' + "".join(word[0] for word in _WORDS))


def attribute_text(value: Scalar) -> str | None:
    """Return `value` as text; None stays None. `attribute_value` is the inverse."""
    return (_WRITERS.get(type(value)) or _find_writer(value))(value)


def attribute_texts(values: Iterable[Scalar]) -> list[str | None]:
    """Return the `attribute_text` of each value."""
    known = _WRITERS
    return [(known.get(type(value)) or _find_writer(value))(value) for value in values]


def attribute_value(text: str | None) -> Scalar:
    """Return the value that `attribute_text` wrote as `text`."""
    if not text or text[0] not in _SUSPECT_STARTS:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if text[0] == '"':
        return _unquoted(text)
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if match := _BYTES.fullmatch(text):
        return bytes.fromhex(match[1])
    return text


def _is_plain(text: str) -> bool:
    if not text or text[0] not in _SUSPECT_STARTS:
        return True
    return text not in _WORDS and text[0] != '"' and not _FLOAT.fullmatch(text) and not _BYTES.fullmatch(text)


def _string_text(value: str) -> str:
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError:
        raise AttributeValueError(
            f"the string {value!r} is not valid Unicode: it has a lone surrogate"
        ) from None
    return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)


def _integer_text(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to format integers with thousands of digits
        raise AttributeValueError(f"an integer of {value.bit_length()} bits is too long to write") from None


def _float_text(value: float) -> str:
    text = float.__repr__(value)
    return _ODD_FLOATS.get(text, text)


_ODD_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_WRITERS: dict[type, Callable[[Any], str | None]] = {
    type(None): lambda _: None,
    str: _string_text,
    bool: lambda value: "true" if value else "false",
    int: _integer_text,
    float: _float_text,
    bytes: lambda value: f"X'{value.hex().upper()}'",
}


def _find_writer(value: object) -> Callable[[Any], str | None]:
    """Return the writer for a value whose type is derived from one of ours."""
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write
    raise AttributeValueError(f"an attribute cannot hold a {type(value).__name__}")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TraceError(f"an attribute holds an integer of {len(text)} digits, too long to read") from None


def _unquoted(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, str):
        raise TraceError(f"the attribute text {text[:80]!r} starts with a quote but is not a JSON string")
    return value
