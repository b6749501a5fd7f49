"""The messages between an archive and its readers (drivers/sockets/archive_read_service.py).

A reader numbers its requests, and every answer names its request. A range is answered by as many `ArchiveRows` as it
takes, in order.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tidings.core.events.event import Counter, Name
from tidings.core.messages import SubscriptionId, Text, Topics, WireMessage

MAX_ROWS_BYTES = 3 * 1024 * 1024
"""The limit for one answer, so that it fits into a frame."""
MAX_GAPS_TOLD = 1_000

Gap = tuple[Counter, Counter, Counter | None, Text]
"""(offset, noted_ns, missing, reason): events may be missing before that offset."""


class ArchiveInfoRequest(WireMessage, frozen=True, gc=False, tag=130):
    request: Counter


class ArchiveInfo(WireMessage, frozen=True, gc=False, tag=131):
    """Says that offsets from `first` to before `end` can be read."""

    request: Counter
    archive: Name
    first: Counter
    end: Counter


class ArchiveFind(WireMessage, frozen=True, gc=False, tag=132):
    """Asks for the first offset whose event was published at `published_ns` or later."""

    request: Counter
    published_ns: Counter


class ArchiveFound(WireMessage, frozen=True, gc=False, tag=133):
    request: Counter
    offset: Counter


class ArchiveRead(WireMessage, frozen=True, gc=False, tag=134):
    """Requests the rows from `start` to before `stop`; with `columns`, only these and the offset."""

    request: Counter
    start: Counter
    stop: Counter
    columns: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


class ArchiveRows(WireMessage, frozen=True, gc=False, tag=135):
    """Carries rows from `start` on, as an Arrow record batch in the archive's schema."""

    request: Counter
    start: Counter
    rows: Counter
    body: Annotated[bytes, Meta(max_length=MAX_ROWS_BYTES + 64 * 1024)]


class ArchiveCommit(WireMessage, frozen=True, gc=False, tag=136):
    """Says that the consumer is done with everything before `offset`."""

    request: Counter
    consumer: Name
    offset: Counter


class ArchiveCommitted(WireMessage, frozen=True, gc=False, tag=137):
    request: Counter


class ArchiveGapsRequest(WireMessage, frozen=True, gc=False, tag=138):
    request: Counter


class ArchiveGaps(WireMessage, frozen=True, gc=False, tag=139):
    """Lists the archive's gaps; the last ones if there are more than MAX_GAPS_TOLD."""

    request: Counter
    gaps: Annotated[tuple[Gap, ...], Meta(max_length=MAX_GAPS_TOLD)]


class ArchiveFailed(WireMessage, frozen=True, gc=False, tag=140):
    """Says why a request failed; `kind` is a key of drivers.sockets.archive_read_service.FAILURES."""

    request: Counter
    kind: Annotated[str, Meta(max_length=16)]
    reason: Text


class ArchiveSettle(WireMessage, frozen=True, gc=False, tag=141):
    """Asks for the end of the archive, once it has everything that the client's subscription does not get live."""

    request: Counter
    client: Name
    subscription: SubscriptionId


class ArchiveSettled(WireMessage, frozen=True, gc=False, tag=142):
    request: Counter
    end: Counter


class ArchiveLast(WireMessage, frozen=True, gc=False, tag=143):
    """Requests the newest row before `stop` of each topic, of those selected. Answered by `ArchiveRows` with ascending
    offsets, the last of which is empty."""

    request: Counter
    topics: Topics
    filter: Text | None
    stop: Counter


class ArchiveReach(WireMessage, frozen=True, gc=False, tag=144):
    """Asks for the end of an ordered archive, once it has everything up to these numbers: (rank of an entry of the
    layout, number). Answered by `ArchiveSettled`, or by a failure if the archive has less than the selection."""

    request: Counter
    topics: Topics
    filter: Text | None
    order: Annotated[str, Meta(max_length=16)]
    numbers: Annotated[tuple[tuple[Counter, Counter], ...], Meta(max_length=65_536)]
