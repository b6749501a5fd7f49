"""Random filters and events: the normal form means what the tree means, and says so in SQL.

The twin is a direct three-valued interpreter of the tree, written without the code under test: numbers are
compared as Fractions or as doubles, LIKE by dynamic programming.
"""

from __future__ import annotations

import contextlib
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.errors import FilterError
from tidings.core.filters.language.expression import (
    And,
    Column,
    Comparison,
    Expression,
    InList,
    LikeTest,
    Not,
    NullTest,
    Or,
    TruthTest,
    Value,
)
from tidings.core.filters.language.filter import Filter
from tidings.core.filters.language.like import Like
from tidings.core.filters.language.normalise import FilterLimits

BIG = 2**53
NAMES = ["a", "b", "c", "my attr"]
INTS = [0, 1, 2, 5, -3, BIG - 1, BIG, BIG + 1, BIG + 2, -BIG - 1, 10**17, 10**17 + 3, 2**63 - 1, 10**19]
DECIMALS = [
    Decimal("0.5"),
    Decimal("0.1"),
    Decimal("1.0"),
    Decimal("2.000000000000000001"),
    Decimal("0.999999999999999999"),
]
DOUBLES = [0.5, 0.1, 1.0, -0.0, 2.5, float(BIG), float(BIG + 2), 1e17, -1e300, 5e-324, 1e-7]
STRINGS = ["", "a", "b", "ab", "abc", "b%", "a_c", "a\\b", "é", "oil", "oilfield", "x'y", "a\nb"]
PATTERNS = ["%", "a%", "%b", "a_c", "_", "ab", "a%c", "oil%", "oi_%", "%i%", "a\\_c", "", "\\%", "%_", "b%%"]
BYTES = [b"", b"\x00", b"a", b"ab", b"\xff"]
LITERALS = [*INTS, *DECIMALS, *DOUBLES, *STRINGS, *BYTES, True, False, None]
EVENT_VALUES = [*INTS[:-1], *DOUBLES, math.nan, math.inf, -math.inf, *STRINGS, *BYTES, True, False, None]
ODD_VALUES = [[], {}, Decimal(1), object(), (1,)]

columns = st.sampled_from(NAMES).map(Column)
numbers = st.sampled_from([*INTS, *DECIMALS, *DOUBLES])
literals = st.one_of(numbers, st.sampled_from(STRINGS), st.sampled_from(LITERALS))
values = literals.map(Value)
operands = st.one_of(columns, columns, values)
of_one_kind = st.one_of(
    st.lists(numbers, min_size=1, max_size=4),
    st.lists(st.sampled_from(STRINGS), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=2),
    st.lists(st.sampled_from(LITERALS), min_size=1, max_size=4),
)
comparisons = st.builds(
    Comparison, operands, st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]), operands
)
leaves = st.one_of(
    comparisons,
    comparisons,
    st.builds(InList, operands, of_one_kind.map(tuple)),
    st.builds(LikeTest, operands, st.sampled_from(PATTERNS).map(Like)),
    st.builds(NullTest, operands),
    st.builds(TruthTest, columns, st.booleans()),
    columns,
    st.sampled_from([Value(True), Value(False), Value(None)]),
)


def grown(leaf: st.SearchStrategy[Expression], max_leaves: int) -> st.SearchStrategy[Expression]:
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(tuple(parts))),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts))),
        ),
        max_leaves=max_leaves,
    )


