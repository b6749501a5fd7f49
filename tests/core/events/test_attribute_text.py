"""Attribute values as text: readable, and nothing is lost."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidings.core.errors import AttributeValueError, TraceError
from tidings.core.events.text import attribute_text, attribute_value

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.binary(),
    # Strings made of the pieces of other kinds' texts.
    st.text(alphabet="0123456789+-.eEXx'\"NaInfityrue flsABCDEF_", max_size=12),
)


@given(SCALARS)
@example("NaN")
@example("-Infinity")
@example("1e5")
@example(".5")
@example("5.")
@example("-0")
@example("٣")
@example("X'0A'")
@example("X'0a'")
@example('"quoted"')
@example("12\n")
@example("")
@example(-0.0)
@example(5e-324)
@example(2.0**80)
def test_every_value_comes_back_as_itself(value: object) -> None:
    text = attribute_text(value)
    assert text is None or isinstance(text, str)
    back = attribute_value(text)
    assert type(back) is type(value)
    if isinstance(value, float) and math.isnan(value):
        assert math.isnan(back)
    else:
        assert back == value
        assert not isinstance(value, float) or math.copysign(1, back) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12, "12"),
        (-3, "-3"),
        (12.5, "12.5"),
        (12.0, "12.0"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (True, "true"),
        (False, "false"),
        (None, None),
        (b"\x0a\xff", "X'0AFF'"),
        (b"", "X''"),
        ("BBC", "BBC"),
        ("", ""),
        ("null", "null"),
        ("True", "True"),
        ("Naples", "Naples"),
        ("3 men in a boat", "3 men in a boat"),
        ("12", '"12"'),
        ("1e5", '"1e5"'),
        ("true", '"true"'),
        ("NaN", '"NaN"'),
        ("X'0A'", "\"X'0A'\""),
        ('"Hi"', '"\\"Hi\\""'),
    ],
)
def test_the_text_is_what_a_reader_expects(value: object, text: str | None) -> None:
    assert attribute_text(value) == text


@given(st.text())
def test_any_text_reads_as_a_value_or_is_refused_with_a_trace_error(text: str) -> None:
    try:
        attribute_value(text)
    except TraceError:
        assert text.startswith('"')


@pytest.mark.parametrize("text", ['"', '"open', '"a" "b"', "9" * 5000], ids=["quote", "open", "two", "long"])
def test_texts_that_nobody_wrote(text: str) -> None:
    with pytest.raises(TraceError):
        attribute_value(text)


@pytest.mark.parametrize(
    "value", ["\ud800", 10**5000, [1], object()], ids=["surrogate", "long", "list", "object"]
)
def test_values_that_no_event_carries(value: object) -> None:
    with pytest.raises(AttributeValueError):
        attribute_text(value)
