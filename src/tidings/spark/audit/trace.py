"""What workers know of a trace (events, subscriptions and interests, read once per process), and how deliveries are
packed as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.core.errors import TraceError
from tidings.scenarios.trace.checkers import Check
from tidings.scenarios.trace.coded import NEVER, Array, Coded, CodedSubscriptions, Deliveries, Events, Mask
from tidings.scenarios.trace.disturbances import Disturbances
from tidings.scenarios.trace.interests import Interests
from tidings.scenarios.trace.tables import SCHEMAS
from tidings.spark.audit.files import TraceFiles, event_id_at, read_table
from tidings.spark.audit.stages import Piece

MAX_NUMBER = 2**31 - 1
"""Events, subscribers and subscriptions are packed as 32 bits."""
PUBLISHED = tuple(name for name in SCHEMAS["published"].names if name not in ("attributes", "size_bytes"))
PLAIN_ROW = np.dtype(
    [
        ("number", "<i8"),
        ("subscriber", "<i4"),
        ("subscription", "<i4"),
        ("event", "<i4"),
        ("position", "<i8"),
        ("at", "<i8"),
        ("out_of_order", "?"),
    ]
)
SHARED_ROW = np.dtype([*PLAIN_ROW.descr, ("attempt", "<i8"), ("done", "<i8")])
"""For traces with durable subscriptions or groups: without any, attempts mean nothing."""
Structured = npt.NDArray[np.void]


@dataclass(frozen=True)
class AuditJob:
    """What all tasks of an audit know. `bounds` is the place of the first subscriber of each bucket."""

    files: TraceFiles
    checks: tuple[Check, ...] = ()
    others: tuple[str, ...] = ()
    bounds: tuple[int, ...] = (0,)
    span: tuple[int, int] = (0, 0)
    exact: bool = True
    batch_rows: int = 2_000_000

    @property
    def knowledge(self) -> Knowledge:
        return _knowledge(self.files, self.others)

    def subscribers(self, bucket: int) -> Array:
        """Return the subscribers of a bucket, ascending."""
        bounds = (*self.bounds, MAX_NUMBER)
        return np.sort(self.knowledge.by_place[bounds[bucket] : bounds[bucket + 1]])


class Knowledge:
    """What does not depend on deliveries, read from the files on first use."""

    def __init__(self, files: TraceFiles, others: Sequence[str]) -> None:
        self.files = files
        self.subscribed = read_table(files, "subscribed")
        disturbances = Disturbances(*(read_table(files, name) for name in ("faults", "nodes")))
        self.subscriptions = CodedSubscriptions(self.subscribed, others, files.directory, disturbances)

    @cached_property
    def published(self) -> Any:
        # Attributes are large, and only filters and groups by value need them.
        needed = any(
            self.subscribed[name].null_count < len(self.subscribed) for name in ("filter", "group_by")
        )
        return read_table(self.files, "published", (*PUBLISHED, "attributes") if needed else PUBLISHED)

    @property
    def row(self) -> np.dtype[Any]:
        """How a delivery is packed."""
        return SHARED_ROW if self.subscriptions.shares.any else PLAIN_ROW

    @cached_property
    def family(self) -> Array:
        """Subscribers that share a durable subscription or group are of one family, and go to one bucket."""
        names = len(self.subscriptions.subscriber_names)
        return self.subscriptions.shares.families(self.subscriptions.subscriber, names)

    @cached_property
    def by_place(self) -> Array:
        """The subscribers, family by family."""
        return np.argsort(self.family, kind="stable").astype(np.int64)

    @cached_property
    def place_of(self) -> Array:
        """The place of each subscriber in `by_place`."""
        place = np.empty_like(self.by_place)
        place[self.by_place] = np.arange(len(place))
        return place

    @cached_property
    def events(self) -> Events:
        if len(self.published) > MAX_NUMBER:
            raise TraceError(f"the trace in {self.files.directory} has more than {MAX_NUMBER} publications")
        return Events(self.published)

    def check_interests(self) -> None:
        """Raise TraceError if a subscription's filter or topic cannot be parsed."""
        Interests(None, self.subscribed, np.empty(0, dtype=np.int64), self.files.directory)

    @cached_property
    def interests(self) -> Interests:
        return Interests(self.published, self.subscribed, self.events.row, self.files.directory)


@lru_cache(maxsize=1)
def _knowledge(files: TraceFiles, others: tuple[str, ...]) -> Knowledge:
    return Knowledge(files, others)


def bucket_rows(pieces: Sequence[Piece], row: np.dtype[Any]) -> Deliveries:
    """Return the deliveries of a bucket, from its pieces in the order of the table."""
    rows = np.frombuffer(b"".join(piece.body for piece in pieces), row)
    columns = {name: rows[name].astype(np.int64) for name in row.names or () if name != "out_of_order"}
    columns.setdefault("attempt", np.ones(len(rows), dtype=np.int64))
    columns.setdefault("done", np.full(len(rows), NEVER))
    return Deliveries(**columns, out_of_order=rows["out_of_order"].copy())


def bucket_coded(job: AuditJob, bucket: int, pieces: Sequence[Piece]) -> Coded:
    """Return the part of the trace that concerns the subscribers of a bucket."""
    known = job.knowledge
    return Coded(
        known.events,
        known.subscriptions,
        lambda: known.interests,
        bucket_rows(pieces, known.row),
        own=np.flatnonzero(np.isin(known.subscriptions.subscriber, job.subscribers(bucket))),
        unknown_id=partial(event_id_at, job.files),
    )


def packed(dtype: np.dtype[Any], *columns: Array | Mask) -> bytes:
    """Pack columns, in the order of the dtype's fields, as bytes."""
    rows = np.empty(len(columns[0]), dtype)
    for name, column in zip(dtype.names or (), columns, strict=True):
        rows[name] = column
    return rows.tobytes()


def unpacked(dtype: np.dtype[Any], pieces: Sequence[Piece]) -> list[Array]:
    """Unpack the columns of all pieces, concatenated, as 64 bits."""
    rows = np.frombuffer(b"".join(piece.body for piece in pieces), dtype)
    return [rows[name].astype(np.int64) for name in dtype.names or ()]
