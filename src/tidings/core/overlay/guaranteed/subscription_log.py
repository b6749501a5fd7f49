"""The subscription log of a broker: who wants what, in the order in which this broker learned it.

A record belongs to the broker whose clients want it (its source). It is live or, once nobody wants it any more,
a tombstone. Records are on disk before anybody learns that this broker has them. The position of a record is its
place in this broker's log; a publisher's broker certifies publications up to a position.

A tombstone that every broker has is collected. Its number remains, in ranges per source, so that a late copy of the
record is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from tidings.core.errors import FilterError, StoreCorrupt, TopicError, WireError
from tidings.core.events.run import Run, Stretch
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.overlay.guaranteed.messages import Record, SilentRecord
from tidings.core.overlay.guaranteed.regions import Region
from tidings.core.overlay.labels import Label, on_path
from tidings.core.overlay.matching import Matcher, Selection
from tidings.core.store import Change, Store
from tidings.core.structures.range_set import RangeSet

MAX_CACHED_ROUTES = 4_096
_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(tuple[int, Record | SilentRecord]).decode
_decode_position = msgspec.msgpack.Decoder(int).decode
_decode_ranges = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
COLLECTED = b"\0"
"""A prefix: with the name of a source it is the key of the numbers of its collected records, in the log on disk."""
POSITION = COLLECTED
"""Without a name: the position of the newest record, if that was collected. It is never reused, because publishers
stamp with it."""


class LogEntry:
    """One record, and what we know of who has it."""

    __slots__ = ("closed", "cover", "heard", "interest", "position", "record", "reported", "senders")

    def __init__(self, record: Record, interest: Interest, position: int) -> None:
        self.record = record
        self.interest = interest
        self.position = position
        self.cover = Region.nothing()
        self.closed = False
        """`cover` has everything that anybody waits for here."""
        self.senders: dict[str, None] = {}
        self.reported: dict[str, Region] = {}
        self.heard: dict[str, None] = {}
        """Who has reported. They wait for nobody alive, so we need not wait for them."""

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def silent(self) -> bool:
        return isinstance(self.record, SilentRecord)

    @property
    def dead(self) -> bool:
        return self.record.dead

    def uncover(self) -> None:
        self.cover = Region.nothing()
        self.closed = False
        self.reported = {}
        self.heard = {}


class Destination:
    """A broker that wants a publication, and the records that select it."""

    __slots__ = ("broker", "entries", "label", "newest")

    def __init__(self, broker: str, label: Label, entries: tuple[LogEntry, ...]) -> None:
        self.broker = broker
        self.label = label
        self.entries = entries
        self.newest = max(entry.position for entry in entries)


Route = tuple[Destination, ...]


def readable_interest(record: Record) -> tuple[Interest, str | None]:
    """Return a record's interest. Widen one that this version cannot read, so that no event is withheld, and return the
    problem, too."""
    try:
        return make_interest(record.topics, record.filter), None
    except FilterError as error:
        return make_interest(
            record.topics, None
        ), f"cannot read the filter of record {record.id}, so routing all of its topics: {error}"
    except TopicError as error:
        return make_interest(
            (), None
        ), f"cannot read the topics of record {record.id}, so routing everything: {error}"


class SubscriptionLog:
    """Holds the records in memory and on disk, and computes routes from the live ones."""

    def __init__(self, label: Label, store: Store, matcher: Matcher) -> None:
        self.position = 0
        """The position of the newest record."""
        self.labels: dict[str, Label] = {}
        """The labels of brokers that have or had a record."""
        self._label = label
        self._store = store
        self._matcher = matcher
        self._entries: dict[str, LogEntry] = {}
        self._table: dict[Interest, dict[str, dict[str, LogEntry]]] = {}
        self._routes: dict[tuple[Selection, Label], Route] = {}
        self._collected: dict[str, RangeSet] = {}
        for key, value in store.read("log"):
            try:
                self._load(key, value)
            except (msgspec.MsgspecError, UnicodeError) as error:
                raise StoreCorrupt(
                    f"record {key!r} of the subscription log does not decode: {error}"
                ) from None

    def _load(self, key: bytes, value: bytes) -> None:
        if key == POSITION:
            self.position = max(self.position, _decode_position(value))
            return
        if key.startswith(COLLECTED):
            self._collected[key[len(COLLECTED) :].decode()] = RangeSet(_decode_ranges(value))
            return
        position, record = _decode_row(value)
        self._insert(record, position)
        self.position = max(self.position, position)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self._entries.values())

    def __contains__(self, record_id: str) -> bool:
        return record_id in self._entries

    def get(self, record_id: str) -> LogEntry | None:
        return self._entries.get(record_id)

    def ids(self, *, dead: bool) -> list[str]:
        return [entry.id for entry in self._entries.values() if entry.dead is dead]

    def take(self, records: Sequence[Record]) -> list[LogEntry]:
        """Store the records that are news, unknown ones and tombstones of live ones, on disk. Return their entries."""
        news: dict[str, Record] = {}
        for record in records:
            if self.is_collected(record.id):
                continue
            known = news.get(record.id) or (
                self._entries[record.id].record if record.id in self._entries else None
            )
            if known is None or (record.dead and not known.dead):
                news[record.id] = record
        position = self.position
        changes: list[Change] = []
        positions: dict[str, int] = {}
        for record in news.values():
            entry = self._entries.get(record.id)
            if entry is None:
                position += 1
            positions[record.id] = position if entry is None else entry.position
            changes.append(("log", record.id.encode(), _encode((positions[record.id], record))))
        if not changes:
            return []
        self._store.write(changes)
        self.position = position
        self._routes.clear()
        return [self._insert(record, positions[record.id]) for record in news.values()]

    def is_collected(self, record_id: str) -> bool:
        """Return True if every broker had its tombstone, and it was collected."""
        source, number = _split(record_id)
        collected = self._collected.get(source)
        return collected is not None and number in collected

    def collect(self, record_ids: Sequence[str]) -> list[str]:
        """Collect these, whose tombstones everybody has. Return those that were not collected before."""
        news = [
            record_id
            for record_id in record_ids
            if not self.is_collected(record_id) and _split(record_id)[1] >= 0
        ]
        changes: list[Change] = []
        for record_id in news:
            source, number = _split(record_id)
            ranges = self._collected.setdefault(source, RangeSet())
            ranges.add(number)
            changes.append(("log", record_id.encode(), None))
            if record_id in self._entries and self._entries[record_id].position == self.position:
                changes.append(("log", POSITION, _encode(self.position)))
            changes.append(("log", COLLECTED + source.encode(), _encode(list(ranges))))
        if changes:
            self._store.write(changes)
            self._routes.clear()
        for record_id in news:
            entry = self._entries.pop(record_id, None)
            if entry is not None and not entry.dead:
                self._remove_from_table(entry)
        return news

    def _insert(self, record: Record, position: int) -> LogEntry:
        entry = self._entries.get(record.id)
        if entry is None:
            entry = self._entries[record.id] = LogEntry(record, readable_interest(record)[0], position)
            self.labels[record.broker] = record.label
            if not record.dead:
                self._add_to_table(entry)
        else:
            self._remove_from_table(entry)
            entry.record = record
            entry.uncover()
        return entry

    def _add_to_table(self, entry: LogEntry) -> None:
        by_broker = self._table.get(entry.interest)
        if by_broker is None:
            by_broker = self._table[self._matcher.hold(entry.interest)] = {}
        by_broker.setdefault(entry.record.broker, {})[entry.id] = entry

    def _remove_from_table(self, entry: LogEntry) -> None:
        by_broker = self._table[entry.interest]
        entries = by_broker[entry.record.broker]
        del entries[entry.id]
        if not entries:
            del by_broker[entry.record.broker]
        if not by_broker:
            del self._table[entry.interest]
            self._matcher.release(entry.interest)

    def routes(
        self, stretch: Stretch, origin: Label, complain: Callable[[WireError], None]
    ) -> list[tuple[Stretch, Route]]:
        """Find who behind this broker, as seen from the publisher's, wants these publications; cut where that changes.

        A publication that does not decode is dropped and reported to `complain`.
        """
        if isinstance(stretch, Run):
            parts = self._matcher.cut(stretch, complain)
            return [(part, self._route(part.selection, origin)) for part in parts]
        try:
            return [(stretch, self._route(self._matcher.select(stretch), origin))]
        except WireError as error:
            complain(error)
            return []

    def route(self, stretch: Stretch, origin: Label) -> Route:
        """Return who wants any of these publications, which all had one route when they were taken."""
        selections = {part.selection: None for part in self._matcher.parts(stretch, lambda error: None)}
        if len(selections) == 1:
            return self._route(next(iter(selections)), origin)
        interests = dict.fromkeys(interest for selection in selections for interest in selection.interests)
        return self._compute(tuple(interests), origin)

    def answering(self, selection: Selection) -> Iterator[LogEntry]:
        """Yield the records that select publications of this selection that are published here, without those of
        archives."""
        route = self._route(selection, self._label)
        return (entry for destination in route for entry in destination.entries if not entry.silent)

    def _route(self, selection: Selection, origin: Label) -> Route:
        route = self._routes.get((selection, origin))
        if route is None:
            if len(self._routes) >= MAX_CACHED_ROUTES:
                self._routes.clear()
            route = self._routes[selection, origin] = self._compute(selection.interests, origin)
        return route

    def _compute(self, interests: Sequence[Interest], origin: Label) -> Route:
        wanted: dict[str, list[LogEntry]] = {}
        for interest in interests:
            for broker, entries in self._table.get(interest, {}).items():
                if on_path(self._label, origin, next(iter(entries.values())).record.label):
                    wanted.setdefault(broker, []).extend(entries.values())
        return tuple(
            Destination(broker, entries[0].record.label, tuple(entries)) for broker, entries in wanted.items()
        )

    def discard(self) -> None:
        for interest in self._table:
            self._matcher.release(interest)
        self._table.clear()
        self._routes.clear()


def _split(record_id: str) -> tuple[str, int]:
    """Return the source and the number of a record; the number is -1 if the id has another form than ours."""
    source, _, number = record_id.rpartition("/")
    return source, int(number) if number.isascii() and number.isdigit() and len(number) < 19 else -1
