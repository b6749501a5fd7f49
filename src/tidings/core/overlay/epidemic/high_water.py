"""How far origins have counted, told along the tree: else nobody notices that the last event was lost (epidemic 11).

While events come, each tells what was lost before it. A count that came to rest is told to the neighbours on the way to
subscribers, hop by hop, each time until it is acknowledged: a message from the origin alone would have to survive all
hops at once, and one that is merely repeated may fall into one burst of losses. All that a neighbour is to be told goes
together, a few times per interval, so the cost per broker is bounded by its links. At rest nothing is sent.
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
"""Counts that are told on at a time; more are not, and the losses at their ends are noticed at the next event."""
MAX_ATTEMPTS = 40
LONGEST_PAUSE_NS = 4_000_000_000
TURNS_PER_INTERVAL = 4
SHORTEST_TURN_NS = 100_000_000
MAX_SETTLED_NUMBERS = 1_024


class Fresh:
    """A count that was raised lately, and who has not acknowledged it."""

    __slots__ = ("attempts", "next_at", "number", "taken", "via")

    def __init__(self) -> None:
        self.number = -1

    def raise_to(self, number: int, via: str, next_at: int) -> None:
        self.number = number
        self.via = via
        """Who told us; it knows."""
        self.next_at = next_at
        self.attempts = 0
        self.taken: dict[str, None] = {}


class HighWaters(Part, SettledNumbers):
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
        """A new epoch does not end the telling of the one before: its last events may be lost, too."""
        self._running = False

    def passed(self, origin: str, numbers: PatternNumbers, via: str) -> None:
        """An event with these numbers was published here or came by the tree, `via` that neighbour or client."""
        if origin != self.port.node:
            self._counted.saw(origin, numbers)
        self.raised(origin, numbers, via)

    def raised(self, origin: str, numbers: PatternNumbers, via: str) -> None:
        """These counts are to be told on once they are at rest."""
        if self._enabled:
            rest_at = self.port.now + self._interval_ns * 3 // 2  # an event before then tells as much
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
        """A turn: all that is to be told to a neighbour goes together."""
        counts: dict[str, list[PatternCount]] = {}
        for key, fresh in list(self._fresh.items()):
            if fresh.next_at <= self.port.now and not self._tell(key, fresh, counts):
                del self._fresh[key]
        for hop, told in sorted(counts.items()):
            for start in range(0, len(told), MAX_NUMBERS):
                self.port.send(hop, HighWater(tuple(told[start : start + MAX_NUMBERS])))
        self._running = False
        self._keep_running()

    def _tell(self, key: StreamKey, fresh: Fresh, counts: dict[str, list[PatternCount]]) -> bool:
        """Puts the count into `counts` for all who lack it; False if there is nobody, or not in reach."""
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
                Misbehaviour(sender, "it is not a neighbour and told how far an origin has counted")
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
        """News for those behind us, too: we, or the one who told us, may have forgotten it in a crash."""
        for pattern, origin, epoch, number in numbers:
            self.hear(origin, pattern, epoch, number, peer)

    def hear(self, origin: str, pattern: bytes, epoch: int, number: int, sender: str) -> None:
        """A neighbour says how far an origin has counted; nobody knows better than we how far we have."""
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
