"""The match index against trying every pattern, while keys come and go.

The limits are lowered so that small examples reach what large indexes do: shelves that move between lists and
pages, gaps that are cut and joined, scans that narrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from enum import StrEnum
from math import inf, nan, nextafter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from breadth import examples
from tidings.core.errors import FilterError
from tidings.core.filters.language.builder import col
from tidings.core.filters.language.expression import (
    Column,
    Comparison,
    Expression,
    Value,
    conjunction,
    disjunction,
)
from tidings.core.filters.language.filter import Filter, Pattern
from tidings.core.filters.language.predicates import ValueKind
from tidings.core.filters.matching import (
    attribute_table,
    box_index,
    conjunct_index,
    match_index,
    paged_index,
    slot_store,
)
from tidings.core.filters.matching.box_index import Box, BoxIndex
from tidings.core.filters.matching.event_values import exact_attributes
from tidings.core.filters.matching.listed_conjuncts import KeyList, ListedConjuncts
from tidings.core.filters.matching.match_index import MatchIndex

NAMES = ("a", "b", "c", "d")
NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "1.5",
    "-1",
    "2.25",
    "7",
    "9007199254740993",
    "1e17",
    "0.1",
    "8",
    "9",
    "10",
    "11",
)
STRINGS = ("''", "'a'", "'ab'", "'abc'", "'b'", "'ba'", "'\U0010ffff'", "'é'", "'m'", "'n'", "'o'", "'p'")
LIKES = ("'a%'", "'ab%'", "'%b'", "'a_c%'", "'%'", "'_'", "'\U0010ffff%'", "'b%a'")
VALUES: tuple[Any, ...] = (
    *(0, 1, 2, 3, 1.5, -1, 2.25, 7, 2**53, 2**53 + 1, 10**17, 1e17, 0.1, -0.0, 8, 9, 10, 11, 10**400),
    *("", "a", "ab", "abc", "b", "ba", "\U0010ffff", "\U0010ffffz", "é", "m", "n", "o", "p", "zz"),
    *(True, False, None, float("nan"), float("inf"), b"", b"a", [1], {}, Decimal(1), object()),
)


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribute_table, "MAX_CUTS", dict.fromkeys(ValueKind, 4))
        patch.setattr(attribute_table, "MIN_DOUBTS", 2)
        patch.setattr(paged_index, "SHELF_LIST_LIMIT", 3)
        patch.setattr(paged_index, "SHELF_LIST_AGAIN", 1)
        patch.setattr(paged_index, "SHELF_FEW", 2)
        patch.setattr(paged_index, "COMMON_CHEAP", 12)
        patch.setattr(paged_index, "COMPILED_LIMIT", 8)
        patch.setattr(slot_store, "NARROW_FROM_WORDS", 2)
        patch.setattr(slot_store, "ROWS_BEFORE_NARROWING", 1)
        patch.setattr(slot_store, "ABSENCE_ROWS", 2)
        patch.setattr(slot_store, "FEW_SLOTS", 4)
        patch.setattr(match_index, "COMPACT_FROM", 4)
        patch.setattr(conjunct_index, "BOXES_FROM", 10)
        patch.setattr(conjunct_index, "REBUILD_FACTOR", 2)
        patch.setattr(conjunct_index, "SAMPLE", 8)
        patch.setattr(conjunct_index, "MOVED_AT_ONCE", 2)
        patch.setattr(box_index, "MIN_REFERENCES", 3)
        patch.setattr(box_index, "REGIONS", 4)
        patch.setattr(box_index, "WORST_SHARE", 0.8)
        yield


def random_atom(random: Random) -> str:
    name = random.choice(NAMES)
    literal = random.choice(NUMBERS + STRINGS + ("X'61'", "TRUE"))
    low, high = random.choices(NUMBERS, k=2)
    return random.choice(
        (
            f"{name} = {literal}",
            f"{name} = {literal}",
            f"{name} {random.choice(['<', '<=', '>', '>=', '!='])} {literal}",
            f"{name} {random.choice(['<', '<=', '>', '>=', '!='])} {low}",
            f"{name} BETWEEN {low} AND {high}",
            f"{name} IN ({', '.join(random.choices(NUMBERS, k=3))})",
            f"{name} NOT IN ({', '.join(random.choices(STRINGS, k=2))})",
            f"{name} {random.choice(['LIKE', 'NOT LIKE'])} {random.choice(LIKES)}",
            random.choice(
                [f"{name} IS NULL", f"{name} IS NOT NULL", f"{name} = d", f"a < {name}", "TRUE", "FALSE"]
            ),
            f"{name} IS NOT {random.choice(['TRUE', 'FALSE', 'TRUE AND a IS NOT NULL'])}",
        )
    )


def random_filters(count: int) -> list[str]:
    """Filters of one to three conjunctions, from one seed: parsing fresh ones would take all the time."""
    random = Random(7)
    return [
        " OR ".join(
            " AND ".join(random_atom(random) for _ in range(random.choice((1, 2, 2, 3))))
            for _ in range(random.choice((1, 1, 1, 2, 3)))
        )
        for _ in range(count)
    ]


filters = st.sampled_from(random_filters(500))
events = st.dictionaries(st.sampled_from((*NAMES, "e")), st.sampled_from(VALUES), max_size=5)


class Matching(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index: MatchIndex[int] = MatchIndex()
        self.twin: dict[int, Pattern] = {}
        self.next_key = 0

    @rule(sql=filters)
    def add(self, sql: str) -> None:
        self.index.add(self.next_key, sql)
        self.twin[self.next_key] = Filter(sql).pattern
        self.next_key += 1

    @rule(sqls=st.lists(filters, min_size=4, max_size=20))
    def add_many(self, sqls: list[str]) -> None:
        for sql in sqls:
            self.add(sql)

    @rule(
        name=st.sampled_from(NAMES),
        value=st.sampled_from(NUMBERS[:4] + STRINGS[:4]),
        count=st.integers(2, 12),
    )
    def add_to_one_shelf(self, name: str, value: str, count: int) -> None:
        for limit in range(count):
            self.add(f"{name} = {value} AND {NAMES[limit % 4]} >= {limit % 7}")

    @precondition(lambda self: self.twin)
    @rule(data=st.data())
    def add_the_same_again(self, data: st.DataObject) -> None:
        pattern = self.twin[data.draw(st.sampled_from(sorted(self.twin)))]
        self.index.add(self.next_key, pattern)
        self.twin[self.next_key] = pattern
        self.next_key += 1

    @precondition(lambda self: self.twin)
    @rule(data=st.data(), share=st.integers(1, 4))
    def remove(self, data: st.DataObject, share: int) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.twin)))
        for key in [key for key in self.twin if key == chosen or key % 4 >= share]:
            self.index.remove(key)
            del self.twin[key]

    @rule(asked=st.lists(events, min_size=1, max_size=8))
    def match(self, asked: list[dict[str, Any]]) -> None:
        for event in asked:
            expected = [key for key, pattern in self.twin.items() if pattern.matches(event)]
            assert self.index.match(event) == expected, event

    @invariant()
    def sizes_agree(self) -> None:
        assert len(self.index) == len(self.twin)
        assert all(key in self.index for key in self.twin)


def listed_index() -> MatchIndex[int]:
    """As it is where numpy is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match_index, "_parts", lambda: (ListedConjuncts(), KeyList()))
        return MatchIndex()


