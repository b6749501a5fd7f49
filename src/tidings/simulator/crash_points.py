"""Crashes at the two moments that matter to a node that keeps a store: before it commits, and before it sends.

A node with crash points has turns, as a live one: what it writes and what it sends waits until the turn ends, which is
a little later; then the driver commits, and then it sends. Draws come from a generator of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidings.simulator.network import SimulatedNetwork

LONGEST_TURN_NS = 2_000_000
LONGEST_DOWN_NS = 1_500_000_000
SHARE = 0.05
"""Of the turns in which something was written."""
MAX_CRASHES = 6
"""In a run."""


class Point(Enum):
    BEFORE_COMMIT = auto()
    BEFORE_FLUSH = auto()


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
        """Whether the turn that ends now, in which a node wrote something, is its last, and where it ends."""
        over = self._network.schedule.now >= self._until_ns or sum(self.crashes.values()) >= MAX_CRASHES
        if over or self._random.random() >= SHARE:
            return None
        point = self._random.choice(list(Point))
        self.crashes[point] += 1
        return point

    def crash(self, name: str) -> None:
        """As a kill would; its disk is kept."""
        now = self._network.schedule.now
        up_at = min(now + self._random.randrange(LONGEST_DOWN_NS), self._until_ns)
        self._network.crash(name, keep_state=True)
        self._network.schedule.at(up_at, lambda _first, _second: self._network.restart(name))
