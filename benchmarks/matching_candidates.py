"""The simple candidates that the match index is measured against, each over closed intervals of integer codes.

Each is the textbook form of one idea, built once for a fixed set of conjunctions: no insertion, no removal, no kinds,
no NULL. `match(codes)` returns the numbers of the conjunctions that hold for one event.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from compared import compared
from matching_workload import ATTRIBUTES, Interval

numba = compared("numba")
BitMap = compared("pyroaring").BitMap

CHECKPOINTS = 64
"""Bounds on one attribute are kept as this many cumulative bitmaps, and a sorted rest between two of them."""

Conjunctions = list[tuple[Interval, ...]]


def bound_lists(conjunctions: Conjunctions) -> tuple[list, list, list]:
    """Return by attribute: equalities by code, and lower and upper bounds as sorted arrays of codes and numbers."""
    equal = [defaultdict(list) for _ in ATTRIBUTES]
    lows: list[list[tuple[int, int]]] = [[] for _ in ATTRIBUTES]
    highs: list[list[tuple[int, int]]] = [[] for _ in ATTRIBUTES]
    for number, parts in enumerate(conjunctions):
        for attribute, low, high in parts:
            if low == high:
                equal[attribute][low].append(number)
            else:
                lows[attribute].append((low, number))
                highs[attribute].append((high, number))
    return equal, [_sorted(pairs) for pairs in lows], [_sorted(pairs) for pairs in highs]


def _sorted(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    ordered = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    return ordered[:, 0].copy(), ordered[:, 1].copy()


class Counting:
    """Counts the satisfied predicates of each conjunction with bincount; equality counts as two bounds."""

    def __init__(self, conjunctions: Conjunctions) -> None:
        equal, self.lows, self.highs = bound_lists(conjunctions)
        self.equal = [{code: np.repeat(found, 2) for code, found in codes.items()} for codes in equal]
        self.needed = np.array([2 * len(parts) for parts in conjunctions])

    def match(self, codes: list[int]) -> list[int]:
        satisfied = []
        for attribute, code in enumerate(codes):
            if code in self.equal[attribute]:
                satisfied.append(self.equal[attribute][code])
            low_codes, low_numbers = self.lows[attribute]
            satisfied.append(low_numbers[: low_codes.searchsorted(code, "right")])
            high_codes, high_numbers = self.highs[attribute]
            satisfied.append(high_numbers[high_codes.searchsorted(code) :])
        counts = np.bincount(np.concatenate(satisfied), minlength=len(self.needed))
        return (counts == self.needed).nonzero()[0].tolist()


class Roaring:
    """Keeps a roaring bitmap per equality and per checkpoint of the bounds, and intersects what each attribute
    allows."""

    def __init__(self, conjunctions: Conjunctions) -> None:
        everyone = BitMap(range(len(conjunctions)))
        equal, lows, highs = bound_lists(conjunctions)
        self.steps = []
        for attribute in range(len(ATTRIBUTES)):
            low_free = everyone - BitMap(lows[attribute][1]) - _union(equal[attribute])
            high_free = everyone - BitMap(highs[attribute][1])
            self.steps.append(
                (
                    {code: BitMap(found) for code, found in equal[attribute].items()},
                    _Cumulative(*lows[attribute], low_free),
                    _Cumulative(-highs[attribute][0][::-1], highs[attribute][1][::-1].copy(), high_free),
                )
            )

    def match(self, codes: list[int]) -> list[int]:
        allowed = []
        for code, (equal, lows, highs) in zip(codes, self.steps, strict=True):
            low = lows.upto(code)
            if code in equal:
                low |= equal[code]
            allowed.append(low)
            if len(highs.codes):
                allowed.append(highs.upto(-code))
        allowed.sort(key=len)
        return list(BitMap.intersection(*allowed))


def _union(bitmaps: dict[int, list[int]]) -> BitMap:
    return BitMap.union(BitMap(), *(BitMap(found) for found in bitmaps.values()))


class _Cumulative:
    """For sorted codes: the conjunctions at or below a code, plus those without this bound."""

    def __init__(self, codes: np.ndarray, numbers: np.ndarray, free: BitMap) -> None:
        self.codes, self.numbers = codes, numbers
        self.step = max(1, -(-len(codes) // CHECKPOINTS))
        self.points = [free]
        for start in range(0, len(codes), self.step):
            self.points.append(self.points[-1] | BitMap(numbers[start : start + self.step]))

    def upto(self, code: int) -> BitMap:
        place = int(self.codes.searchsorted(code, "right"))
        point = place // self.step
        return self.points[point] | BitMap(self.numbers[point * self.step : place])


class Bitsets:
    """The same with plain bitsets, intersected starting from the most selective."""

    def __init__(self, conjunctions: Conjunctions) -> None:
        self.size = len(conjunctions)
        equal, lows, highs = bound_lists(conjunctions)
        self.steps = []
        for attribute in range(len(ATTRIBUTES)):
            free = np.ones(self.size, np.bool_)
            for found in equal[attribute].values():
                free[found] = False
            free[lows[attribute][1]] = False
            below = (lows[attribute][0], lows[attribute][1])
            above = (-highs[attribute][0][::-1], highs[attribute][1][::-1].copy())
            high_free = np.ones(self.size, np.bool_)
            high_free[highs[attribute][1]] = False
            self.steps.append(
                (
                    {code: np.array(found) for code, found in equal[attribute].items()},
                    _CumulativeBits(*below, free),
                    _CumulativeBits(*above, high_free),
                )
            )

    def match(self, codes: list[int]) -> list[int]:
        allowed = []
        for code, (equal, lows, highs) in zip(codes, self.steps, strict=True):
            allowed.append(lows.upto(code, equal.get(code)))
            if len(highs.codes):
                allowed.append(highs.upto(-code, None))
        allowed.sort(key=lambda pair: pair[0])
        result = allowed[0][1]
        for _, bits in allowed[1:]:
            np.bitwise_and(result, bits, out=result)
        words = result.nonzero()[0]
        flags = np.unpackbits(result[words].view(np.uint8), bitorder="little").nonzero()[0]
        return ((words[flags >> 6] << 6) | (flags & 63)).tolist()


class _CumulativeBits:
    def __init__(self, codes: np.ndarray, numbers: np.ndarray, free: np.ndarray) -> None:
        self.codes, self.numbers = codes, numbers
        self.step = max(1, -(-len(codes) // CHECKPOINTS))
        self.free_count = int(free.sum())
        flags = free.copy()
        self.points = [_packed(flags)]
        for start in range(0, len(codes), self.step):
            flags[numbers[start : start + self.step]] = True
            self.points.append(_packed(flags))

    def upto(self, code: int, more: np.ndarray | None) -> tuple[int, np.ndarray]:
        place = int(self.codes.searchsorted(code, "right"))
        point = place // self.step
        bits = self.points[point].copy()
        for numbers in (self.numbers[point * self.step : place], more):
            if numbers is not None:
                np.bitwise_or.at(
                    bits, numbers >> 6, np.left_shift(np.uint64(1), (numbers & 63).astype(np.uint64))
                )
        return self.free_count + place, bits


def _packed(flags: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-len(flags) // 64) * 64, np.bool_)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little").view(np.uint64)


class AccessPredicates:
    """Files conjunctions under one of their equalities, and checks candidates one by one in compiled code."""

    def __init__(self, conjunctions: Conjunctions) -> None:
        hung: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, parts in enumerate(conjunctions):
            keys = [(attribute, low) for attribute, low, high in parts if low == high]
            hung[max(keys) if keys else (-1, -1)].append(number)
        self.hung = {key: np.array(found) for key, found in hung.items()}
        self.none = np.zeros(0, np.int64)
        sizes = [len(parts) for parts in conjunctions]
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        self.parts = np.array([part for parts in conjunctions for part in parts], np.int64)

    def match(self, codes: list[int]) -> list[int]:
        found = [self.hung.get((-1, -1), self.none)]
        found += [self.hung.get(key, self.none) for key in enumerate(codes)]
        candidates = np.concatenate(found)
        held = _check(candidates, self.starts, self.parts, np.array(codes))
        return np.sort(candidates[held]).tolist()


@numba.njit(cache=False)
def _check(candidates, starts, parts, codes):  # type: ignore[no-untyped-def]
    held = np.zeros(len(candidates), np.bool_)
    for place in range(len(candidates)):
        number = candidates[place]
        holds = True
        for part in range(starts[number], starts[number + 1]):
            code = codes[parts[part, 0]]
            if code < parts[part, 1] or code > parts[part, 2]:
                holds = False
                break
        held[place] = holds
    return held


CANDIDATES = {
    "counting, numpy bincount": Counting,
    "roaring bitmaps per predicate": Roaring,
    "plain bitsets, numpy": Bitsets,
    "access predicates, numba": AccessPredicates,
}
