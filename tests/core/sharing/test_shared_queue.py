"""One test per behaviour of the shared queue."""

from __future__ import annotations

import pytest

from tidings.core.sharing.shared_queue import Handout, SharedQueue


def queue_of(count: int, *members: str, limit: int = 10, in_order: bool = False) -> SharedQueue:
    queue = SharedQueue(in_order=in_order)
    queue.add(1, count)
    for member in members:
        queue.join(member, limit)
    return queue


def numbers(handouts: list[Handout]) -> list[int]:
    return [number for _, first, last, _ in handouts for number in range(first, last + 1)]


def counts(queue: SharedQueue) -> tuple[int, int, int]:
    return queue.waiting_count, queue.out_count, queue.count


# --- Handing out


def test_items_wait_until_there_is_a_member() -> None:
    queue = queue_of(3)
    assert queue.due(0) == []
    assert counts(queue) == (3, 0, 3)
    queue.join("a", 10)
    assert queue.due(0) == [Handout("a", 1, 3, 1)]
    assert counts(queue) == (0, 3, 3)


def test_the_only_member_gets_as_much_as_it_may_hold_at_once() -> None:
    queue = queue_of(30, "a")
    assert queue.due(0) == [Handout("a", 1, 10, 1)]
    assert queue.due(0) == []
    queue.finish("a", ((1, 4),))
    assert queue.due(0) == [Handout("a", 11, 14, 1)]


def test_no_member_gets_more_than_its_limit() -> None:
    queue = queue_of(100)
    limits = {"a": 1, "b": 7, "c": 3}
    for member, limit in limits.items():
        queue.join(member, limit)
    assert numbers(queue.due(0)) == list(range(1, 12))
    assert {member: queue.members.holds(member) for member in limits} == limits


def test_few_items_go_out_in_small_parts_so_that_every_idle_member_gets_work() -> None:
    for count in range(1, 60):
        queue = queue_of(count, *"abcdefgh", limit=100)
        handouts = queue.due(0)
        assert numbers(handouts) == list(range(1, count + 1))
        assert len({handout.member for handout in handouts}) == min(count, 8)


def test_many_items_go_out_in_large_parts() -> None:
    queue = queue_of(10_000, *"abcd", limit=1_000)
    assert len(queue.due(0)) == 4


def test_who_holds_least_gets_the_next_item() -> None:
    queue = queue_of(4, "a", "b")
    queue.due(0)
    queue.finish("b", ((2, 2), (4, 4)))
    queue.add(5, 6)
    assert [handout.member for handout in queue.due(0)] == ["b", "b"]


# --- Coming back


def test_what_a_leaving_member_had_goes_out_first_in_its_old_order_as_the_next_attempt() -> None:
    queue = queue_of(6, "a", limit=4)
    queue.due(0)
    queue.finish("a", ((2, 2),))
    queue.leave("a")
    assert counts(queue) == (5, 0, 5)
    queue.join("b", 10)
    handouts = queue.due(0)
    assert numbers(handouts) == [1, 3, 4, 5, 6]
    assert [handout.attempt for handout in handouts] == [2, 2, 1]


def test_who_is_no_member_leaves_nothing() -> None:
    queue = queue_of(2, "a")
    queue.due(0)
    queue.leave("b")
    assert counts(queue) == (0, 2, 2)


def test_what_nobody_has_seen_was_no_attempt() -> None:
    queue = queue_of(3, "a", "b")
    assert queue.due(0) == [Handout("a", 1, 1, 1), Handout("b", 2, 2, 1), Handout("a", 3, 3, 1)]
    queue.leave("a", unseen=((2, 3), (3, 9)))
    assert [queue.attempts(number) for number in (1, 2, 3)] == [1, None, 0]
    assert queue.due(0) == [Handout("b", 1, 1, 2), Handout("b", 3, 3, 1)]


def test_each_handout_is_one_more_attempt() -> None:
    queue = queue_of(1)
    queue.add(2, 2, attempts=7)
    for attempt in range(1, 5):
        queue.join("a", 10)
        assert [handout.attempt for handout in queue.due(0)] == [attempt, attempt + 7]
        queue.leave("a")


# --- Done


