"""Filters against Spark itself: the same text over the same rows gives the same answer.

Random filters are generated from fixed seeds, many to a Spark job, each once as written and once in canonical
form. A failure names the seed, the filter and the row. Only comparisons of one kind are generated, because
those are what Spark and a filter share.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from breadth import few
from tidings.core.errors import FilterError
from tidings.core.filters.language.filter import Filter

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SEEDS = [1, 2, 3, 4]
FILTERS_PER_SEED = 150
BIG = 2**53
SCHEMA = (
    "i long, j long, d double, e double, s string, t string, b boolean, c boolean, y binary, "
    "`order` long, `my-attr` string"
)

LONGS = [
    0,
    1,
    2,
    -1,
    5,
    BIG - 1,
    BIG,
    BIG + 1,
    BIG + 2,
    -BIG - 1,
    10**17,
    10**17 + 3,
    2**63 - 1,
    -(2**63),
    None,
]
DOUBLES = [
    0.0,
    -0.0,
    0.1,
    0.5,
    1.0,
    -2.5,
    float(BIG),
    float(BIG + 2),
    1e17,
    1e300,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
    None,
]
STRINGS = [
    "",
    "a",
    "A",
    "ab",
    "abc",
    "oil",
    "oilfield",
    "a%b",
    "a_b",
    "a\\b",
    "\\",
    "it's",
    'say "x"',
    "a\nb",
    "\t",
    "é",
    "😀",
    "a😀b",
    "￿",
    "\x00",
    "${env:HOME}",
    "%",
    "_",
    "12",
    None,
]
BOOLEANS = [True, False, None]
BINARIES = [b"", b"\x00", b"a", b"ab", b"\x7f", b"\x80", b"\xff", None]

NUMBER_TEXTS = [
    "0", "1", "-1", "5", "-0", "+2", "- 1", "0.1", "0.5", "-2.5", ".5", "1.", "1.0", "0.10", "1e0",
    "1E3", "-1e-1", "5e-324",
    "0e0", "-0e0", "1e300", "1e-400", "10L", "0.5D", "1D", "0.1BD", "1e3BD", "9007199254740991",
    "9007199254740992",
    "9007199254740993", "9007199254740992e0", "9007199254740993D", "9007199254740993.0", "9007199254740992.5",
    "-9007199254740993", "100000000000000000", "100000000000000003", "1e17", "9223372036854775807",
    "-9223372036854775808", "0.999999999999999999", "1.000000000000000001", "007",
]  # fmt: skip
BEYOND_LONG_TEXTS = [
    "9223372036854775808", "-9223372036854775809", "99999999999999999999", "9223372036854775807.5",
    "12345678901234567890123456789012345678",
]  # fmt: skip
STRING_TEXTS = [
    "''", "'a'", '"a"', "'A'", "'ab'", "'a' 'b'", "'oil'", "'it''s'", "'it\\'s'", '"it\'s"',
    '"say ""x"""', "'a\\%b'",
    "'a\\\\b'", "'\\\\'", "r'a\\b'", "R\"a\\b\"", "'a\\nb'", "'a\nb'", "'\\t'", "'\\u00e9'", "'é'",
    "'\\U0001F600'",
    "'\\uD83D\\uDE00'", "'\\101'", "'\\x41'", "'\\q'", "'\\0'", "'😀'", "'￿'", "'12'", "'\\Z'",
    "'\\141'", "'\\777'",
    "'\\u00'", "'a' r'b'", "r'a''b'", "'${'", "'a\\_b'",
]  # fmt: skip
LIKE_TEXTS = [
    "'%'", "'a%'", "'%b'", "'a_b'", "'_'", "'ab'", "'oil%'", "'oi_%'", "'%il%'", "'a\\%b'", "'a\\\\%b'",
    "'a\\_b'",
    "r'a\\_b'", "''", "'\\\\\\\\'", "'a\\\\\\\\b'", "'%%_'", "'__'", "'a%b%'", "'a!%b' ESCAPE '!'",
    "'a!!' ESCAPE '!'",
    "'a%%b' ESCAPE '%'", "'\\n'", "'%\\n%'", "'%\\'%'", "'a_b%'", "'%😀%'", "'$%'", "NULL", "'\\0'",
    "'%_b'", "'_%_%_'",
]  # fmt: skip
BOOLEAN_TEXTS = ["TRUE", "FALSE", "true"]
BINARY_TEXTS = ["X''", "X'00'", "x'61'", "X'6162'", "X'FF'", "X'F'", "X'80'"]
KINDS: dict[str, tuple[list[str], list[str]]] = {
    "number": (["i", "j", "d", "e", "`i`", "order"], NUMBER_TEXTS),
    "string": (["s", "t", "`my-attr`"], STRING_TEXTS),
    "boolean": (["b", "c"], BOOLEAN_TEXTS),
    "binary": (["y"], BINARY_TEXTS),
}
OPERATORS = ["=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"]


