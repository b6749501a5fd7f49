"""Counts the events of one durable subscription or group: each is expected once, whoever gets it."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.core.events.event import RESERVED_ATTRIBUTE, Publication
from tidings.core.events.subscription import Interest
from tidings.core.filters.language.predicates import Scalar
from tidings.core.structures.range_set import RangeSet
from tidings.core.structures.recent_ids import RecentIds
from tidings.scenarios.actor import NEVER
from tidings.scenarios.share_actor import HandedEvent
from tidings.scenarios.share_lives import Row, ShareLives
from tidings.scenarios.trace.writer import TraceWriter
from tidings.scenarios.virtual.tally import Tally


class _Life:
    """One of the shares that had the name."""

    def __init__(self) -> None:
        self.accepted_at = NEVER
        self.first_time = RecentIds().first_time
        self.late = self.late_expiring = 0
        """Events since the lease may be over: they are expected only if it was not."""
        self.done: dict[tuple[str, int], RangeSet] = {}
        """Source and incarnation -> the sequences of events whose acknowledgements were accepted."""


class ShareTally:
    def __init__(self, tally: Tally, writer: TraceWriter, interest: Interest, keep_for_ns: int) -> None:
        self._tally = tally
        self._interest = interest
        self._rows = ShareLives(writer, keep_for_ns)
        self._lives: dict[str, _Life] = {}
        self._accepted: list[str] = []
        """The lives that were accepted, in order."""
        self._expected = self._expiring = 0
        tally.shares.append(self)

    def _life(self, name: str) -> _Life:
        return self._lives.setdefault(name, _Life())

    # --- Who is attached

    def joined(self, row: Row, life: str) -> None:
        self._rows.joined(row, life)
        known = self._life(life)
        self._expected += known.late
        self._expiring += known.late_expiring
        known.late = known.late_expiring = 0

    def left(self, row: Row, at: int) -> None:
        self._rows.left(row, at)

    def accepted(self, row: Row, at: int) -> None:
        name = self._rows.life_of(row)
        self._rows.accepted(row, at)
        life = self._life(name)
        if life.accepted_at == NEVER:
            life.accepted_at = at
            self._accepted.append(name)

    # --- What is expected

    @property
    def expected(self) -> int:
        return self._expected + sum(life.late for life in self._waiting)

    @property
    def expiring(self) -> int:
        return self._expiring + sum(life.late_expiring for life in self._waiting)

    @property
    def _waiting(self) -> list[_Life]:
        return [life for name, life in self._lives.items() if name not in self._rows.ended]

    def published(self, topic: str, attributes: Mapping[str, Scalar], at: int, *, expires: bool) -> None:
        for name in reversed(self._accepted):
            life = self._lives[name]
            if life.accepted_at <= at < self._rows.ended.get(name, NEVER):
                break
        else:
            return
        if not self._wants(topic, attributes):
            return
        if at >= self._rows.lease_ends(name):
            life.late += 1
            life.late_expiring += expires
        else:
            self._expected += 1
            self._expiring += expires

    def _wants(self, topic: str, attributes: Mapping[str, Scalar]) -> bool:
        if not self._interest.has_topic(topic):
            return False
        pattern = self._interest.pattern
        return pattern is None or pattern.matches({**attributes, RESERVED_ATTRIBUTE: topic})

    # --- What arrives

    def taken(self, row: Row, taken: HandedEvent, now: int) -> None:
        publication, tally = taken.publication, self._tally
        life = self._life(self._rows.life_of(row))
        tally.delivered += 1
        if taken.attempt == 1:
            tally.latency_ns.add(now - publication.published_at)
        if life.first_time(publication.source, publication.incarnation, publication.sequence):
            expected = publication.published_at >= life.accepted_at
            tally.expected_delivered += expected
            tally.expiring_delivered += expected and publication.expires_at is not None
        elif taken.attempt == 1:
            tally.duplicates += 1

    def done(self, row: Row, publication: Publication) -> None:
        source = (publication.source, publication.incarnation)
        done = self._life(self._rows.life_of(row)).done
        done.setdefault(source, RangeSet()).add(publication.sequence)

    def is_done(self, row: Row, publication: Publication) -> bool:
        done = self._life(self._rows.life_of(row)).done
        sequences = done.get((publication.source, publication.incarnation))
        return sequences is not None and publication.sequence in sequences