def test_what_is_done_is_gone() -> None:
    queue = queue_of(5, "a")
    queue.due(0)
    assert queue.finish("a", ((2, 3), (5, 9))) == ((2, 3), (5, 5))
    queue.leave("a")
    assert counts(queue) == (2, 0, 2)
    queue.join("b", 10)
    assert numbers(queue.due(0)) == [1, 4]


@pytest.mark.parametrize(("member", "ranges"), [("b", ((1, 3),)), ("a", ((2, 2),)), ("a", ((4, 9), (3, 1)))])
def test_finishing_what_one_does_not_have_changes_nothing(
    member: str, ranges: tuple[tuple[int, int], ...]
) -> None:
    queue = queue_of(3, "a")
    queue.due(0)
    assert queue.finish("a", ((2, 2),)) == ((2, 2),)
    queue.join("b", 10)
    assert queue.finish(member, ranges) == ()
    assert counts(queue) == (0, 2, 2)
    assert (queue.members.holds("a"), queue.members.holds("b")) == (2, 0)


def test_an_item_named_twice_is_finished_once() -> None:
    queue = queue_of(3, "a")
    queue.due(0)
    assert queue.finish("a", ((1, 2), (2, 3))) == ((1, 3),)
    assert counts(queue) == (0, 0, 0)


# --- Refusing


def test_a_refused_item_comes_again_when_it_is_due_and_not_before() -> None:
    queue = queue_of(3, "a")
    queue.due(0)
    assert queue.refuse("a", 2, 50) == ()
    assert queue.next_at == 50
    assert counts(queue) == (0, 2, 3)
    assert queue.due(49) == []
    assert queue.due(50) == [Handout("a", 2, 2, 2)]
    assert queue.next_at is None


def test_delayed_items_come_in_the_order_of_their_numbers_once_due() -> None:
    queue = queue_of(4, "a")
    queue.due(0)
    for number, due_at in ((3, 10), (1, 20), (4, 30)):
        queue.refuse("a", number, due_at)
    assert queue.next_at == 10
    assert numbers(queue.due(25)) == [1, 3]
    assert queue.next_at == 30


def test_only_who_has_an_item_can_refuse_it() -> None:
    queue = queue_of(2, "a")
    queue.due(0)
    queue.join("b", 10)
    assert queue.refuse("b", 1, 5) == ()
    assert queue.refuse("a", 9, 5) == ()
    assert counts(queue) == (0, 2, 2)
    assert queue.next_at is None


def test_hurrying_makes_all_delayed_items_due() -> None:
    queue = queue_of(3, "a")
    queue.due(0)
    queue.refuse("a", 2, 1_000)
    queue.add_later(7, 8, 3, 2_000)
    queue.hurry()
    assert queue.next_at is None
    assert queue.due(0) == [Handout("a", 2, 2, 2), Handout("a", 7, 7, 4), Handout("a", 8, 8, 4)]


# --- Set aside


def test_an_item_that_is_set_aside_goes_out_no_more_until_it_is_released_and_counts_on() -> None:
    queue = queue_of(3, "a")
    queue.due(0)
    assert queue.refuse("a", 2, None) == ()
    assert queue.aside == {2: 1}
    assert counts(queue) == (0, 2, 3)
    assert queue.due(10**18) == []
    assert queue.release([1, 2, 2, 9]) == [2]
    assert queue.aside == {}
    assert queue.due(0) == [Handout("a", 2, 2, 2)]


def test_attempts_go_on_after_an_item_was_set_aside() -> None:
    queue = SharedQueue()
    queue.add(1, 1, attempts=4)
    queue.join("a", 1)
    assert queue.due(0) == [Handout("a", 1, 1, 5)]
    queue.refuse("a", 1, None)
    assert queue.aside == {1: 5}
    queue.release([1])
    assert queue.due(0) == [Handout("a", 1, 1, 6)]


def test_an_item_that_was_set_aside_earlier_can_be_dropped_once() -> None:
    queue = queue_of(1, "a")
    queue.set_aside(9, 0)
    assert queue.count == 2
    assert queue.drop_aside(9)
    assert not queue.drop_aside(9)
    assert not queue.drop_aside(1)
    assert queue.release([9]) == []
    assert queue.count == 1


# --- In order


