"""Parses attributes as users write them on a command line, `size=12`, and formats them for lines and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

import typer

from tidings.cli.shared.output import printable
from tidings.core.filters.language.predicates import Scalar

WORDS: Mapping[str, Scalar] = {"true": True, "false": False, "null": None}
NUMBER_LETTERS = frozenset("0123456789+-.eE")
QUOTES = ('"', "'")
UNWRITTEN_FLOATS = ("inf", "-inf", "nan")
"""Values of attributes that JSON has no word for."""


def parse_attributes(texts: Iterable[str]) -> dict[str, Scalar]:
    """Parse `name=value` texts into attributes; each name may appear once."""
    attributes: dict[str, Scalar] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"expected NAME=VALUE, not {text!r}", param_hint="--attribute")
        if name in attributes:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint="--attribute")
        attributes[name] = parse_value(value)
    return attributes


def parse_value(text: str) -> Scalar:
    """Return a boolean, null or number if the text looks like one, else text; quoted, always text."""
    if len(text) >= 2 and text[0] in QUOTES and text[-1] == text[0]:
        return text[1:-1]
    if text in WORDS:
        return WORDS[text]
    # `int` and `float` accept more than people mean as numbers: 1_000, nan, digits of other scripts.
    if not text or not NUMBER_LETTERS.issuperset(text):
        return text
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if isfinite(number) else text
    return text


def attribute_text(value: Scalar) -> str:
    """Format a value so that `parse_value` would read it back; bytes as hexadecimal digits."""
    match value:
        case bool() | None:
            return {True: "true", False: "false", None: "null"}[value]
        case bytes():
            return f"0x{value.hex()}"
        case str():
            plain = value and " " not in value and value.isprintable() and parse_value(value) == value
            return value if plain else f'"{printable(value)}"'
        case _:
            return str(value)


def attribute_json(value: Scalar) -> object:
    """Return a value for JSON, which has neither bytes nor infinities."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, float) and not isfinite(value):
        return {"float": str(value)}
    return value


def attribute_of_json(value: object) -> Scalar:
    """Return the value that `attribute_json` has made `value` of; raise ValueError if it is none."""
    match value:
        case {"hex": str(digits), **rest} if not rest:
            return bytes.fromhex(digits)
        case {"float": str(word), **rest} if not rest and word in UNWRITTEN_FLOATS:
            return float(word)
        case bool() | int() | float() | str() | None:
            return value
        case _:
            raise ValueError('expected text, a number, true, false, null or {"hex": ...}')
