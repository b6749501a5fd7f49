"""The parts of a normalised filter.

A filter in disjunctive normal form is a tuple of `Conjunct`s. A conjunct has `Constraint`s, sorted by attribute, plus
comparisons between two attributes. An attribute has at most one constraint of plain values; each comparison with a
number that is not plain (see `is_plain`) is a separate constraint, because two such comparisons cannot always be
merged. An empty tuple is FALSE, one empty conjunct is TRUE. Negation has been pushed into the constraints, so all that
matters is whether a constraint is true: on NULL (a missing attribute, a value of another kind) it fails unless it
asks for NULL.

Values of different kinds never compare: `size > 10` is NULL for the string '12'. Integers and floats are one
kind and compare as in Spark: with an integer or decimal literal, integers exactly and floats as doubles;
with a double literal, both as doubles; NaN equals itself and is above every other number.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from tidings.core.filters.language.like import Like

Scalar = bool | int | float | str | bytes | None
"""The value of an event's attribute."""

Literal = bool | int | float | Decimal | str | bytes
"""The value that a filter compares with. A Decimal appears only if no int or float is equivalent (see `plain`)."""


class ValueKind(StrEnum):
    NUMBER = "number"
    STRING = "string"
    BOOLEAN = "boolean"
    BYTES = "bytes"


def kind_of(value: Scalar | Decimal) -> ValueKind | None:
    """Return the kind of a value; None for NULL."""
    if value is None:
        return None
    if isinstance(value, bool):
        return ValueKind.BOOLEAN
    if isinstance(value, int | float | Decimal):
        return ValueKind.NUMBER
    if isinstance(value, str):
        return ValueKind.STRING
    return ValueKind.BYTES if isinstance(value, bytes) else None


def value_kind(value: object) -> ValueKind | None:
    """Return the kind of an event's attribute; None for NULL and for types that an attribute cannot have."""
    if isinstance(value, Decimal):
        return None
    return kind_of(value)  # type: ignore[arg-type]


EXACT_LIMIT = 2**53


def plain(literal: int | float | Decimal) -> int | float | Decimal:
    """Return an int or a non-integral float with which every value compares as it does with the literal.

    It exists below 2**53, for an integral literal and for one whose double is not integral. Any other literal is
    returned unchanged, and is not `is_plain`.
    """
    if not -EXACT_LIMIT < literal < EXACT_LIMIT:
        return literal
    if literal == int(literal):
        return int(literal)
    nearest = float(literal)
    return literal if nearest.is_integer() else nearest


def is_plain(literal: Literal) -> bool:
    """Return True if Python compares the literal correctly with int and float values (other than NaN)."""
    if isinstance(literal, Decimal):
        return False
    if isinstance(literal, bool) or not isinstance(literal, int | float):
        return True
    return -EXACT_LIMIT < literal < EXACT_LIMIT


@dataclass(frozen=True, slots=True)
class Constraint:
    """Everything that one conjunct requires of one attribute; all of it must hold.

    `kind` is None for IS NULL (`null` True), IS NOT NULL (`null` False) and IS NOT TRUE or FALSE. The last is
    satisfied by every value except the booleans in `excluded`, and by NULL unless `null` is False. If `values` is
    set, the attribute must equal one of them (=, IN); they are sorted and distinct, and take the other fields into
    account. Otherwise it must lie between `low` and `high` (None: unbounded), differ from each of `excluded`, and,
    for strings, match all `likes` and none of `not_likes`.
    """

    attribute: str
    kind: ValueKind | None = None
    null: bool | None = False
    """Whether the attribute is NULL; None allows both."""
    values: tuple[Literal, ...] | None = None
    low: Literal | None = None
    low_open: bool = False
    high: Literal | None = None
    high_open: bool = False
    excluded: tuple[Literal, ...] = ()
    likes: tuple[Like, ...] = ()
    not_likes: tuple[Like, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    """`left operator right` between two attributes; operator is = != < or <=. Rarely used, never indexed."""

    left: str
    operator: str
    right: str


@dataclass(frozen=True, slots=True)
class Conjunct:
    constraints: tuple[Constraint, ...] = ()
    comparisons: tuple[ColumnComparison, ...] = ()
