"""Compiles normalised filters to functions that decide whether an event matches.

Each constraint becomes one closure, chosen by the fields that it sets, so that matching does not look at the other
fields. Nothing here raises, whatever value an attribute has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidings.core.filters.language.implication import EQUAL, GREATER, LESS, admits, number_satisfies, signs_of
from tidings.core.filters.language.number import as_double, compare_values
from tidings.core.filters.language.predicates import (
    ColumnComparison,
    Conjunct,
    Constraint,
    ValueKind,
    is_plain,
    value_kind,
)

Check = Callable[[Any], bool]
Matcher = Callable[[Mapping[str, Any]], bool]

_KIND_BY_TYPE: dict[type, ValueKind] = {
    int: ValueKind.NUMBER,
    float: ValueKind.NUMBER,
    str: ValueKind.STRING,
    bool: ValueKind.BOOLEAN,
    bytes: ValueKind.BYTES,
}


def kind_of_attribute(value: object) -> ValueKind | None:
    """Return `value_kind`, quickly for the usual types."""
    kind = _KIND_BY_TYPE.get(type(value))
    return value_kind(value) if kind is None and value is not None else kind


def compile_pattern(conjuncts: tuple[Conjunct, ...]) -> Matcher:
    matchers = [compile_conjunct(conjunct) for conjunct in conjuncts]
    if len(matchers) == 1:
        return matchers[0]

    def matches(attributes: Mapping[str, Any]) -> bool:
        for matcher in matchers:  # noqa: SIM110 - a generator for each event costs more than the matchers
            if matcher(attributes):
                return True
        return False

    return matches


def compile_conjunct(conjunct: Conjunct) -> Matcher:
    checks = [(constraint.attribute, compile_constraint(constraint)) for constraint in conjunct.constraints]
    comparisons = [_compile_comparison(comparison) for comparison in conjunct.comparisons]

    def matches(attributes: Mapping[str, Any]) -> bool:
        get = attributes.get
        for name, check in checks:
            if not check(get(name)):
                return False
        return not comparisons or all(comparison(attributes) for comparison in comparisons)

    return matches


def compile_constraint(constraint: Constraint) -> Check:
    """Return a function that decides whether a value satisfies the constraint."""
    if constraint.kind is None:
        return _compile_untyped(constraint)
    if constraint.kind is ValueKind.NUMBER:
        return _compile_number(constraint)
    return _compile_other(constraint, constraint.kind)


def _compile_untyped(constraint: Constraint) -> Check:
    if constraint.null:
        return lambda value: kind_of_attribute(value) is None
    if not constraint.excluded:
        return lambda value: kind_of_attribute(value) is not None
    excluded, may_be_null = constraint.excluded, constraint.null is None

    def check(value: Any) -> bool:
        if isinstance(value, bool):
            return value not in excluded
        return may_be_null or kind_of_attribute(value) is not None

    return check


def _compile_other(constraint: Constraint, kind: ValueKind) -> Check:
    """Compile strings, booleans and bytes, which Python compares as Spark does."""
    if constraint.values is not None:
        values = frozenset(constraint.values)
        return lambda value: kind_of_attribute(value) is kind and value in values
    if len(constraint.likes) == 1 and constraint.likes[0].is_prefix and constraint == _only_likes(constraint):
        prefix = constraint.likes[0].prefix
        return lambda value: kind_of_attribute(value) is kind and value.startswith(prefix)
    return lambda value: kind_of_attribute(value) is kind and admits(constraint, value)


def _only_likes(constraint: Constraint) -> Constraint:
    return Constraint(constraint.attribute, constraint.kind, likes=constraint.likes)


def _compile_number(constraint: Constraint) -> Check:
    if constraint.values is not None:
        return _compile_number_set(constraint.values)
    bounds = [bound for bound in (constraint.low, constraint.high) if bound is not None]
    if not all(map(is_plain, (*bounds, *constraint.excluded))):
        return lambda value: (
            kind_of_attribute(value) is ValueKind.NUMBER and number_satisfies(value, constraint)
        )
    return _compile_plain_range(constraint)


def _compile_number_set(values: tuple[Any, ...]) -> Check:
    """Test membership by hash: integers compare with exact literals as they are, with double literals as doubles."""
    exact = frozenset(value for value in values if is_plain(value) or not isinstance(value, float))
    doubles = frozenset(value for value in values if not is_plain(value) and isinstance(value, float))
    nearest = frozenset(as_double(value) for value in values)

    def check(value: Any) -> bool:
        if kind_of_attribute(value) is not ValueKind.NUMBER:
            return False
        if isinstance(value, float):
            return value in nearest
        return value in exact or (bool(doubles) and as_double(value) in doubles)

    return check


def _compile_plain_range(constraint: Constraint) -> Check:
    """Write the comparisons so that NaN is above all numbers: `value <= low` and `value < high` are false for it."""
    low: Any = constraint.low
    high: Any = constraint.high
    low_open, high_open = constraint.low_open, constraint.high_open
    excluded = frozenset(constraint.excluded)

    def check(value: Any) -> bool:
        if kind_of_attribute(value) is not ValueKind.NUMBER:
            return False
        if low is not None and (value <= low if low_open else value < low):
            return False
        if high is not None and not (value < high if high_open else value <= high):
            return False
        return not excluded or value not in excluded

    return check


def _compile_comparison(comparison: ColumnComparison) -> Matcher:
    first, second = sorted((comparison.left, comparison.right))
    allowed = signs_of(comparison)

    def matches(attributes: Mapping[str, Any]) -> bool:
        left: Any = attributes.get(first)
        right: Any = attributes.get(second)
        kind = kind_of_attribute(left)
        if kind is None or kind is not kind_of_attribute(right):
            return False
        sign = compare_values(left, right) if kind is ValueKind.NUMBER else _compare(left, right)
        return bool((LESS, EQUAL, GREATER)[sign + 1] & allowed)

    return matches


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)
