"""Builds filters in Python: `(col("size") > 10) & col("subject").like("oil%")`.

The result is the tree that `parse` returns for the same filter in SQL. As in Spark, an int or a Decimal is an exact
literal, a float is a double.
"""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from typing import Any

from tidings.core.errors import FilterError
from tidings.core.filters.language.expression import (
    Column,
    Comparison,
    Expression,
    InList,
    LikeTest,
    NullTest,
    Operand,
    TruthTest,
    Value,
    conjunction,
)
from tidings.core.filters.language.like import ESCAPE, Like
from tidings.core.filters.language.literals import check_decimal, check_list, check_name, check_text
from tidings.core.filters.language.predicates import Literal


class ColumnBuilder(Expression):
    """An attribute to compare. Alone, it is the condition that the attribute is true."""

    __slots__ = ("_column",)

    def __init__(self, name: str) -> None:
        self._column = Column(check_name(name))

    def node(self) -> Expression:
        return self._column

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return Comparison(self._column, "=", _operand(other))

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return Comparison(self._column, "!=", _operand(other))

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: object) -> Expression:
        return Comparison(self._column, "<", _operand(other))

    def __le__(self, other: object) -> Expression:
        return Comparison(self._column, "<=", _operand(other))

    def __gt__(self, other: object) -> Expression:
        return Comparison(self._column, ">", _operand(other))

    def __ge__(self, other: object) -> Expression:
        return Comparison(self._column, ">=", _operand(other))

    def null_safe_equals(self, other: object) -> Expression:
        """`<=>`: like `=`, but NULL equals NULL and nothing else."""
        return Comparison(self._column, "<=>", _operand(other))

    def between(self, low: object, high: object) -> Expression:
        return conjunction(self >= low, self <= high)

    def isin(self, *values: object) -> Expression:
        """`IN`; takes the values, or one list, tuple or set of them."""
        if len(values) == 1 and isinstance(values[0], list | tuple | set | frozenset):
            values = tuple(values[0])
        if not values:
            raise FilterError(f"the list of values for {self._column.name!r} is empty")
        return InList(self._column, check_list(tuple(_literal(value) for value in values)))

    def like(self, pattern: str, escape: str = ESCAPE) -> Expression:
        if not isinstance(pattern, str) or not isinstance(escape, str):
            raise FilterError("LIKE takes a pattern and an escape character, both strings")
        return LikeTest(self._column, Like(check_text(pattern), escape))

    def is_null(self) -> Expression:
        return NullTest(self._column)

    def is_not_null(self) -> Expression:
        return ~NullTest(self._column)

    def is_true(self) -> Expression:
        return TruthTest(self._column, truth=True)

    def is_false(self) -> Expression:
        return TruthTest(self._column, truth=False)

    def __repr__(self) -> str:
        return f"col({self._column.name!r})"


def col(name: str) -> ColumnBuilder:
    """Return the attribute with this name; `topic` is the event's topic."""
    return ColumnBuilder(name)


def _operand(value: object) -> Operand:
    if isinstance(value, ColumnBuilder):
        return value._column
    return Value(_literal(value))


def _literal(value: Any) -> Literal | None:
    if value is None or isinstance(value, bool | bytes):
        return value
    if isinstance(value, str):
        return check_text(value)
    if isinstance(value, int):
        check_decimal(Decimal(value))
        return value
    if isinstance(value, Decimal):
        return check_decimal(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise FilterError(f"{value!r} is not allowed in a filter; use a finite number")
        return value
    raise FilterError(f"a filter cannot compare with {value!r}; use a number, string, boolean, bytes or None")
