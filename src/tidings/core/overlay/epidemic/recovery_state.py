"""What a broker knows of events: which it has received, which it can send, which are incomplete, which are lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidings.core.events.event import EventId
from tidings.core.kernel import Port
from tidings.core.overlay.epidemic.assemblies import Assemblies
from tidings.core.overlay.epidemic.blocks import Assembly
from tidings.core.overlay.epidemic.cache import Cached, EventCache
from tidings.core.overlay.epidemic.losses import AnswerTime, LossDetector
from tidings.core.overlay.epidemic.messages import Carried, PatternNumbers, Range
from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.core.structures.range_set import RangeSet
from tidings.core.structures.recent_ids import RecentIds

RECEIVED_WINDOW = 4_096
"""The window per source. An event that is recovered after this many later ones counts as a duplicate."""

LostKey = tuple[str, bytes, int]
"""(origin, pattern, epoch)"""


class RecoveryState:
    """Holds the received ids, the cache, the assemblies and the losses of a broker, and keeps them consistent."""

    def __init__(self, port: Port, settings: RecoverySettings) -> None:
        self._port = port
        self.received = RecentIds(RECEIVED_WINDOW)
        self.cache = EventCache(
            settings.buffer_events, settings.buffer_bytes, settings.cache_policy, port.random
        )
        self.assemblies = Assemblies(
            settings.assembly_bytes, settings.assembly_bytes_per_sender, settings.max_age_ns
        )
        self._answer_time = AnswerTime(settings.retry_ns)
        self.losses = LossDetector(
            grace_ns=settings.grace_ns,
            max_lost=settings.max_lost,
            max_streams=settings.max_streams,
            max_age_ns=settings.max_age_ns,
            max_attempts=settings.max_attempts,
            answer_time=self._answer_time,
        )
        self._settings = settings
        self._asked: dict[EventId, tuple[int, int]] = {}
        """Incomplete event -> (how often we asked for its blocks, when we may ask again)."""

    def has(self, source: str, incarnation: int, sequence: int) -> bool:
        return self.received.seen(source, incarnation, sequence)

    def take(self, carried: Carried, *, wanted: bool, cached: bool) -> Cached:
        """Record complete events that arrived for the first time."""
        stretch = carried.stretch
        entry = Cached(stretch, carried.origin, carried.numbers, carried.route, wanted)
        if cached:
            self.cache.add(entry)
        self.losses.arrived(carried.origin, carried.numbers, self._port.now, stretch.count)
        for sequence in range(stretch.first, stretch.last + 1) if len(self.assemblies) else ():
            self.assemblies.forget(stretch.source, stretch.incarnation, sequence)
        return entry

    def again(self, origin: str, numbers: PatternNumbers, count: int = 1) -> None:
        """Note that events we have came again: none of them counts as lost any longer."""
        self.losses.arrived(origin, numbers, self._port.now, count)

    def incomplete(self) -> list[Assembly]:
        """Return events of which some blocks are here, but none came or were requested recently."""
        now = self._port.now
        quiet = self.assemblies.incomplete(now - self._settings.grace_ns)
        return [
            assembly
            for assembly in quiet
            if self._asked.get(assembly.id, (0, 0))[1] <= now and not self.has(*assembly.id)
        ]

    def asked(self, lost: Iterable[tuple[LostKey, Sequence[Range]]], incomplete: Iterable[Assembly]) -> None:
        """Note that we ask for these now, so that we do not ask again too soon, nor forever."""
        now = self._port.now
        for key, ranges in lost:
            self.losses.attempted(key, ranges, now)
        for assembly in incomplete:
            attempts, _ = self._asked.get(assembly.id, (0, 0))
            if attempts >= self._settings.max_attempts:
                self.assemblies.forget(*assembly.id)
                self._asked.pop(assembly.id, None)
                continue
            pause_ns = self._answer_time.pause_ns(attempts)
            self._asked[assembly.id] = attempts + 1, now + pause_ns

    def lost(self) -> dict[LostKey, RangeSet]:
        """Return what is missing entirely: for incomplete events we ask by block, once no more blocks come."""
        due = self.losses.due(self._port.now)
        result = {key: RangeSet(ranges) for key, ranges in due.items()}
        for assembly in self.assemblies.incomplete(self._port.now) if result else ():
            for pattern, epoch, number in assembly.numbers:
                ranges = result.get((assembly.origin, pattern, epoch))
                if ranges is not None:
                    ranges.remove(number, number + 1)
        return {key: ranges for key, ranges in result.items() if ranges}

    def expire(self) -> None:
        now = self._port.now
        self.losses.expire(now)
        self.assemblies.expire(now)
        for identity in [known for known in self._asked if self.assemblies.get(*known) is None]:
            del self._asked[identity]
