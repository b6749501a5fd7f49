"""With keys: which waiting item goes to which member next, at a cost that does not grow with what waits.

Each item is looked at once, in the order of numbers, and then waits with the others of its key. Of a key only the first
can go out, and to one member only (`OneOfN.choose_for`): it is that key's turn there. So whoever has room finds the
next item without passing those that wait for somebody else.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from tidings.core.sharing.one_of_n import OneOfN

SPARE_TURNS = 64


class KeyTurns:
    """The items that were looked at. `key_of` returns the key of an item that is not done."""

    def __init__(self, key_of: Callable[[int], str], members: OneOfN) -> None:
        self.key_of = key_of
        self._members = members
        self.count = 0
        """How many items wait here."""
        self._waiting: dict[str, list[int]] = {}
        self._delayed: dict[str, list[int]] = {}
        """Key -> numbers, ascending; never empty. A delayed item goes before all newer ones of its key."""
        self._out: dict[str, set[int]] = {}
        self._turns: dict[str, list[tuple[int, str]]] = {}
        """Member -> heap of (number, key). Every key whose first item can go out has its turn with its member. Other
        turns are out of date, and dropped when they come up."""

    # --- Items

    def add(self, number: int) -> None:
        key = self.key_of(number)
        numbers = self._waiting.setdefault(key, [])
        insort(numbers, number)
        self.count += 1
        if numbers[0] == number:
            self._offer(key)

    def remove(self, number: int) -> None:
        """The item went out. Whoever claims items calls `offer_all` afterwards."""
        key = self.key_of(number)
        _remove(self._waiting, key, number)
        self.count -= 1
        self._offer(key)

    def delay(self, number: int) -> None:
        insort(self._delayed.setdefault(self.key_of(number), []), number)

    def end_delay(self, number: int) -> None:
        _remove(self._delayed, self.key_of(number), number)

    def go_out(self, member: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            key = self.key_of(number)
            self._out.setdefault(key, set()).add(number)
            self._members.give(member, 1, key)

    def come_back(self, member: str, numbers: Iterable[int]) -> None:
        """Items are done, or no longer with the member."""
        for number in numbers:
            key = self.key_of(number)
            out = self._out[key]
            out.discard(number)
            self._members.take_back(member, 1, key)
            if not out:
                del self._out[key]
                self._offer(key)  # nobody holds the key now: another member may be next

    def newer_out(self, number: int) -> list[int]:
        """Return what is out of the item's key and comes after it."""
        return sorted(each for each in self._out.get(self.key_of(number), ()) if each > number)

    # --- Turns

    def _offer(self, key: str) -> None:
        numbers = self._waiting.get(key)
        member = None if numbers is None else self._members.choose_for(key)
        if numbers is None or member is None:
            return
        turns = self._turns.setdefault(member, [])
        heappush(turns, (numbers[0], key))
        if len(turns) > 2 * len(self._waiting) + SPARE_TURNS:
            self.offer_all()

    def offer_all(self) -> None:
        """Members have come, gone, or claimed keys."""
        self._turns = {}
        for key, numbers in self._waiting.items():
            member = self._members.choose_for(key)
            if member is not None:
                self._turns.setdefault(member, []).append((numbers[0], key))
        for turns in self._turns.values():
            heapify(turns)

    def first(self) -> tuple[int, str] | None:
        """Return the lowest item whose member has room, and that member."""
        members = self._members
        few = members.with_room <= len(self._turns)
        ready = members.with_room_now() if few else filter(members.has_room, list(self._turns))
        return min(((number, member) for member in ready for number in self._next(member)), default=None)

    def _next(self, member: str) -> tuple[int, ...]:
        """Return the next item of that member, if there is one."""
        turns = self._turns.get(member, [])
        while turns:
            number, key = turns[0]
            numbers, delayed = self._waiting.get(key), self._delayed.get(key)
            is_first = numbers is not None and numbers[0] == number and not (delayed and delayed[0] < number)
            if is_first and self._members.choose_for(key) == member:
                return (number,)
            heappop(turns)
        self._turns.pop(member, None)
        return ()


def _remove(lists: dict[str, list[int]], key: str, number: int) -> None:
    numbers = lists[key]
    del numbers[bisect_left(numbers, number)]
    if not numbers:
        del lists[key]
