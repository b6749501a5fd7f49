"""How far origins have counted, told along the tree: else nobody notices that the last event was lost (epidemic 11).

While events come, each tells what was lost before it. A count that came to rest is told to the neighbours on the way to
subscribers, hop by hop, each time until it is acknowledged: a message from the origin alone would have to survive all
hops at once, and one that is merely repeated may fall into one burst of losses. At rest nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidings.model.recovery_messages import MAX_NUMBERS, HighWater, HighWaterTaken, PatternNumbers
from tidings.protocol.facts import Misbehaviour
from tidings.protocol.kernel import Part, Port, TimerName
from tidings.protocol.recovery.patterns import Patterns

MAX_FRESH = 65_536
"""Counts that are told on at a time; more are not, and the losses at their ends are noticed at the next event."""
MAX_ATTEMPTS = 40
LONGEST_PAUSE_NS = 4_000_000_000

Told = Callable[[str, PatternNumbers], None]
Entries = dict[tuple[str, str], list[tuple[bytes, int, int]]]
"""(hop, origin) -> (pattern, epoch, number)"""


class Fresh:
    """A count that was raised lately, and who has not acknowledged it."""

    __slots__ = ("attempts", "epoch", "next_at", "number", "raised", "taken", "via")

    def __init__(self) -> None:
        self.epoch = self.number = -1

    def raise_to(self, epoch: int, number: int, via: str) -> None:
        self.epoch = epoch
        self.number = number
        self.via = via
        """Who told us; it knows."""
        self.raised = True
        """Since the last round: as long as events come, the next one tells as much."""
        self.attempts = self.next_at = 0
        self.taken: dict[str, None] = {}


class HighWaters(Part):
    name = "high-water"
    handles = {HighWater: "on_high_water", HighWaterTaken: "on_high_water_taken"}

    def __init__(
        self,
        port: Port,
        neighbours: Iterable[str],
        patterns: Patterns,
        *,
        interval_ns: int,
        enabled: bool,
    ) -> None:
        super().__init__(port)
        self.on_told: Told = lambda origin, numbers: None
        self._neighbours = frozenset(neighbours)
        self._patterns = patterns
        self._interval_ns = interval_ns
        self._enabled = enabled
        self._fresh: dict[tuple[str, bytes], Fresh] = {}
        self._running = False

    def raised(self, origin: str, numbers: PatternNumbers, via: str) -> None:
        """An event with these numbers was published here or came by the tree, `via` that neighbour or client."""
        if self._enabled:
            for pattern, epoch, number in numbers:
                self._raise(origin, pattern, epoch, number, via)
            self._keep_running()

    def _raise(self, origin: str, pattern: bytes, epoch: int, number: int, via: str) -> Fresh | None:
        """The count, if that is news."""
        fresh = self._fresh.get((origin, pattern))
        if fresh is None:
            if len(self._fresh) >= MAX_FRESH:
                return None
            fresh = self._fresh[origin, pattern] = Fresh()
        if (epoch, number) <= (fresh.epoch, fresh.number):
            return None
        fresh.raise_to(epoch, number, via)
        return fresh

    def _keep_running(self) -> None:
        if self._fresh and not self._running:
            self._running = True
            self.port.set_timer((self.name, "tell"), self.port.now + self._interval_ns)

    def on_timer(self, name: TimerName) -> None:
        entries: Entries = {}
        for (origin, pattern), fresh in list(self._fresh.items()):
            if fresh.raised:
                fresh.raised = False
            elif fresh.next_at <= self.port.now and not self._tell(origin, pattern, fresh, entries):
                del self._fresh[origin, pattern]
        self._send(entries)
        self._running = False
        self._keep_running()

    def _send(self, entries: Entries) -> None:
        for (hop, origin), numbers in sorted(entries.items()):
            for start in range(0, len(numbers), MAX_NUMBERS):
                self.port.send(hop, HighWater(origin, tuple(numbers[start : start + MAX_NUMBERS])))

    def _tell(self, origin: str, pattern: bytes, fresh: Fresh, entries: Entries) -> bool:
        """Puts the count into `entries` for all who lack it; False if there is nobody, or not in reach."""
        waiting = [hop for hop in self._patterns.hops(pattern) if hop != fresh.via and hop not in fresh.taken]
        for hop in waiting:
            entries.setdefault((hop, origin), []).append((pattern, fresh.epoch, fresh.number))
        fresh.attempts += 1
        pause_ns = min(self._interval_ns << min(fresh.attempts - 1, 20), LONGEST_PAUSE_NS)
        fresh.next_at = self.port.now + pause_ns
        return bool(waiting) and fresh.attempts <= MAX_ATTEMPTS

    def on_high_water(self, sender: str, message: HighWater) -> None:
        if sender not in self._neighbours:
            self.port.emit(Misbehaviour(sender, "it is no neighbour and told how far an origin has counted"))
            return
        self.port.send(sender, HighWaterTaken(message.origin, message.numbers))
        self.on_told(message.origin, message.numbers)
        if not self._enabled:
            return
        entries: Entries = {}
        for pattern, epoch, number in message.numbers:
            fresh = self._raise(message.origin, pattern, epoch, number, sender)
            if fresh is not None:  # the stream is at rest: no need to wait for its next event
                fresh.raised = False
                self._tell(message.origin, pattern, fresh, entries)
        self._send(entries)
        self._keep_running()

    def on_high_water_taken(self, sender: str, message: HighWaterTaken) -> None:
        for pattern, epoch, number in message.numbers:
            fresh = self._fresh.get((message.origin, pattern))
            if fresh is not None and (epoch, number) == (fresh.epoch, fresh.number):
                fresh.taken[sender] = None
