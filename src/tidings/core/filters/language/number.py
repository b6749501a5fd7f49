"""How numbers compare: as in Spark, where the types of both sides decide (see predicates.py).

An integer or decimal literal meets integer values exactly and float values as the nearest double; a double
literal meets both as doubles. So a literal cuts the integers and the floats at places that need not be the
same number: 2**53 + 1 lies above 2**53 among the integers and on it among the floats. `is_plain` literals are
those where the two places agree and Python's own operators are right. NaN equals itself and is above all
other numbers; no literal is NaN or infinite.
"""

from __future__ import annotations

from decimal import Decimal
from math import ceil, floor, inf, nextafter

from tidings.core.filters.language.predicates import EXACT_LIMIT, plain

Number = int | float | Decimal


def canonical_number(literal: Number) -> Number:
    """The literal as the int or float it is equivalent to, if there is one."""
    if isinstance(literal, Decimal) and literal == literal.to_integral_value():
        literal = int(literal)
    return plain(literal)


def as_double(number: Number) -> float:
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


def compare_to_literal(value: int | float, literal: Number) -> int:
    """The sign of `value - literal` for an attribute's value."""
    if isinstance(literal, float) and isinstance(value, int):
        value = as_double(value)
    elif isinstance(value, float):
        literal = as_double(literal)
    return compare_same(value, literal)


def compare_literals(left: Number, right: Number) -> int:
    """The sign of `left - right` for two literals."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = as_double(left), as_double(right)
    return compare_same(left, right)


def compare_values(left: int | float, right: int | float) -> int:
    """The sign of `left - right` for two attributes."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = as_double(left), as_double(right)
    return compare_same(left, right)


def compare_same(left: Number, right: Number) -> int:
    """The sign of `left - right` for two numbers that need no conversion, NaN last."""
    if left == right:
        return 0
    if left != left:
        return 0 if right != right else 1
    return -1 if right != right or left < right else 1


def sort_key(literal: Number) -> tuple[Number, bool]:
    """Orders literals; an exact one stands before the double of the same size, from which it differs."""
    return (literal, isinstance(literal, float))


def integers_equal_to(literal: Number) -> tuple[int, int]:
    """The lowest and the highest integer that equal the literal; lowest > highest if none does."""
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
    """The lowest integer with `value > literal` (open) or `value >= literal`."""
    lowest, highest = integers_equal_to(literal)
    return highest + 1 if is_open else lowest


def greatest_integer(literal: Number, is_open: bool) -> int:
    """The highest integer with `value < literal` (open) or `value <= literal`."""
    lowest, highest = integers_equal_to(literal)
    return lowest - 1 if is_open else highest


def low_implies(mine: Number, mine_open: bool, theirs: Number, theirs_open: bool) -> bool:
    """True if everything above my bound is above theirs."""
    my_double, their_double = as_double(mine), as_double(theirs)
    if my_double < their_double or (my_double == their_double and theirs_open and not mine_open):
        return False
    return least_integer(mine, mine_open) >= least_integer(theirs, theirs_open)


def high_implies(mine: Number, mine_open: bool, theirs: Number, theirs_open: bool) -> bool:
    """True if everything below my bound is below theirs."""
    my_double, their_double = as_double(mine), as_double(theirs)
    if my_double > their_double or (my_double == their_double and theirs_open and not mine_open):
        return False
    return greatest_integer(mine, mine_open) <= greatest_integer(theirs, theirs_open)
