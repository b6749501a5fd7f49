"""Reports along the tree how far origins have counted: pull alone never notices that the last event was lost.

While events come, each one reveals what was lost before it. When a count stops rising, it is sent to the neighbours on
the way to subscribers, hop by hop, and repeated at each hop until acknowledged: a message from the origin alone would
have to survive all hops at once, and mere repetition may fall into one burst of losses. All counts for a neighbour go
together, a few times per interval, so the cost per broker is bounded by its links. Once all are acknowledged, nothing
is sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.core.events.subscription import Interest
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.messages import PatternCount
from tidings.core.overlay.epidemic.gossip import Gossip
from tidings.core.overlay.epidemic.losses import LossDetector, StreamKey
from tidings.core.overlay.epidemic.messages import MAX_NUMBERS, HighWater, HighWaterTaken, PatternNumbers
from tidings.core.overlay.epidemic.pattern_counter import PatternCounter
from tidings.core.overlay.epidemic.patterns import Patterns
from tidings.core.overlay.forwarding import SettledNumbers
from tidings.core.overlay.links import Numbers

MAX_FRESH = 65_536
"""Counts reported at a time. Beyond the limit, a loss at the tail is noticed only at the next event."""
MAX_ATTEMPTS = 40
LONGEST_PAUSE_NS = 4_000_000_000
TURNS_PER_INTERVAL = 4
SHORTEST_TURN_NS = 100_000_000
MAX_SETTLED_NUMBERS = 1_024


class Fresh:
    """A count that rose recently, and which neighbours have acknowledged it."""

    __slots__ = ("attempts", "next_at", "number", "taken", "via")

    def __init__(self) -> None:
        self.number = -1

    def raise_to(self, number: int, via: str, next_at: int) -> None:
        self.number = number
        self.via = via
        """Who told us, and so knows already."""
        self.next_at = next_at
        self.attempts = 0
        self.taken: dict[str, None] = {}


class HighWaters(Part, SettledNumbers):
    """Reports counts that came to rest to the neighbours, and takes theirs."""

    name = "high-water"
    handles = {HighWater: "on_high_water", HighWaterTaken: "on_high_water_taken"}

    def __init__(
        self,
        port: Port,
        neighbours: Iterable[str],
        patterns: Patterns,
        counted: PatternCounter,
        losses: LossDetector,
        gossip: Gossip,
        *,
        interval_ns: int,
        enabled: bool,
    ) -> None:
        super().__init__(port)
        self._neighbours = frozenset(neighbours)
        self._patterns = patterns
        self._counted = counted
        self._losses = losses
        self._gossip = gossip
        self._interval_ns = interval_ns
        self._turn_ns = max(interval_ns // TURNS_PER_INTERVAL, SHORTEST_TURN_NS)
        self._enabled = enabled
        self._fresh: dict[StreamKey, Fresh] = {}
        """A new epoch does not end the reports of the one before: its last events may be lost, too."""
        self._running = False

    def passed(self, origin: str, numbers: PatternNumbers, via: str) -> None:
        """Note an event with these numbers that was published here or came by the tree, `via` a client or neighbour."""
        if origin != self.port.node:
            self._counted.saw(origin, numbers)
        self.raised(origin, numbers, via)

    def raised(self, origin: str, numbers: PatternNumbers, via: str) -> None:
        """Report these counts once they are at rest."""
        if self._enabled:
            rest_at = self.port.now + self._interval_ns * 3 // 2  # an event before then says as much
            for pattern, epoch, number in numbers:
                self._raise((origin, pattern, epoch), number, via, rest_at)
            self._keep_running()

    def _raise(self, key: StreamKey, number: int, via: str, next_at: int) -> None:
        fresh = self._fresh.get(key)
        if fresh is None:
            if len(self._fresh) >= MAX_FRESH:
                return
            fresh = self._fresh[key] = Fresh()
        if number > fresh.number:
            fresh.raise_to(number, via, next_at)

    def _keep_running(self) -> None:
        if self._fresh and not self._running:
            self._running = True
            self.port.set_timer((self.name, "turn"), self.port.now + self._turn_ns)

    def on_timer(self, name: TimerName) -> None:
        """Take a turn: send each neighbour all its counts together."""
        counts: dict[str, list[PatternCount]] = {}
        for key, fresh in list(self._fresh.items()):
            if fresh.next_at <= self.port.now and not self._collect(key, fresh, counts):
                del self._fresh[key]
        for hop, due in sorted(counts.items()):
            for start in range(0, len(due), MAX_NUMBERS):
                self.port.send(hop, HighWater(tuple(due[start : start + MAX_NUMBERS])))
        self._running = False
        self._keep_running()

    def _collect(self, key: StreamKey, fresh: Fresh, counts: dict[str, list[PatternCount]]) -> bool:
        """Add the count to `counts` for each neighbour that lacks it; return False if none does or we give up."""
        origin, pattern, epoch = key
        waiting = [hop for hop in self._patterns.hops(pattern) if hop != fresh.via and hop not in fresh.taken]
        for hop in waiting:
            counts.setdefault(hop, []).append((pattern, origin, epoch, fresh.number))
        fresh.attempts += 1
        pause_ns = min(self._turn_ns << min(fresh.attempts, 20), LONGEST_PAUSE_NS)
        fresh.next_at = self.port.now + pause_ns
        return bool(waiting) and fresh.attempts <= MAX_ATTEMPTS

    def on_high_water(self, sender: str, message: HighWater) -> None:
        if sender not in self._neighbours:
            self.port.emit(
                Misbehaviour(sender, "reported how far an origin has counted but is not a neighbour")
            )
            return
        self.port.send(sender, HighWaterTaken(message.counts))
        for pattern, origin, epoch, number in message.counts:
            self.hear(origin, pattern, epoch, number, sender)

    def numbers_of(self, interest: Interest) -> Numbers:
        if not self._enabled:
            return ()
        numbers: list[PatternCount] = []
        for pattern in self._patterns.ids(interest):
            numbers += [(pattern, *count) for count in self._patterns.counts(pattern)]
        return tuple(numbers[:MAX_SETTLED_NUMBERS])

    def numbers_told(self, peer: str, numbers: Numbers) -> None:
        """Take the counts that came with 'settled', and pass them on: we or the peer may have lost them in a crash."""
        for pattern, origin, epoch, number in numbers:
            self.hear(origin, pattern, epoch, number, peer)

    def hear(self, origin: str, pattern: bytes, epoch: int, number: int, sender: str) -> None:
        """Take a neighbour's report of how far an origin has counted; ignore what it says about ourselves."""
        if origin == self.port.node:
            return
        numbers = ((pattern, epoch, number),)
        self._counted.saw(origin, numbers)
        self._losses.high_water(origin, numbers, self.port.now)
        if self._losses.lost:
            self._gossip.hasten()
        if self._enabled:
            self._raise((origin, pattern, epoch), number, sender, self.port.now)  # it is at rest already
            self._keep_running()

    def on_high_water_taken(self, sender: str, message: HighWaterTaken) -> None:
        for pattern, origin, epoch, number in message.counts:
            fresh = self._fresh.get((origin, pattern, epoch))
            if fresh is not None and number == fresh.number:
                fresh.taken[sender] = None
