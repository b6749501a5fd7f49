"""Decides implication: does everything that satisfies one constraint, conjunct or filter satisfy another?

Always sound: 'yes' is never wrong. Complete for single constraints of equalities, ranges and prefixes. Where it would
have to combine patterns with inner wildcards, or several conjuncts, the answer may be a false 'no'. All work is
counted in `Steps`, whose limit bounds it.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from tidings.core.filters.language.like import Like
from tidings.core.filters.language.number import (
    compare_to_literal,
    high_implies,
    integers_equal_to,
    low_implies,
)
from tidings.core.filters.language.predicates import (
    ColumnComparison,
    Conjunct,
    Constraint,
    Literal,
    ValueKind,
    is_plain,
)
from tidings.core.filters.language.steps import Steps

LESS, EQUAL, GREATER = 1, 2, 4
_SIGNS = {"=": EQUAL, "!=": LESS | GREATER, "<": LESS, "<=": LESS | EQUAL}


def signs_of(comparison: ColumnComparison) -> int:
    """Return the signs of `first - second` that the comparison allows, with the names in alphabetical order."""
    signs = _SIGNS[comparison.operator]
    if comparison.left <= comparison.right:
        return signs
    return signs & EQUAL | (GREATER if signs & LESS else 0) | (LESS if signs & GREATER else 0)


def prefix_above(prefix: str, low: str, is_open: bool) -> bool:
    """Return True if every text with the prefix is above `low` (or equal to it, if not open)."""
    return prefix > low or (prefix == low and not is_open)


def prefix_below(prefix: str, high: str, is_open: bool) -> bool:
    """Return True if every text with the prefix is below `high`; `is_open` is irrelevant, as no text is the longest."""
    return prefix < high and not high.startswith(prefix)


def patterns_apart(one: Like, other: Like) -> bool:
    """Return True if the prefixes alone show that no text matches both."""
    return not one.prefix.startswith(other.prefix) and not other.prefix.startswith(one.prefix)


def implies(mine: Constraint, theirs: Constraint, steps: Steps) -> bool:
    """Return True only if every value that satisfies mine satisfies theirs; both are on one attribute."""
    if mine is theirs:
        return True
    steps.spend(1)
    if mine.kind is not theirs.kind or mine.kind is None:
        return theirs.kind is None and _untyped_implied(mine, theirs)
    if mine.values is not None:
        return _values_imply(mine.values, theirs, steps)
    return theirs.values is None and _range_implies(mine, theirs, steps)


def _untyped_implied(mine: Constraint, theirs: Constraint) -> bool:
    if theirs.null:
        return mine.null is True
    if mine.null:
        return theirs.null is None
    return (theirs.null is None or mine.null is False) and _bars(mine, theirs.excluded)


def _bars(mine: Constraint, booleans: tuple[Literal, ...]) -> bool:
    """Return True if no value that satisfies mine is one of the booleans."""
    if mine.kind is None:
        return set(booleans) <= set(mine.excluded)
    return mine.kind is not ValueKind.BOOLEAN or not set(booleans) & set(mine.values or (False, True))


def _values_imply(values: tuple[Literal, ...], theirs: Constraint, steps: Steps) -> bool:
    listed = theirs.values or ()
    # all numbers of a value set are plain, or none is (see `value_class`)
    if listed and (theirs.kind is not ValueKind.NUMBER or (is_plain(values[0]) and is_plain(listed[0]))):
        steps.spend(len(listed) >> 3)
        return values[0] in listed and frozenset(listed).issuperset(values)
    steps.spend(1 + (len(values) + len(listed) >> 2))
    identities = _identities(listed)
    return all((v, type(v)) in identities or _value_implies(v, theirs, steps) for v in values)


def _identities(literals: tuple[Literal, ...]) -> frozenset[tuple[Literal, type]]:
    """Return the literals with their types: an exact number and a double of the same size differ."""
    return frozenset((literal, type(literal)) for literal in literals)


def _range_implies(mine: Constraint, theirs: Constraint, steps: Steps) -> bool:
    if mine.likes:
        steps.spend(len(mine.likes) >> 1)
    if theirs.low is not None and not _low_implied(mine, theirs.low, theirs.low_open):
        return False
    if theirs.high is not None and not _high_implied(mine, theirs.high, theirs.high_open):
        return False
    if theirs.excluded and not _excluded_implied(mine, theirs.excluded, steps):
        return False
    return not (theirs.likes or theirs.not_likes) or _likes_implied(mine, theirs, steps)


def _excluded_implied(mine: Constraint, excluded: tuple[Literal, ...], steps: Steps) -> bool:
    steps.spend(1 + (len(mine.excluded) + len(excluded) >> 2))
    listed = _identities(mine.excluded)
    is_bounded = mine.low is not None or mine.high is not None or mine.likes or mine.not_likes
    for literal in excluded:
        if (literal, type(literal)) in listed:
            continue
        if not (is_bounded and _rules_out(mine, literal, steps)):
            return False
    return True


def _low_implied(mine: Constraint, low: Any, is_open: bool) -> bool:
    if isinstance(low, str) and any(prefix_above(like.prefix, low, is_open) for like in mine.likes):
        return True
    bound: Any = mine.low
    if bound is None:
        return not is_open and low in ("", b"")
    if type(bound) is type(low) and bound != low and (bound < low or mine.low_open or not is_open):
        return bool(bound > low)
    if mine.kind is ValueKind.NUMBER:
        return low_implies(bound, mine.low_open, low, is_open)
    return bool(bound > low) or (bound == low and (mine.low_open or not is_open))


def _high_implied(mine: Constraint, high: Any, is_open: bool) -> bool:
    if isinstance(high, str) and any(prefix_below(like.prefix, high, is_open) for like in mine.likes):
        return True
    bound: Any = mine.high
    if bound is None:
        return False
    if type(bound) is type(high) and bound != high and (bound > high or mine.high_open or not is_open):
        return bool(bound < high)
    if mine.kind is ValueKind.NUMBER:
        return high_implies(bound, mine.high_open, high, is_open)
    return bool(bound < high) or (bound == high and (mine.high_open or not is_open))


def _rules_out(mine: Constraint, literal: Literal, steps: Steps) -> bool:
    """Return True if the bounds or patterns of mine, which has no `values`, exclude everything equal to the literal."""
    steps.spend(6 + match_steps(mine, literal))
    above = mine.low is not None and _low_implied(mine, literal, True)
    below = mine.high is not None and _high_implied(mine, literal, True)
    if above or below or not isinstance(literal, str):
        return above or below
    return any(not like.matches(literal) for like in mine.likes) or any(
        like.matches(literal) for like in mine.not_likes
    )


def _likes_implied(mine: Constraint, theirs: Constraint, steps: Steps) -> bool:
    for wide in theirs.likes:
        if wide.pattern != "%" and not any(wide.covers(narrow, steps) for narrow in mine.likes):
            return False
    for rejected in theirs.not_likes:
        steps.spend(1 + (len(mine.likes) >> 1))
        apart = any(patterns_apart(like, rejected) for like in mine.likes)
        if not apart and not any(wide.covers(rejected, steps) for wide in mine.not_likes):
            return False
    return True


def _value_implies(literal: Literal, theirs: Constraint, steps: Steps) -> bool:
    """Return True if everything equal to the literal, which is not among their values, satisfies theirs."""
    if theirs.kind is ValueKind.NUMBER:
        return _number_implies(literal, theirs, steps)
    if theirs.values is not None:
        return False
    steps.spend(admit_steps(theirs, literal))
    return admits(theirs, literal)


def match_steps(constraint: Constraint, literal: Literal) -> int:
    """Return the steps it takes to match a string with all patterns of the constraint; 0 for other literals."""
    if not isinstance(literal, str):
        return 0
    length = len(literal)
    return sum(like.match_steps(length) for like in constraint.likes + constraint.not_likes)


def admit_steps(constraint: Constraint, literal: Literal) -> int:
    """Return the steps that `admits` takes."""
    return 1 + (len(constraint.excluded) >> 4) + match_steps(constraint, literal)


def admits(constraint: Constraint, value: Any) -> bool:
    """Return True if all fields except `values` admit the value; all numbers are plain."""
    low: Any = constraint.low
    high: Any = constraint.high
    return (
        (low is None or value > low or (value == low and not constraint.low_open))
        and (high is None or value < high or (value == high and not constraint.high_open))
        and value not in constraint.excluded
        and all(like.matches(value) for like in constraint.likes)
        and not any(like.matches(value) for like in constraint.not_likes)
    )


def _number_implies(literal: Any, theirs: Constraint, steps: Steps) -> bool:
    """Check all values that equal the literal: its double, and a range of integers, of which both ends suffice."""
    steps.spend(6 + 2 * (len(theirs.values or ()) + len(theirs.excluded)))
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
    """Return True if the number satisfies the constraint, whether its literals are plain or not."""
    if constraint.values is not None:
        return any(compare_to_literal(value, literal) == 0 for literal in constraint.values)  # type: ignore[arg-type]
    return (
        _sign(value, constraint.low) >= (1 if constraint.low_open else 0)
        and -_sign(value, constraint.high, missing=-1) >= (1 if constraint.high_open else 0)
        and all(compare_to_literal(value, literal) != 0 for literal in constraint.excluded)  # type: ignore[arg-type]
    )


def _sign(value: int | float, bound: Any, missing: int = 1) -> int:
    return missing if bound is None else compare_to_literal(value, bound)


class Premise:
    """A conjunct, indexed by attribute and by pair of compared attributes."""

    __slots__ = ("compared", "conjunct", "parts", "signs")

    def __init__(self, conjunct: Conjunct, steps: Steps) -> None:
        steps.spend(4 + (len(conjunct.constraints) >> 1) + 2 * len(conjunct.comparisons))
        self.conjunct = conjunct
        self.parts: dict[str, list[Constraint]] = {}
        for constraint in conjunct.constraints:
            self.parts.setdefault(constraint.attribute, []).append(constraint)
        self.signs = {_names(one): signs_of(one) for one in conjunct.comparisons}
        self.compared = frozenset(chain.from_iterable(self.signs))

    def implies_comparisons(self, wanted: tuple[ColumnComparison, ...]) -> bool:
        # if the two are not compared, all signs are possible, and no comparison allows all of them
        return all(not self.signs.get(_names(one), LESS | EQUAL | GREATER) & ~signs_of(one) for one in wanted)


def _names(comparison: ColumnComparison) -> tuple[str, str]:
    """Return the two names in alphabetical order."""
    left, right = comparison.left, comparison.right
    return (left, right) if left <= right else (right, left)


Verdicts = dict[int, dict[int, bool]]
"""Verdicts by `id`: [wanted][constraint] is True if the constraint implies the wanted one. Both must be kept alive."""

_NO_PARTS: list[Constraint] = []


def implying(premises: list[Premise], theirs: Conjunct, verdicts: Verdicts, steps: Steps) -> list[Premise]:
    """Return the premises that imply theirs. Conjuncts share constraints; each pair is compared once."""
    steps.spend(1)
    for wanted in theirs.constraints:
        premises = _implying_one(premises, wanted, verdicts.setdefault(id(wanted), {}), steps)
        if not premises:
            return premises
    if theirs.comparisons:
        steps.spend(1 + len(premises) * len(theirs.comparisons))
        premises = [premise for premise in premises if premise.implies_comparisons(theirs.comparisons)]
    return premises


def _implying_one(
    premises: list[Premise], wanted: Constraint, known: dict[int, bool], steps: Steps
) -> list[Premise]:
    steps.spend(1 + (len(premises) >> 1))
    name, found = wanted.attribute, []
    is_not_null = wanted.kind is None and wanted.null is False and not wanted.excluded
    for premise in premises:
        parts = premise.parts.get(name, _NO_PARTS)
        if len(parts) > 1:
            steps.spend(len(parts) >> 2)
        for constraint in parts:
            verdict = known.get(id(constraint))
            if verdict is None:
                verdict = known[id(constraint)] = implies(constraint, wanted, steps)
            if verdict:
                found.append(premise)
                break
        else:
            if is_not_null and name in premise.compared:
                found.append(premise)
    return found


def pattern_implies(mine: tuple[Conjunct, ...], theirs: tuple[Conjunct, ...], steps: Steps) -> bool:
    """Return True only if every event that satisfies one of mine satisfies one of theirs."""
    verdicts: Verdicts = {}
    for one in mine:
        premise = [Premise(one, steps)]
        if not any(implying(premise, other, verdicts, steps) for other in theirs):
            return False
    return True