def test_in_order_a_refused_item_calls_back_all_newer_ones() -> None:
    queue = queue_of(8, "a", limit=6, in_order=True)
    queue.due(0)
    queue.finish("a", ((5, 5),))
    assert queue.refuse("a", 3, 40) == ((4, 4), (6, 6))
    assert counts(queue) == (4, 2, 7)
    assert queue.due(39) == []
    assert numbers(queue.due(40)) == [3, 4, 6, 7]


def test_in_order_nothing_overtakes_a_delayed_item() -> None:
    queue = queue_of(3, "a", in_order=True)
    queue.due(0)
    queue.refuse("a", 3, 10)
    queue.refuse("a", 1, 20)
    assert queue.due(10) == []
    assert numbers(queue.due(20)) == [1, 2, 3]


def test_in_order_an_item_that_is_set_aside_calls_back_nothing() -> None:
    queue = queue_of(3, "a", in_order=True)
    queue.due(0)
    assert queue.refuse("a", 2, None) == ()
    assert counts(queue) == (0, 2, 3)


def test_without_order_a_refused_item_calls_back_nothing() -> None:
    queue = queue_of(3, "a")
    queue.due(0)
    assert queue.refuse("a", 1, 10) == ()
    queue.add(4, 4)
    assert numbers(queue.due(0)) == [4]


# --- Returning with what one holds


def test_who_returns_claims_what_went_out_before_and_keeps_its_attempt() -> None:
    queue = queue_of(8, "a", limit=4)
    queue.due(0)
    queue.leave("a")
    assert queue.join("a", 4, ((2, 3), (5, 9))) == ((2, 3),)  # 5 to 8 never went out, 9 does not exist
    assert queue.due(0) == [Handout("a", 1, 1, 2), Handout("a", 4, 4, 2)]
    assert queue.finish("a", ((2, 3),)) == ((2, 3),)
    queue.leave("a")
    assert [queue.attempts(number) for number in range(1, 9)] == [2, None, None, 2, 0, 0, 0, 0]


def test_nobody_claims_what_is_with_another_or_done_or_aside() -> None:
    queue = queue_of(4, "a")
    queue.due(0)
    queue.finish("a", ((1, 1),))
    queue.refuse("a", 2, None)
    queue.leave("a")
    queue.join("b", 1)
    assert queue.due(0) == [Handout("b", 3, 3, 2)]
    assert queue.join("a", 10, ((1, 9),)) == ((4, 4),)
    assert queue.finish("a", ((1, 9),)) == ((4, 4),)


def test_who_joins_again_keeps_what_it_has_and_no_item_counts_twice() -> None:
    queue = queue_of(5, "a")
    queue.due(0)
    assert queue.join("a", 3, ((1, 9),)) == ((1, 5),)
    assert counts(queue) == (0, 5, 5)
    assert queue.members.holds("a") == 5


def test_a_claim_may_exceed_the_limit_but_then_nothing_more_goes_out() -> None:
    queue = queue_of(9, "a", limit=6)
    queue.due(0)
    queue.leave("a")
    assert queue.join("a", 2, ((1, 6),)) == ((1, 6),)
    queue.finish("a", ((1, 4),))
    assert queue.due(0) == []
    queue.finish("a", ((5, 5),))
    assert numbers(queue.due(0)) == [7]


def test_what_went_out_before_a_restart_waits_for_who_had_it() -> None:
    queue = SharedQueue()
    queue.add_later(1, 4, 2, 100)
    queue.join("b", 10)
    assert queue.due(99) == []
    assert queue.join("a", 10, ((2, 3),)) == ((2, 3),)
    assert counts(queue) == (0, 2, 4)
    handouts = queue.due(100)
    assert numbers(handouts) == [1, 4]
    assert {(handout.member, handout.attempt) for handout in handouts} == {("b", 3)}


def test_a_claimed_item_that_is_refused_again_wakes_once() -> None:
    queue = SharedQueue()
    queue.add_later(1, 1, 1, 100)
    queue.join("a", 10, ((1, 1),))
    assert queue.next_at is None
    queue.join("a", 10)
    queue.refuse("a", 1, 100)
    assert queue.due(100) == [Handout("a", 1, 1, 2)]
    assert queue.due(100) == []
