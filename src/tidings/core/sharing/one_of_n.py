"""Chooses one of several members, each with a limit on what it may hold at once.

Without a key the member that holds least gets the next item. With a key, equal keys go to one member: whoever holds
items with that key, or else the first by rendezvous hash, so that a member who joins or leaves moves only its own keys.

The cost of a choice grows with the logarithm of the number of members, and that of a key seen before not at all.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from tidings.core.sharing.choice import rendezvous_weight

MAX_CHOSEN = 65_536
"""For how many keys the choice is remembered; at the limit all are forgotten, and computed again."""
SPARE_LOADS = 64


class _Member:
    __slots__ = ("holds", "limit", "serial")

    def __init__(self, limit: int, serial: int) -> None:
        self.limit = limit
        self.serial = serial
        """Grows with each member that joins."""
        self.holds = 0


class OneOfN:
    """The members, what each holds, and the choice among them."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._pinned: dict[str, tuple[str, int]] = {}
        """Key -> the member that holds items with it, and how many."""
        self._joined = 0
        self._free: dict[str, None] = {}
        """The members with room."""
        self._loads: list[tuple[int, int, str]] = []
        """A heap of (what it holds, its serial, member). Every member with room has its entry; others are out of date,
        and dropped when they come up."""
        self._chosen: dict[str, tuple[bytes, str]] = {}
        """Key -> the highest weight, and whose it is."""

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def join(self, member: str, limit: int) -> None:
        """Add a member that may hold `limit` items at once, or change its limit."""
        if limit < 1:
            raise ValueError(f"a member must be able to hold an item; its limit is {limit}")
        known = self._members.get(member)
        if known is None:
            self._joined += 1
            known = self._members[member] = _Member(limit, self._joined)
            for key, best in self._chosen.items():
                self._chosen[key] = max(best, (rendezvous_weight(member, key), member))
        known.limit = limit
        self._changed(member, known)

    def leave(self, member: str) -> None:
        """Remove the member and forget what it holds."""
        self._members.pop(member, None)
        self._free.pop(member, None)
        self._chosen = {key: best for key, best in self._chosen.items() if best[1] != member}
        self._pinned = {key: pin for key, pin in self._pinned.items() if pin[0] != member}

    def holds(self, member: str) -> int:
        return self._members[member].holds

    def room(self, member: str) -> int:
        """Return how many more items the member may hold."""
        found = self._members[member]
        return max(found.limit - found.holds, 0)

    @property
    def with_room(self) -> int:
        """How many members may hold more."""
        return len(self._free)

    def has_room(self, member: str) -> bool:
        return member in self._free

    def with_room_now(self) -> list[str]:
        """Return the members that may hold more."""
        return [*self._free]

    def _changed(self, name: str, member: _Member) -> None:
        """Note what a member holds now."""
        if member.holds >= member.limit:
            self._free.pop(name, None)
            return
        self._free[name] = None
        heappush(self._loads, (member.holds, member.serial, name))
        if len(self._loads) > 2 * len(self._members) + SPARE_LOADS:
            free = ((name, self._members[name]) for name in self._free)
            self._loads = [(member.holds, member.serial, name) for name, member in free]
            heapify(self._loads)

    def choose(self) -> str | None:
        """Return the member that holds least among those with room; None if none has. The longest member wins ties."""
        while self._loads:
            holds, serial, name = self._loads[0]
            member = self._members.get(name)
            if member is not None and name in self._free and (member.holds, member.serial) == (holds, serial):
                return name
            heappop(self._loads)
        return None

    def choose_for(self, key: str) -> str | None:
        """Return the member for items with that key, whether or not it has room; None if there is no member."""
        pin = self._pinned.get(key)
        if pin is not None:
            return pin[0]
        best = self._chosen.get(key)
        if best is None and self._members:
            best = max((rendezvous_weight(member, key), member) for member in self._members)
            if len(self._chosen) >= MAX_CHOSEN:
                self._chosen.clear()
            self._chosen[key] = best
        return None if best is None else best[1]

    def holder(self, key: str) -> str | None:
        """Return the member that holds items with that key; None if none does."""
        pin = self._pinned.get(key)
        return None if pin is None else pin[0]

    def give(self, member: str, count: int = 1, key: str | None = None) -> None:
        """The member holds `count` more items, with that key."""
        found = self._members[member]
        found.holds += count
        self._changed(member, found)
        if key is not None:
            self._pinned[key] = (member, self._pinned.get(key, (member, 0))[1] + count)

    def take_back(self, member: str, count: int = 1, key: str | None = None) -> None:
        """The member no longer holds `count` items, with that key. Unknown members are ignored: they have left."""
        found = self._members.get(member)
        if found is None:
            return
        found.holds = max(found.holds - count, 0)
        self._changed(member, found)
        pin = None if key is None else self._pinned.get(key)
        if key is not None and pin is not None and pin[0] == member:
            if pin[1] <= count:
                del self._pinned[key]
            else:
                self._pinned[key] = (member, pin[1] - count)