@pytest.fixture(scope="module", autouse=True)
def interpreted(spark: Any) -> Iterator[None]:
    """Hundreds of filters are used once: compiling them would take longer than evaluating them."""
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    yield
    spark.conf.unset("spark.sql.codegen.wholeStage")


def random_leaf(rng: random.Random) -> str:
    kind = rng.choice(["number", "number", "number", "string", "string", "boolean", "binary"])
    columns, texts = KINDS[kind]
    column, literal = rng.choice(columns), rng.choice([*texts, "NULL"] if rng.random() < 0.1 else texts)
    negation = rng.choice(["", "", "NOT "])
    shape = rng.randrange(10)
    if shape < 4:
        left, right = (column, literal) if rng.random() < 0.8 else (literal, column)
        return f"{left} {rng.choice(OPERATORS)} {right}"
    if shape == 4:
        return f"{column} {rng.choice(OPERATORS)} {rng.choice(columns)}"
    if shape == 5:
        return f"{column} {negation}BETWEEN {literal} AND {rng.choice(texts)}"
    if shape == 6:
        count = rng.randrange(1, 5)
        listed = [rng.choice(texts) for _ in range(count)] + (["NULL"] if rng.random() < 0.1 else [])
        return f"{column} {negation}IN ({', '.join(listed)})"
    if shape == 7:
        return f"{column} IS {negation}NULL"
    if shape == 8:
        test = rng.choice(
            ["b", "c", "b IS TRUE", "b IS NOT TRUE", "c IS FALSE", "c IS NOT FALSE", "b IS UNKNOWN"]
        )
        return (
            test
            if rng.random() < 0.9
            else rng.choice(["TRUE", "FALSE", "1 < 2", "2 = 2.0", "'a' > 'b'", "NULL"])
        )
    return f"{rng.choice(KINDS['string'][0])} {negation}LIKE {rng.choice(LIKE_TEXTS)}"


