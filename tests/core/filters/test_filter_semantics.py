"""What filters mean, as tables: three-valued logic, kinds, numbers, covering."""

from __future__ import annotations

import math
from decimal import Decimal
from enum import IntEnum

import pytest

from tidings.core.filters.language.expression import And, Expression, Not, Or, Value
from tidings.core.filters.language.filter import Filter, Pattern
from tidings.core.filters.language.number import (
    compare_literals,
    compare_to_literal,
    compare_values,
    integers_equal_to,
)
from tidings.core.filters.language.predicates import Constraint, Scalar, is_plain

T, F, N = True, False, None
BIG = 2**53


def is_true(expression: Expression) -> bool:
    return Filter(expression).matches({})


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [(T, T, T, T), (T, F, F, T), (T, N, N, T), (F, T, F, T), (F, F, F, F), (F, N, F, N),
     (N, T, N, T), (N, F, F, N), (N, N, N, N)],
)  # fmt: skip
def test_kleene_tables(left: bool | None, right: bool | None, both: bool | None, either: bool | None) -> None:
    for node, wanted in ((And((Value(left), Value(right))), both), (Or((Value(left), Value(right))), either)):
        assert is_true(node) is (wanted is True)
        assert is_true(Not(node)) is (wanted is False)


@pytest.mark.parametrize(
    ("sql", "attributes", "matches"),
    [
        # a missing attribute is NULL, and NULL does not match, negated or not
        ("size > 10", {}, False),
        ("NOT size > 10", {}, False),
        ("size > 10 OR size <= 10", {}, False),
        ("size IS NULL", {}, True),
        ("size IS NULL", {"size": None}, True),
        ("size IS NOT NULL", {"size": 0}, True),
        ("a = 1 OR b = 2", {"b": 2}, True),
        ("NOT (a = 1 AND b = 2)", {"b": 3}, True),
        ("NOT (a = 1 AND b = 2)", {"b": 2}, False),
        ("size NOT IN (1, NULL)", {"size": 2}, False),
        ("size NOT IN (NULL)", {"size": 2}, False),
        ("size IN (1, NULL)", {"size": 1}, True),
        # kinds never mix
        ("size > 10", {"size": "12"}, False),
        ("NOT size > 10", {"size": "12"}, False),
        ("size = 1", {"size": True}, False),
        ("size = TRUE", {"size": 1}, False),
        ("active", {"active": 1}, False),
        ("NOT active", {"active": 0}, False),
        ("NOT active", {"active": False}, True),
        ("name = 'a'", {"name": b"a"}, False),
        ("name = X'61'", {"name": b"a"}, True),
        ("name LIKE '%'", {"name": b"a"}, False),
        ("x IS NOT NULL", {"x": b""}, True),
        ("a = b", {"a": 1, "b": True}, False),
        ("NOT a = b", {"a": 1, "b": "1"}, False),
        ("a < b", {"a": "a", "b": "b"}, True),
        ("x <> 5", {"x": "a"}, False),
        ("NOT (x <=> 5)", {"x": "a"}, False),
        ("NOT (x <=> 5)", {}, True),
        # numbers
        ("x = 1", {"x": 1.0}, True),
        ("x = 1.0", {"x": 1}, True),
        ("x = 0", {"x": -0.0}, True),
        ("x > 5", {"x": math.nan}, True),
        ("x < 5", {"x": math.nan}, False),
        ("x <> 5", {"x": math.nan}, True),
        ("x BETWEEN 1 AND 5", {"x": math.nan}, False),
        ("x >= 9223372036854775807", {"x": math.nan}, True),
        ("x < 9223372036854775807", {"x": math.nan}, False),
        ("a = b", {"a": math.nan, "b": math.nan}, True),
        ("a < b", {"a": math.inf, "b": math.nan}, True),
        ("x = 9007199254740993", {"x": BIG}, False),
        ("x = 9007199254740993", {"x": float(BIG)}, True),
        ("x = 9007199254740992e0", {"x": BIG + 1}, True),
        ("x IN (9007199254740992, 1e0)", {"x": BIG + 1}, True),
        ("x IN (9007199254740992, 1.5)", {"x": BIG + 1}, False),
        ("a = b", {"a": BIG + 1, "b": float(BIG)}, True),
        ("a = b", {"a": BIG + 1, "b": BIG}, False),
        ("x > 1e17", {"x": 10**400}, True),
        ("x = 1e17", {"x": -(10**400)}, False),
        ("x > 1", {"x": 10**400}, True),
        # strings by code point, LIKE over line breaks
        ("s < '￿'", {"s": "😀"}, False),
        ("s > 'Z'", {"s": "a"}, True),
        ("s LIKE 'a_b'", {"s": "a\nb"}, True),
        ("s LIKE 'oil%' AND s <> 'oil'", {"s": "oilfield"}, True),
        ("s LIKE 'oil%' AND s <> 'oil'", {"s": "oil"}, False),
        # bytes by unsigned value
        ("y < X'80'", {"y": b"\x7f\xff"}, True),
        ("y > X'7F'", {"y": b"\x80"}, True),
        # names are case-sensitive
        ("Size > 10", {"size": 12}, False),
        ("`Größe` > 10", {"Größe": 12}, True),
    ],
)
def test_meaning(sql: str, attributes: dict[str, object], matches: bool) -> None:
    assert Filter(sql).matches(attributes) is matches  # type: ignore[arg-type]
    assert Filter(Filter(sql).to_sql()).matches(attributes) is matches  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "attributes", [{}, {"x": None}, {"x": True}, {"x": False}, {"x": 1}, {"x": "a"}, {"x": b""}]
)
def test_truth_tests_are_never_null(attributes: dict[str, Scalar]) -> None:
    """Where a bare `x` is NULL, because it is missing or no boolean, it is neither TRUE nor FALSE."""
    for truth in (True, False):
        name = str(truth).upper()
        expected = attributes.get("x") is truth
        assert Filter(f"x IS {name}").matches(attributes) is expected
        assert Filter(f"x IS NOT {name}").matches(attributes) is not expected
        assert Filter(f"NOT (x IS {name})").matches(attributes) is not expected
        assert Filter(f"NOT (x IS NOT {name})").matches(attributes) is expected
        assert Filter(f"x IS NOT {name} AND x IS NOT NULL").matches(attributes) is (
            not expected and attributes.get("x") is not None
        )


