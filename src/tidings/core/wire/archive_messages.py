"""What a reader of an archive and its keeper say to each other (drivers/sockets/archive_read_service.py).

A reader counts its requests; every answer names the request it is for. A range is answered by as many `ArchiveRows`
as it takes, in order.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tidings.core.events.event import Counter, Name
from tidings.core.messages import Text, WireMessage

MAX_ROWS_BYTES = 3 * 1024 * 1024
"""Of one answer: it fits into a frame."""
MAX_GAPS_TOLD = 1_000

Gap = tuple[Counter, Counter, Counter | None, Text]
"""(offset, noted_ns, missing, reason): something may be missing before that offset."""


class ArchiveInfoRequest(WireMessage, frozen=True, gc=False, tag=130):
    request: Counter


class ArchiveInfo(WireMessage, frozen=True, gc=False, tag=131):
    """Offsets from `first` to before `end` can be read."""

    request: Counter
    archive: Name
    first: Counter
    end: Counter


class ArchiveFind(WireMessage, frozen=True, gc=False, tag=132):
    """Which is the first offset whose event was published then or later?"""

    request: Counter
    published_ns: Counter


class ArchiveFound(WireMessage, frozen=True, gc=False, tag=133):
    request: Counter
    offset: Counter


class ArchiveRead(WireMessage, frozen=True, gc=False, tag=134):
    """The rows from `start` to before `stop`, please; with `columns`, these and the offset alone."""

    request: Counter
    start: Counter
    stop: Counter
    columns: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


class ArchiveRows(WireMessage, frozen=True, gc=False, tag=135):
    """Rows from `start` on, as an Arrow record batch in the archive's schema."""

    request: Counter
    start: Counter
    rows: Counter
    body: Annotated[bytes, Meta(max_length=MAX_ROWS_BYTES + 64 * 1024)]


class ArchiveCommit(WireMessage, frozen=True, gc=False, tag=136):
    """The consumer is done with everything before `offset`."""

    request: Counter
    consumer: Name
    offset: Counter


class ArchiveCommitted(WireMessage, frozen=True, gc=False, tag=137):
    request: Counter


class ArchiveGapsRequest(WireMessage, frozen=True, gc=False, tag=138):
    request: Counter


class ArchiveGaps(WireMessage, frozen=True, gc=False, tag=139):
    """The last of them, if there are very many."""

    request: Counter
    gaps: Annotated[tuple[Gap, ...], Meta(max_length=MAX_GAPS_TOLD)]


class ArchiveFailed(WireMessage, frozen=True, gc=False, tag=140):
    """`kind` is a key of drivers.sockets.archive_read_service.FAILURES."""

    request: Counter
    kind: Annotated[str, Meta(max_length=16)]
    reason: Text
