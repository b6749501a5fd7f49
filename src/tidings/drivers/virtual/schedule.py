"""Virtual time: a schedule of actions, in integer nanoseconds and in one deterministic order.

Actions due at the same instant run in the order in which they were added. They share a bucket, so that the heap holds
plain integers, one per instant: that makes a simulated message cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any, Any], None]
Entry = tuple[Action, Any, Any]


class Schedule:
    """The clock, and the actions that are due."""

    __slots__ = ("buckets", "instants", "now", "steps")

    def __init__(self) -> None:
        self.now = 0
        self.steps = 0
        self.buckets: dict[int, list[Entry]] = {}
        """Instant -> actions. Its keys are exactly the elements of `instants`."""
        self.instants: list[int] = []
        """A heap of the instants at which something is due."""

    def at(self, when: int, action: Action, first: Any = None, second: Any = None) -> None:
        """Call `action(first, second)` at time `when`, which must not be in the past."""
        bucket = self.buckets.get(when)
        if bucket is not None:
            bucket.append((action, first, second))
            return
        if when < self.now:
            raise ValueError(f"cannot schedule for {when} ns: it is already {self.now} ns")
        self.buckets[when] = [(action, first, second)]
        heappush(self.instants, when)

    def redirect(self, belongs: Callable[[Action], bool], action: Action) -> None:
        """Replace every scheduled action for which `belongs(action)` by `action`, with the same arguments."""
        for bucket in self.buckets.values():
            for position, entry in enumerate(bucket):
                if belongs(entry[0]):
                    bucket[position] = (action, entry[1], entry[2])

    @property
    def next_at(self) -> int | None:
        """When the next action is due; None if there is none."""
        return self.instants[0] if self.instants else None

    def run(self, until: int) -> None:
        """Run everything that is due at or before `until`, and set the clock to `until`."""
        instants, buckets = self.instants, self.buckets
        while instants and instants[0] <= until:
            now = self.now = instants[0]
            bucket = buckets[now]
            for action, first, second in bucket:  # actions added for this instant join the end
                action(first, second)
            self.steps += len(bucket)
            heappop(instants)
            del buckets[now]
        self.now = max(self.now, until)
