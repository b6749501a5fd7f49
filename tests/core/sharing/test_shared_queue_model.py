"""The shared queue against a dictionary of its items, while members come, go, finish and refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from breadth import examples
from tidings.core.sharing.shared_queue import Handout, Ranges, SharedQueue

MEMBERS = ("a", "b", "c")
limits = st.integers(1, 6)
some_ranges = st.lists(st.tuples(st.integers(-6, 24), st.integers(0, 8)), max_size=4)


@dataclass
class Item:
    state: str
    attempts: int
    member: str = ""
    due_at: int = 0


def spread(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return sorted({number for first, last in ranges for number in range(first, last + 1)})


class Sharing(RuleBasedStateMachine):
    """Without keys and without order; the machines below have either or both."""

    keys = 0
    in_order = False

    def __init__(self) -> None:
        super().__init__()
        self.queue = SharedQueue(self.key_of if self.keys else None, in_order=self.in_order)
        self.items: dict[int, Item] = {}
        self.done: set[int] = set()
        self.limits: dict[str, int] = {}
        self.now = self.newest = 0
        self.in_turn: dict[str, int] = {}
        """Key, or "" for all -> the last number that went out since something came back."""
        self.names = st.sampled_from(MEMBERS[:1] if self.in_order else MEMBERS)

    # --- Looking at the model

    def key_of(self, number: int) -> str:
        return f"k{number % self.keys}"

    def turn_of(self, number: int) -> str:
        return self.key_of(number) if self.keys and not self.in_order else ""

    def are(self, state: str, fits: Callable[[int, Item], bool] = lambda _, __: True) -> list[int]:
        found = self.items.items()
        return sorted(number for number, item in found if item.state == state and fits(number, item))

    def held_by(self, member: str) -> list[int]:
        return self.are("out", lambda _, item: item.member == member)

    def ranges(self, drawn: list[tuple[int, int]]) -> Ranges:
        """Ranges around the oldest item that is not done."""
        oldest = min(self.items, default=0)
        return tuple((oldest + offset, oldest + offset + length) for offset, length in drawn)

    def comes_back(self, number: int, state: str) -> None:
        self.items[number].state = state
        self.items[number].member = ""
        self.in_turn.pop(self.turn_of(number), None)

    # --- Items

    @rule(count=st.integers(1, 8), attempts=st.sampled_from([0, 0, 0, 2]))
    def add(self, count: int, attempts: int) -> None:
        first, self.newest = self.newest + 1, self.newest + count
        self.queue.add(first, self.newest, attempts)
        self.items |= {number: Item("waiting", attempts) for number in range(first, self.newest + 1)}

    @rule(count=st.integers(1, 3), attempts=st.integers(1, 3), delay=st.integers(0, 20))
    def add_later(self, count: int, attempts: int, delay: int) -> None:
        first, self.newest = self.newest + 1, self.newest + count
        at = self.now + delay
        self.queue.add_later(first, self.newest, attempts, at)
        for number in range(first, self.newest + 1):
            self.items[number] = Item("delayed", attempts, due_at=at)
            self.in_turn.pop(self.turn_of(number), None)

    @rule(attempts=st.integers(0, 3))
    def set_aside(self, attempts: int) -> None:
        self.newest += 1
        self.queue.set_aside(self.newest, attempts)
        self.items[self.newest] = Item("aside", attempts)

    @precondition(lambda self: self.are("aside"))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        asked = data.draw(st.lists(st.sampled_from(sorted(self.items)), max_size=5))
        found = self.queue.release(asked)
        assert sorted(found) == [number for number in self.are("aside") if number in asked]
        for number in found:
            self.comes_back(number, "waiting")

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def drop_aside(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.items)))
        is_aside = self.items[number].state == "aside"
        assert self.queue.drop_aside(number) == is_aside
        if is_aside:
            del self.items[number]

    # --- Members

    @rule(data=st.data(), limit=limits, drawn=some_ranges)
    def join(self, data: st.DataObject, limit: int, drawn: list[tuple[int, int]]) -> None:
        member, holding = data.draw(self.names), self.ranges(drawn)
        others = (
            {self.key_of(n) for n in self.are("out", lambda _, i: i.member != member)} if self.keys else ()
        )
        claimed = [
            number
            for number in spread(holding)
            if (item := self.items.get(number)) is not None
            and (item.state == "delayed" or (item.state == "waiting" and item.attempts))
            and not (self.keys and self.key_of(number) in others)
        ]
        own = [number for number in self.held_by(member) if number in spread(holding)]
        assert spread(self.queue.join(member, limit, holding)) == sorted(claimed + own)
        self.limits[member] = limit
        for number in claimed:
            self.comes_back(number, "out")
            self.items[number].member = member

    @rule(data=st.data(), drawn=some_ranges)
    def leave(self, data: st.DataObject, drawn: list[tuple[int, int]]) -> None:
        member, unseen = data.draw(self.names), self.ranges(drawn)
        self.queue.leave(member, unseen)
        for number in self.held_by(member):
            self.comes_back(number, "waiting")
            self.items[number].attempts -= number in spread(unseen)
            assert self.queue.attempts(number) == self.items[number].attempts
        self.limits.pop(member, None)

    @rule(data=st.data(), drawn=some_ranges)
    def finish(self, data: st.DataObject, drawn: list[tuple[int, int]]) -> None:
        member, ranges = data.draw(self.names), self.ranges(drawn)
        found = [
            number for first, last in self.queue.finish(member, ranges) for number in range(first, last + 1)
        ]
        assert sorted(found) == [number for number in self.held_by(member) if number in spread(ranges)]
        assert not self.done.intersection(found)
        self.done.update(found)
        for number in found:
            del self.items[number]

    @precondition(lambda self: self.are("out"))
    @rule(data=st.data(), delay=st.one_of(st.none(), st.integers(0, 20)))
    def refuse(self, data: st.DataObject, delay: int | None) -> None:
        number = data.draw(st.sampled_from(self.are("out")))
        member = data.draw(st.sampled_from([self.items[number].member] * 3 + list(MEMBERS)))
        due_at = None if delay is None else self.now + delay
        dropped = spread(self.queue.refuse(member, number, due_at))
        if member != self.items[number].member:
            assert dropped == []
            return
        newer = self.are("out", lambda each, _: each > number)
        if not self.in_order:
            newer = [each for each in newer if self.keys and self.key_of(each) == self.key_of(number)]
        assert dropped == (newer if due_at is not None else [])
        self.comes_back(number, "aside" if due_at is None else "delayed")
        self.items[number].due_at = due_at or 0
        for each in dropped:
            self.comes_back(each, "waiting")

    @rule()
    def hurry(self) -> None:
        self.queue.hurry()
        for number in self.are("delayed"):
            self.comes_back(number, "waiting")

    # --- Handing out

    @rule(passed=st.integers(0, 12))
    def due(self, passed: int) -> None:
        self.now += passed
        handouts = self.queue.due(self.now)
        for number in self.are("delayed", lambda _, item: item.due_at <= self.now):
            self.comes_back(number, "waiting")
        if self.in_order and self.are("delayed"):
            assert handouts == []
            return
        for handout in handouts:
            self.goes_out(handout)
        self.nothing_more_can_go_out()

    def goes_out(self, handout: Handout) -> None:
        for number in range(handout.first, handout.last + 1):
            item, turn = self.items[number], self.turn_of(number)
            assert item.state == "waiting"
            assert handout.attempt == item.attempts + 1
            assert self.in_turn.get(turn, 0) < number
            assert not self.keys or not self.comes_after_a_delayed(number)
            older = self.are("waiting", lambda each, _, below=number: each < below)  # type: ignore[misc]
            assert turn not in map(self.turn_of, older)
            item.state, item.member, item.attempts = "out", handout.member, handout.attempt
            self.in_turn[turn] = number
        assert len(self.held_by(handout.member)) <= self.limits[handout.member]

    def nothing_more_can_go_out(self) -> None:
        with_room = [name for name, limit in self.limits.items() if len(self.held_by(name)) < limit]
        if not self.keys:
            assert not with_room or not self.are("waiting")
        for number in self.are("waiting") if self.keys else ():
            if self.comes_after_a_delayed(number):
                continue
            assert self.queue.members.choose_for(self.key_of(number)) not in with_room

    def comes_after_a_delayed(self, number: int) -> bool:
        key = self.key_of(number)
        return any(each < number and self.key_of(each) == key for each in self.are("delayed"))

    # --- What always holds

    @invariant()
    def every_item_is_in_one_state(self) -> None:
        queue = self.queue
        found: list[tuple[int, Item]] = []
        for first, last, attempts in queue._waiting:
            found += [(number, Item("waiting", attempts)) for number in range(first, last + 1)]
        for first, last, (member, attempt) in queue._out:
            found += [(number, Item("out", attempt, member)) for number in range(first, last + 1)]
        found += [(number, Item("delayed", many, due_at=at)) for number, (at, many) in queue._delayed.items()]
        found += [(number, Item("aside", attempts)) for number, attempts in queue.aside.items()]
        for item in self.items.values():
            item.due_at = item.due_at if item.state == "delayed" else 0
        assert len(found) == len(dict(found))
        assert dict(found) == self.items
        assert not self.done.intersection(self.items)

    @invariant()
    def the_counts_are_right(self) -> None:
        assert self.queue.waiting_count == len(self.are("waiting"))
        assert self.queue.out_count == len(self.are("out"))
        assert self.queue.count == len(self.items)
        delayed = [self.items[number].due_at for number in self.are("delayed")]
        assert self.queue.next_at == min(delayed, default=None)

    @invariant()
    def the_members_hold_what_is_out(self) -> None:
        members = self.queue.members
        assert len(members) == len(self.limits)
        for name, limit in self.limits.items():
            holds = len(self.held_by(name))
            assert (members.holds(name), members.room(name)) == (holds, max(limit - holds, 0))

    @invariant()
    def equal_keys_are_with_one_member(self) -> None:
        if self.keys:
            out = Counter((self.key_of(number), self.items[number].member) for number in self.are("out"))
            assert len({key for key, _ in out}) == len(out)
            assert self.queue.members._pinned == {key: (name, count) for (key, name), count in out.items()}


class SharingByKey(Sharing):
    keys = 4


class SharingInOrder(Sharing):
    in_order = True


class SharingByKeyInOrder(Sharing):
    keys = 4
    in_order = True


TestSharing = Sharing.TestCase
TestSharingByKey = SharingByKey.TestCase
TestSharingInOrder = SharingInOrder.TestCase
TestSharingByKeyInOrder = SharingByKeyInOrder.TestCase
for case in (TestSharing, TestSharingByKey, TestSharingInOrder, TestSharingByKeyInOrder):
    case.settings = settings(max_examples=examples(150), stateful_step_count=40)
del case  # or it would be collected, too
