"""With keys: equal keys are with one member at a time, in the order of their numbers."""

from __future__ import annotations

import pytest

from tidings.core.sharing.one_of_n import OneOfN
from tidings.core.sharing.shared_queue import Handout, SharedQueue

MODULE = "tidings.core.sharing.shared_queue"


def members_of(handouts: list[Handout]) -> dict[int, str]:
    assert all(handout.first == handout.last for handout in handouts)
    return {handout.first: handout.member for handout in handouts}


def by_tens(number: int) -> str:
    return str(number // 10)


def two_keys() -> tuple[str, str]:
    """Return a key whose place is with a, and one whose place is with b."""
    members = OneOfN()
    members.join("a", 1)
    members.join("b", 1)
    places = {members.choose_for(str(number)): str(number) for number in range(50)}
    return places["a"], places["b"]


def test_equal_keys_go_to_one_member_in_the_order_of_their_numbers() -> None:
    queue = SharedQueue(by_tens)
    queue.add(0, 99)
    for member in "abc":
        queue.join(member, 100)
    handouts = queue.due(0)
    assert [handout.first for handout in handouts] == list(range(100))
    places = members_of(handouts)
    assert all(places[number] == places[number // 10 * 10] for number in range(100))
    assert len(set(places.values())) == 3


def test_a_key_whose_member_is_full_holds_up_itself_alone() -> None:
    with_a, with_b = two_keys()
    keys = {1: with_a, 2: with_a, 3: with_b, 4: with_a, 5: with_b}
    queue = SharedQueue(keys.__getitem__)
    queue.add(1, 5)
    queue.join("a", 1)
    queue.join("b", 5)
    assert members_of(queue.due(0)) == {1: "a", 3: "b", 5: "b"}
    assert queue.waiting_count == 2
    queue.finish("a", ((1, 1),))
    assert members_of(queue.due(0)) == {2: "a"}


def test_a_new_member_gets_its_keys_only_once_nobody_holds_them() -> None:
    _, with_b = two_keys()
    queue = SharedQueue(lambda number: with_b)
    queue.add(1, 4)
    queue.join("a", 2)
    assert members_of(queue.due(0)) == {1: "a", 2: "a"}
    queue.join("b", 2)
    assert queue.due(0) == []
    queue.finish("a", ((1, 1),))
    assert members_of(queue.due(0)) == {3: "a"}
    queue.finish("a", ((2, 3),))
    assert members_of(queue.due(0)) == {4: "b"}


def test_the_keys_of_a_member_that_leaves_go_to_the_others_in_order() -> None:
    queue = SharedQueue(lambda number: "k")
    queue.add(1, 5)
    queue.join("a", 3)
    queue.due(0)
    queue.leave("a")
    queue.join("b", 10)
    assert queue.due(0) == [Handout("b", number, number, 2 if number < 4 else 1) for number in range(1, 6)]


def test_nobody_claims_an_item_whose_key_another_member_holds() -> None:
    queue = SharedQueue(lambda number: "k" if number < 4 else "free")
    queue.add(1, 5)
    queue.join("a", 5)
    queue.due(0)
    queue.leave("a")
    queue.add_later(6, 6, 1, 100)
    queue.join("b", 1)
    assert members_of(queue.due(0)) == {1: "b"}
    assert queue.join("a", 5, ((1, 9),)) == ((4, 6),)
    assert queue.members.holder("k") == "b"
    queue.finish("b", ((1, 1),))
    assert queue.members.holder("k") is None


def test_a_delayed_item_whose_key_another_member_holds_stays_delayed() -> None:
    queue = SharedQueue(lambda number: "k")
    queue.add(1, 1)
    queue.add_later(2, 2, 1, 100)
    queue.join("b", 1)
    queue.due(0)
    assert queue.join("a", 5, ((2, 2),)) == ()
    assert queue.next_at == 100


def test_a_claimed_key_is_with_its_claimer_until_it_is_done() -> None:
    with_a, _ = two_keys()
    queue = SharedQueue(lambda number: with_a)
    queue.add(1, 2, attempts=1)
    queue.add(3, 3)
    assert queue.join("b", 5, ((1, 2),)) == ((1, 2),)
    queue.join("a", 5)
    assert members_of(queue.due(0)) == {3: "b"}
    queue.finish("b", ((1, 3),))
    queue.add(4, 4)
    assert members_of(queue.due(0)) == {4: "a"}


def test_one_look_for_members_with_room_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.MAX_LOOKS", 20)
    with_a, with_b = two_keys()
    looked: list[int] = []

    def key_of(number: int) -> str:
        looked.append(number)
        return with_a if number < 30 else with_b

    queue = SharedQueue(key_of)
    queue.add(1, 40)
    queue.join("a", 1)
    queue.join("b", 1)
    assert members_of(queue.due(0)) == {1: "a"}
    assert max(looked) == 20
    assert queue.next_at == 0  # there is more to look at, in the next turn
    assert members_of(queue.due(0)) == {30: "b"}
    assert queue.next_at is None


def test_a_key_that_waits_does_not_hide_others_behind_many_items() -> None:
    with_a, with_b = two_keys()
    queue = SharedQueue(lambda number: with_a if number < 5_000 else with_b)
    queue.add(1, 10_000)
    queue.join("a", 1)
    queue.join("b", 2)
    found = members_of(queue.due(0))
    while queue.next_at is not None:
        found |= members_of(queue.due(0))
    assert found == {1: "a", 5_000: "b", 5_001: "b"}


def test_how_many_items_are_passed_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.MAX_LOOKED_AT", 100)
    with_a, with_b = two_keys()
    queue = SharedQueue(lambda number: with_a if number < 500 else with_b)
    queue.add(1, 1_000)
    queue.join("a", 1)
    queue.join("b", 1)
    assert members_of(queue.due(0)) == {1: "a"}
    assert queue.next_at is None
    for number in range(1, 300):
        queue.finish("a", ((number, number),))
        assert members_of(queue.due(0)) == {number + 1: "a"}
    found: dict[int, str] = {}
    for number in range(300, 500):
        queue.finish("a", ((number, number),))
        found |= members_of(queue.due(0))
    assert found[500] == "b"
