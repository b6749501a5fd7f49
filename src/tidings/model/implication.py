"""Implication: does everything that satisfies one constraint, conjunct or filter satisfy another?

Always sound: 'yes' is never wrong. Complete for single constraints of equalities, ranges and prefixes; where
patterns with inner wildcards or several conjuncts would have to be combined, the answer may be a false 'no'.
"""

from __future__ import annotations

from typing import Any

from tidings.model.like import Like
from tidings.model.number import compare_to_literal, high_implies, integers_equal_to, low_implies
from tidings.model.predicates import ColumnComparison, Conjunct, Constraint, Kind, Literal, is_plain

LESS, EQUAL, GREATER = 1, 2, 4
_SIGNS = {"=": EQUAL, "!=": LESS | GREATER, "<": LESS, "<=": LESS | EQUAL}


def signs_of(comparison: ColumnComparison) -> int:
    """Which signs of `first - second` the comparison allows, the two names taken in alphabetical order."""
    signs = _SIGNS[comparison.operator]
    if comparison.left <= comparison.right:
        return signs
    return signs & EQUAL | (GREATER if signs & LESS else 0) | (LESS if signs & GREATER else 0)


def prefix_above(prefix: str, low: str, is_open: bool) -> bool:
    """True if every text with the prefix is above `low` (or on it, if not open)."""
    return prefix > low or (prefix == low and not is_open)


def prefix_below(prefix: str, high: str, is_open: bool) -> bool:
    """True if every text with the prefix is below `high`; texts continue for ever, so open or not is one."""
    return prefix < high and not high.startswith(prefix)


def patterns_apart(one: Like, other: Like) -> bool:
    """True if the prefixes already exclude that a text matches both."""
    return not one.prefix.startswith(other.prefix) and not other.prefix.startswith(one.prefix)


def implies(mine: Constraint, theirs: Constraint) -> bool:
    """True only if every value that satisfies mine satisfies theirs; both are on one attribute."""
    if mine.null or theirs.null:
        return mine.null and theirs.null
    if theirs.kind is None:
        return True
    if mine.kind is not theirs.kind:
        return False
    if mine.values is not None:
        listed = _identities(theirs.values or ())
        return all((v, type(v)) in listed or _value_implies(v, theirs) for v in mine.values)
    if theirs.values is not None:
        return False
    if not _low_implied(mine, theirs.low, theirs.low_open):
        return False
    if not _high_implied(mine, theirs.high, theirs.high_open):
        return False
    listed = _identities(mine.excluded)
    if not all((v, type(v)) in listed or _rules_out(mine, v) for v in theirs.excluded):
        return False
    return not (theirs.likes or theirs.not_likes) or _likes_implied(mine, theirs)


def _identities(literals: tuple[Literal, ...]) -> frozenset[tuple[Literal, type]]:
    """The literals with their types: an exact number and a double of its size are two."""
    return frozenset((literal, type(literal)) for literal in literals)


def _low_implied(mine: Constraint, low: Any, is_open: bool) -> bool:
    if low is None:
        return True
    if isinstance(low, str) and any(prefix_above(like.prefix, low, is_open) for like in mine.likes):
        return True
    bound: Any = mine.low
    if bound is None:
        return not is_open and low in ("", b"")
    if type(bound) is type(low) and bound < low:
        return False
    if mine.kind is Kind.NUMBER:
        return low_implies(bound, mine.low_open, low, is_open)
    return bool(bound > low) or (bound == low and (mine.low_open or not is_open))


def _high_implied(mine: Constraint, high: Any, is_open: bool) -> bool:
    if high is None:
        return True
    if isinstance(high, str) and any(prefix_below(like.prefix, high, is_open) for like in mine.likes):
        return True
    bound: Any = mine.high
    if bound is None:
        return False
    if type(bound) is type(high) and bound > high:
        return False
    if mine.kind is Kind.NUMBER:
        return high_implies(bound, mine.high_open, high, is_open)
    return bool(bound < high) or (bound == high and (mine.high_open or not is_open))


