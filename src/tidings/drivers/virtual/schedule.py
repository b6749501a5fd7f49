"""Virtual time: what happens when, in integer nanoseconds, in one deterministic order.

Things due at one instant happen in the order in which they were put in. They share a bucket, so that the heap
holds plain integers, one per instant: that is what makes a simulated message cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any, Any], None]
Entry = tuple[Action, Any, Any]


class Schedule:
    __slots__ = ("buckets", "instants", "now", "steps")

    def __init__(self) -> None:
        self.now = 0
        self.steps = 0
        self.buckets: dict[int, list[Entry]] = {}
        """By instant; a new one goes into `instants`, too."""
        self.instants: list[int] = []
        """A heap."""

    def at(self, when: int, action: Action, first: Any = None, second: Any = None) -> None:
        """Call `action(first, second)` at time `when`, which must not be in the past."""
        bucket = self.buckets.get(when)
        if bucket is not None:
            bucket.append((action, first, second))
            return
        if when < self.now:
            raise ValueError(f"{when} ns is in the past: it is {self.now} ns")
        self.buckets[when] = [(action, first, second)]
        heappush(self.instants, when)

    def redirect(self, belongs: Callable[[Action], bool], action: Action) -> None:
        """Let `action` take everything that is due and was for an action that `belongs`."""
        for bucket in self.buckets.values():
            for position, entry in enumerate(bucket):
                if belongs(entry[0]):
                    bucket[position] = (action, entry[1], entry[2])

    @property
    def next_at(self) -> int | None:
        """When the next thing is due; None if nothing is."""
        return self.instants[0] if self.instants else None

    def run(self, until: int) -> None:
        """Let everything happen that is due at or before `until`, and leave the clock there."""
        instants, buckets = self.instants, self.buckets
        while instants and instants[0] <= until:
            now = self.now = instants[0]
            bucket = buckets[now]
            for action, first, second in bucket:  # what is put in for this instant joins the end
                action(first, second)
            self.steps += len(bucket)
            heappop(instants)
            del buckets[now]
        self.now = max(self.now, until)
