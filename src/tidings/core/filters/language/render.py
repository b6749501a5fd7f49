"""Renders a normalised filter as SQL text that is valid in Spark and that `parse` reads back as an equal pattern.

The text identifies the pattern, so every choice here is fixed: order, spelling, quoting.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from tidings.core.filters.language.predicates import (
    ColumnComparison,
    Conjunct,
    Constraint,
    Literal,
    ValueKind,
    is_plain,
)

GRAMMAR = frozenset({"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"})
"""The keywords of filters."""

REFUSED = frozenset(
    {"CASE", "CAST", "DISTINCT", "DIV", "EXISTS", "ILIKE", "INTERVAL", "REGEXP", "RLIKE", "SELECT"}
    | {
        "CURRENT_CATALOG",
        "CURRENT_DATABASE",
        "CURRENT_DATE",
        "CURRENT_PATH",
        "CURRENT_SCHEMA",
        "CURRENT_TIME",
    }
    | {"CURRENT_TIMESTAMP", "CURRENT_USER", "LOCALTIMESTAMP", "SESSION_USER"}
)
"""Keywords of Spark that filters do not support. Like `GRAMMAR`, they name an attribute only in backticks."""

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

MAX_DECIMAL_PLACES = 18
"""Spark rounds a decimal with more places before it compares it with an integer."""

_RESERVED = GRAMMAR | REFUSED
_SIMPLE_START = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_SIMPLE = _SIMPLE_START | frozenset("0123456789")
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"})


def is_bare_name(name: str) -> bool:
    """Return True if the name needs no backticks."""
    simple = bool(name) and name[0] in _SIMPLE_START and _SIMPLE.issuperset(name)
    return simple and name.upper() not in _RESERVED


def render_name(name: str) -> str:
    return name if is_bare_name(name) else "`" + name.replace("`", "``") + "`"


def render_string(text: str) -> str:
    """Return a string literal. `${` is escaped, because Spark substitutes variables before it parses."""
    return "'" + text.translate(_ESCAPES).replace("${", "$\\u007B") + "'"


def render_literal(literal: Literal) -> str:
    if isinstance(literal, bool):
        return "TRUE" if literal else "FALSE"
    if isinstance(literal, str):
        return render_string(literal)
    if isinstance(literal, bytes):
        return f"X'{literal.hex().upper()}'"
    if isinstance(literal, int):
        return str(literal)
    if isinstance(literal, Decimal):
        return f"{literal:f}"
    return _render_float(literal)


def _render_float(literal: float) -> str:
    """Write a plain float as a decimal and any other as a double, with an exponent."""
    text = repr(literal).upper()
    if "E" in text:
        return text
    places = len(text.partition(".")[2])
    return text if is_plain(literal) and places <= MAX_DECIMAL_PLACES else text + "E0"


def render_pattern(conjuncts: tuple[Conjunct, ...]) -> str:
    return " OR ".join(render_conjunct(conjunct) for conjunct in conjuncts) or "FALSE"


def render_conjunct(conjunct: Conjunct) -> str:
    parts = [part for constraint in conjunct.constraints for part in constraint_parts(constraint)]
    parts += [render_comparison(comparison) for comparison in conjunct.comparisons]
    return " AND ".join(parts) or "TRUE"


def render_comparison(comparison: ColumnComparison) -> str:
    operator = "<>" if comparison.operator == "!=" else comparison.operator
    return f"{render_name(comparison.left)} {operator} {render_name(comparison.right)}"


def constraint_parts(constraint: Constraint) -> list[str]:
    """Return the comparisons of a constraint, each as text."""
    name = render_name(constraint.attribute)
    if constraint.kind is None:
        tests = [] if constraint.null is None else ["IS NULL" if constraint.null else "IS NOT NULL"]
        tests += [f"IS NOT {render_literal(literal)}" for literal in constraint.excluded]
        return [f"{name} {test}" for test in tests]
    if constraint.values is not None:
        return [_equality(name, constraint.kind, constraint.values)]
    parts = []
    if constraint.low is not None:
        parts.append(f"{name} {'>' if constraint.low_open else '>='} {render_literal(constraint.low)}")
    if constraint.high is not None:
        parts.append(f"{name} {'<' if constraint.high_open else '<='} {render_literal(constraint.high)}")
    if _beyond_long(constraint.low) or _beyond_long(constraint.high):
        parts.append(f"{name} IS NOT NULL")
    if len(constraint.excluded) == 1:
        parts.append(f"{name} <> {render_literal(constraint.excluded[0])}")
    elif constraint.excluded:
        parts.append(f"{name} NOT IN ({_listed(constraint.excluded)})")
    parts += [f"{name} LIKE {render_string(like.to_sql())}" for like in constraint.likes]
    parts += [f"{name} NOT LIKE {render_string(like.to_sql())}" for like in constraint.not_likes]
    return parts


def _beyond_long(bound: Literal | None) -> bool:
    """Return True if Spark takes the comparison with a long for TRUE unseen, even where the long is NULL."""
    return isinstance(bound, int | Decimal) and not LONG_MIN <= bound <= LONG_MAX


def _equality(name: str, kind: ValueKind, values: tuple[Literal, ...]) -> str:
    if kind is ValueKind.BOOLEAN and len(values) == 1:
        return name if values[0] else f"NOT {name}"
    if len(values) == 1:
        return f"{name} = {render_literal(values[0])}"
    return f"{name} IN ({_listed(values)})"


def _listed(literals: Iterable[Literal]) -> str:
    return ", ".join(render_literal(literal) for literal in literals)
