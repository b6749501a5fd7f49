"""What a filter may cost: steps are counted where time goes, so that no shape of filter takes long.

Nothing here is timed. Calls of functions are counted beside the steps: a loop over pairs, lists or patterns that
spends too little shows as calls that no step stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

import pytest

from tidings.core.errors import FilterError
from tidings.core.filters.language.conjuncts import NormalisationSteps
from tidings.core.filters.language.filter import COVER_STEPS, DEFAULT_LIMITS, Filter
from tidings.core.filters.language.implication import pattern_implies
from tidings.core.filters.language.normalise import FilterLimits, normalise_with
from tidings.core.filters.language.parse import parse
from tidings.core.filters.language.steps import OutOfSteps, Steps

pytestmark = pytest.mark.slow

CALLS_PER_STEP = 12
FEW_STEPS = 50_000
"""Enough to reach the loops over pairs."""
BIG = 10**17
HALF = 8_000
FULL = DEFAULT_LIMITS.max_length


def many(part: Callable[[int], str], glue: str, length: int = FULL) -> str:
    """As many parts as there is room for."""
    parts: list[str] = []
    for number in count():
        text = part(number)
        length -= len(text) + len(glue)
        if length < 0:
            return glue.join(parts)
        parts.append(text)
    raise AssertionError


def few(part: Callable[[int], str], glue: str, parts: int) -> str:
    return glue.join(map(part, range(parts)))


REFUSED = {
    "LIKEs in one conjunct": few(lambda n: f"x LIKE '%{'a_' * 6}{n}%'", " AND ", 480),
    "LIKEs in many conjuncts": few(lambda n: f"(x LIKE '%{'a_' * 20}{n}%' AND y = {n})", " OR ", 200),
    "LIKEs that differ at the end": few(
        lambda n: f"x LIKE '%{'a_' * 20}{chr(98 + n % 16)}_{chr(98 + n // 16)}%'", " OR ", 256
    ),
    "LIKEs that cover each other": few(lambda n: f"x LIKE '%{'a_' * (n // 8)}{chr(97 + n % 8)}%'", " OR ", 256),
    "long LIKEs that differ at the end": few(
        lambda n: f"x LIKE '%{'a_' * 150}{chr(98 + n % 16)}_{chr(98 + n // 16)}%'", " OR ", 40
    ),
    "two long LIKEs": f"x LIKE '%{'a_' * 3_900}b%' AND x LIKE '%{'a_' * 3_900}c%'",
    "LIKE and NOT LIKE": many(lambda n: f"x {'NOT ' * (n % 2)}LIKE '%a_{n}_b%'", " AND "),
    "strings and LIKEs": (
        f"x IN ({many(lambda n: repr(f'a{n}'), ',', HALF)}) AND "
        + many(lambda n: f"x NOT LIKE '%z{n}%'", " AND ", HALF)
    ),
    "ranges of six attributes": few(
        lambda n: "(" + " AND ".join(f"{name} > {n}" for name in "abcde") + f" AND f < {n})", " OR ", 220
    ),
    "a product that absorbs": many(lambda n: f"(a > {n} OR b < {n})", " AND "),
    "a product of long conjuncts": (
        many(lambda n: f"c{n} = 1", " AND ", 15_000) + "".join(f" AND (a{n} OR b{n})" for n in range(8))
    ),
    "lists of what is excluded": few(
        lambda n: f"x NOT IN ({','.join(map(str, range(n, n + 12)))})", " OR ", 256
    ),
    "large numbers": many(lambda n: f"x = {BIG + n}", " AND "),
    "large numbers and doubles": (
        f"x IN ({many(lambda n: str(BIG + n), ',', HALF)}) AND "
        f"x IN ({many(lambda n: f'{BIG + 16 * n}e0', ',', HALF)})"
    ),
    "comparisons": (
        many(lambda n: f"c{n} < d{n}", " AND ", 15_000) + "".join(f" AND (a{n} OR b{n})" for n in range(8))
    ),
}  # fmt: skip

ACCEPTED = {
    "dozens of LIKEs": few(lambda n: f"x NOT LIKE '%{n}%word{n}_%'", " AND ", 60),
    "alternative LIKEs": few(lambda n: f"x LIKE '%{n}_%'", " OR ", 250),
    "prefixes": few(lambda n: f"x LIKE 'a{n}%'", " OR ", 256),
    "LIKEs with ESCAPE": few(lambda n: f"x LIKE '%{'!_a' * 6}{n}%' ESCAPE '!'", " AND ", 300),
    "a thousand values and LIKEs": (
        f"x IN ({few(lambda n: repr(f'a{n}'), ',', 1_000)}) AND "
        + few(lambda n: f"x NOT LIKE '%z{n}%'", " AND ", 20)
    ),
    "a thousand values, 256 times": (
        f"x IN ({few(str, ',', 1_000)})" + "".join(f" AND (a{n} = 1 OR b{n} = 2)" for n in range(8))
    ),
    "a list and what it lacks": (
        f"x IN ({few(str, ',', 1_500)}) AND x NOT IN ({few(lambda n: str(n + 700), ',', 1_500)})"
    ),
    "256 attributes": few(lambda n: f"a{n} = 1", " OR ", 256),
    "256 ranges": few(lambda n: f"x BETWEEN {10 * n} AND {10 * n + 5}", " OR ", 256),
    "256 pairs of ranges": few(lambda n: f"(a > {n} AND b < {n})", " OR ", 256),
    "256 pairs of large ranges": few(lambda n: f"(x > {BIG + n} AND y < {BIG + n})", " OR ", 256),
    "256 lists": few(lambda n: f"(x IN ({n}, {n + 1}, {n + 2}) AND y = {n})", " OR ", 256),
    "256 products": few(lambda n: f"a{n} NOT BETWEEN 1 AND 5", " AND ", 8),
    "256 products of LIKEs": few(lambda n: f"(a{n} LIKE '%x_y%' OR a{n} LIKE '%x_z%')", " AND ", 8),
    "256 times NULL": few(lambda n: f"a{n} <=> b{n}", " AND ", 8),
    "many attributes": many(lambda n: f"a{n} IS NOT TRUE", " AND "),
    "a long string": f"x = '{'é' * 15_000}'" + "".join(f" AND (a{n} OR b{n})" for n in range(8)),
}  # fmt: skip


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    calls = [0]

    def note(frame: object, event: str, argument: object) -> None:
        calls[0] += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("shape", REFUSED)
def test_what_takes_too_many_steps_is_refused(shape: str) -> None:
    assert len(REFUSED[shape]) <= FULL
    with pytest.raises(FilterError, match=r"takes \d+ steps or more .* limit is 250000"):
        Filter(REFUSED[shape])


@pytest.mark.parametrize("shape", ACCEPTED)
def test_what_stays_within_the_documented_limits_is_accepted(shape: str) -> None:
    assert Filter(ACCEPTED[shape]).pattern.conjuncts


@pytest.mark.parametrize("sql", [*REFUSED.values(), *ACCEPTED.values()], ids=[*REFUSED, *ACCEPTED])
def test_no_work_escapes_the_count(sql: str) -> None:
    expression = parse(sql, DEFAULT_LIMITS)
    work = NormalisationSteps(FEW_STEPS)
    with counted_calls() as calls, suppress(OutOfSteps):
        normalise_with(expression, DEFAULT_LIMITS, work)
    assert calls[0] < CALLS_PER_STEP * work.taken


COSTLY = [
    "256 pairs of ranges",
    "256 products",
    "256 lists",
    "prefixes",
    "dozens of LIKEs",
    "a thousand values, 256 times",
    "a list and what it lacks",
    "256 times NULL",
]


@pytest.mark.parametrize("wide", COSTLY)
@pytest.mark.parametrize("narrow", COSTLY)
def test_covering_is_counted_as_well(wide: str, narrow: str) -> None:
    steps = Steps(COVER_STEPS)
    conjuncts = [Filter(ACCEPTED[shape]).pattern.conjuncts for shape in (narrow, wide)]
    with counted_calls() as calls, suppress(OutOfSteps):
        pattern_implies(conjuncts[0], conjuncts[1], steps)
    assert calls[0] < CALLS_PER_STEP * steps.taken


def test_covering_that_takes_too_long_is_denied() -> None:
    wide = Filter(few(lambda n: f"x LIKE '%{'a_' * 20}{chr(98 + n % 16)}%{'_' * n}b%'", " OR ", 30))
    narrow = Filter(
        few(lambda n: f"x LIKE '%{'a_' * 24}{chr(98 + n % 16)}%{'_' * n}b%' AND y = 1", " OR ", 30)
    )
    with pytest.raises(OutOfSteps):
        pattern_implies(narrow.pattern.conjuncts, wide.pattern.conjuncts, Steps(COVER_STEPS))
    assert not wide.covers(narrow)
    assert wide.covers(wide)


def test_the_same_filter_takes_the_same_steps() -> None:
    sql = ACCEPTED["256 products of LIKEs"]
    taken = set()
    for _ in range(2):
        work = NormalisationSteps(DEFAULT_LIMITS.max_steps)
        normalise_with(parse(sql, DEFAULT_LIMITS), DEFAULT_LIMITS, work)
        taken.add(work.taken)
    assert len(taken) == 1
    (steps,) = taken
    assert Filter(sql, limits=FilterLimits(max_steps=steps))
    with pytest.raises(FilterError, match="steps"):
        Filter(sql, limits=FilterLimits(max_steps=steps - 1))
