"""Shapes: the part of a constraint that regions of values can express."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter
from typing import Any

from tidings.core.filters.language.predicates import Constraint, is_plain

LAST_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a constraint that regions can express: one of `values`, or a range without `excluded`.

    It accepts every value that the constraint accepts. If `exact`, it accepts no others.
    """

    exact: bool
    values: tuple[Any, ...] | None = None
    low: Any = None
    low_open: bool = False
    high: Any = None
    high_open: bool = False
    excluded: tuple[Any, ...] = ()

    def references(self) -> tuple[Any, ...]:
        """Return the values at which the shape may change between accepting and rejecting."""
        if self.values is not None:
            return self.values
        ends = tuple(end for end in (self.low, self.high) if end is not None)
        return ends + self.excluded

    @property
    def is_interval(self) -> bool:
        return not self.excluded if self.values is None else len(self.values) == 1

    def number_bounds(self) -> tuple[float, float]:
        """Return the smallest closed interval of doubles with all numbers that this shape accepts.

        Plain numbers are doubles, so an open end becomes the next double.
        """
        if self.values is not None:
            return float(min(self.values)), float(max(self.values))
        return _end(self.low, self.low_open, -inf), _end(self.high, self.high_open, inf)


def _end(bound: Any, is_open: bool, outside: float) -> float:
    if bound is None:
        return outside
    return nextafter(bound, -outside) if is_open else float(bound)


def shape_of(constraint: Constraint) -> Shape:
    """Return the shape of a constraint that has a kind. It leaves out numbers that are not plain."""
    values = constraint.values
    if values is not None and all(map(is_plain, values)):
        return Shape(exact=_is_only_values(constraint), values=values)
    low, low_open = constraint.low, constraint.low_open
    high, high_open = constraint.high, constraint.high_open
    excluded = tuple(value for value in constraint.excluded if is_plain(value))
    exact = values is None and len(excluded) == len(constraint.excluded) and not constraint.not_likes
    if low is not None and not is_plain(low):
        low, exact = None, False
    if high is not None and not is_plain(high):
        high, exact = None, False
    for like in constraint.likes:
        exact = exact and like.is_prefix
        if like.prefix and (low is None or like.prefix > low):  # type: ignore[operator]
            low, low_open = like.prefix, False
        end = prefix_end(like.prefix)
        if end is not None and (high is None or end <= high):  # type: ignore[operator]
            high, high_open = end, True
    return Shape(exact, None, low, low_open, high, high_open, excluded)


def _is_only_values(constraint: Constraint) -> bool:
    return (
        constraint.low is None
        and constraint.high is None
        and not constraint.excluded
        and not constraint.likes
        and not constraint.not_likes
    )


def prefix_end(prefix: str) -> str | None:
    """Return the first string after all those that start with `prefix`; None if there is none."""
    stem = prefix.rstrip(chr(LAST_CODE_POINT))
    return stem[:-1] + chr(ord(stem[-1]) + 1) if stem else None
