"""Compares numbers as Spark does, where the types of both sides decide (see predicates.py).

An integer or decimal literal compares exactly with integer values and as the nearest double with float values; a
double literal compares as a double with both. So a literal may divide the integers and the floats at different
numbers: 2**53 + 1 is above 2**53 among the integers and equal to it among the floats. For `is_plain` literals the
two agree, and Python's own operators are right. NaN equals itself and is above all other numbers; no literal is NaN
or infinite.
"""

from __future__ import annotations

from decimal import Decimal
from math import ceil, floor, inf, nextafter

from tidings.core.filters.language.predicates import EXACT_LIMIT, plain

Number = int | float | Decimal


def canonical_number(literal: Number) -> Number:
    """Return the int or float that is equivalent to the literal, or the literal if there is none."""
    if isinstance(literal, Decimal) and literal == literal.to_integral_value():
        literal = int(literal)
    return plain(literal)


def as_double(number: Number) -> float:
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


def compare_to_literal(value: int | float, literal: Number) -> int:
    """Return the sign of `value - literal` for the value of an attribute."""
    if isinstance(literal, float) and isinstance(value, int):
        value = as_double(value)
    elif isinstance(value, float):
        literal = as_double(literal)
    return compare_same(value, literal)


def compare_literals(left: Number, right: Number) -> int:
    """Return the sign of `left - right` for two literals."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = as_double(left), as_double(right)
    return compare_same(left, right)


def compare_values(left: int | float, right: int | float) -> int:
    """Return the sign of `left - right` for the values of two attributes."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = as_double(left), as_double(right)
    return compare_same(left, right)


def compare_same(left: Number, right: Number) -> int:
    """Return the sign of `left - right` for two numbers that need no conversion; NaN is last."""
    if left == right:
        return 0
    if left != left:
        return 0 if right != right else 1
    return -1 if right != right or left < right else 1


def sort_key(literal: Number) -> tuple[Number, bool]:
    """Return a key that sorts literals, with an exact one before the double of the same size: the two differ."""
    return (literal, isinstance(literal, float))


def integers_equal_to(literal: Number) -> tuple[int, int]:
    """Return the lowest and the highest integer that equal the literal; lowest > highest if none does."""
    if not isinstance(literal, float) or abs(literal) < EXACT_LIMIT:
        return ceil(literal), floor(literal)
    middle_below = (int(literal) + _integral(nextafter(literal, -inf), literal)) // 2
    middle_above = (int(literal) + _integral(nextafter(literal, inf), literal)) // 2
    lowest = middle_below if as_double(middle_below) >= literal else middle_below + 1
    highest = middle_above if as_double(middle_above) <= literal else middle_above - 1
    return lowest, highest


def _integral(double: float, otherwise: float) -> int:
    return int(otherwise if double in (-inf, inf) else double)


def least_integer(literal: Number, is_open: bool) -> int:
    """Return the lowest integer with `value > literal` (open) or `value >= literal`."""
    lowest, highest = integers_equal_to(literal)
    return highest + 1 if is_open else lowest


def greatest_integer(literal: Number, is_open: bool) -> int:
    """Return the highest integer with `value < literal` (open) or `value <= literal`."""
    lowest, highest = integers_equal_to(literal)
    return lowest - 1 if is_open else highest


def low_implies(mine: Number, mine_open: bool, theirs: Number, theirs_open: bool) -> bool:
    """Return True if everything above my bound is above theirs."""
    my_double, their_double = as_double(mine), as_double(theirs)
    if my_double < their_double or (my_double == their_double and theirs_open and not mine_open):
        return False
    return least_integer(mine, mine_open) >= least_integer(theirs, theirs_open)


def high_implies(mine: Number, mine_open: bool, theirs: Number, theirs_open: bool) -> bool:
    """Return True if everything below my bound is below theirs."""
    my_double, their_double = as_double(mine), as_double(theirs)
    if my_double > their_double or (my_double == their_double and theirs_open and not mine_open):
        return False
    return greatest_integer(mine, mine_open) <= greatest_integer(theirs, theirs_open)
