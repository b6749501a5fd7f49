"""Reads one Redis stream for all subscriptions of a client, each from its own position.

An entry is fetched once for all subscriptions at the same position. A subscription whose reader has no room is skipped;
once it has room, the feed reads for it from where it stopped, in turn with the others.

A read begins with the entry that was read last. While that entry exists, nothing after it was trimmed. Once it is gone,
the counters of the stream tell how many unread entries went with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tidings.drivers.adapters.incoming import Incoming

FIELD = b"e"
"""The field of an entry that has the event."""
EntryId = tuple[int, int]
"""Milliseconds, and a number within the millisecond."""
Entry = tuple[EntryId, bytes | None]
"""The id and the body; None if the entry has no body."""


def parse_id(text: bytes) -> EntryId:
    milliseconds, _, number = text.partition(b"-")
    return int(milliseconds), int(number)


def id_text(entry: EntryId) -> str:
    return f"{entry[0]}-{entry[1]}"


class StreamInfo(NamedTuple):
    """The counters of the stream."""

    length: int
    added: int
    """All entries ever added."""
    last: EntryId


EMPTY = StreamInfo(0, 0, (0, 0))


@dataclass
class FeedPosition:
    """The position of one subscription; it outlives the connection."""

    entry: EntryId
    """The last entry that was read."""
    number: int
    """Its number among all entries ever added, from 1."""


def find_gap(
    position: FeedPosition, info: StreamInfo, behind: int, *, all_behind: bool
) -> tuple[int, int] | None:
    """Return the first and last number of the entries that went unread, for a position whose entry is gone; None if
    there are none. It also corrects the position's number.

    `behind` entries were read after the position; `all_behind` if there are no more.
    """
    trimmed = info.added - info.length
    if info.added < position.number:  # the server lost entries, so its count started over
        lost = position.number + 1
        position.number = info.added - behind if all_behind else trimmed
        return lost, lost
    if trimmed > position.number:
        gap = position.number + 1, trimmed
        position.number = trimmed
        return gap
    return None


class Cursor:
    """A subscription in the feed."""

    def __init__(self, incoming: Incoming, position: FeedPosition) -> None:
        self.incoming = incoming
        self.takers = (incoming,)
        self.position = position
        self.behind = True
        """True if there may be entries that it has not been given."""

    @property
    def due(self) -> bool:
        return self.behind and self.incoming.pace.open


Read = Callable[[EntryId, int], Awaitable[list[Entry]]]
"""Reads so many entries, starting with this one."""
ReadBehind = Callable[[EntryId, int], Awaitable[tuple[StreamInfo, list[Entry]]]]
"""Reads so many entries after this one, and the counters at the same moment."""
Receive = Callable[[Entry, Iterable[Incoming]], None]
Missed = Callable[[Incoming, int, int], None]


class Feed:
    """Reads entries and gives them to the subscriptions that have room."""

    def __init__(self, read: Read, read_behind: ReadBehind, receive: Receive, missed: Missed) -> None:
        self._read = read
        self._read_behind = read_behind
        self._receive = receive
        self._missed = missed
        self._cursors: dict[str, Cursor] = {}
        self._work = asyncio.Event()
        self.caught_up = asyncio.Event()
        """Set when a subscription has read up to `end` and waits for more."""
        self.end: EntryId = (0, 0)
        """The last entry known."""

    def add(self, incoming: Incoming, position: FeedPosition) -> None:
        self._cursors[incoming.subscription.id] = Cursor(incoming, position)
        incoming.pace.on_freed = self._work.set
        self.end = max(self.end, position.entry)
        self._work.set()

    def remove(self, incoming: Incoming) -> None:
        self._cursors.pop(incoming.subscription.id, None)

    def wake(self) -> None:
        """Note that there are entries after the last one known."""
        for cursor in self._cursors.values():
            cursor.behind = True
        self.caught_up.clear()
        self._work.set()

    async def run(self) -> None:
        while True:
            cursor = next((each for each in self._cursors.values() if each.due), None)
            if cursor is None:
                self._work.clear()
                await self._work.wait()
                continue
            # The one served moves to the end, so that one far behind does not delay the others.
            self._cursors[cursor.incoming.subscription.id] = self._cursors.pop(
                cursor.incoming.subscription.id
            )
            await self._serve(cursor)

    async def _serve(self, cursor: Cursor) -> None:
        start = cursor.position.entry
        wanted = max(1, cursor.incoming.pace.room())
        entries = await self._read(start, wanted + 1)
        if entries and entries[0][0] == start:
            del entries[0]
        else:
            info, entries = await self._read_behind(start, wanted)
            self._report_gaps(start, info, entries, wanted)
        for entry in entries:
            self._give(start, entry)
        self.end = max(self.end, cursor.position.entry)
        if len(entries) < wanted:
            cursor.behind = False
            self.caught_up.set()

    def _report_gaps(self, start: EntryId, info: StreamInfo, entries: list[Entry], wanted: int) -> None:
        for cursor in self._cursors.values():
            position = cursor.position
            if position.entry >= start:
                behind = sum(entry > position.entry for entry, _ in entries)
                gap = find_gap(position, info, behind, all_behind=len(entries) < wanted)
                if gap is not None:
                    self._missed(cursor.incoming, *gap)

    def _give(self, start: EntryId, entry: Entry) -> None:
        """Give the entry to all subscriptions that have everything between `start` and this entry."""
        takers = []
        for cursor in self._cursors.values():
            if start <= cursor.position.entry < entry[0]:
                if not cursor.incoming.pace.room():
                    cursor.behind = True
                    continue
                cursor.position.entry = entry[0]
                cursor.position.number += 1
                takers.append(cursor.incoming)
        if takers:
            self._receive(entry, takers)
