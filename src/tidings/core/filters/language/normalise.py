"""Converts an expression tree to disjunctive normal form, under SQL's three-valued logic.

A filter matches only where it is true, so a node has two readings: where is it true, and, under NOT, where is it
false. NULL is neither, so `x = NULL` and its negation both disappear. Negation moves down to the comparisons in one
pass. AND multiplies conjuncts out and stops at the limit, not after it.
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
"""The factor by which a set may exceed `max_conjuncts` before absorption."""
_STEPS_PER_ATOM = 16


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """Limits on the size and cost of a filter; exceeding one is a FilterError."""

    max_length: int = 16_384
    max_depth: int = 64
    max_conjuncts: int = 256
    max_values: int = 4_096
    max_steps: int = 250_000
    """Steps of multiplying out and comparing (see steps.py); the default takes about a fifth of a second."""


def normalise(expression: Expression, limits: FilterLimits) -> tuple[Disjunction, str]:
    """Return the canonical conjuncts, of which one must hold, and their text; usually the same for equal filters."""
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
    """Do the same, but raise OutOfSteps at the limit of the work."""
    conjuncts = _Normaliser(limits, work).read(expression.node(), negated=False)
    return conjuncts, " OR ".join(text_of(conjunct, work) for conjunct in conjuncts) or "FALSE"


def check_depth(expression: Expression, limits: FilterLimits) -> None:
    """Check the depth of a tree built in Python; `parse` counts parentheses and NOTs itself."""
    depth = depth_of(expression.node())
    if depth > limits.max_depth:
        raise FilterError(f"the filter is nested {depth} levels deep, the limit is {limits.max_depth}")


class _Normaliser:
    def __init__(self, limits: FilterLimits, work: NormalisationSteps) -> None:
        self._limits = limits
        self._work = work

    def read(self, node: Expression, negated: bool) -> Disjunction:
        """Return where the node is true or, if negated, where it is false."""
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
        """Return the product. Single conjuncts come first, because they rule out much of it early."""
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
                # absorption may still shrink the product to the limit; far beyond it we give up
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
                f"the filter has at least {count} alternatives when multiplied out, "
                f"the limit is {self._limits.max_conjuncts}"
            )

    def _check_values(self, count: int) -> None:
        if count > self._limits.max_values:
            raise FilterError(
                f"the filter lists {count} values for one attribute, the limit is {self._limits.max_values}"
            )


def _flatten(node: And | Or, negated: bool) -> list[tuple[Expression, bool]]:
    """Return the operands, with nested ones of the same connective (NOT (a AND b) is an OR) expanded."""
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