class MatchingWithoutNumpy(Matching):
    def __init__(self) -> None:
        super().__init__()
        self.index = listed_index()


TestMatchingWithoutNumpy = MatchingWithoutNumpy.TestCase
TestMatchingWithoutNumpy.settings = settings(max_examples=examples(30), stateful_step_count=20)

TestMatching = Matching.TestCase
TestMatching.settings = settings(max_examples=examples(30), stateful_step_count=20)


@given(st.lists(filters, min_size=1, max_size=30), st.lists(events, min_size=1, max_size=10))
@settings(max_examples=examples(60))
def test_the_index_agrees_with_every_pattern(sqls: list[str], asked: list[dict[str, Any]]) -> None:
    index: MatchIndex[int] = MatchIndex()
    for key, sql in enumerate(sqls):
        index.add(key, Filter(sql))
    for event in asked:
        assert index.match(event) == [k for k, sql in enumerate(sqls) if Filter(sql).matches(event)]


def many_filters(number: int) -> str:
    """Filters of every operator over few values, so that events often meet an end of a range exactly."""
    operator = ("<", "<=", ">", ">=", "!=", "=")[number % 6]
    limit, text = number * 7 % 41, f"{'abc'[number % 3]}{number % 11}"
    return (
        f"a = {number % 7} AND b {operator} {limit} AND c LIKE '{text}%'",
        f"b {operator} {limit} AND d != {number % 13}",
        f"c {operator} '{text}' AND e IN ({number % 5}, {number % 9})",
        f"a {operator} {number % 9} AND c >= '{text}'",
        f"d {operator} {number % 17}",
    )[number // 6 % 5]


@pytest.mark.parametrize("absence_rows", [2, 64])
def test_thousands_of_filters_in_many_pages_agree(absence_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_store, "ABSENCE_ROWS", absence_rows)
    index: MatchIndex[int] = MatchIndex()
    twin: dict[int, Pattern] = {}

    def add(keys: range) -> None:
        for key in keys:
            twin[key] = Filter(many_filters(key)).pattern
            index.add(key, twin[key])

    add(range(1_200))
    for key in [key for key in twin if key % 3 == 0 or key % 16 < 5]:
        index.remove(key)
        del twin[key]
    add(range(1_200, 1_800))
    for n in range(120):
        event = {"a": n % 7, "b": n * 5 % 43, "c": f"{'abc'[n % 3]}{n % 12}", "d": n % 15 or None, "e": n % 6}
        if n % 5 == 4:
            event = {"d": n % 19, "a": n % 10}
        assert index.match(event) == [key for key, pattern in twin.items() if pattern.matches(event)]


def test_without_numpy_thousands_of_filters_agree_with_it() -> None:
    index, listed = MatchIndex[int](), listed_index()
    for key in range(3_000):
        for each in (index, listed):
            each.add(key, many_filters(key))
    for number in range(40):
        event = {
            "a": number % 7,
            "b": number * 5 % 43,
            "c": f"{'abc'[number % 3]}{number % 12}",
            "e": number % 6,
        }
        assert listed.match(event) == index.match(event)
    for key in range(0, 3_000, 3):
        index.remove(key)
        listed.remove(key)
    event = {"a": 3, "b": 5, "c": "b4"}
    assert listed.match(event) == index.match(event)
    assert index.match(event)
    assert listed.size_bytes == 0


def test_a_key_is_added_once_and_removed_once() -> None:
    index: MatchIndex[str] = MatchIndex()
    index.add("k", "a = 1")
    with pytest.raises(ValueError, match="'k'"):
        index.add("k", "a = 2")
    with pytest.raises(FilterError):
        index.add("broken", "a = = 1")
    assert "broken" not in index
    index.remove("k")
    with pytest.raises(KeyError):
        index.remove("k")
    assert index.match({"a": 1}) == []


def test_kinds_do_not_mix() -> None:
    index: MatchIndex[str] = MatchIndex()
    index.add("one", "a = 1")
    index.add("true", "a = TRUE")
    index.add("text", "a = '1'")
    index.add("bytes", "a = X'31'")
    assert [index.match({"a": value}) for value in (1, 1.0, True, "1", b"1", None)] == [
        ["one"],
        ["one"],
        ["true"],
        ["text"],
        ["bytes"],
        [],
    ]


def test_subclasses_are_what_they_stand_for() -> None:
    class Colour(StrEnum):
        RED = "red"

    index: MatchIndex[int] = MatchIndex()
    index.add(1, "a = 'red'")
    assert index.match({"a": Colour.RED}) == [1]


def test_equal_filters_share_one_entry_and_memory_is_used_again() -> None:
    index: MatchIndex[int] = MatchIndex()
    for key in range(1_000):
        index.add(key, "a > 1 AND b = 'x'")
    assert len(index._conjuncts) == 1
    assert index.match({"a": 2, "b": "x"}) == list(range(1_000))
    for key in range(1_000):
        index.remove(key)
    pages = []
    for _ in range(5):
        for key in range(300):
            index.add(key, f"a > {key}")
        pages.append(index._conjuncts.store.shelves._store.page_count)
        for key in range(300):
            index.remove(key)
    assert len(set(pages)) == 1
    assert (len(index._keys), len(index._entries)) <= (64, 1_000)
    assert index.match({"a": 400}) == []


@pytest.mark.parametrize("attribute_count", [1, 2, 4, 7, 20])
def test_any_count_of_numeric_attributes_agrees(attribute_count: int) -> None:
    """The bounds of numbers are read in another way for each width."""
    index: MatchIndex[int] = MatchIndex()
    twin: dict[int, Pattern] = {}
    for key in range(300):
        first, second = key % attribute_count, key * 7 % attribute_count
        text = f"n{first} > {key * 13 % 97} AND n{second} <= {key * 29 % 101}"
        twin[key] = Filter(text).pattern
        index.add(key, twin[key])
    for seed in range(40):
        event = {
            f"n{place}": (seed * 31 + place * 17) % 103 - 0.5 * (seed % 2) for place in range(attribute_count)
        }
        assert index.match(event) == [key for key, pattern in twin.items() if pattern.matches(event)]


@pytest.mark.parametrize("few_slots", [0, 10_000])
def test_bounds_do_not_decide_lists_of_numbers(few_slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number between the ends of a list, or one that is excluded, is within the bounds and must not match."""
    monkeypatch.setattr(slot_store, "FEW_SLOTS", few_slots)
    index: MatchIndex[int] = MatchIndex()
    twin: dict[int, Pattern] = {}
    for key in range(60):
        text = f"n IN ({key}, {key + 50})" if key % 2 else f"n > {key} AND n != {key + 9}"
        twin[key] = Filter(text).pattern
        index.add(key, twin[key])
    for value in range(120):
        event = {"n": value}
        assert index.match(event) == [key for key, pattern in twin.items() if pattern.matches(event)]


def test_boxes_tell_numbers_from_strings_and_agree_while_conjuncts_move() -> None:
    """Attributes hold both kinds, so that a string's key must never pass for a number, nor a number for a key."""
    index: MatchIndex[int] = MatchIndex()
    twin: dict[int, Pattern] = {}

    def text_of(key: int) -> str:
        x, y, z = (("x", "y", "z") * 2)[key % 3 : key % 3 + 3]
        return (
            f"{x} >= {key % 9} AND {y} = 's{key % 7}' AND {z} <= {key % 11}",
            f"{x} = 's{key % 5}' AND {y} LIKE 's{key % 3}%' AND {z} > {key % 6}",
            f"{x} = 's{key % 4}' AND {y} = 's{key % 6}' AND {z} = {key % 8}",
            f"{x} BETWEEN {key % 5} AND {key % 5 + 3} AND {y} < {key % 10}",
        )[key // 3 % 4]

    values = (*range(12), 2.5, float("nan"), float("inf"), *(f"s{n}" for n in range(7)), "s1x", True, None)
    for key in range(240):
        twin[key] = Filter(text_of(key)).pattern
        index.add(key, twin[key])
        if key % 5 == 4:
            index.remove(key - 3)
            del twin[key - 3]
        event = {
            name: values[(key * step + step) % len(values)] for name, step in (("z", 7), ("x", 5), ("y", 3))
        }
        assert index.match(event) == [k for k, pattern in twin.items() if pattern.matches(event)]
    boxes = index._conjuncts.store.boxes
    assert boxes is not None and len(boxes) > 50
    for x in values:
        for y in values:
            for z in values[::3]:
                event = {"x": x, "y": y, "z": z}
                assert index.match(event) == [k for k, pattern in twin.items() if pattern.matches(event)], (
                    event
                )
    for key in list(twin):
        index.remove(key)
    assert not len(boxes) and not len(boxes._cells) and not +boxes._uses


BOX_NUMBERS: tuple[Any, ...] = (
    *(0, 1, 2, 5, nextafter(5, inf), nextafter(5, -inf), -1, 1.5, 0.1, Decimal("0.1"), 5e-324, -5e-324),
    *(2**53 - 1, 1 - 2**53, 2**53, 2**53 + 1, 2.0**53, 2**63 - 1, -(2**63), 1e308),
)
BOX_STRINGS = ("", "a", "ab", "abc", "b", "a%", "a_", "\U0001f600", "\U0010ffff", "\x00")
BOX_LIKES = ("a%", "ab%", "abc%", "%", r"a\%%", "\U0001f600%", "\U0010ffff%", "a_%", "%b", "")
OTHER_VALUES: tuple[Any, ...] = (None, True, nan, inf, -inf, 10**400, -(10**400), -0.0, b"a", "\ud800", "zz")
BOX_NAMES = tuple("pqrstu")


def random_side(random: Random, name: str) -> Expression:
    """What a box may ask of an attribute, now and then what it may not."""
    attribute, choice = col(name), random.randrange(20)
    low, high = sorted(random.choices(BOX_NUMBERS, k=2))
    if choice < 4:
        return attribute.between(low, high)
    if choice < 8:
        return conjunction(attribute > low, attribute < high)
    if choice < 10:
        return Comparison(Column(name), random.choice(("<", ">=", ">", "=")), Value(low))
    if choice < 13:
        return attribute == random.choice(BOX_STRINGS)
    if choice < 16:
        return attribute.like(random.choice(BOX_LIKES))
    if choice < 18:
        return conjunction(attribute.like("a%"), attribute != "ab")
    return random.choice(
        (
            attribute != low,
            attribute.isin(*random.choices(BOX_STRINGS, k=2)),
            attribute.is_null() | (attribute < high),
            ~attribute.like("a%") & (attribute > "a"),
            attribute.is_true(),
            ~attribute.is_true(),
            attribute < col("p"),
        )
    )


def random_box(random: Random) -> Pattern:
    sides = [random_side(random, name) for name in random.sample(BOX_NAMES, random.choice((1, 2, 2, 3, 4)))]
    return Filter(conjunction(*sides) if random.random() < 0.9 else disjunction(*sides)).pattern


def random_event(random: Random, patterns: list[Pattern]) -> dict[str, Any]:
    """Values at and beside the ends that one pattern asks for, which are cuts of the rulers, and others."""
    event = {name: random.choice(OTHER_VALUES + BOX_STRINGS + BOX_NUMBERS[:9]) for name in BOX_NAMES}
    for name in random.sample(BOX_NAMES, 2):
        del event[name]
    for conjunct in random.choice(patterns).conjuncts[:1] if patterns else ():
        for part in conjunct.constraints:
            values: list[Any] = [*(part.values or ()), *part.excluded, *(like.prefix for like in part.likes)]
            values += [end for end in (part.low, part.high) if end is not None]
            if values:
                event[part.attribute] = beside(random, random.choice(values))
    return event


def beside(random: Random, value: Any) -> Any:
    if isinstance(value, str):
        return random.choice((value, value, value + "\udc00", value + "b", value[:-1]))
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        double = float(value)
        return random.choice((double, double, nextafter(double, inf), nextafter(double, -inf), int(value)))
    return value


def check_boxes(random: Random) -> int:
    """Keys come, go and match at random, in an index with boxes; returns how many boxes matched."""
    index: MatchIndex[int] = MatchIndex()
    twin: dict[int, Pattern] = {}
    pool = [random_box(random) for _ in range(40)]
    found = 0
    for key in range(120):
        twin[key] = random.choice(pool)
        index.add(key, twin[key])
        if random.random() < 0.1:
            share = random.choice((0.1, 0.2, 0.2, 0.5, 1))
            for gone in [gone for gone in twin if random.random() < share]:
                index.remove(gone)
                del twin[gone]
        for _ in range(3):
            event = random_event(random, list(twin.values()))
            assert index.match(event) == [k for k, pattern in twin.items() if pattern.matches(event)], event
            boxes = index._conjuncts.store.boxes
            found += 0 if boxes is None else len(boxes.match(exact_attributes(event)))
    for key in twin:
        index.remove(key)
    assert not len(index._conjuncts)
    return found


@contextmanager
def few_boxes(random: Random) -> Iterator[None]:
    """Limits with which some tens of filters are boxes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conjunct_index, "BOXES_FROM", random.choice((1, 5, 20)))
        patch.setattr(conjunct_index, "REBUILD_FACTOR", random.choice((1, 2, 100)))
        patch.setattr(conjunct_index, "SAMPLE", random.choice((5, 1000)))
        patch.setattr(box_index, "MIN_REFERENCES", random.choice((1, 3)))
        patch.setattr(box_index, "REGIONS", random.choice((4, 16, 64)))
        patch.setattr(box_index, "WORST_SHARE", random.choice((0.1, 0.5, 1.0)))
        patch.setattr(box_index, "POOR_MEETINGS", random.choice((0, 2, 100)))
        patch.setattr(box_index, "MAX_ATTRIBUTES", random.choice((3, 16)))
        yield


@given(st.integers(0, 2**32))
@settings(max_examples=examples(40))
def test_boxes_agree_at_every_cut_while_keys_come_and_go(seed: int) -> None:
    random = Random(seed)
    with few_boxes(random):
        check_boxes(random)


def test_the_examples_do_match_boxes() -> None:
    random = Random(1)
    with few_boxes(random):
        assert sum(check_boxes(random) for _ in range(10)) > 30


def any_two(sides: list[Any], worst_share: float) -> Any:
    """The planted bug: cells of two sides, although a third is a prefix, which only keys can tell."""
    return (sides[0][2], sides[1][2]), worst_share


def remove_but_keep_bounds(boxes: BoxIndex, member: Box) -> None:
    """The planted bug: whoever gets the slot next inherits the bounds."""
    slot = member.slot
    line = boxes._lines[slot].copy()
    real_remove(boxes, member)
    boxes._lines[slot] = line


real_remove = BoxIndex.remove

PLANTED: dict[str, tuple[Any, str, Any]] = {
    "a prefix outside the cell": (box_index, "_best_cells", any_two),
    "a prefix among other conditions": (box_index, "_is_prefix", lambda constraint: True),
    "old labels": (BoxIndex, "relabel", lambda boxes, member: None),
    "old bounds": (BoxIndex, "remove", remove_but_keep_bounds),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_in_boxes_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[bug])
    for seed in range(100):
        random = Random(seed)
        try:
            with few_boxes(random):
                check_boxes(random)
        except AssertionError:
            return
    pytest.fail("the planted bug went unnoticed")


def test_a_range_between_neighbouring_doubles_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds no number, so that no region of the ruler is its own."""
    monkeypatch.setattr(box_index, "WORST_SHARE", 1.0)
    above = nextafter(5, inf)
    index: MatchIndex[int] = MatchIndex()
    for key in range(30):
        index.add(key, Filter((col("a") <= key) & (col("x") >= above)))
    for key in range(30, 40):
        index.add(key, Filter((col("a") <= key) & (col("x") > 5) & (col("x") < above)))
    assert index.match({"a": 20, "x": above}) == list(range(20, 30))
    for key in range(40):
        index.remove(key)
    assert not len(index._conjuncts)


def churned_filter(number: int, turn: int) -> Filter:
    """Strings, prefixes of many lengths and attributes that never come back."""
    word = f"{turn}x{number}" + "y" * (number % 20)
    return Filter(
        (
            (col("a") < number % 7) & (col("s") == word),
            col("s").like(word + "%") & col("a").between(number % 9, number % 9 + 1),
            (col(f"new{turn}x{number}") > 1) & (col("a") < number % 5) & (col("s") == word),
            (col(f"no{turn}x{number}") != 1) & (col("s") == word),
        )[number % 4]
    )


@pytest.mark.parametrize("kept", [0, 40])
def test_boxes_keep_nothing_of_what_has_gone(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conjunct_index, "REBUILD_FACTOR", 1_000)
    index: MatchIndex[object] = MatchIndex()
    for key in range(kept):
        index.add(key, Filter((col("a") >= key % 11) & (col("s") == f"kept{key}")))
    states = []
    for turn in range(4):
        for number in range(60):
            index.add((turn, number), churned_filter(number, turn))
            index.match({"s": f"{turn}x{number}", "a": 3})
        boxes = index._conjuncts.store.boxes
        assert boxes is not None
        count = len(boxes)
        for number in range(60):
            index.remove((turn, number))
        attribute = boxes._attributes.get("s")
        texts = (len(attribute.strings), len(attribute.prefixes)) if attribute else (0, 0)
        assert not index._conjuncts.store.shelves._compiled
        states.append((count, len(boxes._uses), len(boxes._cells), len(boxes._attributes), texts))
    assert states[0][0] > 30
    assert states[1:] == states[:-1]


def test_the_old_store_ends_with_their_last_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it moves or is removed before."""
    monkeypatch.setattr(conjunct_index, "MOVED_AT_ONCE", 1)
    for gone in (range(11), range(5), range(6, 11), range(0)):
        index: MatchIndex[int] = MatchIndex()
        for key in range(11):
            index.add(key, f"a > {key}")
        assert index._conjuncts._to_move
        for key in gone:
            index.remove(key)
        for key in range(11, 11 if len(gone) == 11 else 22):
            index.add(key, f"a > {key}")
        assert not index._conjuncts._to_move and index._conjuncts.old_store is None
        assert index.match({"a": 50}) == [key for key in range(22) if key in index]
