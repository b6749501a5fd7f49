"""Intersects the constraints of one conjunct on one attribute, in canonical form.

`intersect` returns the equivalent canonical constraints, or None if no value can satisfy them. Everything plain
becomes one constraint; a comparison with a number that is not plain stays separate (see predicates.py). Only
contradictions that are cheap to detect are detected: None is always right, but a result may still be unsatisfiable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tidings.core.filters.language.implication import (
    admit_steps,
    admits,
    implies,
    patterns_apart,
    prefix_above,
    prefix_below,
)
from tidings.core.filters.language.like import Like
from tidings.core.filters.language.number import sort_key
from tidings.core.filters.language.predicates import Constraint, Literal, ValueKind, is_plain
from tidings.core.filters.language.steps import Steps

ANYTHING = Like("%")
_LOWEST: dict[ValueKind | None, Literal] = {ValueKind.STRING: "", ValueKind.BYTES: b""}


def is_loose(constraint: Constraint) -> bool:
    """Return True if the constraint compares with a number that is not plain."""
    if constraint.kind is not ValueKind.NUMBER:
        return False
    bounds = [bound for bound in (constraint.low, constraint.high) if bound is not None]
    return not all(map(is_plain, (*(constraint.values or ()), *bounds, *constraint.excluded)))


def sorted_literals(literals: Iterable[Literal]) -> tuple[Literal, ...]:
    """Return the distinct literals, all of one kind, in canonical order."""
    distinct = {(literal, type(literal)): literal for literal in literals}
    numbers: Any = list(distinct.values())
    if numbers and isinstance(numbers[0], str | bytes | bool):
        return tuple(sorted(numbers))
    return tuple(sorted(numbers, key=sort_key))


def intersect(constraints: Sequence[Constraint], steps: Steps) -> tuple[Constraint, ...] | None:
    """Return the canonical constraints that hold exactly where all the given ones, on one attribute, hold."""
    if len(constraints) == 1:
        return tuple(constraints)
    steps.spend(sum(_size(constraint) for constraint in constraints))
    if any(constraint.null for constraint in constraints):
        if any(constraint.null is False for constraint in constraints):
            return None
        return (Constraint(constraints[0].attribute, null=True),)
    untyped = _meet_untyped([constraint for constraint in constraints if constraint.kind is None])
    typed = [constraint for constraint in constraints if constraint.kind is not None]
    if untyped is not None:
        if not typed:
            return (untyped,)
        if untyped.excluded and typed[0].kind is ValueKind.BOOLEAN:
            typed.append(replace(untyped, kind=ValueKind.BOOLEAN, null=False))
    if any(constraint.kind is not typed[0].kind for constraint in typed):
        return None
    tight = [constraint for constraint in typed if not is_loose(constraint)]
    loose = _merge_loose([constraint for constraint in typed if is_loose(constraint)])
    if not tight:
        return _without_implied(loose, steps)
    simple = simplify(_overlay(tight), steps)
    return None if simple is None else _without_implied([simple, *loose], steps)


def _size(constraint: Constraint) -> int:
    """Return the steps it costs to intersect the constraint with others."""
    listed = len(constraint.values or ()) + len(constraint.excluded)
    return 8 + listed + 4 * (len(constraint.likes) + len(constraint.not_likes))


def _meet_untyped(constraints: list[Constraint]) -> Constraint | None:
    """Merge IS NOT NULL, IS NOT TRUE and IS NOT FALSE into one constraint."""
    if len(constraints) < 2:
        return constraints[0] if constraints else None
    return Constraint(
        constraints[0].attribute,
        null=False if any(constraint.null is False for constraint in constraints) else None,
        excluded=sorted_literals(literal for constraint in constraints for literal in constraint.excluded),
    )


def _overlay(constraints: list[Constraint]) -> Constraint:
    """Combine the fields of all constraints; where several set a field, the strictest wins."""
    first = constraints[0]
    values, low, low_open, high, high_open = (
        first.values,
        first.low,
        first.low_open,
        first.high,
        first.high_open,
    )
    for other in constraints[1:]:
        values = _common(values, other.values)
        low, low_open = _stricter(low, low_open, other.low, other.low_open, sign=1)
        high, high_open = _stricter(high, high_open, other.high, other.high_open, sign=-1)
    return Constraint(
        attribute=first.attribute,
        kind=first.kind,
        values=values,
        low=low,
        low_open=low_open,
        high=high,
        high_open=high_open,
        excluded=sorted_literals(literal for constraint in constraints for literal in constraint.excluded),
        likes=_distinct(like for constraint in constraints for like in constraint.likes),
        not_likes=_distinct(like for constraint in constraints for like in constraint.not_likes),
    )


def _common(one: tuple[Literal, ...] | None, other: tuple[Literal, ...] | None) -> tuple[Literal, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    wanted = frozenset(other)
    return tuple(value for value in one if value in wanted)


def _stricter(one: Any, one_open: bool, other: Any, other_open: bool, sign: int) -> tuple[Any, bool]:
    if one is None or other is None:
        return (other, other_open) if one is None else (one, one_open)
    if one == other:
        return one, one_open or other_open
    return (one, one_open) if (one > other) == (sign > 0) else (other, other_open)


def _distinct(likes: Iterable[Like]) -> tuple[Like, ...]:
    return tuple(sorted(set(likes)))


def simplify(constraint: Constraint, steps: Steps) -> Constraint | None:
    """Return the canonical form of one plain constraint, or None if nothing satisfies it."""
    steps.spend(6)
    if constraint.kind is ValueKind.BOOLEAN and constraint.values is None:
        constraint = replace(constraint, values=(False, True))
    if constraint.values is None:
        return _simplify_range(constraint, steps)
    kept = _admitted(constraint, constraint.values, steps)
    return Constraint(constraint.attribute, constraint.kind, values=kept) if kept else None


def _admitted(constraint: Constraint, literals: tuple[Literal, ...], steps: Steps) -> tuple[Literal, ...]:
    kept: list[Literal] = []
    for literal in literals:
        steps.spend(admit_steps(constraint, literal))
        if admits(constraint, literal):
            kept.append(literal)
    return tuple(kept)


def _simplify_range(constraint: Constraint, steps: Steps) -> Constraint | None:
    if not (_prefixes_possible(constraint) and _likes_possible(constraint, steps)):
        return None
    constraint = _tighten(constraint, steps)
    if not _prefixes_possible(constraint):  # checked again: a bound may now be open
        return None
    low: Any = constraint.low
    high: Any = constraint.high
    least = _LOWEST.get(constraint.kind) if low is None else low
    if least is not None and high is not None and least >= high:
        if least > high or constraint.low_open or constraint.high_open:
            return None
        return simplify(replace(constraint, values=(high,)), steps)
    return _settle(constraint)


def _likes_possible(constraint: Constraint, steps: Steps) -> bool:
    """Return False if a pattern that must match is covered by one that must not."""
    accepted = (*constraint.likes, ANYTHING)
    return not any(rejected.covers(like, steps) for rejected in constraint.not_likes for like in accepted)


def _prefixes_possible(constraint: Constraint) -> bool:
    """Return False if the prefixes of the patterns contradict each other or the bounds."""
    if not constraint.likes:
        return True
    longest = max((like.prefix for like in constraint.likes), key=len)
    if not all(longest.startswith(like.prefix) for like in constraint.likes):
        return False
    low, high = constraint.low, constraint.high
    below_low = isinstance(low, str) and prefix_below(longest, low, is_open=True)
    above_high = isinstance(high, str) and prefix_above(longest, high, is_open=not constraint.high_open)
    return not (below_low or above_high)


def _tighten(constraint: Constraint, steps: Steps) -> Constraint:
    """Remove patterns, bounds and excluded values that the rest implies; `>= 5 AND <> 5` becomes `> 5`."""
    if not (constraint.likes or constraint.not_likes or constraint.excluded):
        return constraint
    likes = _without_covering(constraint.likes, steps)
    rejected = _without_covered(constraint.not_likes, steps)
    steps.spend(len(rejected) * len(likes))
    rejected = tuple(one for one in rejected if not any(patterns_apart(one, like) for like in likes))
    low, low_open, high, high_open = (
        constraint.low,
        constraint.low_open,
        constraint.high,
        constraint.high_open,
    )
    for like in likes:
        if isinstance(low, str) and prefix_above(like.prefix, low, is_open=low_open):
            low, low_open = None, False
        if isinstance(high, str) and prefix_below(like.prefix, high, is_open=high_open):
            high, high_open = None, False
    low_open = low_open or (low is not None and low in constraint.excluded)
    high_open = high_open or (high is not None and high in constraint.excluded)
    rest = replace(
        constraint,
        low=low,
        low_open=low_open,
        high=high,
        high_open=high_open,
        excluded=(),
        likes=likes,
        not_likes=rejected,
    )
    return replace(rest, excluded=_admitted(rest, constraint.excluded, steps))


def _settle(constraint: Constraint) -> Constraint:
    """Write 'any string' and 'any bytes' in one way, and leave it out where something else implies the kind."""
    lowest = _LOWEST.get(constraint.kind)
    if lowest is not None and constraint.low == lowest and not constraint.low_open:
        constraint = replace(constraint, low=None)
    if constraint.likes == (ANYTHING,):
        constraint = replace(constraint, likes=())
    bare = constraint.low is None and constraint.high is None
    if bare and not (constraint.excluded or constraint.likes or constraint.not_likes):
        if constraint.kind is ValueKind.STRING:
            return replace(constraint, likes=(ANYTHING,))
        if constraint.kind is ValueKind.BYTES:
            return replace(constraint, low=b"")
    return constraint


def _without_covering(likes: tuple[Like, ...], steps: Steps) -> tuple[Like, ...]:
    return tuple(like for like in likes if not any(o is not like and like.covers(o, steps) for o in likes))


def _without_covered(likes: tuple[Like, ...], steps: Steps) -> tuple[Like, ...]:
    return tuple(like for like in likes if not any(o is not like and o.covers(like, steps) for o in likes))


def _merge_loose(constraints: list[Constraint]) -> list[Constraint]:
    """Merge comparisons with numbers that are not plain: only `<>` can be merged, exact and double separately."""
    collected: dict[bool, list[Literal]] = {}
    kept: list[Constraint] = []
    for constraint in constraints:
        if constraint.excluded:
            collected.setdefault(isinstance(constraint.excluded[0], float), []).extend(constraint.excluded)
        else:
            kept.append(constraint)
    for literals in collected.values():
        kept.append(replace(constraints[0], **_ONLY_EXCLUDED, excluded=sorted_literals(literals)))
    return kept


_ONLY_EXCLUDED: dict[str, Any] = {
    "values": None,
    "low": None,
    "low_open": False,
    "high": None,
    "high_open": False,
}


def _without_implied(constraints: list[Constraint], steps: Steps) -> tuple[Constraint, ...]:
    kept: list[Constraint] = []
    for index, constraint in enumerate(constraints):
        rest = kept + constraints[index + 1 :]
        if not any(implies(other, constraint, steps) for other in rest):
            kept.append(constraint)
    return tuple(kept)
