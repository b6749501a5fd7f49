"""Holds the result of a check: whether a guarantee holds, how many violations there are, and the first of them.

A check may run on parts of a trace, each with whole subscribers. Each part gives a `Found`, and `verdict_of` merges
them into the result of one check of everything. Hence each case has a key that places it among all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")

MAX_WITNESSES = 10


@dataclass(frozen=True, slots=True)
class Witness:
    """Describes one violation to a reader: a sentence and what it is about."""

    text: str
    events: tuple[str, ...] = ()
    subscribers: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check. `witnesses` has the first violations, at most `MAX_WITNESSES`."""

    guarantee: str
    holds: bool
    violations: int
    witnesses: list[Witness] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)
    note: str = ""
    """What the check left out, and why."""

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        if self.holds:
            return f"{self.guarantee}: holds{note}"
        plural = "" if self.violations == 1 else "s"
        return f"{self.guarantee}: {self.violations} violation{plural}{note}, first: {self.witnesses[0]}"


class Case(NamedTuple):
    """A violation with its sort key among all violations of the guarantee."""

    key: tuple[int, ...]
    witness: Witness


class Found(NamedTuple):
    """Holds the violations in a part of a trace: how many, and the first of them by key."""

    violations: int
    cases: Sequence[Case] = ()
    counts: Mapping[str, int] = {}


def first_cases(items: Iterable[Item], describe: Callable[[Item], Case]) -> list[Case]:
    """Describe only the first items: a broken trace has millions."""
    return [describe(item) for item in islice(items, MAX_WITNESSES)]


def verdict_of(guarantee: str, parts: Iterable[Found]) -> Verdict:
    """Return the verdict on all parts together."""
    parts = list(parts)
    violations = sum(part.violations for part in parts)
    cases = merge(*(part.cases for part in parts), key=lambda case: case.key)
    counts: dict[str, int] = {}
    for part in parts:
        for name, count in part.counts.items():
            counts[name] = counts.get(name, 0) + count
    witnesses = [case.witness for case in islice(cases, MAX_WITNESSES)]
    return Verdict(guarantee, violations == 0, violations, witnesses, counts)