class Level(IntEnum):
    HIGH = 3


class Unfriendly:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "odd", [[1], {"a": 1}, Decimal(5), (1,), object(), bytearray(b"a"), 1j, Unfriendly(), int]
)
def test_foreign_types_are_null_and_raise_nothing(odd: object) -> None:
    filters = [
        "x = 5",
        "x <> 5",
        "x > 1e17",
        "x LIKE 'a%'",
        "x",
        "x IN ('a', 'b')",
        "x = y",
        "x = X'61'",
        "x NOT IN (1e17, 1)",
    ]
    for sql in filters:
        assert not Filter(sql).matches({"x": odd, "y": odd})  # type: ignore[dict-item]
    assert Filter("x IS NULL").matches({"x": odd})  # type: ignore[dict-item]


def test_subclasses_count_as_what_they_are() -> None:
    assert Filter("x > 2").matches({"x": Level.HIGH})
    assert Filter("x = 3").matches({"x": Level.HIGH})


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("TRUE", "x = 1", True),
        ("x = 1", "TRUE", False),
        ("x = 1", "FALSE", True),
        ("x > 1", "x > 2", True),
        ("x > 1", "x >= 1", False),
        ("x >= 1", "x > 1", True),
        ("x > 1", "x = 5", True),
        ("x > 1", "x IN (2, 1)", False),
        ("x IN (1, 2, 3)", "x IN (1, 3)", True),
        ("x <> 5", "x > 5", True),
        ("x <> 5", "x > 4", False),
        ("x <> 5", "x = 4", True),
        ("x BETWEEN 1 AND 9", "x BETWEEN 2 AND 8 AND y = 1", True),
        ("x BETWEEN 2 AND 8", "x BETWEEN 1 AND 9", False),
        ("x < 10", "x < 10 AND x > 1", True),
        ("x > 1 OR y = 2", "y = 2", True),
        ("x > 1 OR y = 2", "x = 5 OR y = 2 AND z = 1", True),
        ("x IS NOT NULL", "x > 1", True),
        ("x IS NOT NULL", "x < y", True),
        ("x IS NULL", "x > 1", False),
        ("x IS NOT TRUE", "x IS NULL", True),
        ("x IS NOT TRUE", "NOT x", True),
        ("x IS NOT TRUE", "x", False),
        ("x IS NOT TRUE", "x IN (TRUE, FALSE)", False),
        ("x IS NOT TRUE", "x > 1", True),
        ("x IS NOT TRUE", "x IS NOT TRUE AND x IS NOT FALSE", True),
        ("x IS NOT TRUE", "x IS NOT TRUE AND x IS NOT NULL", True),
        ("x IS NOT TRUE", "x IS NOT NULL", False),
        ("x IS NOT NULL", "x IS NOT TRUE", False),
        ("x IS NOT NULL", "x IS NOT TRUE AND x IS NOT NULL", True),
        ("x IS NULL", "x IS NOT TRUE AND x IS NOT FALSE", False),
        ("NOT x", "x IS NOT TRUE", False),
        ("x IS NOT NULL", "x IS NOT TRUE AND x < y", True),
        ("x <= y", "x < y", True),
        ("x <= y", "x = y", True),
        ("x <> y", "y < x", True),
        ("x < y", "x <= y", False),
        ("s LIKE 'oil%'", "s LIKE 'oilf%'", True),
        ("s LIKE 'oil%'", "s = 'oilfield'", True),
        ("s LIKE '%i%'", "s LIKE 'oil%'", True),
        ("s >= 'oil'", "s LIKE 'oil%'", True),
        ("s < 'oim'", "s LIKE 'oil%'", True),
        ("s NOT LIKE 'gas%'", "s LIKE 'oil%'", True),
        ("s NOT LIKE 'gas%'", "s NOT LIKE 'ga%'", True),
        ("s NOT LIKE 'ga%'", "s NOT LIKE 'gas%'", False),
        ("s <> 'gas'", "s LIKE 'oil%'", True),
        ("s LIKE '%'", "s > 'a'", True),
        ("x > 1", "x > 'a'", False),
        ("at > 1700000000000000000", "at > 1700000000000000001", True),
        ("at > 1700000000000000001", "at > 1700000000000000000", False),
        ("at >= 1700000000000000000", "at BETWEEN 1700000000000000000 AND 1700000000000000005", True),
        ("at IN (1700000000000000000, 5)", "at = 1700000000000000000", True),
        ("x >= 9007199254740993", "x > 9007199254740992", False),
        ("x = 9007199254740992e0", "x = 9007199254740993", True),
        ("x = 9007199254740993", "x = 9007199254740992e0", False),
        ("x <> 1e17", "x <> 100000000000000000", False),
        ("x > 9007199254740992e0", "x > 9007199254740992", False),
        ("x > 9007199254740992", "x > 9007199254740992e0", True),
        ("x < 9007199254740996e0", "x < 9007199254740996", False),
        ("x < 9007199254740996", "x < 9007199254740996e0", True),
    ],
)
def test_covers(wide: str, narrow: str, covers: bool) -> None:
    assert Filter(wide).covers(Filter(narrow)) is covers