def random_filter(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.25:
        return random_leaf(rng)
    if rng.random() < 0.25:
        return f"{rng.choice(['NOT', '!'])} ({random_filter(rng, depth - 1)})"
    parts = [f"({random_filter(rng, depth - 1)})" for _ in range(rng.randrange(2, 4))]
    return rng.choice([" AND ", " OR "]).join(parts)


def random_rows(rng: random.Random, count: int) -> list[dict[str, Any]]:
    pools = [LONGS, LONGS, DOUBLES, DOUBLES, STRINGS, STRINGS, BOOLEANS, BOOLEANS, BINARIES, LONGS, STRINGS]
    names = ["i", "j", "d", "e", "s", "t", "b", "c", "y", "order", "my-attr"]
    # every value of every pool appears, and beside it anything
    longest = max(map(len, pools))
    rows = [{n: p[k % len(p)] for n, p in zip(names, pools, strict=True)} for k in range(longest)]
    rows += [{n: rng.choice(p) for n, p in zip(names, pools, strict=True)} for _ in range(count - longest)]
    return rows


def spark_answers(session: Any, rows: list[dict[str, Any]], filters: list[str]) -> list[list[bool]]:
    """For each row, which of the filters Spark finds true."""
    frame = session.createDataFrame([tuple(row.values()) for row in rows], SCHEMA).coalesce(1)
    columns = [f"coalesce(({text}), false) AS f{index}" for index, text in enumerate(filters)]
    return [list(answer) for answer in frame.selectExpr(*columns).collect()]


def assert_agreement(session: Any, rows: list[dict[str, Any]], texts: list[str], label: str) -> None:
    filters = [Filter(text) for text in texts]
    both = [*texts, *(item.to_sql() for item in filters)]
    answers = spark_answers(session, rows, both)
    wrong = []
    for row, answer in zip(rows, answers, strict=True):
        for index, item in enumerate(filters):
            ours = item.matches(row)
            if ours is not answer[index]:
                wrong.append(f"{label}: {item.sql} is {answer[index]} in Spark, {ours} here, for {row}")
            if ours is not answer[index + len(filters)]:
                wrong.append(
                    f"{label}: canonical {item.to_sql()} is {not ours} in Spark for {row} ({item.sql})"
                )
    assert not wrong, "\n".join([f"{len(wrong)} disagreements", *wrong[:10]])


def readable(rng: random.Random, count: int) -> list[str]:
    """Random filters that keep the limits; a list that Spark would round is refused, for instance."""
    found: list[str] = []
    refused = 0
    while len(found) < count:
        text = random_filter(rng, rng.randrange(4))
        try:
            Filter(text)
        except FilterError:
            refused += 1
        else:
            found.append(text)
    assert refused < count / 5
    return found


@pytest.mark.parametrize("seed", few(SEEDS, 2))
def test_random_filters_agree_with_spark(spark: Any, seed: int) -> None:
    rng = random.Random(seed)
    texts = readable(rng, FILTERS_PER_SEED)
    assert_agreement(spark, random_rows(rng, 60), texts, f"seed {seed}")


def test_every_literal_agrees_with_spark(spark: Any) -> None:
    rng = random.Random(0)
    texts = [f"{name} {op} {text}" for text in NUMBER_TEXTS for name in ("i", "d") for op in ("=", "<", ">=")]
    texts += [f"s {operator} {text}" for text in STRING_TEXTS for operator in ("=", "<")]
    texts += [f"s LIKE {text}" for text in LIKE_TEXTS]
    texts += [f"y {operator} {text}" for text in BINARY_TEXTS for operator in ("=", "<=")]
    assert_agreement(spark, random_rows(rng, 30), texts, "literals")


def test_numbers_beyond_a_long_agree_where_spark_heeds_null(spark: Any) -> None:
    """Spark finds `i < 9223372036854775808` true of a NULL; our canonical text keeps it from that."""
    rows = random_rows(random.Random(0), 30)
    texts = [f"{n} {op} {text}" for text in BEYOND_LONG_TEXTS for n in ("i", "d") for op in OPERATORS]
    assert_agreement(spark, [row for row in rows if row["i"] is not None], texts, "beyond a long")
    assert_agreement(spark, rows, [Filter(text).to_sql() for text in texts], "beyond a long")


def test_strings_survive_the_way_through_canonical_sql(spark: Any) -> None:
    rng = random.Random(5)
    alphabet = "ab%_\\'\"`\n\r\t\0\b${}é😀\u2028é -;/*"
    strings = ["".join(rng.choice(alphabet) for _ in range(rng.randrange(8))) for _ in range(60)]
    rows = [dict.fromkeys(["i", "j", "d", "e"]) | {"s": text} | dict.fromkeys("tbcyon") for text in strings]
    from tidings.core.filters.language.builder import col

    texts = [Filter(col("s") == text).to_sql() for text in strings]
    assert_agreement(spark, rows, texts, "strings")


def test_every_keyword_of_spark_names_an_attribute(spark: Any) -> None:
    from tidings.core.filters.language.builder import col

    words = [row[0].lower() for row in spark.sql("SELECT keyword FROM sql_keywords()").collect()]
    frame = spark.range(1).selectExpr(*(f"'x' AS `{word}`" for word in words))
    answers = frame.selectExpr(*(Filter(col(word) == "x").to_sql() for word in words)).first()
    assert len(words) > 300
    assert list(answers) == [True] * len(words)
    for word in words:
        assert Filter(Filter(col(word) == "x").to_sql()) == Filter(col(word) == "x")


def test_spaces_are_those_of_spark(spark: Any) -> None:
    frame = spark.range(1)
    spaces = [chr(code) for code in range(0x3001) if chr(code).isspace()] + ["\0", "\x7f", "\u200b", "\ufeff"]
    refused = []
    for space in spaces:
        text = f"id{space}= 0"
        try:
            frame.where(text)
        except Exception:
            refused.append(space)
            with pytest.raises(FilterError):
                Filter(text)
        else:
            assert Filter(text) == Filter("id = 0")
    assert 0 < len(refused) < len(spaces)


@pytest.mark.parametrize(
    "text",
    ["s = 'a", "i = 1e400", "i = 9" + "9" * 38, "s LIKE 'a\\\\b'", "s LIKE 'a\\\\'", "s LIKE 'a' ESCAPE 'ab'",
     "y = X'1G'", "i IN ()", "i = 1;", "i = 9223372036854775808L", "(i = 1", "i = 1)", "i = = 1",
     "i IS 5", "5"],
)  # fmt: skip
def test_what_spark_refuses_is_refused(spark: Any, text: str) -> None:
    frame = spark.createDataFrame([(1, 1, 1.0, 1.0, "a", "a", True, True, b"a", 1, "a")], SCHEMA)
    with pytest.raises(Exception, match=r".") as refusal:
        frame.where(text).collect()
    assert "pyspark.errors" in type(refusal.value).__module__
    with pytest.raises(FilterError):
        Filter(text)
