"""The workload of the matching benchmark: events of 8 attributes, conjunctions of 2-4 predicates.

Three attributes are categories (tested with =), four are numbers (<, >, ranges), one is text (prefixes). A conjunction
has at least one predicate on a number, whose width is set so that the conjunction matches the wanted share of all
events. Everything is drawn from one seed.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from tidings.core.filters.language.filter import Pattern
from tidings.core.filters.language.like import Like
from tidings.core.filters.language.predicates import Conjunct, Constraint, Scalar, ValueKind

CATEGORIES = ("kind", "location", "provider")
NUMBERS = ("age", "level", "price", "size")
TEXT = "subject"
ATTRIBUTES = (*CATEGORIES, *NUMBERS, TEXT)
NUMBER_LIMIT = 1_000_000
SUBJECTS = sorted(f"{a}{b}{c}" for a in "acehilnorstu" for b in "aeioulnr" for c in "abdefgklmnprst")

Interval = tuple[int, int, int]
"""A predicate as the candidates see it: attribute number, lowest and highest code, both included."""


@dataclass
class Workload:
    """The conjunctions, both as patterns and as intervals over codes for the candidates."""

    intervals: list[tuple[Interval, ...]]
    events: list[dict[str, Scalar]]
    codes: np.ndarray
    """[event, attribute]: the value, or its rank among all values of a category or text."""

    def patterns(self) -> list[Pattern]:
        return [Pattern((_conjunct(parts),)) for parts in self.intervals]


def make_workload(size: int, selectivity: float, events: int, seed: int = 1) -> Workload:
    random = np.random.default_rng(seed)
    cards = category_sizes(selectivity)
    intervals = [_conjunction(random, cards, selectivity) for _ in range(size)]
    codes = np.empty((events, len(ATTRIBUTES)), np.int64)
    for number, name in enumerate(ATTRIBUTES):
        codes[:, number] = random.integers(0, _code_count(name, cards), events)
    return Workload(intervals, [_event(row) for row in codes.tolist()], codes)


def category_sizes(selectivity: float) -> tuple[int, int, int]:
    """Return how many values the categories have: few where many filters should match."""
    return (4, 8, 16) if selectivity >= 0.001 else (10, 40, 160)


def _code_count(name: str, cards: tuple[int, int, int]) -> int:
    if name in CATEGORIES:
        return cards[CATEGORIES.index(name)]
    return len(SUBJECTS) if name == TEXT else NUMBER_LIMIT


def _conjunction(
    random: np.random.Generator, cards: tuple[int, int, int], selectivity: float
) -> tuple[Interval, ...]:
    count = int(random.integers(2, 5))
    chosen = random.permutation(len(ATTRIBUTES))[:count].tolist()
    numbers = [number for number in chosen if ATTRIBUTES[number] in NUMBERS]
    if not numbers:
        numbers = [len(CATEGORIES) + int(random.integers(0, len(NUMBERS)))]
        chosen[0] = numbers[0]
    share = selectivity
    parts: list[Interval] = []
    for number in chosen:
        if number < len(CATEGORIES):
            code = int(random.integers(0, cards[number]))
            parts.append((number, code, code))
            share *= cards[number]
        elif ATTRIBUTES[number] == TEXT:
            low, high = _prefix_codes(SUBJECTS[int(random.integers(0, len(SUBJECTS)))], random)
            parts.append((number, low, high))
            share *= len(SUBJECTS) / (high - low + 1)
    each = min(share ** (1 / len(numbers)), 0.9)
    parts += [_number_interval(number, each, random) for number in numbers]
    return tuple(sorted(parts))


def _prefix_codes(subject: str, random: np.random.Generator) -> tuple[int, int]:
    prefix = subject[: int(random.integers(1, 3))]
    low = bisect.bisect_left(SUBJECTS, prefix)
    return low, bisect.bisect_left(SUBJECTS, prefix + "~") - 1


def _number_interval(number: int, share: float, random: np.random.Generator) -> Interval:
    width = max(1, round(share * NUMBER_LIMIT * random.uniform(0.8, 1.2)))
    width = min(width, NUMBER_LIMIT - 1)
    operator = int(random.integers(0, 3))
    if operator == 0:
        return (number, 0, width - 1)
    if operator == 1:
        return (number, NUMBER_LIMIT - width, NUMBER_LIMIT - 1)
    low = int(random.integers(0, NUMBER_LIMIT - width))
    return (number, low, low + width - 1)


def _event(codes: list[int]) -> dict[str, Scalar]:
    event: dict[str, Scalar] = {}
    for name, code in zip(ATTRIBUTES, codes, strict=True):
        if name in CATEGORIES:
            event[name] = f"{name}{code:03d}"
        else:
            event[name] = SUBJECTS[code] if name == TEXT else code
    return event


def _conjunct(parts: tuple[Interval, ...]) -> Conjunct:
    return Conjunct(tuple(sorted(map(_constraint, parts), key=lambda constraint: constraint.attribute)))


def _constraint(part: Interval) -> Constraint:
    number, low, high = part
    name = ATTRIBUTES[number]
    if name in CATEGORIES:
        return Constraint(name, ValueKind.STRING, values=(f"{name}{low:03d}",))
    if name == TEXT:
        first, last = SUBJECTS[low], SUBJECTS[high]
        shared = next(n for n in range(4) if n == 3 or first[n] != last[n])
        return Constraint(name, ValueKind.STRING, likes=(Like(first[:shared] + "%"),))
    return Constraint(
        name,
        ValueKind.NUMBER,
        low=None if low == 0 else low - 1,
        low_open=low != 0,
        high=None if high == NUMBER_LIMIT - 1 else high + 1,
        high_open=high != NUMBER_LIMIT - 1,
    )
