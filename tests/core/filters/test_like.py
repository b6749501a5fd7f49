"""LIKE patterns: canonical form, matching against a twin, covering, and time on texts made to hurt."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.errors import FilterError
from tidings.core.filters.language.like import Like
from tidings.core.filters.language.steps import OutOfSteps, Steps

patterns = st.text(alphabet="ab_%", max_size=10)
escaped_patterns = st.lists(st.sampled_from(["a", "b", "_", "%", "\\_", "\\%", "\\\\"]), max_size=8).map(
    "".join
)
texts = st.text(alphabet="ab%_\\\n", max_size=14)


def twin(pattern: str, text: str) -> bool:
    """Dynamic programming over (tokens read, characters read)."""
    reached = [True] + [False] * len(text)
    tokens = iter(pattern)
    for token in tokens:
        if token == "%":
            reached = [any(reached[: i + 1]) for i in range(len(reached))]
            continue
        wanted = next(tokens) if token == "\\" else None if token == "_" else token
        reached = [False] + [reached[i] and wanted in (None, text[i]) for i in range(len(text))]
    return reached[-1]


def covers(wide: str, narrow: str) -> bool:
    return Like(wide).covers(Like(narrow), Steps(10_000))


@settings(max_examples=examples(500))
@given(st.one_of(patterns, escaped_patterns), texts)
def test_matches_as_the_twin(pattern: str, text: str) -> None:
    assert Like(pattern).matches(text) is twin(pattern, text)


@settings(max_examples=examples(300))
@given(st.one_of(patterns, escaped_patterns), texts)
def test_the_canonical_form_is_stable_and_means_the_same(pattern: str, text: str) -> None:
    like = Like(pattern)
    again = Like(like.to_sql())
    assert again == like
    assert again.to_sql() == like.to_sql()
    assert twin(like.to_sql(), text) is twin(pattern, text)
    assert not like.matches(text) or text.startswith(like.prefix)


@settings(max_examples=examples(500))
@given(patterns, patterns, st.lists(st.text(alphabet="ab", max_size=9), max_size=20))
def test_covers_is_sound(wide: str, narrow: str, sample: list[str]) -> None:
    assert covers(wide, wide)
    if covers(wide, narrow):
        for text in sample:
            assert twin(wide, text) or not twin(narrow, text)


@pytest.mark.parametrize(
    ("pattern", "canonical"),
    [
        ("%%", "%"),
        ("%_%", "_%"),
        ("%_%_a", "__%a"),
        ("a%%b", "a%b"),
        ("a\\%b", "a\\%b"),
        ("", ""),
        ("%__%%_x_", "___%x_"),
    ],
)
def test_canonical_forms(pattern: str, canonical: str) -> None:
    assert Like(pattern).to_sql() == canonical


def test_another_escape_gives_the_same_pattern() -> None:
    assert Like("50!%!!%", escape="!") == Like("50\\%!%")
    assert Like("a%%b", escape="%") == Like("a\\%b")
    assert sorted([Like("b%"), Like("a_")]) == [Like("a_"), Like("b%")]
    assert len({Like("%%"), Like("%")}) == 1


@pytest.mark.parametrize(
    ("pattern", "prefix", "literal", "is_prefix"),
    [
        ("oil%", "oil", None, True),
        ("oil", "oil", "oil", False),
        ("", "", "", False),
        ("%", "", None, True),
        ("o_l%", "o", None, False),
        ("oil%%", "oil", None, True),
        ("100\\%", "100%", "100%", False),
        ("100\\%%", "100%", None, True),
        ("oil_%", "oil", None, False),
    ],
)
def test_what_the_index_asks(pattern: str, prefix: str, literal: str | None, is_prefix: bool) -> None:
    like = Like(pattern)
    assert (like.prefix, like.literal, like.is_prefix) == (prefix, literal, is_prefix)


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("%", "a%", True),
        ("a%", "ab%", True),
        ("ab%", "a%", False),
        ("a%", "a_%", True),
        ("%b", "a%b", True),
        ("%ab", "a%b", False),
        ("%b%", "abc", True),
        ("%bc%", "a%bcd_", True),
        ("%bc%", "a%b%c_", False),
        ("_%", "%a", True),
        ("_", "%", False),
        ("a_%", "a%b", True),
        ("%a%b%", "xa_bx", True),
        ("a%a", "a", False),
        ("%_%", "_", True),
        ("_a", "%a", False),
        ("%\ud800%", "%", False),  # what stands for a wildcard within must not pass for the character
    ],
)
def test_covers(wide: str, narrow: str, expected: bool) -> None:
    assert covers(wide, narrow) is expected


@pytest.mark.parametrize(
    ("pattern", "escape", "message"),
    [
        ("a\\", "\\", "ends with its escape"),
        ("a\\b", "\\", "comes before 'b'"),
        ("a!b", "!", "comes before 'b'"),
        ("a", "", "must be one character"),
        ("a", "ab", "must be one character"),
    ],
)
def test_escapes_that_spark_refuses(pattern: str, escape: str, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        Like(pattern, escape)


def test_one_underscore_is_one_code_point_and_wildcards_match_line_breaks() -> None:
    assert Like("a_b").matches("a😀b")
    assert Like("a_b").matches("a\nb")
    assert Like("a%b").matches("a\n\nb")


@pytest.mark.parametrize(
    "pattern",
    [
        "%a%a%a%a%b",
        "%a" * 2_000 + "%b",
        "%" + "a_" * 2_000 + "b%",
        "%a_b" * 2_000 + "%",
        "%a_a" * 2_000 + "%b_%",
        "%" + "_" * 4_000 + "b_a%",
        "_%" * 2_000 + "b",
    ],
)
@pytest.mark.timeout(60)  # a guard against blow-up, far above what it takes
def test_time_stays_near_linear(pattern: str) -> None:
    like = Like(pattern)
    text = "a" * 100_000
    assert not like.matches(text)


def steps_to_cover(wide: str, narrow: str) -> int:
    steps = Steps(10**9)
    Like(wide).covers(Like(narrow), steps)
    return steps.taken


def test_most_pairs_are_told_apart_without_looking_at_all_of_them() -> None:
    assert steps_to_cover("%" + "a_" * 20 + "12%", "%" + "a_" * 20 + "13%") == 1
    assert steps_to_cover("abc%d_e", "abd%d_e") == 1
    assert steps_to_cover("a%b_cd", "a%b_ce") == 1


def test_a_pair_that_takes_long_spends_what_it_takes() -> None:
    wide, narrow = "%" + "a_" * 200 + "b_c%", "%" + "a_" * 400 + "b%c%"
    assert steps_to_cover(wide, narrow) > 200 * 200 / 4
    with pytest.raises(OutOfSteps):
        Like(wide).covers(Like(narrow), Steps(1_000))
