"""The leaves of the normal form: where a single comparison is true, and where it is false.

Each function returns conjuncts of which one must hold. A comparison across kinds is NULL: neither true nor false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from tidings.core.errors import FilterError
from tidings.core.filters.language.conjuncts import (
    NormalisationSteps,
    comparison_with,
    literal_class,
    meet,
    unite,
)
from tidings.core.filters.language.constraints import simplify, sorted_literals
from tidings.core.filters.language.expression import (
    Column,
    Comparison,
    Expression,
    InList,
    LikeTest,
    NullTest,
    TruthTest,
    Value,
)
from tidings.core.filters.language.implication import EQUAL, GREATER, LESS
from tidings.core.filters.language.number import as_double, canonical_number, compare_literals
from tidings.core.filters.language.predicates import Conjunct, Constraint, Literal, ValueKind, kind_of

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


def atom(node: Expression, negated: bool, work: NormalisationSteps) -> Disjunction:
    """Return where the leaf is true or, if negated, where it is false."""
    reader = _READERS.get(type(node))
    if reader is None:
        raise FilterError(f"{type(node).__name__} is not a filter expression")
    return reader(node, negated, work)


def _constant(truth: bool | None, negated: bool) -> Disjunction:
    return TRUE if truth is not None and truth is not negated else FALSE


def _one(constraint: Constraint | None) -> Disjunction:
    """Return where the constraint holds; None is a constraint that nothing satisfies."""
    return FALSE if constraint is None else (Conjunct((constraint,)),)


def _null(name: str, null: bool) -> Disjunction:
    return _one(Constraint(name, null=null))


def _value(node: Value, negated: bool, _: NormalisationSteps) -> Disjunction:
    if node.value is not None and not isinstance(node.value, bool):
        raise FilterError(f"the literal {node.value!r} is not a condition")
    return _constant(node.value, negated)


def _column(node: Column, negated: bool, _: NormalisationSteps) -> Disjunction:
    return _one(Constraint(node.name, ValueKind.BOOLEAN, values=(not negated,)))


def _null_test(node: NullTest, negated: bool, _: NormalisationSteps) -> Disjunction:
    if isinstance(node.operand, Value):
        return _constant(node.operand.value is None, negated)
    return _null(node.operand.name, null=not negated)


def _truth_test(node: TruthTest, negated: bool, _: NormalisationSteps) -> Disjunction:
    """Never NULL: an attribute that is missing or not a boolean is neither TRUE nor FALSE."""
    if isinstance(node.operand, Value):
        return _constant(node.operand.value is node.truth, negated)
    if negated:
        return _one(Constraint(node.operand.name, null=None, excluded=(node.truth,)))
    return _one(Constraint(node.operand.name, ValueKind.BOOLEAN, values=(node.truth,)))


def _like(node: LikeTest, negated: bool, work: NormalisationSteps) -> Disjunction:
    operand, pattern = node.operand, node.pattern
    if pattern is None:
        return FALSE
    if isinstance(operand, Value):
        return _constant(pattern.matches(operand.value) if isinstance(operand.value, str) else None, negated)
    if pattern.literal is not None:
        return _with_literal(operand.name, "!=" if negated else "=", pattern.literal, work)
    patterns = (pattern,)
    likes, not_likes = ((), patterns) if negated else (patterns, ())
    return _one(simplify(Constraint(operand.name, ValueKind.STRING, likes=likes, not_likes=not_likes), work))


def _membership(node: InList, negated: bool, work: NormalisationSteps) -> Disjunction:
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
            groups.setdefault(literal_class(literal), []).append(literal)
    if not negated:
        return unite([Conjunct((_equals(name, group),)) for group in groups.values()], work)
    different = [_differs(name, group, work) for group in groups.values()]
    return _all_of(different, work)


def _all_of(constraints: list[Constraint | None], work: NormalisationSteps) -> Disjunction:
    conjuncts = [Conjunct((constraint,)) for constraint in constraints if constraint is not None]
    met = meet(conjuncts, work) if len(conjuncts) == len(constraints) else None
    return FALSE if met is None else (met,)


def _widened(values: tuple[Literal | None, ...]) -> tuple[Literal | None, ...]:
    """Convert a list to its widest type, as Spark does: one double makes all its numbers doubles."""
    if not any(isinstance(value, float) for value in values):
        return values
    return tuple(as_double(value) if kind_of(value) is ValueKind.NUMBER else value for value in values)  # type: ignore[arg-type]


def _comparison(node: Comparison, negated: bool, work: NormalisationSteps) -> Disjunction:
    left, right, operator = node.left, node.right, node.operator
    if isinstance(left, Value) and isinstance(right, Value):
        return _constant(compare_constants(left.value, operator, right.value), negated)
    if isinstance(left, Value):
        left, right, operator = right, left, _MIRRORED[operator]
    assert isinstance(left, Column)
    if isinstance(right, Column):
        return _columns(left.name, operator, right.name, negated, work)
    if operator == "<=>":
        return _null_safe(left.name, right.value, negated, work)
    if right.value is None:
        return FALSE
    return _with_literal(left.name, _OPPOSITE[operator] if negated else operator, right.value, work)


def _null_safe(name: str, literal: Literal | None, negated: bool, work: NormalisationSteps) -> Disjunction:
    if literal is None:
        return _null(name, null=not negated)
    if not negated:
        return _with_literal(name, "=", literal, work)
    return unite(_null(name, null=True) + _with_literal(name, "!=", literal, work), work)


def _columns(left: str, operator: str, right: str, negated: bool, work: NormalisationSteps) -> Disjunction:
    if operator == "<=>":
        return _null_safe_columns(left, right, negated, work)
    if negated:
        operator = _OPPOSITE[operator]
    if left == right:
        return _null(left, null=False) if _SIGNS[operator] & EQUAL else FALSE
    if left > right:
        left, right, operator = right, left, _MIRRORED[operator]
    return (Conjunct(comparisons=(comparison_with(left, right, _SIGNS[operator]),)),)


def _null_safe_columns(left: str, right: str, negated: bool, work: NormalisationSteps) -> Disjunction:
    if left == right:
        return _constant(True, negated)
    comparable = _columns(left, "=", right, negated, work)
    if not negated:
        return unite(comparable + _nulls(left, True, right, True), work)
    return unite(comparable + _nulls(left, True, right, False) + _nulls(left, False, right, True), work)


def _nulls(left: str, left_null: bool, right: str, right_null: bool) -> Disjunction:
    pair = sorted(((left, left_null), (right, right_null)))
    return (Conjunct(tuple(Constraint(name, null=null) for name, null in pair)),)


def _with_literal(name: str, operator: str, value: Literal, work: NormalisationSteps) -> Disjunction:
    literal = canonical(value)
    if operator == "=":
        return _one(_equals(name, (literal,)))
    if operator == "!=":
        return _one(_differs(name, (literal,), work))
    if operator in (">", ">="):
        bound = Constraint(name, kind_of(literal), low=literal, low_open=operator == ">")
    else:
        bound = Constraint(name, kind_of(literal), high=literal, high_open=operator == "<")
    return _one(simplify(bound, work))


def _equals(name: str, literals: Iterable[Literal]) -> Constraint:
    values = sorted_literals(literals)
    return Constraint(name, kind_of(values[0]), values=values)


def _differs(name: str, literals: Iterable[Literal], work: NormalisationSteps) -> Constraint | None:
    excluded = sorted_literals(literals)
    return simplify(Constraint(name, kind_of(excluded[0]), excluded=excluded), work)


def canonical(literal: Literal) -> Literal:
    if isinstance(literal, bool) or not isinstance(literal, int | float | Decimal):
        return literal
    return canonical_number(literal)


def compare_constants(left: Literal | None, operator: str, right: Literal | None) -> bool | None:
    """Return the result of comparing two literals: TRUE, FALSE or NULL."""
    if left is None or right is None:
        return (left is right) if operator == "<=>" else None
    if kind_of(left) is not kind_of(right):
        return None
    if kind_of(left) is ValueKind.NUMBER:
        sign = compare_literals(left, right)  # type: ignore[arg-type]
    else:
        sign = (left > right) - (left < right)  # type: ignore[operator]
    return bool((LESS, EQUAL, GREATER)[sign + 1] & _SIGNS["=" if operator == "<=>" else operator])


_READERS: dict[type[Expression], Callable[[Any, bool, NormalisationSteps], Disjunction]] = {
    Value: _value,
    Column: _column,
    Comparison: _comparison,
    InList: _membership,
    LikeTest: _like,
    NullTest: _null_test,
    TruthTest: _truth_test,
}