# Few attributes and few values, so that constraints meet and merge: where exact numbers and doubles part.
AWKWARD = [5, BIG, BIG + 1, float(BIG), 10**17, 10**17 + 3, 1e17]
two_columns = st.sampled_from([Column("a"), Column("b")])
orders = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
narrow_leaves = st.one_of(
    st.builds(Comparison, two_columns, orders, st.sampled_from(AWKWARD).map(Value)),
    st.builds(Comparison, two_columns, orders, two_columns),
    st.builds(InList, two_columns, st.lists(st.sampled_from(AWKWARD), min_size=1, max_size=3).map(tuple)),
    st.builds(Comparison, two_columns, orders, st.sampled_from(["a", "ab"]).map(Value)),
    st.builds(NullTest, two_columns),
)
# The same for booleans, where NULL, both values and other kinds are told apart.
flags = st.sampled_from([True, True, False, False, 1, "a", None])
flag_leaves = st.one_of(
    st.builds(InList, two_columns, st.lists(st.booleans(), min_size=1, max_size=2).map(tuple)),
    st.builds(InList, two_columns, st.lists(flags, min_size=1, max_size=3).map(tuple)),
    st.builds(Comparison, two_columns, st.sampled_from(["=", "!=", "<=", "<=>"]), flags.map(Value)),
    st.builds(Comparison, two_columns, orders, two_columns),
    st.builds(TruthTest, st.one_of(two_columns, flags.map(Value)), st.booleans()),
    st.builds(NullTest, two_columns),
    two_columns,
)
trees = st.one_of(grown(leaves, 8), grown(narrow_leaves, 6), grown(flag_leaves, 6))
events = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(EVENT_VALUES), max_size=4)
narrow_events = st.fixed_dictionaries(
    {"a": st.sampled_from([*AWKWARD, 0, "a"]), "b": st.sampled_from([*AWKWARD, 0, "a"])}
)
flag_events = st.dictionaries(st.sampled_from(["a", "b"]), flags)
event_lists = st.lists(st.one_of(events, narrow_events, flag_events), min_size=1, max_size=12)


# --- the twin ---


def kind(value: object) -> str | None:
    for types, name in (((bool,), "b"), ((int, float), "n"), ((str,), "s"), ((bytes,), "y")):
        if isinstance(value, types):
            return name
    return "n" if isinstance(value, Decimal) else None


def doubled(value: object) -> float:
    return float(value)  # type: ignore[arg-type]


def compare(left: object, right: object) -> int:
    if kind(left) != "n":
        return (left > right) - (left < right)  # type: ignore[operator]
    if isinstance(left, float) or isinstance(right, float):
        left, right = doubled(left), doubled(right)
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) - math.isnan(right)
        return (left > right) - (left < right)
    one, other = Fraction(left), Fraction(right)  # type: ignore[arg-type]
    return (one > other) - (one < other)


def like_twin(pattern: str, text: str) -> bool:
    reached = [True] + [False] * len(text)
    tokens = iter(pattern)
    for token in tokens:
        if token == "%":
            reached = [any(reached[: i + 1]) for i in range(len(reached))]
            continue
        wanted = next(tokens) if token == "\\" else None if token == "_" else token
        reached = [False] + [reached[i] and wanted in (None, text[i]) for i in range(len(text))]
    return reached[-1]


def operand_value(operand: Expression, event: dict[str, object]) -> object:
    return event.get(operand.name) if isinstance(operand, Column) else operand.value  # type: ignore[attr-defined]


def truth(node: Expression, event: dict[str, object]) -> bool | None:
    match node:
        case Not(operand):
            inner = truth(operand, event)
            return None if inner is None else not inner
        case And(operands):
            found = [truth(operand, event) for operand in operands]
            return False if False in found else None if None in found else True
        case Or(operands):
            found = [truth(operand, event) for operand in operands]
            return True if True in found else None if None in found else False
        case Column(_) | Value(_):
            value = operand_value(node, event)
            return value if isinstance(value, bool) else None
        case NullTest(operand):
            return kind(operand_value(operand, event)) is None
        case TruthTest(operand, wanted):
            return operand_value(operand, event) is wanted
        case Comparison(left, operator, right):
            if operator != "<=>" and isinstance(left, Column) and left == right:
                value = operand_value(left, event)
                return None if kind(value) is None else operator in ("=", "<=", ">=")
            return compared(operand_value(left, event), operator, operand_value(right, event))
        case InList(operand, listed):
            return member(operand_value(operand, event), listed)
        case LikeTest(operand, pattern):
            value = operand_value(operand, event)
            return like_twin(pattern.pattern, value) if isinstance(value, str) and pattern else None
    raise AssertionError(node)


def compared(left: object, operator: str, right: object) -> bool | None:
    if kind(left) is None or kind(right) is None:
        return (kind(left) is kind(right)) if operator == "<=>" else None
    if kind(left) != kind(right):
        return None
    sign = compare(left, right)
    return {
        "=": sign == 0,
        "<=>": sign == 0,
        "!=": sign != 0,
        "<": sign < 0,
        "<=": sign <= 0,
        ">": sign > 0,
        ">=": sign >= 0,
    }[operator]


