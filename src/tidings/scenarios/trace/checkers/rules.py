"""What checkers with several rules share: the rows that break each rule, put together as one finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

from tidings.scenarios.trace.coded import Array
from tidings.scenarios.trace.verdict import Case, Found, Witness, first_cases

Key = tuple[int, ...]


class BrokenRule(NamedTuple):
    """Holds the rows that break one rule; `place` returns a row's sort key among them."""

    rule: str
    rows: Array
    describe: Callable[[str, int], Witness]
    place: Callable[[int], Key]


def found_by_rules(broken: Sequence[BrokenRule], first_rule: int = 0) -> Found:
    """Return all violations, rule by rule; the first rule has number `first_rule` among those of the guarantee."""
    numbered = enumerate(broken, first_rule)
    cases = chain.from_iterable(((rule, case, int(row)) for row in case.rows) for rule, case in numbered)

    def describe(item: tuple[int, BrokenRule, int]) -> Case:
        rule, case, row = item
        return Case((rule, *case.place(row)), case.describe(case.rule, row))

    return Found(sum(len(case.rows) for case in broken), first_cases(cases, describe))
