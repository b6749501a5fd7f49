"""Regions against explicit sets of brokers: those of a small tree and those that might still join it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.overlay.guaranteed import regions
from tidings.core.overlay.guaranteed.regions import MAX_REGION_RULES, Region, RegionWire
from tidings.core.overlay.labels import MAX_LABEL_ITEM, MAX_LABEL_ITEMS, ROOT, Label, step

TREE = [(0, *rest) for depth in range(4) for rest in product(range(3), repeat=depth)]
"""The brokers that regions speak of: 4 levels, 3 children each."""

POTENTIAL = 9
UNIVERSE = [(0, *rest) for depth in range(5) for rest in product((0, 1, 2, POTENTIAL), repeat=depth)]
"""With one child more everywhere and one level more: enough to tell any two regions of TREE apart."""

Twin = frozenset[Label]
Pair = tuple[Region, Twin]

EVERYBODY: Twin = frozenset(UNIVERSE)


def single(x: Label) -> Pair:
    return Region.single(x), frozenset([x])


def branch(x: Label, seen_from: Label) -> Pair:
    """By its definition: who is at `x`, or has `x` as the next step from `seen_from`."""
    twin = frozenset(b for b in UNIVERSE if b != seen_from and step(seen_from, b) == x)
    return Region.branch(x, seen_from=seen_from), twin


def union(left: Pair, right: Pair) -> Pair:
    return left[0] | right[0], left[1] | right[1]


def difference(left: Pair, right: Pair) -> Pair:
    return left[0] - right[0], left[1] - right[1]


def complement(pair: Pair) -> Pair:
    return pair[0].complement(), EVERYBODY - pair[1]


some_label = st.sampled_from(TREE)
lower_label = st.sampled_from(TREE[1:])
terms = st.one_of(
    some_label.map(single),
    lower_label.map(lambda x: branch(x, x[:-1])),
    lower_label.map(lambda x: branch(x[:-1], x)),
    st.just((Region.everything(), EVERYBODY)),
    st.just((Region.nothing(), frozenset[Label]())),
)
pairs = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.builds(union, inner, inner), st.builds(difference, inner, inner), st.builds(complement, inner)
    ),
    max_leaves=12,
)


def random_pair(random: Random, size: int) -> Pair:
    """As `pairs`, quickly: for the planted bugs, which must be found without hypothesis shrinking them."""
    if size <= 1:
        x = random.choice(TREE[1:])
        return random.choice([single(x), branch(x, x[:-1]), branch(x[:-1], x)])
    if random.random() < 0.1:
        return complement(random_pair(random, size - 1))
    left = random.randint(1, size - 1)
    combine = random.choice([union, difference])
    return combine(random_pair(random, left), random_pair(random, size - left))


def check(pair: Pair, other: Pair) -> None:
    region, twin = pair
    # Not by comparing lists: where pytest shows whole differences, as in CI, theirs takes minutes.
    wrong = next((label for label in UNIVERSE if (label in region) != (label in twin)), None)
    assert wrong is None
    assert region.is_empty == (not twin) == (not region)
    assert region.is_everything == (twin == EVERYBODY)
    assert (region == other[0]) == (twin == other[1])
    assert (region.to_wire() == other[0].to_wire()) == (twin == other[1])
    assert Region.from_wire(region.to_wire()) == region
    if region == other[0]:
        assert hash(region) == hash(other[0])


@given(pairs, pairs)
@settings(max_examples=examples(300))
def test_a_region_is_its_set_of_brokers(pair: Pair, other: Pair) -> None:
    check(pair, other)


@given(pairs, pairs, pairs)
@settings(max_examples=examples(150))
def test_equal_sets_are_equal_objects_however_they_came_about(a: Pair, b: Pair, c: Pair) -> None:
    """Laws of sets, which random expressions would rarely meet by themselves."""
    check(union(a, b), union(b, a))
    check(union(union(a, b), c), union(a, union(b, c)))
    check(difference(difference(a, b), c), difference(a, union(b, c)))
    check(complement(complement(a)), a)
    check(complement(union(a, b)), difference(complement(a), b))
    check(difference(union(a, b), b), difference(a, b))
    check(union(difference(a, b), b), union(a, b))
    check(difference(a, a), difference(b, b))


@given(pairs)
def test_the_wire_form_survives_msgpack(pair: Pair) -> None:
    region = pair[0]
    body = msgspec.msgpack.encode(region.to_wire())
    assert Region.from_wire(msgspec.msgpack.decode(body, type=RegionWire)) == region
    assert Region.from_wire(msgspec.msgpack.decode(body)) == region


flags = st.booleans()
odd_rules = st.tuples(st.lists(st.integers(-1, 2), max_size=4).map(tuple), flags, flags)
nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | odd_rules,
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(nonsense | st.lists(odd_rules, max_size=4))
@settings(max_examples=examples(300))
def test_a_wire_form_is_canonical_or_refused(wire: object) -> None:
    try:
        region = Region.from_wire(wire)
    except ValueError:
        return
    assert isinstance(wire, list)
    assert region.to_wire() == tuple(tuple(rule) for rule in wire)
    assert (region | Region.nothing()).complement().complement().to_wire() == region.to_wire()


@pytest.mark.parametrize(
    ("wire", "complaint"),
    [
        (None, "list of rules"),
        ([None], r"is \[label, own, rest\]"),
        ([((0,), True)], r"is \[label, own, rest\]"),
        ([((0,), 1, True)], "true or false"),
        ([((), True, True)], "1 to 4096 numbers"),
        ([((0,) * (MAX_LABEL_ITEMS + 1), True, True)], "1 to 4096 numbers"),
        ([("0", True, True)], "1 to 4096 numbers"),
        ([((0, True), True, True)], "whole and 0 to"),
        ([((0, -1), True, True)], "whole and 0 to"),
        ([((0, MAX_LABEL_ITEM + 1), True, True)], "whole and 0 to"),
        ([((1,), True, True)], "must begin with the root's 0"),
        ([((0, 1), True, True), ((0, 0), True, True)], r"0\.0 is out of order"),
        ([((0, 1), True, True), ((0, 1), False, True)], r"0\.1 is out of order"),
        ([((0,), False, False)], "the rule of 0 in a region changes nothing"),
        ([((0,), True, True), ((0, 1), True, True)], r"the rule of 0\.1 in a region changes nothing"),
        ([((0, child), True, True) for child in range(MAX_REGION_RULES + 1)], "at most 16,384 rules"),
        ([((0,) * 4095 + (child,), True, True) for child in range(65)], "with 262,144 numbers"),
    ],
)
def test_nonsense_is_refused_with_a_clear_text(wire: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Region.from_wire(wire)


def test_a_region_too_large_for_the_wire_says_so() -> None:
    largest = Region.from_wire([((0, child), True, True) for child in range(MAX_REGION_RULES)])
    assert len(largest.to_wire()) == MAX_REGION_RULES
    with pytest.raises(ValueError, match="at most"):
        (largest | Region.single((0, MAX_REGION_RULES))).to_wire()


@pytest.mark.parametrize(
    ("x", "seen_from"),
    [
        ((0,), (0,)),
        ((0,), (0, 1, 1)),
        ((0, 1), (0, 2)),
        ((0,), ()),
        ((), (0,)),
        ((1, 1), (1,)),
        ((1,), (1, 1)),
    ],
)
def test_a_branch_is_seen_from_a_neighbour(x: Label, seen_from: Label) -> None:
    with pytest.raises(ValueError, match=r"not a neighbour|not a label"):
        Region.branch(x, seen_from=seen_from)


@pytest.mark.parametrize("x", [(), (1,), (1, 0)])
def test_a_single_broker_is_one_of_the_tree(x: Label) -> None:
    with pytest.raises(ValueError, match="not a label"):
        Region.single(x)


def test_deep_chains_need_no_recursion() -> None:
    chain = [(0,) * size for size in range(1, 600)]
    every_second = Region.nothing()
    for label in chain[::2]:
        every_second |= Region.single(label)
    assert [label in every_second for label in chain] == [len(label) % 2 == 1 for label in chain]
    assert Region.from_wire(every_second.to_wire()) == every_second
    deepest = Region.branch((0,) * MAX_LABEL_ITEMS, seen_from=(0,) * (MAX_LABEL_ITEMS - 1))
    assert deepest.complement() | deepest == Region.everything()


def test_the_report_of_a_barrier_shrinks_as_its_sides_come_back() -> None:
    """Broker 0.1 and its child 0.1.0 are dead; from 0, all behind them is out of reach until they are back."""
    behind = Region.branch((0, 1), seen_from=(0,))
    after_bypass = behind - Region.branch((0, 1, 2), seen_from=(0, 1))
    island = after_bypass - Region.branch((0, 1, 0, 1), seen_from=(0, 1, 0))
    assert (0, 1, 2, 7) in behind
    assert (0, 1, 2, 7) not in after_bypass
    assert island.atoms() == ["0.1 and below", "except 0.1.0.1 and below", "except 0.1.2 and below"]
    for smaller, larger in [(after_bypass, behind), (island, after_bypass)]:
        assert (smaller - larger).is_empty
        assert not (larger - smaller).is_empty
    assert (island - behind).is_empty


def test_atoms_are_words_for_an_operator() -> None:
    below_2 = Region.branch((0, 2), seen_from=ROOT)
    assert Region.nothing().atoms() == []
    assert Region.everything().atoms() == ["0 and below"]
    assert Region.single((0, 2, 1)).atoms() == ["0.2.1"]
    assert below_2.complement().atoms() == ["0 and below", "except 0.2 and below"]
    assert (below_2 - Region.single((0, 2))).atoms() == ["below 0.2"]
    assert (Region.everything() - (below_2 - Region.single((0, 2)))).atoms() == [
        "0 and below",
        "except below 0.2",
    ]
    assert (below_2.complement() | Region.single((0, 2, 5))).atoms() == [
        "0 and below",
        "except 0.2 and below",
        "0.2.5",
    ]
    assert repr(Region.nothing()) == "Region(nothing)"
    assert repr(below_2 - Region.single((0, 2, 5))) == "Region(0.2 and below; except 0.2.5)"


def test_atoms_are_few_and_the_rest_is_counted() -> None:
    many = Region.nothing()
    for child in range(1500):
        many |= Region.single((0, child))
    assert many.atoms(3) == ["0.0", "0.1", "0.2", "and 1,497 more"]
    assert many.atoms(0) == ["and 1,500 more"]
    assert len(many.atoms(1500)) == 1500


Merge = Callable[[Region, Region, Callable[[bool, bool], bool]], Region]


def never_normalised(left: Region, right: Region, combine: Callable[[bool, bool], bool]) -> Region:
    """The bug: rules that change nothing stay, so equal sets differ."""
    rules = {}
    for label in sorted(left._rules | right._rules):
        own = combine(label in left, label in right)
        fresh = (*label, POTENTIAL + 1)
        rules[label] = (own, combine(fresh in left, fresh in right))
    return Region(rules)


def deaf_to_inheritance(left: Region, right: Region, combine: Callable[[bool, bool], bool]) -> Region:
    """The bug: a side without a rule at a label counts as outside there, whatever it inherits."""
    rules = {}
    for label in sorted(left._rules | right._rules):
        left_own, left_rest = left._rules.get(label, (False, False))
        right_own, right_rest = right._rules.get(label, (False, False))
        rules[label] = (combine(left_own, right_own), combine(left_rest, right_rest))
    canonical = (
        (label, own, rest)
        for label, own, rest, above in regions._with_inherited(rules)
        if not own == rest == above
    )
    return Region({label: (own, rest) for label, own, rest in canonical})


def blind_below(region: Region, label: Label) -> bool:
    """The bug: only the broker's own rule and its parent's count."""
    rules = region._rules
    return rules[label][0] if label in rules else rules.get(label[:-1], (False, False))[1]


def root_first(region: Region, label: Label) -> bool:
    """The bug: the farthest rule above decides instead of the nearest."""
    rules = region._rules
    if label in rules:
        return rules[label][0]
    return next((rules[label[:size]][1] for size in range(1, len(label)) if label[:size] in rules), False)


@pytest.mark.parametrize(
    ("method", "bug"),
    [
        ("_merged", never_normalised),
        ("_merged", deaf_to_inheritance),
        ("__contains__", blind_below),
        ("__contains__", root_first),
        (
            "complement",
            lambda region: Region(
                {label: (not own, not rest) for label, (own, rest) in region._rules.items()}
            ),
        ),
    ],
)
def test_planted_bugs_are_caught(
    method: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_many() -> None:
        random = Random(5)
        for _ in range(100):
            a, b = random_pair(random, 6), random_pair(random, 6)
            check(a, b)
            check(union(difference(a, b), b), union(a, b))

    check_many()
    monkeypatch.setattr(Region, method, bug)
    with pytest.raises((AssertionError, ValueError)):
        check_many()
