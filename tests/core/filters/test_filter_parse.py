"""What a filter's text may hold, what it becomes, and how the rest is refused: by name and position."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pytest

from tidings.core.errors import FilterError
from tidings.core.filters.language.builder import col
from tidings.core.filters.language.filter import Filter, Pattern
from tidings.core.filters.language.normalise import FilterLimits


@pytest.mark.parametrize(
    ("sql", "canonical"),
    [
        (
            "provider = 'BBC' AND location IN ('USA', 'UK') AND size > 10 AND subject LIKE 'oil%'",
            "location IN ('UK', 'USA') AND provider = 'BBC' AND size > 10 AND subject LIKE 'oil%'",
        ),
        ("a == 1", "a = 1"),
        ("a <> 1", "a <> 1"),
        ("10 < size", "size > 10"),
        ("x = 1 OR x = 2", "x IN (1, 2)"),
        ("NOT x IN (1, 2)", "x NOT IN (1, 2)"),
        ("x BETWEEN 1 AND 5 AND x != 1", "x > 1 AND x <= 5"),
        ("x NOT BETWEEN 1 AND 5", "x < 1 OR x > 5"),
        ("x >= 5 AND x <= 5", "x = 5"),
        ("x > 5 AND x < 5", "FALSE"),
        ("x IN (1, 2, 3) AND x > 1 AND x <> 3", "x = 2"),
        ("x > 1 OR x > 2", "x > 1"),
        ("x = 1 AND y = 2 OR x = 1", "x = 1"),
        ("x = 1 AND y = 2 OR x = 3 AND y = 2", "x IN (1, 3) AND y = 2"),
        ("x LIKE 'oil'", "x = 'oil'"),
        ("x NOT LIKE 'oil'", "x <> 'oil'"),
        ("x LIKE '%' AND x = 'a'", "x = 'a'"),
        ("x LIKE 'oil%' AND x LIKE 'oi%'", "x LIKE 'oil%'"),
        ("x LIKE 'oil%' AND x >= 'a'", "x LIKE 'oil%'"),
        ("x LIKE 'oil%' AND x > 'p'", "FALSE"),
        ("x LIKE 'oil%' AND x <= 'oil' AND x <> 'oil'", "FALSE"),
        ("x LIKE 'oil%' AND x LIKE 'gas%'", "FALSE"),
        ("x LIKE 'oil%' AND x NOT LIKE 'oi%'", "FALSE"),
        ("x LIKE 'oil%' AND x NOT LIKE 'gas%'", "x LIKE 'oil%'"),
        ("x >= ''", "x LIKE '%'"),
        ("x = 1 AND x = 'a'", "FALSE"),
        ("x IN (1, 'a', NULL)", "x = 'a' OR x = 1"),
        ("x NOT IN (1, NULL)", "FALSE"),
        ("x = NULL OR NOT x = NULL", "FALSE"),
        ("x BETWEEN NULL AND 5", "FALSE"),
        ("x IS NOT NULL AND x > 1", "x > 1"),
        ("x IS NULL AND x > 1", "FALSE"),
        ("active AND NOT muted", "active AND NOT muted"),
        ("!active", "NOT active"),
        ("active IS TRUE", "active"),
        ("active IS NOT TRUE", "active IS NOT TRUE"),
        ("NOT (active IS FALSE)", "active IS NOT FALSE"),
        ("x IS NOT TRUE AND x IS NOT FALSE", "x IS NOT FALSE AND x IS NOT TRUE"),
        ("x IS NOT TRUE AND x IS NOT NULL", "x IS NOT NULL AND x IS NOT TRUE"),
        ("x IS NOT TRUE AND x IS NULL", "x IS NULL"),
        ("x IS NOT TRUE AND x > 5", "x > 5"),
        ("x IS NOT TRUE AND x", "FALSE"),
        ("x IS NOT TRUE AND NOT x", "NOT x"),
        ("x IS NOT TRUE AND x IN (TRUE, FALSE)", "NOT x"),
        ("x IS NOT TRUE OR NOT x OR x IS NULL OR x > 5", "x IS NOT TRUE"),
        ("x IS NOT TRUE AND x IS NOT NULL AND x < y", "x IS NOT TRUE AND x < y"),
        ("1 IS TRUE OR NULL IS TRUE", "FALSE"),
        ("1 IS NOT TRUE", "TRUE"),
        ("z NOT IN (TRUE)", "NOT z"),
        ("NOT (z IN (TRUE))", "NOT z"),
        ("NOT (z = TRUE)", "NOT z"),
        ("z NOT IN (TRUE, FALSE)", "FALSE"),
        ("z NOT IN (TRUE, 1)", "FALSE"),
        ("z IN (TRUE, 1, 'a')", "z OR z = 'a' OR z = 1"),
        ("active >= FALSE", "active IN (FALSE, TRUE)"),
        ("active > FALSE", "active"),
        ("x <=> NULL", "x IS NULL"),
        ("NOT (x <=> 5)", "x <> 5 OR x IS NULL"),
        ("a <=> b", "a = b OR a IS NULL AND b IS NULL"),
        ("b > a", "a < b"),
        ("b >= a AND a <> b", "a < b"),
        ("a < b AND b < a", "FALSE"),
        ("a <= b AND b <= a", "a = b"),
        ("x = x", "x IS NOT NULL"),
        ("x < x", "FALSE"),
        ("1 < 2", "TRUE"),
        ("1 = 'a' OR NOT 1 = 'a'", "FALSE"),
        ("'abc' LIKE 'a%'", "TRUE"),
        ("NULL IS NULL", "TRUE"),
        ("((size)) > ((10))", "size > 10"),
        ("`my-attr` = 1 AND `a.b` = 2 AND `tick``s` = 3", "`a.b` = 2 AND `my-attr` = 1 AND `tick``s` = 3"),
        ("`select` = 1 AND order = 2 AND User = 3", "User = 3 AND order = 2 AND `select` = 1"),
        ("show = 1", "show = 1"),
        ("x = 1.0 AND y = 1e0 AND z = 1.50", "x = 1 AND y = 1 AND z = 1.5"),
        ("x = 10L AND y = 1.5D AND z = 1.5BD", "x = 10 AND y = 1.5 AND z = 1.5"),
        ("x = -5 AND y = - -5 AND z = .5", "x = -5 AND y = 5 AND z = 0.5"),
        ("x = 1e16", "x = 1E+16"),
        ("x = 9007199254740993D", "x = 9007199254740992.0E0"),
        ("x = 9007199254740993.0", "x = 9007199254740993"),
        ("x = 9007199254740993 OR x = 1e17", "x = 1E+17 OR x = 9007199254740993"),
        ("x NOT IN (9007199254740993) AND x <> 1e17", "x <> 1E+17 AND x <> 9007199254740993"),
        ("a < b AND a > 5", "a > 5 AND a < b"),
        ("a < b AND a > 5 AND b = 'x'", "FALSE"),
        ("a < b AND a IS NULL", "FALSE"),
        ("a < b AND a IS NOT NULL", "a < b"),
        ("x > 99999999999999999999", "x > 99999999999999999999 AND x IS NOT NULL"),
        ("x = 1e-400", "x = 0"),
        ("x = X'f'", "x = X'0F'"),
        ("x = 'it''s' 'x'", "x = 'it\\'sx'"),
        ('x = "say ""hi"""', "x = 'say \"hi\"'"),
        ("x = 'it\\'''s'", "x = 'it\\'\\'s'"),
        ("x BETWEEN 1.e0 AND.5D OR'a'LIKE'a'", "TRUE"),
        ("x = r'a\\nb'", "x = 'a\\\\nb'"),
        ("x = 'a\\nb\\u0041\\%'", "x = 'a\\nbA\\\\%'"),
        ("x LIKE '50!%' ESCAPE '!'", "x = '50%'"),
        ("x LIKE '50!%%' ESCAPE '!'", "x LIKE '50\\\\%%'"),
        ("x = '${env:HOME}'", "x = '$\\u007Benv:HOME}'"),
    ],
)  # fmt: skip
def test_canonical_text(sql: str, canonical: str) -> None:
    assert Filter(sql).to_sql() == canonical
    assert Filter(canonical) == Filter(sql)
    assert Filter(sql).sql == sql


