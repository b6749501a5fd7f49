"""Conjuncts: their intersection, and the smallest equivalent set of several.

`unite` depends only on the set of conjuncts it is given, not on their order, so that filters written in
another order become one pattern.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidings.model.constraints import intersect, is_loose, sorted_literals
from tidings.model.implication import EQUAL, GREATER, LESS, conjunct_implies, signs_of
from tidings.model.predicates import ColumnComparison, Conjunct, Constraint, Kind
from tidings.model.render import constraint_parts, render_conjunct

_COMPARISONS = {
    EQUAL: ("=", False),
    LESS | GREATER: ("!=", False),
    LESS: ("<", False),
    LESS | EQUAL: ("<=", False),
    GREATER: ("<", True),
    GREATER | EQUAL: ("<=", True),
}
"""For each set of signs that can be left over: the operator, and whether the names are swapped."""


def meet(*conjuncts: Conjunct) -> Conjunct | None:
    """The conjunct that holds exactly where all of them hold, or None if that is nowhere."""
    comparisons = _meet_comparisons(tuple(c for conjunct in conjuncts for c in conjunct.comparisons))
    if comparisons is None:
        return None
    by_attribute: dict[str, list[Constraint]] = {}
    for conjunct in conjuncts:
        for constraint in conjunct.constraints:
            by_attribute.setdefault(constraint.attribute, []).append(constraint)
    merged: dict[str, tuple[Constraint, ...]] = {}
    for attribute, constraints in by_attribute.items():
        result = intersect(constraints)
        if result is None:
            return None
        merged[attribute] = result
    if comparisons and not _consistent(merged, comparisons):
        return None
    ordered = (constraint for attribute in sorted(merged) for constraint in _ordered(merged[attribute]))
    return Conjunct(tuple(ordered), comparisons)


def _ordered(constraints: tuple[Constraint, ...]) -> list[Constraint]:
    if len(constraints) == 1:
        return list(constraints)
    return sorted(constraints, key=lambda constraint: (is_loose(constraint), constraint_parts(constraint)))


def _meet_comparisons(comparisons: tuple[ColumnComparison, ...]) -> tuple[ColumnComparison, ...] | None:
    if len(comparisons) < 2:
        return comparisons
    allowed: dict[tuple[str, str], int] = {}
    for comparison in comparisons:
        names = (min(comparison.left, comparison.right), max(comparison.left, comparison.right))
        allowed[names] = allowed.get(names, LESS | EQUAL | GREATER) & signs_of(comparison)
    if not all(allowed.values()):
        return None
    return tuple(comparison_with(first, second, signs) for (first, second), signs in sorted(allowed.items()))


def comparison_with(first: str, second: str, signs: int) -> ColumnComparison:
    """The comparison of two names, in alphabetical order, that allows exactly these signs."""
    operator, swapped = _COMPARISONS[signs]
    return ColumnComparison(second, operator, first) if swapped else ColumnComparison(first, operator, second)


def _consistent(merged: dict[str, tuple[Constraint, ...]], comparisons: tuple[ColumnComparison, ...]) -> bool:
    """False if a compared attribute must be NULL or of another kind than the other; drops IS NOT NULL."""
    for comparison in comparisons:
        kinds: list[Kind] = []
        for name in (comparison.left, comparison.right):
            constraint = merged.get(name, (None,))[0]
            if constraint is None:
                continue
            if constraint.null:
                return False
            if constraint.kind is None:
                del merged[name]
            else:
                kinds.append(constraint.kind)
        if len(kinds) == 2 and kinds[0] is not kinds[1]:
            return False
    return True


def absorb(conjuncts: Iterable[Conjunct]) -> tuple[Conjunct, ...]:
    """Without the conjuncts that imply another one; of equivalent ones the first by its text stays."""
    by_text = {render_conjunct(conjunct): conjunct for conjunct in conjuncts}
    ordered = [(conjunct, frozenset(_names(conjunct))) for _, conjunct in sorted(by_text.items())]
    kept: list[tuple[Conjunct, frozenset[str]]] = []
    for index, (conjunct, names) in enumerate(ordered):
        rivals = kept + ordered[index + 1 :]
        if not any(theirs <= names and conjunct_implies(conjunct, other) for other, theirs in rivals):
            kept.append((conjunct, names))
    return tuple(conjunct for conjunct, _ in kept)


def _names(conjunct: Conjunct) -> list[str]:
    names = [constraint.attribute for constraint in conjunct.constraints]
    return names + [name for c in conjunct.comparisons for name in (c.left, c.right)]


def merge_equalities(conjuncts: Iterable[Conjunct]) -> tuple[Conjunct, ...]:
    """With `x = 1 OR x = 2` as one. This comes before absorption, which is quadratic."""
    listed = tuple(conjuncts)
    if len(listed) < 2:
        return listed
    by_text = {render_conjunct(conjunct): conjunct for conjunct in listed}
    return tuple(_merge_values(by_text, single=True).values())


def unite(conjuncts: Iterable[Conjunct]) -> tuple[Conjunct, ...]:
    """The canonical set with the same meaning: absorbed, value sets merged, sorted by text."""
    equalities = merge_equalities(conjuncts)
    if len(equalities) < 2:
        return equalities
    merged = {render_conjunct(conjunct): conjunct for conjunct in equalities}
    while True:
        kept = {render_conjunct(conjunct): conjunct for conjunct in absorb(merged.values())}
        merged = _merge_values(kept, single=False)
        if len(merged) == len(kept):
            return tuple(conjunct for _, conjunct in sorted(kept.items()))


def _merge_values(conjuncts: dict[str, Conjunct], single: bool) -> dict[str, Conjunct]:
    """Conjuncts that differ in one value set only become one, attribute after attribute."""
    names = sorted({c.attribute for o in conjuncts.values() for c in o.constraints if c.values is not None})
    for name in names:
        groups: dict[tuple[str, str], list[Conjunct]] = {}
        merged: list[Conjunct] = []
        for _, conjunct in sorted(conjuncts.items()):
            key = _merge_key(conjunct, name, single)
            if key is None:
                merged.append(conjunct)
            else:
                groups.setdefault(key, []).append(conjunct)
        merged += [_with_values(group, name) for group in groups.values()]
        conjuncts = {render_conjunct(conjunct): conjunct for conjunct in merged}
    return conjuncts


def _merge_key(conjunct: Conjunct, name: str, single: bool) -> tuple[str, str] | None:
    """What two conjuncts must share to be merged on the attribute; None if this one cannot be."""
    if single and (len(conjunct.constraints) != 1 or conjunct.comparisons):
        return None
    mine = [constraint for constraint in conjunct.constraints if constraint.attribute == name]
    if len(mine) != 1 or mine[0].values is None:
        return None
    rest = replace(conjunct, constraints=tuple(c for c in conjunct.constraints if c is not mine[0]))
    return render_conjunct(rest), value_class(mine[0])


def value_class(constraint: Constraint) -> str:
    """Value sets of one class can be merged: one kind and, for numbers that are not plain, one type."""
    if not is_loose(constraint):
        return str(constraint.kind)
    values = constraint.values or constraint.excluded
    return f"{constraint.kind} {type(values[0]).__name__}"


def _with_values(group: list[Conjunct], name: str) -> Conjunct:
    if len(group) == 1:
        return group[0]
    sets = [c.values or () for conjunct in group for c in conjunct.constraints if c.attribute == name]
    united = sorted_literals(value for values in sets for value in values)
    return replace(
        group[0],
        constraints=tuple(
            replace(c, values=united) if c.attribute == name else c for c in group[0].constraints
        ),
    )
