"""Crashes nodes at the critical moments: before the commit, before the flush, and in the middle of the flush.

A node with crash points has turns, as a live one: writes and messages wait until the turn ends, a little later; then
the driver commits, and then it sends. It may crash in a turn in which it writes something, or tells its broker how far
a subscription has come. The draws have their own generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidings.drivers.virtual.network import SimulatedNetwork

LONGEST_TURN_NS = 2_000_000
LONGEST_DOWN_NS = 1_500_000_000
SHARE = 0.05
"""The share of critical turns that end in a crash."""
MAX_CRASHES = 6
"""Per run."""


class Point(Enum):
    """Where in the end of a turn a node crashes."""

    BEFORE_COMMIT = auto()
    BEFORE_FLUSH = auto()
    AMID_FLUSH = auto()


class CrashPoints:
    """The crashes of one run. By `until_ns` every node is up again. The shorter turns are, the more of what happens in
    one instant is in different ones."""

    def __init__(
        self,
        network: SimulatedNetwork,
        names: Iterable[str],
        until_ns: int,
        *,
        longest_turn_ns: int = LONGEST_TURN_NS,
    ) -> None:
        self._network = network
        self._random = Random(f"{network.seed}:crash points")
        self._until_ns = until_ns
        self._longest_turn_ns = longest_turn_ns
        self.crashes = dict.fromkeys(Point, 0)
        self.note: Callable[[str, int, int], None] | None = None
        """Called with each crash: the node, when, and until when."""
        for name in names:
            network.nodes[name].crash_points = self

    def turn_ns(self) -> int:
        return self._random.randrange(self._longest_turn_ns)

    def draw(self) -> Point | None:
        """Return where the node crashes in the critical turn that ends now; None if it does not."""
        over = self._network.schedule.now >= self._until_ns or sum(self.crashes.values()) >= MAX_CRASHES
        if over or self._random.random() >= SHARE:
            return None
        point = self._random.choice(list(Point))
        self.crashes[point] += 1
        return point

    def leaving(self, point: Point, messages: int) -> int:
        """Return how many of the turn's messages leave before the crash."""
        return self._random.randint(0, messages) if point is Point.AMID_FLUSH else 0

    def crash(self, name: str, point: Point) -> None:
        """Crash the node as kill -9 would, and keep its disk. What has left still reaches nodes without delay."""
        if point is Point.AMID_FLUSH:
            schedule = self._network.schedule
            schedule.at(schedule.now, lambda _first, _second: self._crash(name))
        else:
            self._crash(name)

    def _crash(self, name: str) -> None:
        now = self._network.schedule.now
        up_at = min(now + self._random.randrange(LONGEST_DOWN_NS), self._until_ns)
        if self.note is not None:
            self.note(name, now, up_at)
        self._network.crash(name, keep_state=True)
        self._network.schedule.at(up_at, lambda _first, _second: self._network.restart(name))