@pytest.mark.parametrize(
    ("sql", "message", "position"),
    [
        ("", "empty", None),
        ("  \n", "empty", None),
        ("a + 1 = 2", "operator '\\+'", 2),
        ("a || 'x' = 'y'", r"operator '\|\|'", 2),
        ("a % 2 = 0", "operator '%'", 2),
        ("a::int = 1", "operator '::'", 1),
        ("lower(a) = 'x'", "functions .* lower", 0),
        ("a = 1 AND abs(b) > 2", "functions .* abs", 10),
        ("a IN (SELECT 1)", "subqueries", 6),
        ("(SELECT 1) = a", "subqueries", 1),
        ("a RLIKE 'x'", "RLIKE", 2),
        ("a REGEXP 'x'", "REGEXP", 2),
        ("a ILIKE 'x'", "ILIKE", 2),
        ("a NOT RLIKE 'x'", "RLIKE", 6),
        ("CASE WHEN a THEN b END", "CASE", 0),
        ("CAST(a AS int) = 1", "CAST", 0),
        ("EXISTS(SELECT 1)", "EXISTS", 0),
        ("a = CURRENT_DATE", "CURRENT_DATE", 4),
        ("a = INTERVAL 1 DAY", "INTERVAL", 4),
        ("a = DATE '2020-01-01'", "literals of type DATE", 4),
        ("a = N'x'", "literals of type N", 4),
        ("a = ?", "parameters", 4),
        ("a = :p", "parameters", 4),
        ("a = 1; b = 2", "';'", 5),
        ("a = 1;", "';'", 5),
        ("a.b = 1", "backtick|`a.b`", 0),
        ("`a`.b = 1", "`a.b`", 0),
        ("é = 1", "é needs backticks", 0),
        ("0x1F = a", "0x1F needs backticks", 0),
        ("1abc = a", "1abc needs backticks", 0),
        ("a = 1 -- note", "comments", 6),
        ("/* note */ a = 1", "comments", 0),
        ("a = /*+ hint */ 1", "comments", 4),
        ("a = 'x", "Missing '", 4),
        ("a = 1 AND `b", "Missing `", 10),
        ("a = 1 /* x", "not closed", 6),
        ("a = X'1G'", "not a hexadecimal digit", 4),
        ("a = '\\U00110000'", "names no character", 4),
        ("a = '\\uD800'", "surrogate", 4),
        ("a = 'x\ud800'", "surrogate", None),
        ("a = r'\\'x'", "Missing '", 9),
        ("a = r'x", "Missing '", 5),
        ("a = 'it''s", "Missing '", 4),
        ("a.5 = 1", "`a.b`", 0),
        ("a = 1.5x", "'.' is not expected", 5),
        ("a = 1.AND b", "'.' is not expected", 5),
        ("a = 1 {# x #}", "operator '{'", 6),
        ("5", "condition is expected", 0),
        ("a AND 'x'", "condition is expected", 6),
        ("NOT 5", "condition is expected", 4),
        ("(a = 1) = TRUE", "condition cannot be compared", 0),
        ("(a AND b) IS NULL", "condition cannot be compared", 0),
        ("a = 1 = 2", "'=' does not stand", 6),
        ("a !> 5", "'>' does not stand", 3),
        ("a IS 5", "IS takes", 5),
        ("a IS DISTINCT FROM b", "IS takes", 5),
        ("a LIKE b", "LIKE takes a string", 7),
        ("a LIKE 5", "LIKE takes a string", 7),
        ("a LIKE 'x' ESCAPE 5", "ESCAPE takes a string", 18),
        ("a LIKE 'x' ESCAPE ''", "one character", 7),
        ("a LIKE 'x\\\\'", "ends with its escape", 7),
        ("a LIKE 'x\\\\y'", "stands before 'y'", 7),
        ("a IN (b)", "IN takes literals", 6),
        ("a IN ()", "not expected", 6),
        ("a IN 5", "expected \\( after IN", 5),
        ("a IN (1, 2", "expected \\)", 10),
        ("a IN (1.5, 99999999999999999999999999999999999999)", "digits", 5),
        ("(a, b) = (1, 2)", "after IN", 2),
        ("(a = 1", "expected \\)", 6),
        ("a = 1)", "closes nothing", 5),
        ("a BETWEEN 1", "expected AND", 11),
        ("a =", "ends too early", 3),
        ("AND", "not expected", 0),
        ("a = 1 b = 2", "'b' is not expected", 6),
        ("-a = 5", "sign", 0),
        ("a = 1e400", "too large", 4),
        ("a = 1e", "not a number", 4),
        ("a = 1.5F", "suffix F", 4),
        ("a = 1.5L", "not a whole number", 4),
        ("a = 9223372036854775808L", "64 bits", 4),
        ("a = " + "9" * 39, "39 digits", 4),
        ("a = 0.1234567890123456789", "19 places", 4),
        ("a = 123456789012345678901.5", "21 digits before", 4),
        ("a = ``", ".", None),
    ],
)
def test_errors_name_what_and_where(sql: str, message: str, position: int | None) -> None:
    with pytest.raises(FilterError, match=message) as caught:
        Filter(sql)
    if position is not None:
        assert caught.value.position == position
        assert caught.value.sql == sql


