"""The expression tree of a filter, which `parse` reads from SQL and `builder` makes in Python.

The tree is what the user wrote; `normalise` gives it its meaning. `&`, `|` and `~` combine expressions.
A `Column` or a `Value` alone is also an expression: a boolean attribute, or TRUE, FALSE or NULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from tidings.core.errors import FilterError
from tidings.core.filters.language.like import Like
from tidings.core.filters.language.predicates import Literal

COMPARISONS = frozenset({"=", "!=", "<", "<=", ">", ">=", "<=>"})


class Expression:
    """Base of all nodes."""

    __slots__ = ()

    def node(self) -> Expression:
        """Return the tree node that this object represents."""
        return self

    def __and__(self, other: Expression) -> Expression:
        return conjunction(self, _checked(other))

    def __or__(self, other: Expression) -> Expression:
        return disjunction(self, _checked(other))

    def __invert__(self) -> Expression:
        return Not(self.node())

    def __bool__(self) -> NoReturn:
        raise FilterError(
            "a filter has no truth value; combine filters with &, | and ~ instead of and, or and not"
        )


@dataclass(frozen=True, slots=True)
class Column(Expression):
    name: str


@dataclass(frozen=True, slots=True)
class Value(Expression):
    """A literal. An int or Decimal is exact; a float is a DOUBLE in Spark; None is NULL."""

    value: Literal | None


Operand = Column | Value


@dataclass(frozen=True, slots=True)
class Comparison(Expression):
    left: Operand
    operator: str
    right: Operand


@dataclass(frozen=True, slots=True)
class InList(Expression):
    """`operand IN (values)`."""

    operand: Operand
    values: tuple[Literal | None, ...]


@dataclass(frozen=True, slots=True)
class LikeTest(Expression):
    """`operand LIKE pattern`; a pattern of None is LIKE NULL."""

    operand: Operand
    pattern: Like | None


@dataclass(frozen=True, slots=True)
class NullTest(Expression):
    """`operand IS NULL`."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class TruthTest(Expression):
    """`operand IS TRUE` or `operand IS FALSE`."""

    operand: Operand
    truth: bool


@dataclass(frozen=True, slots=True)
class Not(Expression):
    operand: Expression


@dataclass(frozen=True, slots=True)
class And(Expression):
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or(Expression):
    operands: tuple[Expression, ...]


def conjunction(*operands: Expression) -> Expression:
    """Combine the operands with AND; chains are kept flat, so that their length adds no depth."""
    nodes = [operand.node() for operand in operands]
    return And(
        tuple(part for node in nodes for part in (node.operands if isinstance(node, And) else (node,)))
    )


def disjunction(*operands: Expression) -> Expression:
    """Combine the operands with OR, kept flat as well."""
    nodes = [operand.node() for operand in operands]
    return Or(tuple(part for node in nodes for part in (node.operands if isinstance(node, Or) else (node,))))


def depth_of(expression: Expression) -> int:
    """Return the nesting depth of NOT, AND and OR, without recursion."""
    deepest = 0
    pending: list[tuple[Expression, int]] = [(expression, 0)]
    while pending:
        node, depth = pending.pop()
        deepest = max(deepest, depth)
        if isinstance(node, Not):
            pending.append((node.operand, depth + 1))
        elif isinstance(node, And | Or):
            pending.extend((operand, depth + 1) for operand in node.operands)
    return deepest


def _checked(other: object) -> Expression:
    if not isinstance(other, Expression):
        raise FilterError(f"{other!r} is not a filter expression; compare it with a column")
    return other
