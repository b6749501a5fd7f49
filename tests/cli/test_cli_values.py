"""Attributes on the command line: what a text stands for, and that what is printed is read back the same."""

from __future__ import annotations

import math

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.cli.shared.output import printable
from tidings.cli.shared.values import attribute_json, attribute_text, parse_attributes, parse_value

INT64 = st.integers(-(2**63), 2**63 - 1)
LINE = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=20).filter(str.isprintable)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-12", -12),
        ("+7", 7),
        ("1.5", 1.5),
        ("-1e3", -1000.0),
        (".5", 0.5),
        ("true", True),
        ("false", False),
        ("null", None),
        ("True", "True"),
        ("BBC", "BBC"),
        ('"12"', "12"),
        ("'true'", "true"),
        ('""', ""),
        ('"', '"'),
        ("", ""),
        ("nan", "nan"),
        ("inf", "inf"),
        ("1e999", "1e999"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("1-2", "1-2"),
        ("e", "e"),
        ("١٢", "١٢"),
        ("a=b", "a=b"),
    ],
)
def test_a_text_stands_for_a_value_of_a_type(text: str, value: object) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_attributes_are_split_at_the_first_equals_sign() -> None:
    assert parse_attributes(["size=12", "query=a=b", "empty="]) == {"size": 12, "query": "a=b", "empty": ""}


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["size"], "expected NAME=VALUE"),
        (["=1"], "expected NAME=VALUE"),
        (["a=1", "a=2"], "'a' is given twice"),
    ],
)
def test_a_mistake_in_an_attribute_is_named(texts: list[str], complaint: str) -> None:
    with pytest.raises(typer.BadParameter, match=complaint):
        parse_attributes(texts)


@given(st.booleans() | st.none() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | LINE)
@settings(max_examples=examples(300))
def test_what_is_shown_is_read_back_the_same(value: bool | int | float | str | None) -> None:
    text = attribute_text(value)
    found = parse_value(text)
    assert type(found) is type(value)
    assert found == value


@given(st.text(max_size=30))
@settings(max_examples=examples(200))
def test_what_is_shown_cannot_move_a_terminals_cursor(text: str) -> None:
    assert attribute_text(text).isprintable()
    assert printable(text).isprintable()


def test_json_says_what_json_does_not_know() -> None:
    assert attribute_json(b"\x00\xff") == {"hex": "00ff"}
    assert attribute_json(math.inf) == {"float": "inf"}
    assert attribute_json(1.5) == 1.5