def _rules_out(mine: Constraint, literal: Literal) -> bool:
    """True if the bounds or patterns of mine, which has no `values`, exclude all that equals the literal."""
    above = mine.low is not None and _low_implied(mine, literal, True)
    below = mine.high is not None and _high_implied(mine, literal, True)
    if above or below or not isinstance(literal, str):
        return above or below
    return any(not like.matches(literal) for like in mine.likes) or any(
        like.matches(literal) for like in mine.not_likes
    )


def _likes_implied(mine: Constraint, theirs: Constraint) -> bool:
    if not all(
        any(wide.covers(narrow) for narrow in mine.likes) for wide in theirs.likes if wide.pattern != "%"
    ):
        return False
    for rejected in theirs.not_likes:
        apart = any(patterns_apart(like, rejected) for like in mine.likes)
        if not apart and not any(wide.covers(rejected) for wide in mine.not_likes):
            return False
    return True


def _value_implies(literal: Literal, theirs: Constraint) -> bool:
    """True if all that equals the literal, which is not among their values, satisfies theirs."""
    if theirs.kind is Kind.NUMBER:
        return _number_implies(literal, theirs)
    return theirs.values is None and admits(theirs, literal)


def admits(constraint: Constraint, value: Any) -> bool:
    """True if everything but `values` admits the value; all numbers are plain."""
    low: Any = constraint.low
    high: Any = constraint.high
    return (
        (low is None or value > low or (value == low and not constraint.low_open))
        and (high is None or value < high or (value == high and not constraint.high_open))
        and value not in constraint.excluded
        and all(like.matches(value) for like in constraint.likes)
        and not any(like.matches(value) for like in constraint.not_likes)
    )


def _number_implies(literal: Any, theirs: Constraint) -> bool:
    """A number stands for its double and for a run of integers; both ends of the run must satisfy theirs."""
    if theirs.values is not None and is_plain(literal) and all(map(is_plain, theirs.values)):
        return False
    lowest, highest = integers_equal_to(literal)
    members: list[int | float] = [float(literal)]
    if lowest <= highest:
        members += [lowest, highest]
    if highest - lowest > 1 and (theirs.values is not None or theirs.excluded):
        return False
    return all(number_satisfies(member, theirs) for member in members)


def number_satisfies(value: int | float, constraint: Constraint) -> bool:
    """The constraint's meaning for one number, whatever its literals are."""
    if constraint.values is not None:
        return any(compare_to_literal(value, literal) == 0 for literal in constraint.values)  # type: ignore[arg-type]
    return (
        _sign(value, constraint.low) >= (1 if constraint.low_open else 0)
        and -_sign(value, constraint.high, missing=-1) >= (1 if constraint.high_open else 0)
        and all(compare_to_literal(value, literal) != 0 for literal in constraint.excluded)  # type: ignore[arg-type]
    )


def _sign(value: int | float, bound: Any, missing: int = 1) -> int:
    return missing if bound is None else compare_to_literal(value, bound)


def conjunct_implies(mine: Conjunct, theirs: Conjunct) -> bool:
    """True only if every event that satisfies mine satisfies theirs."""
    for wanted in theirs.constraints:
        for constraint in mine.constraints:
            if constraint.attribute == wanted.attribute and implies(constraint, wanted):
                break
        else:
            if wanted.kind is not None or wanted.null or not _compares(mine, wanted.attribute):
                return False
    return all(_comparison_implied(mine, comparison) for comparison in theirs.comparisons)


def _compares(conjunct: Conjunct, name: str) -> bool:
    return any(name in (comparison.left, comparison.right) for comparison in conjunct.comparisons)


def _comparison_implied(mine: Conjunct, wanted: ColumnComparison) -> bool:
    names = {wanted.left, wanted.right}
    allowed = signs_of(wanted)
    return any({o.left, o.right} == names and not signs_of(o) & ~allowed for o in mine.comparisons)


def pattern_implies(mine: tuple[Conjunct, ...], theirs: tuple[Conjunct, ...]) -> bool:
    """True only if every event that satisfies one of mine satisfies one of theirs."""
    return all(any(conjunct_implies(one, other) for other in theirs) for one in mine)
