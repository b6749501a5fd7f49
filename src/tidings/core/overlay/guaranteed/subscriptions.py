"""Keeps the subscription logs of all brokers equal, and tells a record's source who has it.

Records are flooded over all sessions. A session that becomes active is synchronised first: ACTIVATE lists what the
sender has, and the answer brings what the sender lacks and requests what the receiver lacks. Only then is the session
ready for publications.

Coverage: each broker claims its own place once it has a record on disk and its publishers stamp accordingly. Claims
flow towards the record's source and are merged on the way. They only grow, so the uncovered part only shrinks. A
broker reports once it waits for no live session any more, and again whenever it learns more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from tidings.core.events.subscription import Interest
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.overlay.guaranteed.messages import (
    Activate,
    Collect,
    Covered,
    Record,
    Records,
    RecordsTaken,
    SilentRecord,
    Sync,
)
from tidings.core.overlay.guaranteed.regions import Region, RegionWire
from tidings.core.overlay.guaranteed.sessions import SessionListener, Sessions
from tidings.core.overlay.guaranteed.subscription_log import LogEntry, SubscriptionLog, readable_interest
from tidings.core.overlay.labels import Label, label_text, on_path, step

IDS_PER_MESSAGE = 1_024
RECORDS_BYTES = 48 * 1024
RECOVERY_PATIENCE_NS = 10_000_000_000
"""If all neighbours have lost their logs, too, give up after this long: the logs are gone."""


class Exchange:
    """What this broker and one peer have exchanged on the present connection."""

    __slots__ = ("lacking", "listed", "listed_dead", "offered", "ready", "recovering")

    def __init__(self) -> None:
        self.offered = False
        """We sent our list."""
        self.ready = False
        """The peer has the records that we listed: publications may be sent."""
        self.lacking: dict[str, None] | None = None
        """Records that we have and the peer may lack; None until it sent its list."""
        self.listed: set[str] = set()
        self.listed_dead: set[str] = set()
        self.recovering = True

    @property
    def linked(self) -> bool:
        return self.offered or self.lacking is not None


class SubscriptionListener:
    """Callbacks for the parts above the subscriptions. They do nothing by default."""

    def ready(self, peer: str) -> None:
        """The session is synchronised."""

    def progressed(self, entry: LogEntry) -> None:
        """More brokers know one of our own records, and we wait for nobody alive."""

    def records_changed(self, entries: Sequence[LogEntry]) -> None: ...

    def recovered(self) -> None:
        """The log is complete again."""


class PublisherStamps:
    """The position of the log that each publisher of this broker is known to stamp with."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def set(self, publisher: str, position: int) -> None:
        self._positions[publisher] = position

    def remove(self, publisher: str) -> None:
        self._positions.pop(publisher, None)

    def lowest(self, position: int) -> int:
        """Return the lowest position that any publisher stamps with; `position` if nobody publishes."""
        return min(self._positions.values(), default=position)


