"""Expression tree -> disjunctive normal form, under SQL's three-valued logic.

Only 'is it true' matters for a filter, so a node has two readings: where is it true, and where is it false
(the reading under NOT). NULL is neither, and this is why `x = NULL` and its negation both vanish. Negation
moves down to the comparisons in one pass; AND multiplies conjuncts out and stops at the limit, not after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidings.core.errors import FilterError
from tidings.core.filters.language.atoms import FALSE, Disjunction, atom
from tidings.core.filters.language.conjuncts import (
    NormalisationSteps,
    absorb,
    meet,
    merge_equalities,
    settle,
    text_of,
)
from tidings.core.filters.language.expression import And, Expression, InList, Not, Or, depth_of
from tidings.core.filters.language.predicates import Conjunct
from tidings.core.filters.language.steps import OutOfSteps

_SLACK = 1.5
"""How far beyond `max_conjuncts` a set may grow before those that imply another are taken out."""
_STEPS_PER_ATOM = 16


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """What a filter may cost; anything beyond is a FilterError."""

    max_length: int = 16_384
    max_depth: int = 64
    max_conjuncts: int = 256
    max_values: int = 4_096
    max_steps: int = 250_000
    """What multiplying out and comparing may cost (see steps.py): a fifth of a second."""


def normalise(expression: Expression, limits: FilterLimits) -> tuple[Disjunction, str]:
    """The canonical conjuncts of which one must hold, and their text; equal filters usually have equal ones."""
    work = NormalisationSteps(limits.max_steps)
    try:
        return normalise_with(expression, limits, work)
    except OutOfSteps:
        raise FilterError(
            f"the filter takes {work.taken} steps or more to multiply out and compare, "
            f"the limit is {limits.max_steps}"
        ) from None


def normalise_with(
    expression: Expression, limits: FilterLimits, work: NormalisationSteps
) -> tuple[Disjunction, str]:
    """The same; OutOfSteps if it takes more steps than the work has."""
    conjuncts = _Normaliser(limits, work).read(expression.node(), negated=False)
    return conjuncts, " OR ".join(text_of(conjunct, work) for conjunct in conjuncts) or "FALSE"


def check_depth(expression: Expression, limits: FilterLimits) -> None:
    """For trees built in Python; `parse` counts parentheses and NOTs as it meets them."""
    depth = depth_of(expression.node())
    if depth > limits.max_depth:
        raise FilterError(f"the filter is nested {depth} levels deep, the limit is {limits.max_depth}")


class _Normaliser:
    def __init__(self, limits: FilterLimits, work: NormalisationSteps) -> None:
        self._limits = limits
        self._work = work

    def read(self, node: Expression, negated: bool) -> Disjunction:
        """Where the node is true or, negated, where it is false."""
        while isinstance(node, Not):
            node, negated = node.operand, not negated
        if isinstance(node, And | Or):
            parts = [self.read(*part) for part in _flatten(node, negated)]
            return self._either(parts) if isinstance(node, Or) is not negated else self._all(parts)
        self._work.spend(_STEPS_PER_ATOM)
        if isinstance(node, InList):
            self._check_values(len(node.values))
            self._work.spend(2 * len(node.values))
        return atom(node, negated, self._work)

    def _either(self, parts: Iterable[Disjunction]) -> Disjunction:
        conjuncts = self._united([conjunct for part in parts for conjunct in part])
        self._check_conjuncts(len(conjuncts))
        return self._checked(conjuncts)

    def _all(self, parts: list[Disjunction]) -> Disjunction:
        """The product. Single conjuncts come first: they contradict much before it is multiplied out."""
        if FALSE in parts:
            return FALSE
        single = meet([part[0] for part in parts if len(part) == 1], self._work)
        product = FALSE if single is None else self._checked((single,))
        for part in sorted((part for part in parts if len(part) > 1), key=len):
            product = self._multiply(product, part)
        return self._united(product, absorbed=True)

    def _multiply(self, left: Disjunction, right: Disjunction) -> Disjunction:
        found: dict[str, Conjunct] = {}
        for one in left:
            for other in right:
                both = meet((one, other), self._work)
                if both is None:
                    continue
                found[text_of(both, self._work)] = both
                # absorption may shrink the product to the limit; far beyond it we do not try
                self._check_conjuncts(len(found), slack=_SLACK)
        product = self._checked(absorb(found.values(), self._work))
        self._check_conjuncts(len(product))
        return product

    def _united(self, conjuncts: Sequence[Conjunct], absorbed: bool = False) -> Disjunction:
        merged = merge_equalities(conjuncts, self._work)
        self._check_conjuncts(len(merged), slack=_SLACK)
        return settle(merged, self._work, absorbed and len(merged) == len(conjuncts))

    def _checked(self, conjuncts: Disjunction) -> Disjunction:
        for conjunct in conjuncts:
            for constraint in conjunct.constraints:
                self._check_values(max(len(constraint.values or ()), len(constraint.excluded)))
        return conjuncts

    def _check_conjuncts(self, count: int, slack: float = 1) -> None:
        if count > slack * self._limits.max_conjuncts:
            raise FilterError(
                f"the filter has at least {count} alternatives once it is multiplied out, "
                f"the limit is {self._limits.max_conjuncts}"
            )

    def _check_values(self, count: int) -> None:
        if count > self._limits.max_values:
            raise FilterError(
                f"the filter lists {count} values for one attribute, the limit is {self._limits.max_values}"
            )


def _flatten(node: And | Or, negated: bool) -> list[tuple[Expression, bool]]:
    """The operands, with those that act as the same connective (NOT (a AND b) is an OR) opened up."""
    is_or = isinstance(node, Or) is not negated
    parts: list[tuple[Expression, bool]] = []
    pending: list[tuple[Expression, bool]] = [(node, negated)]
    while pending:
        part, flipped = pending.pop()
        while isinstance(part, Not):
            part, flipped = part.operand, not flipped
        if isinstance(part, And | Or) and (isinstance(part, Or) is not flipped) is is_or:
            pending.extend((operand, flipped) for operand in reversed(part.operands))
        else:
            parts.append((part, flipped))
    return parts
