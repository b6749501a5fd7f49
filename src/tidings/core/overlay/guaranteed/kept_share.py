"""The events that a broker keeps for one durable subscription or group, in memory and on disk.

Every stretch of events is a row on disk from before the broker confirms it until its last event is done. In memory a
row is little more than its numbers: its events are read again when they go out, except the most recent ones.

What went out before a restart of the broker may still be with its client, so it waits a moment for that client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec import Raw

from tidings.core.errors import StoreCorrupt, WireError
from tidings.core.events.event import WHOLE
from tidings.core.events.run import Stretch, cut, decode_stretch, encoding, look
from tidings.core.overlay.guaranteed.share_definition import (
    TABLE,
    ShareDefinition,
    decode_definition,
    definition_key,
)
from tidings.core.overlay.guaranteed.share_reading import Reading, decode_reading
from tidings.core.sharing.choice import NO_VALUE, value_key
from tidings.core.sharing.shared_queue import Handout, SharedQueue
from tidings.core.store import Change, Store
from tidings.core.structures.highest import Highest
from tidings.core.structures.range_map import RangeMap
from tidings.core.structures.range_set import RangeSet
from tidings.core.structures.ranges import Ranges, merged, within

RETURN_NS = 2_000_000_000
"""After a restart of the broker, how long what went out before waits for its client to return."""
MAX_SOURCES = 65_536
MAX_KEPT_EVENTS = 1_000_000
MAX_KEPT_BYTES = 1024 * 1024 * 1024
"""At a limit the share takes no more: events wait where they come from, and may be given up there."""
MAX_RECENT_BYTES = 1024 * 1024
"""The encodings of recent rows that stay in memory."""
MAX_KEY_LENGTH = 64
"""Of a longer value that members share events by, a digest stays in memory."""
MAX_FINISHED = 10_000
"""Of how many events that went out more than once is remembered who was done with them."""


Mark = tuple[str, int, int]
"""A source, its incarnation, and a sequence."""


class _Row:
    """Some consecutive events of a source, on disk."""

    __slots__ = ("done", "first", "last", "late", "sequence", "size_bytes", "stretch")

    def __init__(self, first: int, last: int, sequence: int, size_bytes: int, late: bool) -> None:
        self.first, self.last = first, last
        self.sequence = sequence
        """Of the first event, at its source."""
        self.size_bytes = size_bytes
        self.late = late
        """Out of order: the sequencers had given up on these events."""
        self.done = 0
        """A bit for each event that is done, the lowest for the first."""
        self.stretch: Stretch | None = None
        """The events; None: read them again."""

    @property
    def is_done(self) -> bool:
        return self.done.bit_count() > self.last - self.first

    def finish(self, first: int, last: int) -> None:
        self.done |= ((1 << last - first + 1) - 1) << first - self.first

    def undone(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of events that are not done, ascending."""
        first, left = self.first, ~self.done & ((1 << self.last - self.first + 1) - 1)
        while left:
            skipped = _zeros(left)
            count = _zeros(~(left >> skipped))
            first += skipped
            yield first, first + count - 1
            first += count
            left >>= skipped + count


def _zeros(bits: int) -> int:
    """Return how many of the lowest bits are 0, before the first that is 1."""
    return (bits & -bits).bit_length() - 1


_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(tuple[int, int, bytes, bool]).decode
_decode_number = msgspec.msgpack.Decoder(int).decode
_decode_done = msgspec.msgpack.Decoder(bytes | list[tuple[int, int]]).decode
"""The bits of a row, the lowest first. Ranges, with the number after the last one, are of earlier versions."""
_decode_mark = msgspec.msgpack.Decoder(tuple[str, int, int]).decode
_decode_member = msgspec.msgpack.Decoder(str).decode
_ROW, _DONE, _MARK, _SENT, _ATTEMPT = b"r", b"d", b"m", b"s", b"a"
_ASIDE, _FINISHED, _OPEN, _READING, _POSITION, _EXPIRED = b"x", b"f", b"o", b"n", b"p", b"e"
_RELEASED = b"b"


