"""Intersects conjuncts, and reduces several to the smallest equivalent set.

The result of `unite` depends on the set of conjuncts, not on their order, so filters that differ only in the order
of their parts are one pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidings.core.filters.language.constraints import intersect, is_loose, sorted_literals
from tidings.core.filters.language.implication import (
    EQUAL,
    GREATER,
    LESS,
    Premise,
    Verdicts,
    implying,
    signs_of,
)
from tidings.core.filters.language.predicates import (
    ColumnComparison,
    Conjunct,
    Constraint,
    Literal,
    ValueKind,
    is_plain,
    kind_of,
)
from tidings.core.filters.language.render import constraint_parts, render_comparison
from tidings.core.filters.language.steps import Steps

_COMPARISONS = {
    EQUAL: ("=", False),
    LESS | GREATER: ("!=", False),
    LESS: ("<", False),
    LESS | EQUAL: ("<=", False),
    GREATER: ("<", True),
    GREATER | EQUAL: ("<=", True),
}
"""For each set of signs that can remain: the operator, and whether the names are swapped."""


class NormalisationSteps(Steps):
    """The steps of normalising one filter, and the results to reuse.

    The conjuncts of a product share most of their constraints. Equal constraints become one object, which is rendered
    once and compared once with each of the others.
    """

    __slots__ = ("_by_text", "_texts", "verdicts")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.verdicts: Verdicts = {}
        self._texts: dict[int, tuple[Constraint, str]] = {}
        """By `id`. The constraint is kept, too, so that no other one gets its `id`."""
        self._by_text: dict[str, Constraint] = {}

    def spell(self, constraint: Constraint) -> str:
        known = self._texts.get(id(constraint))
        if known is not None:
            return known[1]
        text = " AND ".join(constraint_parts(constraint))
        self.spend(3 + (len(text) >> 3))
        self._texts[id(constraint)] = (constraint, text)
        return text

    def shared(self, constraint: Constraint) -> Constraint:
        """Return the one object for all constraints with the same text."""
        return self._by_text.setdefault(self.spell(constraint), constraint)


def text_of(conjunct: Conjunct, work: NormalisationSteps) -> str:
    """Return the conjunct's canonical SQL, the same as `render_conjunct`."""
    work.spend(1 + (len(conjunct.constraints) >> 2) + 3 * len(conjunct.comparisons))
    parts = [work.spell(constraint) for constraint in conjunct.constraints]
    parts += map(render_comparison, conjunct.comparisons)
    text = " AND ".join(parts) or "TRUE"
    work.spend(len(text) >> 9)
    return text


def meet(conjuncts: Sequence[Conjunct], work: NormalisationSteps) -> Conjunct | None:
    """Return the conjunct that holds exactly where all of them hold, or None if they contradict each other."""
    work.spend(10 + 2 * sum(len(one.constraints) + len(one.comparisons) for one in conjuncts))
    comparisons = _meet_comparisons(tuple(c for conjunct in conjuncts for c in conjunct.comparisons))
    if comparisons is None:
        return None
    by_attribute: dict[str, list[Constraint]] = {}
    for conjunct in conjuncts:
        for constraint in conjunct.constraints:
            by_attribute.setdefault(constraint.attribute, []).append(constraint)
    merged: dict[str, tuple[Constraint, ...]] = {}
    for attribute, constraints in by_attribute.items():
        result = intersect(constraints, work)
        if result is None:
            return None
        merged[attribute] = result
    if comparisons and not _consistent(merged, comparisons):
        return None
    ordered = (constraint for attribute in sorted(merged) for constraint in _ordered(merged[attribute], work))
    return Conjunct(tuple(map(work.shared, ordered)), comparisons)


def _ordered(constraints: tuple[Constraint, ...], work: NormalisationSteps) -> Iterable[Constraint]:
    if len(constraints) == 1:
        return constraints
    work.spend(2 * len(constraints))
    return sorted(constraints, key=lambda one: (is_loose(one), work.spell(one)))


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
    """Return the comparison that allows exactly these signs; the names are in alphabetical order."""
    operator, swapped = _COMPARISONS[signs]
    return ColumnComparison(second, operator, first) if swapped else ColumnComparison(first, operator, second)


def _consistent(merged: dict[str, tuple[Constraint, ...]], comparisons: tuple[ColumnComparison, ...]) -> bool:
    """Return False if a compared attribute must be NULL, or the two of different kinds; drop IS NOT NULL."""
    for comparison in comparisons:
        kinds: list[ValueKind] = []
        for name in (comparison.left, comparison.right):
            constraint = merged.get(name, (None,))[0]
            if constraint is None:
                continue
            if constraint.null:
                return False
            if constraint.kind is None and constraint.excluded:
                merged[name] = (replace(constraint, null=None),)
            elif constraint.kind is None:
                del merged[name]
            else:
                kinds.append(constraint.kind)
        if len(kinds) == 2 and kinds[0] is not kinds[1]:
            return False
    return True


def absorb(conjuncts: Iterable[Conjunct], work: NormalisationSteps) -> tuple[Conjunct, ...]:
    """Remove conjuncts that imply another one; of equivalent ones, keep the first by text."""
    # `text_of` also makes `work` keep all constraints, as `Verdicts` requires
    by_text = {text_of(conjunct, work): conjunct for conjunct in conjuncts}
    premises = [Premise(conjunct, work) for _, conjunct in sorted(by_text.items())]
    bits = {premise: 1 << place for place, premise in enumerate(premises)}
    names = _name_bits(premises)
    implied = dict.fromkeys(premises, 0)
    """For each premise, the bits of the others that it implies."""
    for premise, wanted in zip(premises, names, strict=True):
        work.spend(1 + (len(names) * (1 + (wanted.bit_length() >> 9)) >> 3))
        rivals = [rival for rival, mask in zip(premises, names, strict=True) if mask & wanted == wanted]
        rivals.remove(premise)
        for rival in implying(rivals, premise.conjunct, work.verdicts, work):
            implied[rival] |= bits[premise]
    left = (1 << len(premises)) - 1
    for premise in premises:
        if implied[premise] & left:
            left ^= bits[premise]
    return tuple(premise.conjunct for premise in premises if bits[premise] & left)


