"""A queue whose items go to one member each, and to another one if that member goes before it is done.

Items are numbers, in the order in which they were added; whoever owns the queue knows what they stand for. An item is

    waiting -> out with a member -> done
       ^  ^          |      |
       |  |  left, refused  +-> set aside, until it is released
       |  +----------+
       +-- delayed <-+

Each time an item goes out is an attempt, numbered from 1; setting it aside takes that one back. What comes back waits
in its old place, before everything newer. With an exclusive order, an item that is refused calls back everything newer,
so that the order holds; with keys, everything newer of its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from types import MappingProxyType
from typing import NamedTuple

from tidings.core.events.event import INT_MAX
from tidings.core.sharing.key_turns import KeyTurns
from tidings.core.sharing.one_of_n import OneOfN
from tidings.core.sharing.out import Out
from tidings.core.structures.range_map import Piece, RangeMap
from tidings.core.structures.ranges import Ranges, merged, within

MAX_LOOKS, LOOKS_AT_ONCE = 1_024, 64
"""With keys, how many waiting items are looked at in one turn, and at a time, for members with room."""
MAX_LOOKED_AT = 65_536
"""With keys, how many items are passed that wait for members without room. At this limit, others wait, too."""

MAX_CLAIMED = 65_536
SPARE_ALARMS = 64


class Handout(NamedTuple):
    """Items that go to a member now."""

    member: str
    first: int
    last: int
    attempt: int


class SharedQueue:
    """The items of one durable subscription or group. `key_of` returns an item's key, if equal keys stay together."""

    def __init__(self, key_of: Callable[[int], str] | None = None, *, in_order: bool = False) -> None:
        self.members = OneOfN()
        self._turns = None if key_of is None else KeyTurns(key_of, self.members)
        self._looked_to = -1
        """With keys: waiting items up to this number are among the turns."""
        self._look_again = False
        """The last turn stopped at MAX_LOOKS."""
        self._now = 0
        self._in_order = in_order
        self._waiting: RangeMap[int] = RangeMap()
        """Numbers -> how often they went out before."""
        self._out = Out()
        self._delayed: dict[int, tuple[int, int]] = {}
        """Number -> when it is due, how often it went out."""
        self._alarms: list[tuple[int, int]] = []
        """A heap of (when, number) of what is delayed; others are out of date, and dropped when they come up."""
        self._aside: dict[int, int] = {}
        """Number -> how often it went out."""
        self.waiting_count = self.out_count = 0
        """How many items wait for a member with room; how many are out."""

    @property
    def count(self) -> int:
        """How many items are not done."""
        return self.waiting_count + self.out_count + len(self._delayed) + len(self._aside)

    @property
    def aside(self) -> Mapping[int, int]:
        """The items that were set aside, with how often they went out."""
        return MappingProxyType(self._aside)

    def aside_in(self, ranges: Ranges) -> list[int]:
        """Return which of these items were set aside."""
        return within(self._aside, merged(ranges))

    # --- Items

    def add(self, first: int, last: int, attempts: int = 0) -> None:
        """Add items that went out `attempts` times before."""
        self._add_all([(first, last, attempts)])

    def _add_all(self, pieces: list[Piece[int]]) -> None:
        self._waiting.add_all(pieces)
        for first, last, _ in pieces:
            self.waiting_count += last - first + 1
            if self._turns is not None:
                for number in range(first, min(last, self._looked_to) + 1):
                    self._turns.add(number)

    def add_later(self, first: int, last: int, attempts: int, due_at: int) -> None:
        """Add items that went out before, and may still be with a member that returns until then."""
        for number in range(first, last + 1):
            self._delay(number, due_at, attempts)

    def _delay(self, number: int, due_at: int, attempts: int) -> None:
        self._delayed[number] = (due_at, attempts)
        heappush(self._alarms, (due_at, number))
        if len(self._alarms) > 2 * len(self._delayed) + SPARE_ALARMS:
            self._alarms = sorted((at, each) for each, (at, _) in self._delayed.items())
        if self._turns is not None:
            self._turns.delay(number)

    def _end_delay(self, number: int) -> int:
        """Return how often the item went out."""
        if self._turns is not None:
            self._turns.end_delay(number)
        return self._delayed.pop(number)[1]

    def hurry(self) -> None:
        """Stop waiting for members to return: all delayed items are due."""
        for number in list(self._delayed):
            self.add(number, number, self._end_delay(number))
        self._alarms.clear()

    def set_aside(self, number: int, attempts: int) -> None:
        """Add an item that was set aside earlier."""
        self._aside[number] = attempts

    def release(self, numbers: Iterable[int]) -> list[int]:
        """Let items that were set aside go out again. Return those."""
        found: list[int] = []
        for number in numbers:
            attempts = self._aside.pop(number, None)
            if attempts is not None:
                self.add(number, number, attempts)
                found.append(number)
        return found

    def drop_aside(self, number: int) -> bool:
        return self._aside.pop(number, None) is not None

    def attempts(self, number: int) -> int | None:
        """Return how often a waiting item went out; None if it does not wait."""
        return self._waiting.get(number)

    def went_out(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return the items that are out, or were and wait for their member to return: first, last, attempts."""
        found = [(low, high, attempt) for low, high, (_, attempt) in self._out.within(((first, last),))]
        found += [piece for piece in self._waiting.overlapping(first, last) if piece[2]]
        found += [
            (number, number, attempts)
            for number, (_, attempts) in self._delayed.items()
            if first <= number <= last
        ]
        return sorted(found)

    @property
    def first_waiting(self) -> int | None:
        """The lowest item that waits; None if none does."""
        lowest = self._waiting.first
        return None if lowest is None else lowest[0]

    def unfinished(self, ranges: Ranges) -> Ranges:
        """Return which of these numbers are items that are not done."""
        ranges, found = merged(ranges), []
        for first, last in ranges:
            found += [(low, high) for low, high, _ in self._waiting.overlapping(first, last)]
        found += [(low, high) for low, high, _ in self._out.within(ranges)]
        found += [(number, number) for number in within(self._delayed, ranges)]
        found += [(number, number) for number in within(self._aside, ranges)]
        return tuple(sorted(found))

    # --- Members

    def join(self, member: str, limit: int, holding: Ranges = ()) -> Ranges:
        """Add a member. It claims to hold items from an earlier connection: return those that are its own again, which
        keep their attempt; it must drop the rest. Those after MAX_CLAIMED ranges go out again."""
        self.members.join(member, limit)
        holding = merged(holding)
        for first, last in holding:
            for start, stop, attempts in self._waiting.overlapping(first, last):
                free = self._free_for(member, start, stop) if attempts else ()  # 0: they never went out
                for low, high in free:
                    self._take_waiting(low, high)
                    self._give(member, low, high, attempts)
        for number in within(self._delayed, holding):
            if self._free_for(member, number, number):
                self._give(member, number, number, self._end_delay(number))
        mine = merged(
            (low, high)
            for first, last in holding
            for low, high, _ in self._out.of(member).overlapping(first, last)
        )
        for first, last in mine[MAX_CLAIMED:]:
            self._put_back(member, self._out.take(member, first, last))
        if self._turns is not None:
            self._turns.offer_all()
        return mine[:MAX_CLAIMED]

    def _free_for(self, member: str, first: int, last: int) -> Ranges:
        """Return which of these the member may have: those whose keys no other member holds."""
        if self._turns is None:
            return ((first, last),)
        key_of = self._turns.key_of
        return tuple(
            (number, number)
            for number in range(first, last + 1)
            if self.members.holder(key_of(number)) in (None, member)
        )

    def leave(self, member: str, unseen: Ranges = ()) -> Ranges:
        """Remove a member. What it has goes back to its place; what nobody has seen does not count as an attempt.
        Return that."""
        not_seen: list[tuple[int, int]] = []
        for first, last in merged(unseen):
            pieces = self._out.take(member, first, last)
            self._put_back(member, [(low, high, attempt - 1) for low, high, attempt in pieces])
            not_seen += [(low, high) for low, high, _ in pieces]
        self._put_back(member, self._out.take_all(member))
        self.members.leave(member)
        if self._turns is not None:
            self._turns.offer_all()
        return tuple(not_seen)

    def held_by(self, member: str) -> Ranges:
        """Return what the member has."""
        return tuple((first, last) for first, last, _ in self._out.of(member))

    def finish(self, member: str, ranges: Ranges) -> Ranges:
        """The member is done with these. Return those that it had: they are gone."""
        done: list[tuple[int, int]] = []
        for first, last in merged(ranges):
            for low, high, _ in self._out.take(member, first, last):
                self._returned(member, low, high)
                done.append((low, high))
        return tuple(done)

    def refuse(self, member: str, number: int, due_at: int | None) -> Ranges:
        """The member gives an item back: it goes out again at `due_at`, or is set aside if that is None. Return what
        the member must drop, because it would come out of order, or before its key's turn."""
        out = self._out.take(member, number, number)
        if not out:
            return ()
        attempt = out[0][2]
        self._returned(member, number, number)
        if due_at is None:
            self._aside[number] = attempt
            return ()
        self._delay(number, due_at, attempt)
        newer = self._out.within(self._newer(number))
        for low, high, (who, _) in newer:
            self._put_back(who, self._out.take(who, low, high))
        return merged((low, high) for low, high, _ in newer)

    def _newer(self, number: int) -> Ranges:
        """Return what must come after this item."""
        if self._in_order:
            return ((number + 1, INT_MAX),)
        return () if self._turns is None else merged((each, each) for each in self._turns.newer_out(number))

    # --- Handing out

    def due(self, now: int) -> list[Handout]:
        """Return what goes out now."""
        self._now, self._look_again = now, False
        self._wake(now)
        if not self.waiting_count or not self.members:
            return []
        if self._in_order and self._delayed:
            return []  # the delayed item comes first
        return self._by_load() if self._turns is None else self._by_key(self._turns)

    def pull(self, member: str, stop: int, now: int) -> list[Handout]:
        """Give the items before `stop` to the only member there is, which asks for them and gets none otherwise."""
        count = sum(last - first + 1 for first, last, _ in self._waiting.overlapping(0, stop - 1))
        if not count:
            return []
        self.members.join(member, count)
        found = self.due(now)
        self.members.leave(member)
        return found

    def claim(self, member: str, last: int) -> None:
        """Everything up to `last` that went out is the member's, which is to `pull` the rest."""
        self.join(member, 1, ((0, last),))
        self.members.leave(member)

    @property
    def next_at(self) -> int | None:
        """When there is more to hand out, at the earliest: the next delayed item, or what one turn left."""
        return self._now if self._look_again else self._next_alarm

    @property
    def _next_alarm(self) -> int | None:
        while self._alarms and self._delayed.get(self._alarms[0][1], (None,))[0] != self._alarms[0][0]:
            heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def _wake(self, now: int) -> None:
        while (at := self._next_alarm) is not None and at <= now:
            number = heappop(self._alarms)[1]
            self.add(number, number, self._end_delay(number))

    def _by_load(self) -> list[Handout]:
        """Give the next items to whoever has least, in small parts if there are few."""
        found: list[Handout] = []
        members = self.members
        with_room = members.with_room
        while (lowest := self._waiting.first) is not None:
            member = members.choose()
            if member is None:
                break
            first, last, attempts = lowest
            share = self.waiting_count if len(members) == 1 else self.waiting_count // (2 * with_room)
            room = members.room(member)
            last = min(last, first + max(1, min(room, share)) - 1)
            self._waiting.take(first, last)
            self.waiting_count -= last - first + 1
            self._give(member, first, last, attempts + 1)
            found.append(Handout(member, first, last, attempts + 1))
            with_room -= room == last - first + 1
        return found

    def _by_key(self, turns: KeyTurns) -> list[Handout]:
        """Give each item to its key's member; an item whose member has no room holds up its key alone."""
        found: list[Handout] = []
        looks = MAX_LOOKS
        while self.members.with_room:
            turn = turns.first()
            if turn is None:
                looked_at = self._look_further(turns, min(looks, LOOKS_AT_ONCE))
                looks -= looked_at
                if not looked_at:
                    break
                continue
            number, member = turn
            attempts = self._take_waiting(number, number)[0][2]
            self._give(member, number, number, attempts + 1)
            found.append(Handout(member, number, number, attempts + 1))
        self._look_again = not looks and self.members.with_room > 0
        return found

    def _look_further(self, turns: KeyTurns, limit: int) -> int:
        """Look at the next waiting items; return at how many."""
        found = self._waiting.from_on(self._looked_to + 1)
        if found is None or turns.count >= MAX_LOOKED_AT:
            return 0
        first, last = found[0], min(found[1], found[0] + limit - 1)
        for number in range(first, last + 1):
            turns.add(number)
        if last >= first:
            self._looked_to = last
        return max(last - first + 1, 0)

    def _take_waiting(self, first: int, last: int) -> list[Piece[int]]:
        pieces = self._waiting.take(first, last)
        self.waiting_count -= sum(high - low + 1 for low, high, _ in pieces)
        if self._turns is not None:
            for low, high, _ in pieces:
                for number in range(low, min(high, self._looked_to) + 1):
                    self._turns.remove(number)
        return pieces

    def _give(self, member: str, first: int, last: int, attempt: int) -> None:
        self._out.add(member, first, last, attempt)
        self.out_count += last - first + 1
        if self._turns is None:
            self.members.give(member, last - first + 1)
        else:
            self._turns.go_out(member, range(first, last + 1))

    def _put_back(self, member: str, pieces: list[Piece[int]]) -> None:
        """Put items that the member had back into their place, with how often they went out."""
        for first, last, _ in pieces:
            self._returned(member, first, last)
        self._add_all(pieces)

    def _returned(self, member: str, first: int, last: int) -> None:
        self.out_count -= last - first + 1
        if self._turns is None:
            self.members.take_back(member, last - first + 1)
        else:
            self._turns.come_back(member, range(first, last + 1))