def member(value: object, listed: tuple[object, ...]) -> bool | None:
    if any(isinstance(item, float) for item in listed):
        listed = tuple(doubled(item) if kind(item) == "n" else item for item in listed)
    found = [compared(value, "=", item) for item in listed]
    return True if True in found else None if None in found else False


# --- SQL as a user would write it, fully parenthesised ---


def spell(node: Expression) -> str:
    match node:
        case Column(name):
            return f"`{name}`"
        case Value(value):
            return spell_literal(value)
        case Not(operand):
            return f"NOT ({spell(operand)})"
        case And(operands):
            return " AND ".join(f"({spell(operand)})" for operand in operands)
        case Or(operands):
            return " OR ".join(f"({spell(operand)})" for operand in operands)
        case NullTest(operand):
            return f"{spell(operand)} IS NULL"
        case TruthTest(operand, wanted):
            return f"{spell(operand)} IS {str(wanted).upper()}"
        case Comparison(left, operator, right):
            return f"{spell(left)} {operator} {spell(right)}"
        case InList(operand, listed):
            return f"{spell(operand)} IN ({', '.join(map(spell_literal, listed))})"
        case LikeTest(operand, pattern):
            assert pattern is not None
            return f"{spell(operand)} LIKE {spell_literal(pattern.pattern)}"
    raise AssertionError(node)


def spell_literal(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).upper() if value is not None else "NULL"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return f"{value!r}D" if isinstance(value, float) and "e" not in repr(value) else str(value)


def built(tree: Expression) -> Filter:
    return Filter(tree, limits=FilterLimits(max_depth=1000))


# --- the properties ---


@settings(max_examples=examples(250))
@given(trees, event_lists)
@example(
    And((Comparison(Column("a"), ">", Value(10**17)), Comparison(Column("a"), ">=", Value(10**17 + 3)))),
    [{"a": 1e17}],
)
def test_the_normal_form_means_what_the_tree_means(tree: Expression, sample: list[dict[str, object]]) -> None:
    pattern = built(tree).pattern
    for event in sample:
        assert pattern.matches(event) is (truth(tree, event) is True), (pattern.text, event)


@settings(max_examples=examples(300))
@given(trees)
@example(Not(InList(Column("a"), (True,))))
@example(Not(InList(Column("a"), (True, False))))
@example(And((Not(TruthTest(Column("a"), True)), Not(NullTest(Column("a"))))))
def test_text_and_tree_are_one_filter_and_canonical_text_is_a_fixed_point(tree: Expression) -> None:
    built_filter = built(tree)
    assert Filter(spell(tree)) == built_filter
    again = Filter(built_filter.to_sql())
    assert again == built_filter
    assert again.to_sql() == built_filter.to_sql()
    assert again.pattern.key == built_filter.pattern.key


@settings(max_examples=examples(250))
@given(trees, trees, event_lists)
def test_covers_is_sound(one: Expression, other: Expression, sample: list[dict[str, object]]) -> None:
    wide, narrow = built(one), built(other)
    both = built(And((one, other)))
    assert wide.covers(wide)
    if wide.covers(narrow):
        for event in sample:
            assert wide.matches(event) or not narrow.matches(event), (wide.to_sql(), narrow.to_sql(), event)
    for event in sample:
        if both.matches(event):
            assert wide.matches(event)


comparable_leaves = st.one_of(
    st.builds(
        Comparison,
        st.just(Column("a")),
        st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        numbers.map(Value),
    ),
    st.builds(InList, st.just(Column("a")), st.lists(numbers, min_size=1, max_size=3).map(tuple)),
)
text_leaves = st.one_of(
    st.builds(
        Comparison,
        st.just(Column("a")),
        st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
        st.sampled_from(STRINGS).map(Value),
    ),
    st.builds(LikeTest, st.just(Column("a")), st.sampled_from(PATTERNS).map(Like)),
    st.builds(Not, st.builds(LikeTest, st.just(Column("a")), st.sampled_from(PATTERNS).map(Like))),
)


@settings(max_examples=examples(300))
@given(
    st.one_of(
        st.tuples(comparable_leaves, st.lists(comparable_leaves, min_size=1, max_size=3)),
        st.tuples(text_leaves, st.lists(text_leaves, min_size=1, max_size=3)),
    )
)
def test_covers_is_sound_where_it_often_says_yes(pair: tuple[Expression, list[Expression]]) -> None:
    wide, narrow = built(pair[0]), built(And(tuple(pair[1])))
    assert_sound(wide, narrow)
    assert_sound(narrow, wide)