def _name_bits(premises: list[Premise]) -> list[int]:
    """Return each conjunct's attributes as bits: a conjunct that implies another names all of its attributes."""
    numbers: dict[str, int] = {}
    found = []
    for premise in premises:
        bits = 0
        for name in (*premise.parts, *premise.compared):
            bits |= 1 << numbers.setdefault(name, len(numbers))
        found.append(bits)
    return found


def merge_equalities(conjuncts: Sequence[Conjunct], work: NormalisationSteps) -> tuple[Conjunct, ...]:
    """Merge `x = 1 OR x = 2` into one conjunct. This comes before absorption, which is quadratic."""
    if len(conjuncts) < 2:
        return tuple(conjuncts)
    work.spend(2 * len(conjuncts))
    merged: dict[str, Conjunct] = {}
    groups: dict[tuple[str, str], list[Conjunct]] = {}
    for conjunct in conjuncts:
        first = conjunct.constraints[0] if conjunct.constraints else None
        if first is None or len(conjunct.constraints) > 1 or conjunct.comparisons or first.values is None:
            merged[text_of(conjunct, work)] = conjunct
        else:
            groups.setdefault((first.attribute, value_class(first)), []).append(conjunct)
    for (attribute, _), group in groups.items():
        united = _with_values(group, attribute, work)
        merged[text_of(united, work)] = united
    return tuple(merged.values())


def unite(conjuncts: Sequence[Conjunct], work: NormalisationSteps) -> tuple[Conjunct, ...]:
    """Return the canonical set with the same meaning: absorbed, value sets merged, sorted by text."""
    return settle(merge_equalities(conjuncts, work), work)


def settle(
    conjuncts: Sequence[Conjunct], work: NormalisationSteps, absorbed: bool = False
) -> tuple[Conjunct, ...]:
    """Do the same for conjuncts with merged equalities; if `absorbed`, none of them implies another."""
    if len(conjuncts) < 2:
        return tuple(conjuncts)
    merged = tuple(conjuncts)
    while True:
        kept = merged if absorbed else absorb(merged, work)
        merged = _merge_values(kept, work)
        if len(merged) == len(kept):
            return tuple(sorted(kept, key=lambda conjunct: text_of(conjunct, work)))
        absorbed = False


def _merge_values(conjuncts: tuple[Conjunct, ...], work: NormalisationSteps) -> tuple[Conjunct, ...]:
    """Merge conjuncts that differ only in one value set, one attribute at a time."""
    left = dict(enumerate(conjuncts))
    for name, places in _differing_values(conjuncts, work):
        groups: dict[tuple[str, str], list[int]] = {}
        for place in places:
            if place in left:
                groups.setdefault(_merge_key(left[place], name, work), []).append(place)
        for first, *others in groups.values():
            left[first] = _with_values([left[first], *map(left.pop, others)], name, work)
    return tuple(left.values())


def _differing_values(
    conjuncts: tuple[Conjunct, ...], work: NormalisationSteps
) -> list[tuple[str, list[int]]]:
    """Return, for each attribute, the places of conjuncts that constrain it by a value set only, if the sets differ."""
    found: dict[str, dict[str, list[int]]] = {}
    for place, conjunct in enumerate(conjuncts):
        work.spend(1 + len(conjunct.constraints))
        counts = Counter(constraint.attribute for constraint in conjunct.constraints)
        for constraint in conjunct.constraints:
            if constraint.values is not None and counts[constraint.attribute] == 1:
                by_text = found.setdefault(constraint.attribute, {})
                by_text.setdefault(work.spell(constraint), []).append(place)
    return [
        (name, [place for places in by_text.values() for place in places])
        for name, by_text in sorted(found.items())
        if len(by_text) > 1
    ]


def _merge_key(conjunct: Conjunct, name: str, work: NormalisationSteps) -> tuple[str, str]:
    """Return what two conjuncts with value sets for the attribute must have in common to be merged on it."""
    work.spend(2 + (len(conjunct.constraints) >> 1))
    (mine,) = (constraint for constraint in conjunct.constraints if constraint.attribute == name)
    rest = tuple(constraint for constraint in conjunct.constraints if constraint is not mine)
    return text_of(Conjunct(rest, conjunct.comparisons), work), value_class(mine)


def value_class(constraint: Constraint) -> str:
    """Return the class of a value set: all values of a set have one class, and sets of one class can be merged."""
    return literal_class((constraint.values or constraint.excluded)[0])


def literal_class(literal: Literal) -> str:
    """Return the kind and, for a number that is not plain, its type."""
    kind = str(kind_of(literal))
    return kind if is_plain(literal) else f"{kind} {type(literal).__name__}"


def _with_values(group: list[Conjunct], name: str, work: NormalisationSteps) -> Conjunct:
    if len(group) == 1:
        return group[0]
    sets = [c.values or () for conjunct in group for c in conjunct.constraints if c.attribute == name]
    work.spend(sum(len(conjunct.constraints) for conjunct in group) + 2 * sum(map(len, sets)))
    united = sorted_literals(value for values in sets for value in values)
    return replace(
        group[0],
        constraints=tuple(
            replace(c, values=united) if c.attribute == name else c for c in group[0].constraints
        ),
    )
