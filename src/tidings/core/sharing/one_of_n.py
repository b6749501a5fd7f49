"""Chooses one of several members, each with a limit on what it may hold at once.

Without a key the member that holds least gets the next item. With a key, equal keys go to one member: whoever holds
items with that key, or else the first by rendezvous hash, so that a member who joins or leaves moves only its own keys.
"""

from __future__ import annotations

from tidings.core.sharing.choice import rendezvous


class _Member:
    __slots__ = ("holds", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.holds = 0


class OneOfN:
    """The members, what each holds, and the choice among them."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._pinned: dict[str, tuple[str, int]] = {}
        """Key -> the member that holds items with it, and how many."""

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
            self._members[member] = _Member(limit)
        else:
            known.limit = limit

    def leave(self, member: str) -> None:
        """Remove the member and forget what it holds."""
        self._members.pop(member, None)
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
        return sum(member.holds < member.limit for member in self._members.values())

    def with_room_now(self) -> list[str]:
        """Return the members that may hold more."""
        return [name for name, member in self._members.items() if member.holds < member.limit]

    def choose(self) -> str | None:
        """Return the member that holds least among those with room; None if none has. The longest member wins ties."""
        best: str | None = None
        least = 0
        for name, member in self._members.items():
            if member.holds < member.limit and (best is None or member.holds < least):
                best, least = name, member.holds
        return best

    def choose_for(self, key: str) -> str | None:
        """Return the member for items with that key, whether or not it has room; None if there is no member."""
        pin = self._pinned.get(key)
        if pin is not None:
            return pin[0]
        return rendezvous(self._members, key)

    def holder(self, key: str) -> str | None:
        """Return the member that holds items with that key; None if none does."""
        pin = self._pinned.get(key)
        return None if pin is None else pin[0]

    def give(self, member: str, count: int = 1, key: str | None = None) -> None:
        """The member holds `count` more items, with that key."""
        self._members[member].holds += count
        if key is not None:
            self._pinned[key] = (member, self._pinned.get(key, (member, 0))[1] + count)

    def take_back(self, member: str, count: int = 1, key: str | None = None) -> None:
        """The member no longer holds `count` items, with that key. Unknown members are ignored: they have left."""
        found = self._members.get(member)
        if found is None:
            return
        found.holds = max(found.holds - count, 0)
        pin = None if key is None else self._pinned.get(key)
        if key is not None and pin is not None and pin[0] == member:
            if pin[1] <= count:
                del self._pinned[key]
            else:
                self._pinned[key] = (member, pin[1] - count)
