"""Filters, the conditions of subscriptions.

A `Filter` remembers what the user wrote. Its `Pattern` is what that means: the normal form, identified by its canonical
SQL text, so that equal filters of any subscribers are one pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import ClassVar

from tidings.core.errors import FilterError
from tidings.core.filters.language.evaluate import Matcher, compile_pattern
from tidings.core.filters.language.expression import Expression
from tidings.core.filters.language.implication import pattern_implies
from tidings.core.filters.language.normalise import FilterLimits, check_depth, normalise
from tidings.core.filters.language.parse import parse
from tidings.core.filters.language.predicates import Conjunct, Scalar
from tidings.core.filters.language.render import render_pattern
from tidings.core.filters.language.steps import OutOfSteps, Steps

DEFAULT_LIMITS = FilterLimits()
KEY_BYTES = 16
COVER_STEPS = 25_000
"""Where `covers` would need more, it answers no, which is always safe. Brokers call it often, in many places."""


class Pattern:
    """The canonical form of a filter. Immutable; equal and hashed by its text."""

    __slots__ = ("_matcher", "conjuncts", "key", "text")

    TRUE: ClassVar[Pattern]
    FALSE: ClassVar[Pattern]

    conjuncts: tuple[Conjunct, ...]
    text: str
    """Canonical SQL."""
    key: bytes
    """A hash of the text, 16 bytes long."""
    _matcher: Matcher | None

    def __init__(self, conjuncts: tuple[Conjunct, ...], text: str | None = None) -> None:
        assign = object.__setattr__
        assign(self, "conjuncts", conjuncts)
        assign(self, "text", render_pattern(conjuncts) if text is None else text)
        assign(self, "key", blake2b(self.text.encode(), digest_size=KEY_BYTES).digest())
        assign(self, "_matcher", None)

    def matches(self, attributes: Mapping[str, Scalar]) -> bool:
        """Return True if the filter is true for the attributes; a missing attribute is NULL."""
        matcher = self._matcher
        if matcher is None:
            matcher = compile_pattern(self.conjuncts)
            object.__setattr__(self, "_matcher", matcher)
        return matcher(attributes)

    def covers(self, other: Pattern) -> bool:
        """Return True only if this pattern matches every event that `other` matches; False may be wrong."""
        if self.text == other.text:
            return True
        try:
            return pattern_implies(other.conjuncts, self.conjuncts, Steps(COVER_STEPS))
        except OutOfSteps:
            return False

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Pattern cannot be changed ({name})")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Pattern cannot be changed ({name})")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def __reduce__(self) -> tuple[type[Pattern], tuple[tuple[Conjunct, ...]]]:
        return Pattern, (self.conjuncts,)


Pattern.TRUE = Pattern((Conjunct(),))
Pattern.FALSE = Pattern(())


class Filter:
    """A condition on an event's topic and attributes, written in SQL or built with `col`."""

    __slots__ = ("pattern", "sql")

    sql: str
    """The filter as the user wrote it; canonical if it was built with `col`."""
    pattern: Pattern

    def __init__(self, sql: str | Expression, *, limits: FilterLimits = DEFAULT_LIMITS) -> None:
        if isinstance(sql, str):
            self.pattern = _pattern_of(sql, limits)
            self.sql = sql
        elif isinstance(sql, Expression):
            check_depth(sql, limits)
            self.pattern = _normalised(sql, limits)
            self.sql = self.pattern.text
        else:
            raise FilterError(f"a filter is SQL text or an expression of col(), not {type(sql).__name__}")

    def matches(self, attributes: Mapping[str, Scalar]) -> bool:
        """Return True if the filter is true for the attributes; a missing attribute is NULL."""
        return self.pattern.matches(attributes)

    def covers(self, other: Filter) -> bool:
        """Return True only if this filter matches every event that `other` matches; False may be wrong."""
        return self.pattern.covers(other.pattern)

    def to_sql(self) -> str:
        """Return canonical SQL with the same meaning, valid in Spark."""
        return self.pattern.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.pattern == other.pattern

    def __hash__(self) -> int:
        return hash(self.pattern)

    def __repr__(self) -> str:
        return f"Filter({self.sql!r})"


def _normalised(expression: Expression, limits: FilterLimits) -> Pattern:
    try:
        return Pattern(*normalise(expression, limits))
    except RecursionError:
        raise FilterError("the filter is nested too deeply for the stack that is left") from None


@lru_cache(maxsize=4_096)
def _pattern_of(sql: str, limits: FilterLimits) -> Pattern:
    try:
        return _normalised(parse(sql, limits), limits)
    except RecursionError:
        raise FilterError("the filter is nested too deeply for the stack that is left") from None
