"""Where a single comparison is true, and where it is false: the leaves of the normal form.

Each function returns conjuncts of which one must hold. A comparison across kinds is NULL, so it is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from tidings.model.conjuncts import comparison_with, meet, unite, value_class
from tidings.model.constraints import simplify, sorted_literals
from tidings.model.errors import FilterError
from tidings.model.expression import (
    Column,
    Comparison,
    Expression,
    LikeTest,
    Membership,
    NullTest,
    TruthTest,
    Value,
)
from tidings.model.implication import EQUAL, GREATER, LESS
from tidings.model.number import as_double, canonical_number, compare_literals
from tidings.model.predicates import Conjunct, Constraint, Kind, Literal, kind_of

Disjunction = tuple[Conjunct, ...]

TRUE: Disjunction = (Conjunct(),)
FALSE: Disjunction = ()

_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", "<=": ">", ">": "<="}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<=", "<=>": "<=>"}
_SIGNS = {
    "=": EQUAL,
    "!=": LESS | GREATER,
    "<": LESS,
    "<=": LESS | EQUAL,
    ">": GREATER,
    ">=": GREATER | EQUAL,
}


def atom(node: Expression, negated: bool) -> Disjunction:
    """Where the leaf is true or, negated, false."""
    reader = _READERS.get(type(node))
    if reader is None:
        raise FilterError(f"{type(node).__name__} is no filter expression")
    return reader(node, negated)


def _constant(truth: bool | None, negated: bool) -> Disjunction:
    return TRUE if truth is not None and truth is not negated else FALSE


def _one(constraint: Constraint) -> Disjunction:
    return (Conjunct((constraint,)),)


def _null(name: str, null: bool) -> Disjunction:
    return _one(Constraint(name, null=null))


def _value(node: Value, negated: bool) -> Disjunction:
    if node.value is not None and not isinstance(node.value, bool):
        raise FilterError(f"the literal {node.value!r} stands where a condition is expected")
    return _constant(node.value, negated)


def _column(node: Column, negated: bool) -> Disjunction:
    return _one(Constraint(node.name, Kind.BOOLEAN, values=(not negated,)))


def _null_test(node: NullTest, negated: bool) -> Disjunction:
    if isinstance(node.operand, Value):
        return _constant(node.operand.value is None, negated)
    return _null(node.operand.name, null=not negated)


def _truth_test(node: TruthTest, negated: bool) -> Disjunction:
    """IS TRUE and IS FALSE are `<=> TRUE` and `<=> FALSE`."""
    return _comparison(Comparison(node.operand, "<=>", Value(node.truth)), negated)


def _like(node: LikeTest, negated: bool) -> Disjunction:
    operand, pattern = node.operand, node.pattern
    if pattern is None:
        return FALSE
    if isinstance(operand, Value):
        return _constant(pattern.matches(operand.value) if isinstance(operand.value, str) else None, negated)
    if pattern.literal is not None:
        return _with_literal(operand.name, "!=" if negated else "=", pattern.literal)
    patterns = (pattern,)
    found = simplify(
        Constraint(operand.name, Kind.STRING, likes=() if negated else patterns, not_likes=patterns * negated)
    )
    return FALSE if found is None else _one(found)


def _membership(node: Membership, negated: bool) -> Disjunction:
    values = _widened(node.values)
    if isinstance(node.operand, Value):
        subject = _widened((node.operand.value, *values))[0]
        equalities = [compare_constants(subject, "=", value) for value in values]
        return _constant(True if True in equalities else None if None in equalities else False, negated)
    if negated and (None in values or len({kind_of(value) for value in values}) > 1):
        return FALSE
    name = node.operand.name
    groups: dict[str, list[Literal]] = {}
    for value in values:
        if value is not None:
            literal = canonical(value)
            groups.setdefault(value_class(_equals(name, (literal,))), []).append(literal)
    if not negated:
        return unite(Conjunct((_equals(name, group),)) for group in groups.values())
    result: Conjunct | None = Conjunct()
    for group in groups.values():
        result = result and meet(result, Conjunct((_differs(name, group),)))
    return FALSE if result is None else (result,)


def _widened(values: tuple[Literal | None, ...]) -> tuple[Literal | None, ...]:
    """Spark compares a list as the widest type in it: one double makes doubles of all its numbers."""
    if not any(isinstance(value, float) for value in values):
        return values
    return tuple(as_double(value) if kind_of(value) is Kind.NUMBER else value for value in values)  # type: ignore[arg-type]


def _comparison(node: Comparison, negated: bool) -> Disjunction:
    left, right, operator = node.left, node.right, node.operator
    if isinstance(left, Value) and isinstance(right, Value):
        return _constant(compare_constants(left.value, operator, right.value), negated)
    if isinstance(left, Value):
        left, right, operator = right, left, _MIRRORED[operator]
    assert isinstance(left, Column)
    if isinstance(right, Column):
        return _columns(left.name, operator, right.name, negated)
    if operator == "<=>":
        return _null_safe(left.name, right.value, negated)
    if right.value is None:
        return FALSE
    return _with_literal(left.name, _OPPOSITE[operator] if negated else operator, right.value)


def _null_safe(name: str, literal: Literal | None, negated: bool) -> Disjunction:
    if literal is None:
        return _null(name, null=not negated)
    if not negated:
        return _with_literal(name, "=", literal)
    return unite(_null(name, null=True) + _with_literal(name, "!=", literal))


def _columns(left: str, operator: str, right: str, negated: bool) -> Disjunction:
    if operator == "<=>":
        return _null_safe_columns(left, right, negated)
    if negated:
        operator = _OPPOSITE[operator]
    if left == right:
        return _null(left, null=False) if _SIGNS[operator] & EQUAL else FALSE
    if left > right:
        left, right, operator = right, left, _MIRRORED[operator]
    return (Conjunct(comparisons=(comparison_with(left, right, _SIGNS[operator]),)),)


def _null_safe_columns(left: str, right: str, negated: bool) -> Disjunction:
    if left == right:
        return _constant(True, negated)
    comparable = _columns(left, "=", right, negated)
    if not negated:
        return unite(comparable + _nulls(left, True, right, True))
    return unite(comparable + _nulls(left, True, right, False) + _nulls(left, False, right, True))


def _nulls(left: str, left_null: bool, right: str, right_null: bool) -> Disjunction:
    pair = sorted(((left, left_null), (right, right_null)))
    return (Conjunct(tuple(Constraint(name, null=null) for name, null in pair)),)


def _with_literal(name: str, operator: str, value: Literal) -> Disjunction:
    literal = canonical(value)
    if operator == "=":
        return _one(_equals(name, (literal,)))
    if operator == "!=":
        found = _differs(name, (literal,))
    elif operator in (">", ">="):
        found = Constraint(name, kind_of(literal), low=literal, low_open=operator == ">")
    else:
        found = Constraint(name, kind_of(literal), high=literal, high_open=operator == "<")
    simple = simplify(found)
    return FALSE if simple is None else _one(simple)


def _equals(name: str, literals: Iterable[Literal]) -> Constraint:
    values = sorted_literals(literals)
    return Constraint(name, kind_of(values[0]), values=values)


def _differs(name: str, literals: Iterable[Literal]) -> Constraint:
    excluded = sorted_literals(literals)
    return Constraint(name, kind_of(excluded[0]), excluded=excluded)


def canonical(literal: Literal) -> Literal:
    if isinstance(literal, bool) or not isinstance(literal, int | float | Decimal):
        return literal
    return canonical_number(literal)


def compare_constants(left: Literal | None, operator: str, right: Literal | None) -> bool | None:
    """What a comparison of two literals is: TRUE, FALSE or NULL."""
    if left is None or right is None:
        return (left is right) if operator == "<=>" else None
    if kind_of(left) is not kind_of(right):
        return None
    if kind_of(left) is Kind.NUMBER:
        sign = compare_literals(left, right)  # type: ignore[arg-type]
    else:
        sign = (left > right) - (left < right)  # type: ignore[operator]
    return bool((LESS, EQUAL, GREATER)[sign + 1] & _SIGNS["=" if operator == "<=>" else operator])


_READERS: dict[type[Expression], Callable[[Any, bool], Disjunction]] = {
    Value: _value,
    Column: _column,
    Comparison: _comparison,
    Membership: _membership,
    LikeTest: _like,
    NullTest: _null_test,
    TruthTest: _truth_test,
}