@pytest.mark.parametrize("odd", [None, 5, b"a = 1", ["a"], object()])
def test_only_text_and_expressions_are_filters(odd: object) -> None:
    with pytest.raises(FilterError, match="SQL text"):
        Filter(odd)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sql", "limits", "message"),
    [
        ("a = 1" + " " * 20, FilterLimits(max_length=20), "25 characters, the limit is 20"),
        ("((((a))))", FilterLimits(max_depth=3), "4 levels deep or more, the limit is 3"),
        ("NOT NOT NOT a", FilterLimits(max_depth=2), "3 levels deep or more, the limit is 2"),
        ("a = 1 OR b = 2 OR c = 3", FilterLimits(max_conjuncts=2), "3 alternatives .* limit is 2"),
        ("(a OR b) AND (c OR d)", FilterLimits(max_conjuncts=3), "4 alternatives .* limit is 3"),
        ("a IN (1, 2, 3)", FilterLimits(max_values=2), "3 values .* limit is 2"),
        ("a = 1 OR a = 2 OR a = 3", FilterLimits(max_values=2), "3 values .* limit is 2"),
        ("a <> 1 AND a <> 2 AND a <> 3", FilterLimits(max_values=2), "3 values .* limit is 2"),
        ("(a OR b) AND (c OR d)", FilterLimits(max_steps=5), "steps or more .* limit is 5"),
    ],
)
def test_limits_say_the_limit_and_the_actual(sql: str, limits: FilterLimits, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        Filter(sql, limits=limits)
    assert Filter(sql)


def test_default_limits_are_reached_not_passed() -> None:
    assert Filter("(" * 64 + "a" + ")" * 64) == Filter("a")
    with pytest.raises(FilterError, match="limit is 64"):
        Filter("(" * 65 + "a" + ")" * 65)
    wide = Filter(" OR ".join(f"a{index} = 1" for index in range(256)))
    assert len(wide.pattern.conjuncts) == 256
    with pytest.raises(FilterError, match="limit is 256"):
        Filter(" OR ".join(f"a{index} = 1" for index in range(257)))
    with pytest.raises(FilterError, match="limit is 256"):
        Filter(" AND ".join(f"(a{index} = 1 OR b{index} = 1)" for index in range(40)))


def test_an_expression_too_deep_is_refused() -> None:
    expression = ~(col("a") == 1)
    for _ in range(70):
        expression = ~expression
    with pytest.raises(FilterError, match="limit is 64"):
        Filter(expression)


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (col("size") > 10, "size > 10"),
        (10 < col("size"), "size > 10"),  # noqa: SIM300
        (
            (col("a") == "x") & ~col("b").is_null() | col("c").like("oil%"),
            "a = 'x' AND NOT b IS NULL OR c LIKE 'oil%'",
        ),
        (col("a").isin(1, 2, None), "a IN (1, 2, NULL)"),
        (col("a").isin([1, 2]), "a IN (1, 2)"),
        (~col("a").isin("x", "y"), "a NOT IN ('x', 'y')"),
        (col("a").between(1, 2.5), "a BETWEEN 1 AND 2.5"),
        (col("a").is_not_null(), "a IS NOT NULL"),
        (col("a") != col("b"), "a <> b"),
        (col("a") <= col("b"), "a <= b"),
        (col("a").null_safe_equals(None), "a <=> NULL"),
        (col("active") & ~col("muted"), "active AND NOT muted"),
        (col("active"), "active"),
        (col("a").is_true() | col("a").is_false(), "a IS TRUE OR a IS FALSE"),
        (col("my-attr") == b"\x01", "`my-attr` = X'01'"),
        (col("a") == 1e16, "a = 1e16"),
        (col("a") == 10**16, "a = 10000000000000000"),
        (col("a") >= Decimal("9007199254740993.5"), "a >= 9007199254740993.5"),
        (col("a").like("5!%", escape="!"), "a = '5%'"),
    ],
)  # fmt: skip
def test_expressions_build_the_same_filter(expression: object, sql: str) -> None:
    assert Filter(expression) == Filter(sql)  # type: ignore[arg-type]
    assert hash(Filter(expression)) == hash(Filter(sql))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [
        lambda: col(""),
        lambda: col(5),  # type: ignore[arg-type]
        lambda: col("a") == [1],
        lambda: col("a") == float("nan"),
        lambda: col("a") == float("inf"),
        lambda: col("a") == 10**39,
        lambda: col("a") == Decimal("NaN"),
        lambda: col("a") == "\ud800",
        lambda: col("a").isin(),
        lambda: col("a").like(5),  # type: ignore[arg-type]
        lambda: (col("a") == 1) & True,
        lambda: bool(col("a") == 1),
        lambda: 1 < col("a") < 5,
    ],
)
def test_expressions_that_mean_nothing_are_refused(build: object) -> None:
    with pytest.raises(FilterError):
        build()  # type: ignore[operator]


def test_a_pattern_is_a_value() -> None:
    pattern = Filter("b = 1 AND a = 2").pattern
    assert pattern == Filter("a = 2 AND b = 1").pattern
    assert len({pattern, Filter("a = 2 AND b = 1").pattern}) == 1
    assert len(pattern.key) == 16
    assert pattern.key != Filter("a = 3").pattern.key
    assert pattern.text == "a = 2 AND b = 1"
    assert repr(Filter("a = 1")) == "Filter('a = 1')"
    assert Pattern.TRUE.matches({})
    assert Filter("TRUE").pattern == Pattern.TRUE
    assert not Pattern.FALSE.matches({})
    with pytest.raises(AttributeError):
        pattern.text = "a = 3"  # type: ignore[misc]


def test_canonical_text_does_not_depend_on_the_hash_seed() -> None:
    sql = "(a = 'x' OR b IN ('p', 'q', 'r')) AND (c LIKE 'm%' OR d IS NULL) AND NOT (e < f OR g LIKE '%z')"
    program = f"from tidings.core.filters.language.filter import Filter; print(Filter({sql!r}).to_sql())"
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
