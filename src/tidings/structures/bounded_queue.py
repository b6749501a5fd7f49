"""A queue that never grows beyond its capacity and counts what that cost (DESIGN.md: no unbounded buffers)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
OverflowPolicy = Literal["reject", "drop_oldest"]


class BoundedQueue(Generic[T]):
    """First in, first out, at most `capacity` items.

    When full, `reject` refuses the new item and `drop_oldest` makes room for it; `dropped` counts both losses.
    """

    __slots__ = ("_items", "capacity", "dropped", "policy")

    def __init__(self, capacity: int, policy: OverflowPolicy = "reject") -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity} must be positive")
        if policy not in ("reject", "drop_oldest"):
            raise ValueError(f"policy {policy!r} is neither 'reject' nor 'drop_oldest'")
        self.capacity = capacity
        self.policy = policy
        self.dropped = 0
        self._items: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    @property
    def full(self) -> bool:
        return len(self._items) >= self.capacity

    def push(self, item: T) -> bool:
        """Append `item`; False if it was refused."""
        if len(self._items) >= self.capacity:
            self.dropped += 1
            if self.policy == "reject":
                return False
            self._items.popleft()
        self._items.append(item)
        return True

    def pop(self) -> T:
        """Remove and return the oldest item; IndexError if there is none."""
        return self._items.popleft()

    def drain(self, limit: int | None = None) -> list[T]:
        """Remove and return up to `limit` of the oldest items (all of them without a limit), oldest first."""
        items = self._items
        if limit is None or limit >= len(items):
            drained = list(items)
            items.clear()
            return drained
        return [items.popleft() for _ in range(max(limit, 0))]

    def clear(self) -> None:
        self._items.clear()