class Subscriptions(Part, SessionListener):
    name = "subscriptions"
    handles = {
        Activate: "on_activate",
        Sync: "on_sync",
        Records: "on_records",
        RecordsTaken: "on_records_taken",
        Covered: "on_covered",
        Collect: "on_collect",
    }

    def __init__(
        self,
        port: Port,
        sessions: Sessions,
        log: SubscriptionLog,
        stamps: PublisherStamps,
        *,
        incarnation: int,
        recovering: bool,
    ) -> None:
        super().__init__(port)
        self.log = log
        self.recovering = recovering
        self.listeners: list[SubscriptionListener] = []
        """Called in this order."""
        self._stamps = stamps
        self._sessions = sessions
        sessions.listeners.append(self)
        self._incarnation = incarnation
        self._own_number = 0
        self._exchanges: dict[str, Exchange] = {}
        self._unclaimed: deque[LogEntry] = deque()
        self._open: dict[str, LogEntry] = {}
        for entry in log:
            self._unclaimed.append(entry)
            self._open[entry.id] = entry

    def _tell_ready(self, peer: str) -> None:
        for listener in self.listeners:
            listener.ready(peer)

    def _tell_progress(self, entry: LogEntry) -> None:
        for listener in self.listeners:
            listener.progressed(entry)

    def start(self) -> None:
        self.port.set_timer((self.name, "recovery"), self.port.now + RECOVERY_PATIENCE_NS)
        if self.recovering and not len(self._sessions.neighbourhood):
            self._recovered()
        self.claim()

    def on_timer(self, name: TimerName) -> None:
        if not self.recovering:
            return
        around = [self._exchanges.get(peer) for peer in self._sessions.neighbourhood.primary]
        if all(exchange is not None and exchange.ready and exchange.recovering for exchange in around):
            self._recovered()
        else:
            self.port.set_timer((self.name, "recovery"), self.port.now + RECOVERY_PATIENCE_NS)

    # --- Records of our own clients

    def next_own_id(self) -> str:
        self._own_number += 1
        return f"{self.port.node}/{self._incarnation}/{self._own_number}"

    def add_own(self, record_id: str, interest: Interest, *, silent: bool = False) -> LogEntry:
        """Write a new record of this broker to disk, and send it to the others."""
        own = self._sessions.neighbourhood
        topics = tuple(topic.text for topic in interest.topics)
        kind = SilentRecord if silent else Record
        record = kind(record_id, own.name, own.label, topics, interest.sql)
        (entry,) = self.log.take([record])
        self._spread([entry], None)
        return entry

    def end_own(self, entry: LogEntry) -> None:
        """Replace a record that nobody here wants any more by its tombstone."""
        record = entry.record
        tombstone = Record(record.id, record.broker, record.label, (), None, True)
        news = self.log.take([tombstone])
        self._spread(news, None)

    def is_settled(self, entry: LogEntry) -> bool:
        """Return True if we wait for nobody alive: brokers that do not know the record yet are unreachable."""
        return bool(entry.cover) and not self._waits_for_peers(entry, None)

    def uncovered(self, entry: LogEntry, limit: int) -> list[str]:
        """Describe the brokers that do not know the record yet, by name where we know it."""
        names = {
            label_text(self._sessions.neighbourhood.label_of(peer)): peer
            for peer in self._sessions.neighbourhood
        }
        texts = entry.cover.complement().atoms(limit)
        return [" ".join(names.get(word, word) for word in text.split(" ")) for text in texts]

    # --- Sessions

    def ready(self, peer: str) -> bool:
        exchange = self._exchanges.get(peer)
        return exchange is not None and exchange.ready

    def peer_lacks(self, peer: str) -> dict[str, None] | None:
        """Return the records that the peer may lack; None if it never listed what it has."""
        exchange = self._exchanges.get(peer)
        return None if exchange is None else exchange.lacking

    def activated(self, peer: str) -> None:
        exchange = self._exchange(peer)
        exchange.ready = False
        exchange.offered = True
        live, dead = self.log.ids(dead=False), self.log.ids(dead=True)
        parts = max(len(_parts(live)), len(_parts(dead)), 1)
        for number in range(parts):
            low, high = number * IDS_PER_MESSAGE, (number + 1) * IDS_PER_MESSAGE
            self.port.send(peer, Activate(tuple(live[low:high]), tuple(dead[low:high]), number == parts - 1))

    def deactivated(self, peer: str) -> None:
        exchange = self._exchanges.get(peer)
        if exchange is not None:
            exchange.ready = False

    def lost(self, peer: str) -> None:
        self._exchanges.pop(peer, None)

    def changed(self) -> None:
        """Report again: records may no longer wait for sessions that changed."""
        for entry in list(self._open.values()):
            self._report(entry)

    def neighbours_changed(self) -> None:
        """Extend our claims, because our own place includes the places of neighbours that left."""
        if self.recovering:
            return
        own, stamped = self._own_region(), self._stamps.lowest(self.log.position)
        for entry in list(self.log):
            if entry.dead or entry.position <= stamped:
                self._add_cover(entry, own)

    def _exchange(self, peer: str) -> Exchange:
        exchange = self._exchanges.get(peer)
        if exchange is None:
            exchange = self._exchanges[peer] = Exchange()
        return exchange

    def on_activate(self, sender: str, message: Activate) -> None:
        if not self._sessions.established(sender):
            return
        exchange = self._exchange(sender)
        exchange.listed.update(message.ids)
        exchange.listed_dead.update(message.dead)
        if not message.last:
            return
        live, dead = exchange.listed, exchange.listed_dead
        exchange.listed, exchange.listed_dead = set(), set()
        lacking = [
            entry for entry in self.log if entry.id not in dead and (entry.dead or entry.id not in live)
        ]
        exchange.lacking = {entry.id: None for entry in lacking}
        self._send_records(sender, lacking)
        needed = [record_id for record_id in live if record_id not in self.log]
        for record_id in dead:
            entry = self.log.get(record_id)
            if entry is None or not entry.dead:
                needed.append(record_id)
        collected = sorted(filter(self.log.is_collected, needed))
        for part in _parts(collected):
            self.port.send(sender, Collect(tuple(part)))
        needed = sorted(set(needed).difference(collected))
        for part in _parts(needed) or [()]:
            self.port.send(sender, Sync(tuple(part), False, self.recovering))
        self.port.send(sender, Sync((), True, self.recovering))
        self._report_all(sender)

    def on_sync(self, sender: str, message: Sync) -> None:
        exchange = self._exchanges.get(sender)
        if exchange is None or not exchange.offered:
            return
        entries = [entry for entry in map(self.log.get, message.needed) if entry is not None]
        self._send_records(sender, entries)
        if not message.last:
            return
        exchange.recovering = message.recovering
        if self.recovering and not message.recovering:
            self._recovered()
        if sender in self._sessions.active and not exchange.ready:
            exchange.ready = True
            self._tell_ready(sender)
        self._report_all(sender)

    def _recovered(self) -> None:
        self.recovering = False
        for peer, exchange in self._exchanges.items():
            if exchange.lacking is not None:
                self.port.send(peer, Sync((), True, False))
        for listener in self.listeners:
            listener.recovered()
        self.claim()

    # --- Records

    def on_records(self, sender: str, message: Records) -> None:
        if not self._sessions.established(sender):
            return
        for record in message.records:
            trouble = readable_interest(record)[1]
            if trouble is not None and record.id not in self.log:
                self.port.emit(Misbehaviour(sender, trouble))
        news = self.log.take(message.records)
        exchange = self._exchange(sender)
        taken: list[str] = []
        taken_dead: list[str] = []
        collected: list[str] = []
        for record in message.records:
            entry = self.log.get(record.id)
            if entry is None:
                collected.append(record.id)
                continue
            entry.senders[sender] = None
            (taken_dead if entry.dead else taken).append(record.id)
            if exchange.lacking is not None and record.dead == entry.dead:
                exchange.lacking.pop(record.id, None)
        for part in _parts(collected):
            self.port.send(sender, Collect(tuple(part)))
        for part in _parts(taken):
            self.port.send(sender, RecordsTaken(tuple(part), ()))
        for part in _parts(taken_dead):
            self.port.send(sender, RecordsTaken((), tuple(part)))
        self._spread(news, sender)
        fresh = {entry.id for entry in news}
        for record in message.records:
            entry = self.log.get(record.id)
            if entry is not None and entry.id not in fresh:
                self._report(entry)

    def on_records_taken(self, sender: str, message: RecordsTaken) -> None:
        exchange = self._exchanges.get(sender)
        if exchange is None or exchange.lacking is None:
            return
        for record_id in message.dead:
            exchange.lacking.pop(record_id, None)
        for record_id in message.ids:
            entry = self.log.get(record_id)
            if entry is None or not entry.dead:
                exchange.lacking.pop(record_id, None)

    def _spread(self, news: Sequence[LogEntry], source: str | None) -> None:
        """Send new records to all other peers, and note who may lack them."""
        if not news:
            return
        for listener in self.listeners:
            listener.records_changed(news)
        for peer, exchange in self._exchanges.items():
            if peer == source or not exchange.linked:
                continue
            if exchange.lacking is not None:
                exchange.lacking.update((entry.id, None) for entry in news)
            self._send_records(peer, news)
        for entry in news:
            self._unclaimed.append(entry)
            self._open[entry.id] = entry
        self.claim()

    def _send_records(self, peer: str, entries: Iterable[LogEntry]) -> None:
        batch: list[Record] = []
        size_bytes = 0
        for entry in entries:
            record = entry.record
            size_bytes += 64 + sum(map(len, record.topics)) + len(record.filter or "")
            if batch and (size_bytes > RECORDS_BYTES or len(batch) >= IDS_PER_MESSAGE):
                self.port.send(peer, Records(tuple(batch)))
                batch, size_bytes = [], 0
            batch.append(record)
        if batch:
            self.port.send(peer, Records(tuple(batch)))

    # --- Coverage

    def claim(self) -> None:
        """Claim our own place for the records that all our publishers' stamps now include."""
        if self.recovering:
            return
        stamped = self._stamps.lowest(self.log.position)
        own = self._own_region()
        while self._unclaimed:
            entry = self._unclaimed[0]
            if not entry.dead and entry.position > stamped:
                break
            self._unclaimed.popleft()
            if self.log.get(entry.id) is entry:
                self._add_cover(entry, own)

    def _own_region(self) -> Region:
        """Return this broker and whoever may join below it: everything except its neighbours' branches."""
        neighbourhood = self._sessions.neighbourhood
        region = Region.everything()
        for peer in neighbourhood.primary:
            region -= Region.branch(neighbourhood.label_of(peer), seen_from=neighbourhood.label)
        return region

    def on_covered(self, sender: str, message: Covered) -> None:
        try:
            region = _from_wire(message.region)
        except ValueError as error:
            self.port.emit(Misbehaviour(sender, f"reports an invalid region: {error}"))
            return
        for record_id in message.ids:
            entry = self.log.get(record_id)
            if entry is not None and entry.dead == message.dead:
                self._hear(sender, entry, region)

    def _hear(self, sender: str, entry: LogEntry, region: Region) -> None:
        first = sender not in entry.heard
        if first and not entry.closed:
            entry.heard[sender] = None
        cover = _union(entry.cover, region)
        if cover != entry.cover or (first and not entry.closed):
            entry.cover = cover
            self._report(entry)

    def _add_cover(self, entry: LogEntry, region: Region) -> None:
        cover = _union(entry.cover, region)
        if cover != entry.cover:
            entry.cover = cover
            self._report(entry)

    def _report(self, entry: LogEntry) -> None:
        own = self._sessions.neighbourhood
        if entry.record.broker == own.name:
            self._report_own(entry)
            return
        for peer in self._targets(entry):
            self._report_to(peer, entry)
        if _includes(entry.cover, _branch(own.label, step(own.label, entry.record.label))):
            entry.closed = True
            entry.heard = {}
            self._open.pop(entry.id, None)

    def _report_own(self, entry: LogEntry) -> None:
        if not entry.cover.is_everything:
            if entry.cover and not self._waits_for_peers(entry, None):
                self._tell_progress(entry)
            return
        self._open.pop(entry.id, None)
        if not entry.closed:
            entry.closed = True
            if entry.dead:
                self._collect([entry.id], None)
            else:
                self._tell_progress(entry)

    def _targets(self, entry: LogEntry) -> Iterator[str]:
        nearest = self._sessions.frontier(entry.record.label)
        if nearest is not None:
            yield nearest
        for peer in entry.senders:
            if peer != nearest:
                yield peer

    def _report_to(self, peer: str, entry: LogEntry) -> None:
        if self._worth_reporting(peer, entry):
            entry.reported[peer] = entry.cover
            self.port.send(peer, Covered((entry.id,), entry.dead, entry.cover.to_wire()))

    def _worth_reporting(self, peer: str, entry: LogEntry) -> bool:
        """Return whether to report to the peer. Not before it has listed what it has: then we sent what it lacks, so
        whoever hears of our claim knows the records that we had when we made it (core/overlay/guaranteed/shares.py
        relies on that)."""
        exchange = self._exchanges.get(peer)
        return (
            exchange is not None
            and exchange.lacking is not None
            and bool(entry.cover)
            and entry.reported.get(peer) != entry.cover
            and not self._waits_for_peers(entry, peer)
        )

    def _waits_for_peers(self, entry: LogEntry, target: str | None) -> bool:
        """Return True if a live session away from the source has not reported, and its branch is not fully covered."""
        own = self._sessions.neighbourhood
        source = entry.record.label
        for peer in self._sessions.active:
            label = own.label_of(peer)
            if peer == target or peer in entry.senders or peer in entry.heard:
                continue
            if on_path(label, own.label, source):
                continue
            if not _includes(entry.cover, _branch(label, step(label, own.label))):
                return True
        return False

    def _report_all(self, peer: str) -> None:
        """Repeat all reports on a new connection: those on an earlier one may have been lost."""
        groups: dict[tuple[bool, Region], list[str]] = {}
        for entry in self.log:
            entry.reported.pop(peer, None)
            if peer in self._targets(entry) and self._worth_reporting(peer, entry):
                entry.reported[peer] = entry.cover
                groups.setdefault((entry.dead, entry.cover), []).append(entry.id)
        for (dead, region), ids in groups.items():
            for part in _parts(ids):
                self.port.send(peer, Covered(tuple(part), dead, region.to_wire()))

    # --- Tombstones that everybody has

    def on_collect(self, sender: str, message: Collect) -> None:
        self._collect(message.ids, sender)

    def _collect(self, record_ids: Sequence[str], source: str | None) -> None:
        gone = self.log.collect(record_ids)
        for record_id in gone:
            self._open.pop(record_id, None)
        for peer, exchange in self._exchanges.items():
            if exchange.lacking is not None:
                for record_id in gone:
                    exchange.lacking.pop(record_id, None)
            if peer != source and exchange.linked:
                for part in _parts(gone):
                    self.port.send(peer, Collect(tuple(part)))


# Cached: the same few regions come up for one record after another.


@lru_cache(maxsize=16_384)
def _branch(label: Label, seen_from: Label) -> Region:
    return Region.branch(label, seen_from=seen_from)


@lru_cache(maxsize=16_384)
def _includes(region: Region, part: Region) -> bool:
    return (part - region).is_empty


@lru_cache(maxsize=16_384)
def _union(left: Region, right: Region) -> Region:
    return left | right


@lru_cache(maxsize=16_384)
def _from_wire(wire: RegionWire) -> Region:
    return Region.from_wire(wire)


def _parts(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[low : low + IDS_PER_MESSAGE] for low in range(0, len(ids), IDS_PER_MESSAGE)]