def test_plain_numbers_share_one_constraint_and_others_stand_alone() -> None:
    (conjunct,) = Filter("at > 1 AND at < 1700000000000000000 AND at >= 5 AND at <> 1e18").pattern.conjuncts
    plain = [constraint for constraint in conjunct.constraints if constraint.low is not None]
    assert plain == [Constraint("at", plain[0].kind, low=5)]
    assert len(conjunct.constraints) == 3
    assert not is_plain(1e18)


def test_long_lists_of_large_numbers_stay_one_conjunct() -> None:
    stamps = [1_700_000_000_000_000_000 + index for index in range(500)]
    found = Filter(f"at IN ({', '.join(map(str, stamps))})")
    assert len(found.pattern.conjuncts) == 1
    assert found.matches({"at": stamps[7]})
    assert not found.matches({"at": stamps[-1] + 1})
    assert found.matches({"at": float(stamps[0])})


@pytest.mark.parametrize(
    ("value", "literal", "sign"),
    [
        (BIG + 1, BIG, 1),
        (BIG + 1, float(BIG), 0),
        (float(BIG), BIG + 1, 0),
        (0.1, Decimal("0.1"), 0),
        (1, Decimal("0.999999999999999999"), 1),
        (1.0, Decimal("0.999999999999999999"), 0),
        (math.nan, 5, 1),
        (10**400, 1e300, 1),
        (-(10**400), 1e300, -1),
    ],
)
def test_a_value_meets_a_literal(value: float, literal: float | Decimal, sign: int) -> None:
    assert compare_to_literal(value, literal) == sign


def test_numbers_meet_each_other() -> None:
    assert compare_values(BIG + 1, float(BIG)) == 0
    assert compare_values(math.nan, math.nan) == 0
    assert compare_values(1, math.nan) == -1
    assert compare_literals(Decimal("0.1"), 0.1) == 0
    assert compare_literals(BIG + 1, BIG) == 1


@pytest.mark.parametrize("double", [float(BIG), -float(BIG), float(BIG + 2), 1e17, -1e18, 1.5e300])
def test_the_integers_that_equal_a_double(double: float) -> None:
    lowest, highest = integers_equal_to(double)
    assert float(lowest) == float(highest) == double
    assert float(lowest - 1) < double < float(highest + 1)


def test_true_and_false_patterns() -> None:
    assert Pattern.TRUE.covers(Pattern.FALSE)
    assert not Pattern.FALSE.covers(Pattern.TRUE)
    assert Filter("x IS NULL OR TRUE").pattern == Pattern.TRUE
