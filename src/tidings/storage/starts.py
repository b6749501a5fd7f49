"""Where a subscription starts in an archive."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, Protocol

from tidings.core.errors import ArchiveAhead, ArchiveTrimmed
from tidings.core.overlay.guaranteed.share_history import HistoryPosition
from tidings.core.overlay.guaranteed.share_messages import StartItem

Start = Literal["new", "earliest", "last"] | int | datetime
"""Where a subscription starts: with new events, the oldest kept, the newest of each topic, an offset, or a time."""

HINT = "start with 'earliest'"


class Kept(Protocol):
    """An archive, local or remote, as `first_offset` needs it."""

    def bounds(self) -> tuple[int, int]: ...
    def offset_at(self, published_ns: int) -> int: ...
    def published_ns(self, offset: int) -> int: ...


def start_item(start: Start) -> StartItem:
    """Return the start as it travels to a broker."""
    if isinstance(start, datetime):
        return "time", instant_ns(start)
    return ("offset", start) if isinstance(start, int) else (start, 0)


def first_offset(archive: Kept, start: Start | StartItem, hint: str = HINT) -> int:
    """Return the first offset to read, of a local or a remote archive. `hint` says what to do if that is refused.

    A time before the oldest event means that one, if the archive has dropped nothing.

    Raises:
        ArchiveTrimmed: The archive has dropped events, and maybe this one; the message names the oldest that it has.
        ArchiveAhead: The archive does not have it yet.
    """
    first, end = archive.bounds()
    kind, number = start if isinstance(start, tuple) else start_item(start)
    if kind == "offset":
        if number < first:
            raise ArchiveTrimmed(
                f"offset {number} is no longer in the archive; {_oldest(archive, first, end, hint)}"
            )
        if number > end:
            raise ArchiveAhead(f"offset {number} does not exist yet; the archive ends at {end}")
        return number
    if kind == "time":
        if first and (first == end or number < archive.published_ns(first)):
            when = _text(number, "seconds")
            raise ArchiveTrimmed(
                f"the archive does not reach back to {when}; {_oldest(archive, first, end, hint)}"
            )
        return archive.offset_at(number)
    return first


def history_position(archive_id: str, archive: Kept, start: StartItem) -> HistoryPosition:
    """Return where a durable subscription or a group with this start begins to read. Raises as `first_offset`."""
    first = first_offset(archive, start)
    newest_below = archive.bounds()[1] if start[0] == "last" else 0
    return HistoryPosition(
        archive_id, first, newest_below=newest_below, gaps_from=first + (start[0] == "offset")
    )


def instant_ns(instant: datetime) -> int:
    """Return nanoseconds since 1970, 0 for what is before."""
    since = instant - datetime(1970, 1, 1, tzinfo=UTC)
    return max((since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000, 0)


def _text(published_ns: int, precision: str) -> str:
    return datetime.fromtimestamp(published_ns / 1e9, UTC).isoformat(timespec=precision)


def _oldest(archive: Kept, first: int, end: int, hint: str) -> str:
    if first == end:
        return f"it has no event before offset {end}: {hint}"
    published = _text(archive.published_ns(first), "milliseconds")
    return f"the oldest event kept is at offset {first}, published {published}: {hint}"
