"""The choice of one member: by load without a key, by rendezvous hash with one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.sharing import one_of_n
from tidings.core.sharing.choice import rendezvous
from tidings.core.sharing.one_of_n import OneOfN

KEYS = [f"key {number}" for number in range(300)]
names = st.lists(st.text(max_size=6), min_size=2, max_size=8, unique=True)


def members(*names: str, limit: int = 10) -> OneOfN:
    found = OneOfN()
    for name in names:
        found.join(name, limit)
    return found


def places(found: OneOfN) -> dict[str, str | None]:
    return {key: found.choose_for(key) for key in KEYS}


# --- By load


def test_the_member_that_holds_least_is_chosen() -> None:
    found = members("a", "b", "c")
    found.give("a", 3)
    found.give("b", 1)
    found.give("c", 2)
    assert found.choose() == "b"
    found.give("b", 2)
    assert found.choose() == "c"
    found.take_back("a", 3)
    assert found.choose() == "a"


def test_the_longest_member_wins_ties() -> None:
    found = members("b", "c", "a")
    assert found.choose() == "b"
    found.leave("b")
    found.join("b", 10)
    assert found.choose() == "c"


def test_a_full_member_is_not_chosen_even_if_it_holds_least() -> None:
    found = members("a")
    found.join("small", 1)
    found.give("small")
    found.give("a", 5)
    assert found.choose() == "a"
    assert (found.room("small"), found.room("a"), found.with_room) == (0, 5, 1)


def test_nobody_is_chosen_if_all_are_full_or_there_is_none() -> None:
    assert OneOfN().choose() is None
    assert OneOfN().choose_for("k") is None
    found = members("a", "b", limit=1)
    found.give("a")
    found.give("b")
    assert found.choose() is None
    assert found.with_room == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 60))
@settings(max_examples=examples(200))
def test_giving_to_the_chosen_one_keeps_the_loads_even_within_the_limits(
    limits: list[int], count: int
) -> None:
    found = OneOfN()
    for place, limit in enumerate(limits):
        found.join(str(place), limit)
    given_out = 0
    while given_out < count and (member := found.choose()) is not None:
        found.give(member)
        given_out += 1
    loads = [found.holds(str(place)) for place in range(len(limits))]
    assert given_out == sum(loads) == min(count, sum(limits))
    assert all(load <= limit for load, limit in zip(loads, limits, strict=True))
    with_room = [load for load, limit in zip(loads, limits, strict=True) if load < limit]
    assert all(max(loads) - load <= 1 for load in with_room)


# --- Members


def test_a_member_must_be_able_to_hold_an_item() -> None:
    found = OneOfN()
    with pytest.raises(ValueError, match="its limit is 0"):
        found.join("a", 0)
    assert "a" not in found
    assert len(found) == 0


def test_joining_again_changes_the_limit_alone() -> None:
    found = members("a", limit=4)
    found.give("a", 3)
    found.join("a", 2)
    assert (len(found), found.holds("a"), found.room("a")) == (1, 3, 0)
    found.join("a", 5)
    assert found.room("a") == 2


def test_who_leaves_is_forgotten_with_what_it_holds() -> None:
    found = members("a", "b")
    found.give("a", 2, "k")
    found.leave("a")
    found.leave("nobody")
    assert "a" not in found
    assert found.holder("k") is None
    assert found.choose_for("k") == "b"
    found.join("a", 10)
    assert found.holds("a") == 0


def test_what_comes_back_from_a_member_that_left_is_ignored() -> None:
    found = members("a", "b")
    found.give("b", 2, "k")
    found.leave("a")
    found.take_back("a", 5, "k")
    assert found.holds("b") == 2
    assert found.holder("k") == "b"


# --- By key


@given(names)
@settings(max_examples=examples(60))
def test_a_member_that_joins_moves_keys_to_itself_alone(names: list[str]) -> None:
    *old, new = names
    found = members(*old)
    before = places(found)
    found.join(new, 1)
    after = places(found)
    assert all(after[key] in (before[key], new) for key in KEYS)


@given(names)
@settings(max_examples=examples(60))
def test_a_member_that_leaves_moves_its_own_keys_alone(names: list[str]) -> None:
    found = members(*names)
    before = places(found)
    found.leave(names[0])
    after = places(found)
    assert all(after[key] == before[key] for key in KEYS if before[key] != names[0])
    assert names[0] not in after.values()


def test_the_place_of_a_key_depends_on_neither_order_nor_load_nor_room() -> None:
    first, second = members("a", "b", "c", limit=1), members("c", "a", "b", limit=9)
    for name in "abc":
        first.give(name)
    assert places(first) == places(second)


def test_every_member_gets_a_fair_part_of_the_keys() -> None:
    found = list(places(members("a", "b", "c", "d")).values())
    assert all(40 <= found.count(name) <= 110 for name in "abcd")


def test_a_key_stays_with_the_member_that_holds_it_until_the_last_item_is_back() -> None:
    found = members("a", "b", "c")
    key = next(key for key, place in places(found).items() if place == "c")
    found.leave("c")
    holder = found.choose_for(key)
    assert holder is not None
    found.give(holder, 2, key)
    found.join("c", 10)
    assert found.choose_for(key) == found.holder(key) == holder
    found.take_back(holder, 1, key)
    assert found.choose_for(key) == holder
    found.take_back(holder, 1, key)
    assert found.holder(key) is None
    assert found.choose_for(key) == "c"


def test_a_key_is_freed_by_its_holder_alone() -> None:
    found = members("a", "b")
    found.give("a", 1, "k")
    found.give("b", 1, "other")
    found.take_back("b", 1, "k")
    assert found.holder("k") == "a"


def test_keys_may_be_any_text() -> None:
    found = members("a\ud800", "b")
    assert found.choose_for("\udfff\0") in ("a\ud800", "b")


# --- Against a twin that asks everybody


@pytest.mark.parametrize("remembered", [2, 65_536])
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32).map(Random))
def test_choices_are_those_of_a_twin_that_asks_everybody(
    monkeypatch: pytest.MonkeyPatch, remembered: int, random: Random
) -> None:
    monkeypatch.setattr(one_of_n, "MAX_CHOSEN", remembered)
    monkeypatch.setattr(one_of_n, "SPARE_LOADS", 3)
    found, twin = OneOfN(), dict[str, list[int]]()
    for _ in range(60):
        name = random.choice("abcdef")
        match random.randrange(4):
            case 0:
                limit = random.randrange(1, 5)
                found.join(name, limit)
                twin.setdefault(name, [0, 0])[1] = limit
            case 1:
                found.leave(name)
                twin.pop(name, None)
            case 2 if name in twin:
                found.give(name, 2)
                twin[name][0] += 2
            case _ if name in twin:
                found.take_back(name, 1)
                twin[name][0] = max(twin[name][0] - 1, 0)
        free = {name: holds for name, (holds, limit) in twin.items() if holds < limit}
        assert found.choose() == min(free, key=free.__getitem__, default=None)
        assert sorted(found.with_room_now()) == sorted(free)
        assert found.with_room == len(free)
        assert {name for name in "abcdef" if found.has_room(name)} == {*free}
        for key in KEYS[:5]:
            assert found.choose_for(key) == rendezvous(twin, key)
