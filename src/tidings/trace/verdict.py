"""What a check of a trace says: does a guarantee hold, how often does it not, and the first cases of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

Case = TypeVar("Case")

MAX_WITNESSES = 10


@dataclass(frozen=True, slots=True)
class Witness:
    """One violation, for a reader: a sentence and what it is about."""

    text: str
    events: tuple[str, ...] = ()
    subscribers: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Verdict:
    """`witnesses` are the first violations, at most `MAX_WITNESSES`; `counts` is what else was counted."""

    guarantee: str
    holds: bool
    violations: int
    witnesses: list[Witness] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.holds:
            return f"{self.guarantee}: holds"
        plural = "" if self.violations == 1 else "s"
        return f"{self.guarantee}: {self.violations} violation{plural}, first: {self.witnesses[0]}"


def first_witnesses(cases: Iterable[Case], describe: Callable[[Case], Witness]) -> list[Witness]:
    """Describes the first cases only: a broken trace has millions."""
    return [describe(case) for case in islice(cases, MAX_WITNESSES)]
