"""Sixty thousand items through sixteen members: counted in handouts and looks, never in time."""

from __future__ import annotations

from collections import Counter

import pytest

from tidings.core.sharing.shared_queue import Handout, SharedQueue

ITEMS = 60_000
MEMBERS = [f"member {number}" for number in range(16)]


def started(queue: SharedQueue, limit: int) -> SharedQueue:
    queue.add(1, ITEMS)
    for member in MEMBERS:
        queue.join(member, limit)
    return queue


def finish_all(queue: SharedQueue, handouts: list[Handout]) -> int:
    """Finish these, and return how many items they are."""
    for member, first, last, _ in handouts:
        assert queue.finish(member, ((first, last),)) == ((first, last),)
    return sum(last - first + 1 for _, first, last, _ in handouts)


@pytest.mark.parametrize("limit", [1, 64, ITEMS])
def test_each_item_goes_out_once_and_every_member_works(limit: int) -> None:
    queue = started(SharedQueue(), limit)
    rounds = handouts = finished = 0
    per_member: Counter[str] = Counter()
    while found := queue.due(0):
        rounds += 1
        handouts += len(found)
        for member, first, last, _ in found:
            per_member[member] += last - first + 1
        finished += finish_all(queue, found)
    assert finished == ITEMS
    assert (queue.count, queue.out_count, queue.waiting_count) == (0, 0, 0)
    assert rounds <= ITEMS // (16 * limit) + 1
    assert handouts <= min(ITEMS, 2 * ITEMS // limit + 16 * 20)
    assert sorted(per_member) == sorted(MEMBERS)
    assert max(per_member.values()) <= 2 * min(per_member.values())


def test_who_finishes_one_item_gets_one_more_for_one_handout() -> None:
    queue = started(SharedQueue(), 8)
    out = queue.due(0)
    handouts = len(out)
    finished = 0
    while out:
        member, first, last, _ = out.pop()
        for number in range(first, last + 1):
            queue.finish(member, ((number, number),))
            finished += 1
            found = queue.due(0)
            handouts += len(found)
            out += found
    assert finished == ITEMS
    assert handouts <= ITEMS


def test_a_member_that_leaves_costs_handouts_for_what_it_had_alone() -> None:
    queue = started(SharedQueue(), 100)
    handouts = finished = came_back = 0
    leavers = iter(MEMBERS * 2)
    while found := queue.due(0):
        handouts += len(found)
        leaver = next(leavers, "")
        finished += finish_all(queue, [handout for handout in found if handout.member != leaver])
        if leaver:
            came_back += queue.members.holds(leaver)
            queue.leave(leaver)
            queue.join(leaver, 100)
    assert finished == ITEMS
    assert queue.count == 0
    assert came_back == 32 * 100
    assert handouts <= ITEMS // 100 + came_back + 16 * 20


@pytest.mark.slow
def test_with_keys_the_looks_at_items_grow_with_the_items() -> None:
    looks = 0

    def key_of(number: int) -> str:
        nonlocal looks
        looks += 1
        return f"key {number % 997}"

    queue = started(SharedQueue(key_of), 64)
    rounds = handouts = finished = 0
    while found := queue.due(0):
        rounds += 1
        handouts += len(found)
        finished += finish_all(queue, found)
    assert finished == handouts == ITEMS
    assert looks <= 4 * ITEMS


@pytest.mark.slow
@pytest.mark.parametrize("keys", [1, 2, 10_000])
@pytest.mark.parametrize("refused", [False, True])
def test_with_keys_no_item_is_looked_at_again_because_others_wait(keys: int, refused: bool) -> None:
    looks = 0

    def key_of(number: int) -> str:
        nonlocal looks
        looks += 1
        return f"key {number % keys}"

    def handle(handout: Handout) -> None:
        if refused and handout.attempt == 1:
            queue.refuse(handout.member, handout.first, 0)
        else:
            queue.finish(handout.member, ((handout.first, handout.first),))

    queue = started(SharedQueue(key_of), 8)
    handled = 0
    out = queue.due(0)
    while out and handled < 5_000:
        handle(out.pop(0))
        out += queue.due(0)
        out = [handout for handout in out if queue._out.get(handout.first) is not None]
        handled += 1
    assert handled == 5_000
    assert looks <= 200_000


def test_members_that_leave_one_after_the_other_cost_what_they_had() -> None:
    """Singly, and mixed with what others have: all pieces would be moved a hundred times each."""
    members = [f"member {number}" for number in range(100)]
    each = ITEMS // len(members)
    queue = SharedQueue()
    for member in members:
        queue.join(member, each)
    for number in range(ITEMS):
        queue.add(number, number)
        queue.due(0)
    assert queue.out_count == ITEMS
    for left, member in enumerate(members, 1):
        queue.leave(member)
        assert (queue.out_count, queue.waiting_count) == (ITEMS - each * left, each * left)
    queue.join("last", ITEMS)
    assert [handout.first for handout in queue.due(0)] == [*range(ITEMS)]


def test_an_item_that_is_claimed_and_given_back_again_and_again_takes_no_more_memory() -> None:
    queue = SharedQueue()
    queue.add(1, 1)
    queue.join("a", 1)
    queue.due(0)
    for again in range(1_000):
        queue.refuse("a", 1, 10**18 + again)
        assert queue.join("a", 1, ((1, 1),)) == ((1, 1),)
    assert len(queue._alarms) < 100