def stored_shares(store: Store, now: int) -> list[KeptShare]:
    """Return the shares that the store keeps, by name."""
    definitions: dict[bytes, ShareDefinition] = {}
    rows: dict[bytes, list[tuple[bytes, bytes]]] = {}
    try:
        for key, value in store.read(TABLE):
            name, _, item = key.partition(b"\0")
            if name:
                rows.setdefault(name, []).append((item, value))
            else:
                definitions[item] = decode_definition(value)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"a durable subscription does not decode: {error}") from None
    found: list[KeptShare] = []
    for name, definition in sorted(definitions.items()):
        kept = KeptShare(definition, store)
        kept.load(rows.get(name, []), now)
        found.append(kept)
    return found


class Given(NamedTuple):
    """Events that go to a member now."""

    handout: Handout
    events: bytes
    """Their encoding."""
    late: bool
    """Out of order."""
    before: int
    """How many of their deliveries were before they were last released."""


class KeptShare:
    """One share: what it keeps, and who gets what of it."""

    def __init__(self, definition: ShareDefinition, store: Store) -> None:
        self.definition = definition
        self.queue = SharedQueue(
            self._key_of if definition.group_by else None,
            in_order=definition.order != "none" and not definition.group,
        )
        self.is_open = False
        """The name is ours, and the whole network knows what we want."""
        self.size_bytes = 0
        self.expired = 0
        """How many events were done because they had expired."""
        self.reading: Reading | None = None
        """Who reads the share by number, and how far it is done."""
        self.position = b""
        """How far an order across publishers has come, or a history (share_history.py): on disk, with the events that
        are up to there."""
        self._store = store
        self._prefix = definition.name.encode() + b"\0"
        self._rows: RangeMap[_Row] = RangeMap()
        self._recent: OrderedDict[int, _Row] = OrderedDict()
        """Like `_finished_by` an OrderedDict: finding the first entry of a dict skips all deleted before it."""
        self._recent_bytes = 0
        self._highest: Highest[tuple[str, int], int] = Highest(MAX_SOURCES)
        """(source, incarnation) -> the last sequence taken."""
        self._last = self._sent = 0
        """The number of the last event; the highest number that went out."""
        self._keys: dict[int, str] = {}
        """The keys of events that were looked at."""
        self._noted: set[int] = set()
        """Events with attempts on disk, or set aside there."""
        self._released: dict[int, int] = {}
        """Events that were set aside and released -> how often they had been delivered by then. All are in `_noted`."""
        self._finished_by: OrderedDict[int, str] = OrderedDict()
        """Events that went out more than once -> the member that was done with them."""

    # --- On disk

    def _key(self, kind: bytes, item: bytes = b"") -> bytes:
        return self._prefix + kind + item

    def created(self) -> list[Change]:
        """Return the changes that make the share exist."""
        return [(TABLE, definition_key(self.definition.name), _encode(self.definition))]

    def create(self) -> None:
        self._store.write(self.created())

    def redefine(self, definition: ShareDefinition) -> None:
        """Change what does not concern its events."""
        self.definition = definition
        self.create()

    def open(self) -> None:
        """Note that the share is open: after a restart it is so at once."""
        self._store.write([(TABLE, self._key(_OPEN), b"")])
        self.is_open = True

    def load(self, rows: Iterable[tuple[bytes, bytes]], now: int) -> None:
        """Take over what was kept before a restart: the kind and number of each row, and its value."""
        attempts: dict[int, int] = {}
        aside: dict[int, int] = {}
        done: dict[int, bytes | list[tuple[int, int]]] = {}
        try:
            for item, value in rows:
                kind, number = item[:1], int.from_bytes(item[1:9])
                if kind == _ROW:
                    last, sequence, raw, late = _decode_row(value)
                    self._rows.add(number, last, _Row(number, last, sequence, len(raw), late))
                    self.size_bytes += len(raw)
                    self._last = max(self._last, last)
                elif kind == _DONE:
                    done[number] = _decode_done(value)
                elif kind == _MARK:
                    source, incarnation, sequence = _decode_mark(value)
                    self._highest.raise_to((source, incarnation), sequence)
                elif kind == _SENT:
                    self._sent = _decode_number(value)
                elif kind == _ATTEMPT:
                    attempts[number] = _decode_number(value)
                elif kind == _ASIDE:
                    aside[number] = _decode_number(value)
                elif kind == _RELEASED:
                    self._released[number] = _decode_number(value)
                elif kind == _OPEN:
                    self.is_open = True
                elif kind == _EXPIRED:
                    self.expired = _decode_number(value)
                elif kind == _POSITION:
                    self.position = value
                elif kind == _FINISHED:
                    self._finished_by[number] = _decode_member(value)
                elif kind == _READING:
                    self.reading = decode_reading(value)
        except msgspec.MsgspecError as error:
            name = self.definition.name
            raise StoreCorrupt(f"what is kept for {name!r} does not decode: {error}") from None
        self._finished_by = OrderedDict(sorted(self._finished_by.items()))
        self._last = max(self._last, self._sent)
        self._noted = {*attempts, *aside}
        for first, _, row in self._rows:
            found = done.get(first, b"")
            if isinstance(found, bytes):
                row.done = int.from_bytes(found, "little")
            else:
                for start, stop in found:
                    row.finish(start, stop - 1)
            for low, high in row.undone():
                self._restore(low, high, attempts, aside, now)

    def _restore(
        self, first: int, last: int, attempts: dict[int, int], aside: dict[int, int], now: int
    ) -> None:
        if first > self._sent:
            self.queue.add(first, last)
            return
        for number in range(first, last + 1):
            if number in aside:
                self.queue.set_aside(number, aside[number])
            elif number <= self._sent:
                self.queue.add_later(number, number, attempts.get(number, 1), now + RETURN_NS)
            else:
                self.queue.add(number, number)

    def erase(self) -> None:
        """Remove everything from disk."""
        changes: list[Change] = [(TABLE, key, None) for key in self._keys_on_disk()]
        self._store.write([*changes, (TABLE, definition_key(self.definition.name), None)])

    def _keys_on_disk(self) -> list[bytes]:
        """Return the keys that may be on disk, without the definition's."""
        rows = [first for first, _, _ in self._rows]
        numbered = [(kind, rows) for kind in (_ROW, _DONE)]
        numbered += [(kind, sorted(self._noted)) for kind in (_ATTEMPT, _ASIDE, _RELEASED)]
        numbered.append((_FINISHED, list(self._finished_by)))
        keys = [self._key(kind, number.to_bytes(8)) for kind, numbers in numbered for number in numbers]
        keys += [self._mark_key(source) for source in self._highest]
        return [*keys, *map(self._key, (_SENT, _OPEN, _READING, _POSITION, _EXPIRED))]

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield what is on disk, without the definition, for another broker."""
        for key in self._keys_on_disk():
            value = self._store.get(TABLE, key)
            if value is not None:
                yield key, value

    # --- Taking events

    @property
    def is_full(self) -> bool:
        return self.queue.count >= MAX_KEPT_EVENTS or self.size_bytes >= MAX_KEPT_BYTES

    def highest(self, source: tuple[str, int]) -> int:
        """Return the last sequence taken of a source and incarnation."""
        return self._highest.get(source, 0)

    @property
    def marks(self) -> Iterable[tuple[tuple[str, int], int]]:
        """Sources and incarnations, with the last sequence taken."""
        return self._highest.items()

    def take(self, *stretches: Stretch, position: bytes | None = None, passed: Iterable[Mark] = ()) -> None:
        """Keep the events that are new, on disk before anybody hears of it. With them, note the position of a history
        after them, and up to which sequences nothing more is wanted of sources."""
        highest: dict[tuple[str, int], int] = {}
        fresh: list[tuple[Stretch, bool]] = []
        for stretch in stretches:
            source = (stretch.source, stretch.incarnation)
            before = highest[source] if source in highest else self._highest.get(source, 0)
            if stretch.last > before:
                highest[source] = stretch.last
                if stretch.kind == WHOLE:  # no application is shown a no-op
                    fresh.append((cut(stretch, max(before + 1, stretch.first), stretch.last), False))
        for name, incarnation, sequence in passed:
            source = (name, incarnation)
            if sequence > highest.get(source, self._highest.get(source, 0)):
                highest[source] = sequence
        changes = self._raised(highest)
        if position is not None:
            changes.append(self._position_row(position))
        if changes:
            self._keep(fresh, changes)
        for source in sorted(highest, key=lambda source: source not in self._highest):
            self._highest.raise_to(source, highest[source])
        if position is not None:
            self.position = position

    def _raised(self, highest: dict[tuple[str, int], int]) -> list[Change]:
        """Return the changes that raise the last sequences taken of these sources."""
        changes: list[Change] = [
            (TABLE, self._mark_key(source), _encode((*source, sequence)))
            for source, sequence in highest.items()
        ]
        excess = len(self._highest) + len(highest.keys() - self._highest.keys()) - MAX_SOURCES
        if excess > 0:
            silent = (source for source in self._highest if source not in highest)
            changes += [(TABLE, self._mark_key(source), None) for source in islice(silent, excess)]
        return changes

    def _position_row(self, position: bytes) -> Change:
        return (TABLE, self._key(_POSITION), position or None)

    def take_in_order(self, stretches: Sequence[tuple[Stretch, bool]], position: bytes) -> None:
        """Keep events that come in an order across publishers, each with whether it is out of order, and how far that
        order has then come. Both are on disk, or neither is: so no event is taken twice."""
        self._keep(stretches, [self._position_row(position)])
        self.position = position

    def keep_position(self, position: bytes) -> None:
        self._store.write([self._position_row(position)])
        self.position = position

    def _keep(self, stretches: Iterable[tuple[Stretch, bool]], changes: list[Change]) -> None:
        """Write these events and changes, all or nothing."""
        rows: list[_Row] = []
        last = self._last
        for stretch, late in stretches:
            raw = bytes(stretch.raw)
            row = _Row(last + 1, last + stretch.count, stretch.first, len(raw), late)
            row.stretch = decode_stretch(Raw(raw))
            last = row.last
            key = self._key(_ROW, row.first.to_bytes(8))
            changes.append((TABLE, key, _encode((last, stretch.first, raw, late))))
            rows.append(row)
        self._store.write(changes)
        self._last = last
        for row in rows:
            self._rows.add(row.first, row.last, row)
            self.size_bytes += row.size_bytes
            self._remember(row)
            self.queue.add(row.first, row.last)

    def _mark_key(self, source: tuple[str, int]) -> bytes:
        return self._key(_MARK, f"{source[1]} {source[0]}".encode(errors="surrogatepass"))

    def _remember(self, row: _Row) -> None:
        """Keep the row's events in memory while it is among the recent ones."""
        self._recent_bytes += row.size_bytes
        self._recent[row.first] = row
        while self._recent_bytes > MAX_RECENT_BYTES and len(self._recent) > 1:
            self._forget_recent(next(iter(self._recent)))

    def _forget_recent(self, first: int) -> None:
        row = self._recent.pop(first, None)
        if row is not None:
            row.stretch = None
            self._recent_bytes -= row.size_bytes

    # --- Handing out

    def due(self, now: int) -> list[Given]:
        """Return what goes out now, after noting on disk that it does."""
        handouts = self.queue.due(now)
        self._note_sent(handouts)
        return [part for handout in handouts for part in self._encoded(handout)]

    def pull(self, member: str, stop: int, now: int) -> None:
        """Give the member everything before this number, to be read by number; note on disk that it is out."""
        self._note_sent(self.queue.pull(member, stop, now))

    def _note_sent(self, handouts: Iterable[Handout]) -> None:
        changes: list[Change] = []
        sent = self._sent
        for handout in handouts:
            sent = max(sent, handout.last)
            if handout.attempt > 1:
                self._noted.update(range(handout.first, handout.last + 1))
            changes += [
                (TABLE, self._key(_ATTEMPT, number.to_bytes(8)), _encode(handout.attempt))
                for number in (range(handout.first, handout.last + 1) if self._noted else ())
                if number in self._noted  # also a first attempt, if an earlier one did not count
            ]
        if sent > self._sent:
            self._sent = sent
            changes.append((TABLE, self._key(_SENT), _encode(sent)))
        if changes:
            self._store.write(changes)

    # --- Reading by number

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self._last

    def set_reading(self, reading: Reading | None) -> None:
        self._store.write([(TABLE, self._key(_READING), None if reading is None else _encode(reading))])
        self.reading = reading

    def finish_below(self, member: str, number: int) -> None:
        """Forget everything of the member's before this number."""
        first = self._rows.first
        if first is not None:
            self._drop(self.queue.finish(member, ((first[0], number - 1),)))

    def read(self, first: int, last: int) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield what went out and is not done: the first and last number, the attempt, and the encoding."""
        for low, high, attempt in self.queue.went_out(first, last):
            for start, end, row in self._rows.overlapping(low, high):
                yield start, end, attempt, self._encoding(row, start, end)

    def _encoded(self, handout: Handout) -> Iterator[Given]:
        member, attempt = handout.member, handout.attempt
        for first, last, row in self._rows.overlapping(handout.first, handout.last):
            for low, high, before in self._by_release(first, last) if self._released else ((first, last, 0),):
                part = Handout(member, low, high, attempt)
                yield Given(part, self._encoding(row, low, high), row.late, before)

    def _by_release(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield these events in parts, with how often those of each part were delivered before their last release."""
        for number in sorted(self._released.keys() & range(first, last + 1)):
            if first < number:
                yield first, number - 1, 0
            yield number, number, self._released[number]
            first = number + 1
        if first <= last:
            yield first, last, 0

    def _encoding(self, row: _Row, first: int, last: int) -> bytes:
        offset = row.sequence - row.first
        return encoding(self._events(row), first + offset, last + offset)

    def _events(self, row: _Row) -> Stretch:
        if row.stretch is None:
            value = self._store.get(TABLE, self._key(_ROW, row.first.to_bytes(8)))
            assert value is not None, "a row stays on disk until all of it is done"
            row.stretch = decode_stretch(Raw(_decode_row(value)[2]))
            self._remember(row)
        assert row.stretch is not None
        return row.stretch

    def _key_of(self, number: int) -> str:
        """Return the value of the attribute that members share events by, as text."""
        key = self._keys.get(number)
        if key is None:
            row = self._rows.get(number)
            assert row is not None, "only kept events go out"
            try:
                content = look(self._events(row))[number - row.first]
            except WireError:
                key = NO_VALUE
            else:
                key = value_key(content.attributes, self.definition.group_by)
                if len(key) > MAX_KEY_LENGTH:
                    key = blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
            self._keys[number] = key
        return key

    def aside(self, after: int, limit: int) -> tuple[list[tuple[int, int, bytes]], bool]:
        """Return number, attempts and encoding of events that were set aside, and whether there are more."""
        aside = self.queue.aside
        if not aside or after >= self._last:
            return [], False  # who only asks how the share is
        found = nsmallest(limit + 1, (number for number in aside if number > after))
        events: list[tuple[int, int, bytes]] = []
        for number in found[:limit]:
            row = self._rows.get(number)
            if row is not None:
                events.append((number, aside[number], self._encoding(row, number, number)))
        return events, len(found) > limit

    def leave(self, member: str, unseen: Ranges = ()) -> None:
        """Take back what the member has; what it never showed does not count as delivered."""
        not_seen = self.queue.leave(member, unseen)
        changes: list[Change] = []
        for number in (number for first, last in not_seen for number in range(first, last + 1)):
            attempts = self.queue.attempts(number)
            if attempts is not None and (not attempts or number in self._noted):
                self._noted.add(number)
                changes.append((TABLE, self._key(_ATTEMPT, number.to_bytes(8)), _encode(attempts)))
        if changes:
            self._store.write(changes)

    # --- Done

    def finish(self, member: str, ranges: Ranges, expired: Ranges = ()) -> tuple[Ranges, Ranges]:
        """Forget what the member is done with; count what of it had `expired`. Return what counts as done by it, and
        what does not: somebody else has it, or was done with it first."""
        ranges = merged(ranges)
        had = self.queue.finish(member, ranges)
        changes = self._note_finished(_person(member), had) if self._noted else []
        if expired:
            changes += self._count_expired(had, expired)
        self._drop(had, changes)
        if had == ranges:
            return ranges, ()
        mine = RangeSet((first, last + 1) for first, last in had)
        others = [gap for first, last in ranges for gap in mine.missing(first, last + 1)]
        refused = self._not_finished_by(member, tuple((start, stop - 1) for start, stop in others))
        lost = RangeSet((first, last + 1) for first, last in refused)
        done = [gap for first, last in ranges for gap in lost.missing(first, last + 1)]
        return tuple((start, stop - 1) for start, stop in done), refused

    def _count_expired(self, had: Ranges, expired: Ranges) -> list[Change]:
        """Count what the client had: a client that has no answer reports the same again."""
        before, done = self.expired, RangeSet((first, last + 1) for first, last in had)
        for first, stop in RangeSet((first, last + 1) for first, last in merged(expired)):
            self.expired += stop - first - sum(high - low for low, high in done.missing(first, stop))
        return [] if self.expired == before else [(TABLE, self._key(_EXPIRED), _encode(self.expired))]

    def _not_finished_by(self, member: str, ranges: Ranges) -> Ranges:
        """Return which of these the member was not done with. What is no longer kept went out once, to this member,
        unless it went out again: then we know who was done with it."""
        if not ranges:
            return ()
        person = _person(member)
        others = [
            number for number in within(self._finished_by, ranges) if self._finished_by[number] != person
        ]
        return merged([*self.queue.unfinished(ranges), *((number, number) for number in others)])

    def _note_finished(self, person: str, ranges: Ranges) -> list[Change]:
        """Remember who was done with what went out more than once: others who had it may report the same."""
        changes: list[Change] = []
        for first, last in ranges:
            for number in self._noted.intersection(range(first, last + 1)):
                self._finished_by[number] = person
                changes.append(self._finished_row(number, person))
                if len(self._finished_by) > MAX_FINISHED:
                    oldest = next(iter(self._finished_by))
                    del self._finished_by[oldest]
                    changes.append(self._finished_row(oldest, None))
        return changes

    def _finished_row(self, number: int, person: str | None) -> Change:
        key = self._key(_FINISHED, number.to_bytes(8))
        return (TABLE, key, None if person is None else _encode(person))

    def drop_aside(self, ranges: Ranges) -> int:
        """Forget events that were set aside; return how many."""
        found = [number for number in self.queue.aside_in(ranges) if self.queue.drop_aside(number)]
        self._drop(tuple((number, number) for number in found))
        return len(found)

    def set_aside(self, number: int) -> None:
        """Note on disk that the event was set aside."""
        attempts = self.queue.aside.get(number)
        if attempts is not None:
            self._noted.add(number)
            self._store.write([(TABLE, self._key(_ASIDE, number.to_bytes(8)), _encode(attempts))])

    def release(self, ranges: Ranges) -> int:
        """Let events that were set aside go out again, marked; return how many. Their attempts go on counting."""
        found = self.queue.release(self.queue.aside_in(ranges))
        changes: list[Change] = []
        for number in found:
            attempts = self._released[number] = self.queue.attempts(number) or 0
            changes.append((TABLE, self._key(_ASIDE, number.to_bytes(8)), None))
            for kind in (_ATTEMPT, _RELEASED):
                changes.append((TABLE, self._key(kind, number.to_bytes(8)), _encode(attempts)))
        if changes:
            self._store.write(changes)
        return len(found)

    def _drop(self, ranges: Ranges, more: Sequence[Change] = ()) -> None:
        changes = [*more]
        for first, last in ranges:
            for low, high, row in self._rows.overlapping(first, last):
                changes += self._drop_of(row, low, high)
            for number in range(first, last + 1) if self._keys else ():
                self._keys.pop(number, None)
        if changes:
            self._store.write(changes)

    def _drop_of(self, row: _Row, first: int, last: int) -> list[Change]:
        number = row.first.to_bytes(8)
        row.finish(first, last)
        if not row.is_done:
            bits = row.done.to_bytes(row.done.bit_length() + 7 >> 3, "little")
            return [(TABLE, self._key(_DONE, number), _encode(bits))]
        self._rows.take(row.first, row.last)
        self._forget_recent(row.first)
        self.size_bytes -= row.size_bytes
        changes: list[Change] = [
            (TABLE, self._key(_ROW, number), None),
            (TABLE, self._key(_DONE, number), None),
        ]
        for each in range(row.first, row.last + 1) if self._noted else ():
            if each not in self._noted:
                continue
            self._noted.discard(each)  # deleting an unknown key does nothing
            self._released.pop(each, None)
            for kind in (_ATTEMPT, _ASIDE, _RELEASED):
                changes.append((TABLE, self._key(kind, each.to_bytes(8)), None))
        return changes


def _person(member: str) -> str:
    """Return the member without the broker that it is connected to: it may come by another one."""
    return member.partition("\0")[2] or member