def assert_sound(wide: Filter, narrow: Filter) -> None:
    if not wide.covers(narrow):
        return
    for value in EVENT_VALUES:
        event = {"a": value}
        assert wide.matches(event) or not narrow.matches(event), (wide.to_sql(), narrow.to_sql(), event)


@settings(max_examples=examples(300))
@given(trees, trees, trees)
def test_equal_languages_written_otherwise_are_one_pattern(
    a: Expression, b: Expression, c: Expression
) -> None:
    assert built(Or((a, b, c))) == built(Or((c, a, b)))
    assert built(And((a, b))) == built(And((b, a)))
    assert built(Or((a, a))) == built(a)
    assert built(And((a, a))) == built(a)
    assert built(Not(Not(a))) == built(a)
    assert built(Not(And((a, b)))) == built(Or((Not(a), Not(b))))
    assert built(Not(Or((a, b)))) == built(And((Not(a), Not(b))))


@settings(max_examples=examples(100))
@given(trees, st.sampled_from(NAMES), st.sampled_from(range(len(ODD_VALUES))))
def test_attributes_of_foreign_types_are_null(tree: Expression, name: str, odd: int) -> None:
    pattern = built(tree).pattern
    assert pattern.matches({name: ODD_VALUES[odd]}) is pattern.matches({})  # type: ignore[dict-item]


fragments = st.sampled_from(
    ["a", "b", " AND ", " OR ", "NOT ", "(", ")", " = ", " < ", "1", "'x'", " LIKE ", " IN (", ", ",
    " IS NULL",
     " BETWEEN ", "'", '"', "`", "\\", "--", "/*", "%", ";", "1e", ".", "X'", "r'", "{#", "{{", "\n",
     "\0", "é", "-"]
)  # fmt: skip


@settings(max_examples=examples(400))
@given(st.one_of(st.text(max_size=200), st.lists(fragments, max_size=60).map("".join)))
def test_no_text_raises_anything_but_a_filter_error(text: str) -> None:
    refused, parsed = None, None
    try:
        parsed = Filter(text)
    except FilterError as error:
        refused = error
    if parsed is not None:
        assert Filter(parsed.to_sql()) == parsed
    if refused is not None:
        assert refused.position is None or 0 <= refused.position <= len(text)


@pytest.mark.timeout(60)  # a guard against blow-up, far above what it takes
@settings(max_examples=examples(15))
@given(st.lists(fragments, min_size=20, max_size=200).map("".join), st.integers(1, 400))
def test_long_texts_take_no_long_time(text: str, repeats: int) -> None:
    with contextlib.suppress(FilterError):
        Filter((text * repeats)[:20_000])


@pytest.mark.parametrize(
    "text",
    [
        "(" * 8_000,
        "NOT " * 4_000 + "a",
        "a = 1 AND " * 1_500 + "b = 2",
        "a = 1 OR " * 1_500 + "b = 2",
        " AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(40)),
        " AND ".join(f"(a > {i} OR b < {i})" for i in range(600)),
        " AND ".join(f"(a = {i} OR b <> {i})" for i in range(500)),
        " OR ".join(f"(a > {i} AND b < {i})" for i in range(600)),
        " OR ".join(f"a LIKE '%{i}_%'" for i in range(250)),
        " AND ".join(f"a NOT LIKE '%{i}_%'" for i in range(500)),
        "a IN (" + ", ".join(map(str, range(3_000))) + ")",
        "a NOT IN (" + ", ".join(map(str, range(3_000))) + ")",
        " AND ".join(f"a <> {i}" for i in range(1_000)),
        " OR ".join(f"a = {i}" for i in range(1_200)),
        "a = " + "9" * 16_000,
        "a LIKE '" + "%_" * 8_000 + "'",
        "a = " + "''" * 8_000,
    ],
)  # fmt: skip
@pytest.mark.timeout(60)  # a guard against blow-up, far above what it takes
def test_a_costly_text_is_refused_or_read_quickly(text: str) -> None:
    with contextlib.suppress(FilterError):
        Filter(text).matches({"a": 1, "b": 2})
