"""Crashes at the moments that matter to a node that others count on: before it commits, before it sends, and when a
part of what it sends has left.

A node with crash points has turns, as a live one: what it writes and what it sends waits until the turn ends, which is
a little later; then the driver commits, and then it sends. A turn matters in which a node writes something, or a
subscriber tells its broker how far it has come. Draws come from a generator of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidings.drivers.virtual.network import SimulatedNetwork

LONGEST_TURN_NS = 2_000_000
LONGEST_DOWN_NS = 1_500_000_000
SHARE = 0.05
"""Of the turns that matter."""
MAX_CRASHES = 6
"""In a run."""


class Point(Enum):
    BEFORE_COMMIT = auto()
    BEFORE_FLUSH = auto()
    AMID_FLUSH = auto()


class CrashPoints:
    """Of one run, up to `until_ns`: by then everybody is up again."""

    def __init__(self, network: SimulatedNetwork, names: Iterable[str], until_ns: int) -> None:
        self._network = network
        self._random = Random(f"{network.seed}:crash points")
        self._until_ns = until_ns
        self.crashes = dict.fromkeys(Point, 0)
        for name in names:
            network.nodes[name].crash_points = self

    def turn_ns(self) -> int:
        return self._random.randrange(LONGEST_TURN_NS)

    def draw(self) -> Point | None:
        """Whether the turn that ends now, which matters, is the node's last, and where it ends."""
        over = self._network.schedule.now >= self._until_ns or sum(self.crashes.values()) >= MAX_CRASHES
        if over or self._random.random() >= SHARE:
            return None
        point = self._random.choice(list(Point))
        self.crashes[point] += 1
        return point

    def leaving(self, point: Point, messages: int) -> int:
        """How many of the messages of a turn that ends there leave."""
        return self._random.randint(0, messages) if point is Point.AMID_FLUSH else 0

    def crash(self, name: str, point: Point) -> None:
        """As a kill would; its disk is kept. What has left in this instant comes to those who are beside the node."""
        if point is Point.AMID_FLUSH:
            schedule = self._network.schedule
            schedule.at(schedule.now, lambda _first, _second: self._crash(name))
        else:
            self._crash(name)

    def _crash(self, name: str) -> None:
        now = self._network.schedule.now
        up_at = min(now + self._random.randrange(LONGEST_DOWN_NS), self._until_ns)
        self._network.crash(name, keep_state=True)
        self._network.schedule.at(up_at, lambda _first, _second: self._network.restart(name))
