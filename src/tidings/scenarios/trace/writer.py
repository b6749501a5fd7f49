"""Writes the trace of a run, row by row in constant memory, as six Parquet files.

Rows are collected in plain lists and written as Parquet row groups. Three tables have columns that become known late:
subscriptions are few and stay in memory until the end; publications wait in order for their confirmation, and
deliveries that are to be acknowledged for that, at most `MAX_PENDING` of each (see `TraceWriter.confirmed` and
`open_deliveries`).

No file has its final name before `close`, so a reader sees a whole trace or none.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.core.errors import TraceError
from tidings.core.events.event import RESERVED_ATTRIBUTE
from tidings.core.events.text import attribute_text
from tidings.core.filters.language.predicates import Scalar
from tidings.scenarios.trace.open_deliveries import OpenDeliveries
from tidings.scenarios.trace.origin import SUMMARY
from tidings.scenarios.trace.tables import DEFAULTS, SCHEMAS, TABLES, arrow_table
from tidings.storage.troubles import Troubles, one_line

ROWS_PER_GROUP = 65_536
MAX_PENDING = 100_000
"""The publications that may wait for their confirmation, and the deliveries that may wait for their acknowledgement;
beyond this, the oldest is written without one."""

TROUBLES = Troubles(TraceError, TraceError, TraceError, unusable_text="cannot write {path}: {reason}")

_CONFIRMED = 7
_place = SCHEMAS["subscribed"].get_field_index
ACCEPTED, CANCELLED, _DETACHED = map(_place, ("accepted_ns", "cancelled_ns", "detached_ns"))
_SHARE, _LIFE = slice(_place("share_of"), _place("group_by")), _place("life")


@contextmanager
def _told_as_trace_error(what: str) -> Iterator[None]:
    with TROUBLES.told(what):
        try:
            yield
        except pa.ArrowException as error:
            raise TROUBLES.unusable(what, one_line(str(error))) from error


class _TableFile:
    """Writes one Parquet file, and hashes its content.

    Rows are collected as one flat list of cells. A row costs no lasting object that the garbage collector would have
    to visit, and a column is a slice.
    """

    def __init__(self, directory: Path, name: str) -> None:
        schema = SCHEMAS[name]
        self.name = name
        self.width = len(schema)
        self._defaults = [*DEFAULTS.get(name, {}).values()]
        self.cells: list[Any] = []
        self.path = directory / f"{name}.parquet"
        self.temporary = directory / f"{name}.parquet.tmp"
        self._digest = hashlib.sha256()
        with _told_as_trace_error(f"trace table {self.temporary}"):
            self._parquet = self._open(schema)

    def _open(self, schema: Any) -> Any:
        longs = [field.name for field in schema if field.type == pa.int64()]
        try:
            return pq.ParquetWriter(
                self.temporary,
                schema,
                compression="zstd",
                use_dictionary=[field.name for field in schema if field.type == pa.string()],
                column_encoding=dict.fromkeys(longs, "DELTA_BINARY_PACKED"),
            )
        except OSError:
            self._remove()
            raise

    def flush(self) -> None:
        """Write the collected rows as one row group."""
        cells = self.cells
        if not cells:
            return
        columns = [cells[column :: self.width] for column in range(self.width)]
        with _told_as_trace_error(f"trace table {self.temporary}"):
            self._parquet.write_table(arrow_table(self.name, columns))
        self._hash(self._without_defaults(columns))
        cells.clear()

    def _without_defaults(self, columns: list[list[Any]]) -> list[Any]:
        """Return the collected cells, leaving out the last ones of each row that has only defaults there."""
        defaults = self._defaults
        known = self.width - len(defaults)
        if all(
            column.count(default) == len(column)
            for column, default in zip(columns[known:], defaults, strict=True)
        ):
            for place in reversed(range(known, self.width)):
                del self.cells[place :: place + 1]
            return self.cells
        found: list[Any] = []
        for row in zip(*columns, strict=True):
            found += row[:known] if [*row[known:]] == defaults else row
        return found

    def _hash(self, cells: list[Any]) -> None:
        """Hash the encoding without the array header, which is that of the cells one after the other. So the hash does
        not depend on where groups end."""
        encoded = msgspec.msgpack.encode(cells)
        self._digest.update(memoryview(encoded)[_array_header_bytes(len(cells)) :])

    def close(self) -> None:
        with _told_as_trace_error(f"trace table {self.temporary}"):
            self._parquet.close()

    def discard(self) -> None:
        """Close and remove the file; never raises, as it runs after a failure."""
        with suppress(OSError, pa.ArrowException):
            self._parquet.close()
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            self.temporary.unlink(missing_ok=True)

    @property
    def digest(self) -> bytes:
        return self._digest.digest()


def _array_header_bytes(length: int) -> int:
    """Return the size of a MessagePack array header."""
    if length < 16:
        return 1
    return 3 if length < 65_536 else 5


class TraceWriter:
    """Writes one trace into `directory`, replacing the one that is there.

    Each table has a method that takes its columns in order; `delivered` is the hot one. As a context manager, it
    closes at the end and discards everything if the block raises.
    """

    def __init__(
        self, directory: Path, *, rows_per_group: int = ROWS_PER_GROUP, max_pending: int = MAX_PENDING
    ) -> None:
        if rows_per_group < 1 or max_pending < 0:
            raise ValueError("rows_per_group must be at least 1 and max_pending at least 0")
        self.directory = Path(directory)
        self._rows_per_group = rows_per_group
        self._delivered_full = rows_per_group * len(SCHEMAS["delivered"])
        self._max_pending = max_pending
        self._closed = False
        self._sha256: str | None = None
        with _told_as_trace_error(f"a trace to {self.directory}"):
            self.directory.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, _TableFile] = {}
        try:
            for name in TABLES:
                self._files[name] = _TableFile(self.directory, name)
        except TraceError:
            self.discard()
            raise
        self._delivered = self._files["delivered"].cells
        self._pending: deque[list[Any]] = deque()
        self._unconfirmed: dict[str, list[Any]] = {}
        self._subscriptions: dict[tuple[str, str], list[Any]] = {}
        self._open = OpenDeliveries(self._add_delivered, max_pending)

    def published(
        self,
        event_id: str,
        source: str,
        sequence: int,
        topic: str,
        attributes: Mapping[str, Scalar],
        size_bytes: int,
        at_ns: int,
        confirmed_ns: int | None = None,
        expires_ns: int | None = None,
    ) -> None:
        """An application has published an event. `attributes` may include the topic, as filters see them."""
        names = [name for name in sorted(attributes) if name != RESERVED_ATTRIBUTE]
        texts = [(name, attribute_text(attributes[name])) for name in names]
        row = [event_id, source, sequence, topic, texts, size_bytes, at_ns, confirmed_ns, expires_ns]
        self._pending.append(row)
        if confirmed_ns is None:
            self._unconfirmed[event_id] = row
        self._write_settled()

    def confirmed(self, event_id: str, at_ns: int) -> None:
        """A publication has been confirmed to its application.

        Ignored if it was confirmed before, or if more than `max_pending` events were published since: then its row is
        already written, with null.
        """
        row = self._unconfirmed.pop(event_id, None)
        if row is not None:
            row[_CONFIRMED] = at_ns
            self._write_settled()

    def subscribed(
        self,
        subscriber: str,
        subscription: str,
        topics: Sequence[str],
        filter: str | None,  # noqa: A002 - the column's name
        order: str,
        requested_ns: int,
        accepted_ns: int | None = None,
        cancelled_ns: int | None = None,
        share_of: str | None = None,
        durable: str | None = None,
        group_by: str | None = None,
        start: str | None = None,
        keep_for_ns: int | None = None,
    ) -> None:
        """A subscriber asks for a subscription, or to attach to group `share_of` or to the subscription `durable`."""
        key = (subscriber, subscription)
        if key in self._subscriptions:
            raise TraceError(f"subscriber {subscriber!r} already has a subscription {subscription!r}")
        self._subscriptions[key] = [
            *(subscriber, subscription, list(topics), filter, order, requested_ns, accepted_ns, cancelled_ns),
            *(share_of, durable, group_by, start, None, keep_for_ns, None),
        ]

    def accepted(self, subscriber: str, subscription: str, at_ns: int) -> None:
        """The guarantees hold for this subscription from `at_ns` on."""
        self._subscription(subscriber, subscription)[ACCEPTED] = at_ns

    def joined(self, subscriber: str, subscription: str, life: str) -> None:
        """It is attached to the durable subscription or group with that life."""
        self._subscription(subscriber, subscription)[_LIFE] = life

    def cancelled(self, subscriber: str, subscription: str, at_ns: int) -> None:
        """This subscription, or the durable subscription or group that it is part of, is owed nothing from then on."""
        self._subscription(subscriber, subscription)[CANCELLED] = at_ns

    def detached(self, subscriber: str, subscription: str, at_ns: int) -> None:
        """The subscriber has left its durable subscription or group, or crashed. What is not done waits for others."""
        self._subscription(subscriber, subscription)[_DETACHED] = at_ns

    def delivered(
        self,
        subscriber: str,
        subscription: str,
        position: int,
        event_id: str,
        at_ns: int,
        out_of_order: bool = False,
        recovered_by: str | None = None,
    ) -> None:
        """A subscriber that acknowledges nothing was notified."""
        cells = self._delivered
        cells += (subscriber, subscription, position, event_id, at_ns, out_of_order, recovered_by, 1, None)
        if len(cells) >= self._delivered_full:
            self._files["delivered"].flush()

    def handed(
        self,
        subscriber: str,
        subscription: str,
        position: int,
        event_id: str,
        at_ns: int,
        attempt: int,
        out_of_order: bool = False,
        recovered_by: str | None = None,
    ) -> None:
        """A subscriber of a durable subscription or group was notified. Then, by subscriber and position:
        `acknowledged`, if its application does so, and `answered`, once the broker's answer is there."""
        asked = self._subscription(subscriber, subscription)
        row = [subscriber, subscription, position, event_id, at_ns, out_of_order, recovered_by, attempt, None]
        self._open.add((*asked[_SHARE], asked[_LIFE]), row)

    def acknowledged(self, subscriber: str, position: int, at_ns: int) -> None:
        """The application has acknowledged the event at this position, and the broker has not answered yet.

        Without an answer it counts as done unless the event is handed out again with a higher attempt.
        """
        self._open.acknowledge(subscriber, position, at_ns)

    def answered(self, subscriber: str, position: int, *, accepted: bool = True) -> None:
        """The broker has accepted the acknowledgement, or refused it. An event given back is refused, too."""
        self._open.answer(subscriber, position, accepted=accepted)

    def traffic(self, kind: str, from_: str, to: str, messages: int, bytes: int, dropped: int) -> None:  # noqa: A002
        self._add("traffic", (kind, from_, to, messages, bytes, dropped))

    def faults(self, kind: str, target: str, at_ns: int, until_ns: int | None = None) -> None:
        self._add("faults", (kind, target, at_ns, until_ns))

    def nodes(
        self,
        node: str,
        kind: str,
        parent: str | None = None,
        label: str | None = None,
        site: str | None = None,
    ) -> None:
        self._add("nodes", (node, kind, parent, label, site))

    def close(self) -> None:
        """Write what is left and give all six files their names. Closing again does nothing."""
        if self._closed:
            return
        try:
            for row in self._pending:
                self._add("published", row)
            for row in self._subscriptions.values():
                self._add("subscribed", row)
            for row in self._open.rows():
                self._add("delivered", row)
            for file in self._files.values():
                file.flush()
                file.close()
            self._put_in_place()
        except BaseException:
            self.discard()
            raise
        self._closed = True
        self._sha256 = self._hash()

    def discard(self) -> None:
        """Remove what was written so far; an earlier trace in the directory stays."""
        if not self._closed:
            self._closed = True
            for file in self._files.values():
                file.discard()

    @property
    def sha256(self) -> str:
        """The hash of all tables' rows, independent of Parquet's encoding; known once the trace is closed."""
        if self._sha256 is None:
            raise TraceError("the trace's hash is known only once it is closed")
        return self._sha256

    @property
    def table_sha256(self) -> dict[str, str]:
        """The hash of each table's rows, to find where two traces differ."""
        return {name: self._files[name].digest.hex() for name in TABLES}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _add(self, name: str, row: Sequence[Any]) -> None:
        file = self._files[name]
        file.cells += row
        if len(file.cells) >= self._rows_per_group * file.width:
            file.flush()

    def _add_delivered(self, row: list[Any]) -> None:
        self._add("delivered", row)

    def _subscription(self, subscriber: str, subscription: str) -> list[Any]:
        try:
            return self._subscriptions[subscriber, subscription]
        except KeyError:
            raise TraceError(f"subscriber {subscriber!r} has no subscription {subscription!r}") from None

    def _write_settled(self) -> None:
        """Write the oldest publications whose rows will not change any more."""
        pending = self._pending
        while pending and (pending[0][_CONFIRMED] is not None or len(pending) > self._max_pending):
            row = pending.popleft()
            self._unconfirmed.pop(row[0], None)
            self._add("published", row)

    def _put_in_place(self) -> None:
        """Remove all old tables before naming the first new one: a crash leaves an incomplete trace, never a mix."""
        with _told_as_trace_error(f"a trace to {self.directory}"):
            for path in (*(file.path for file in self._files.values()), self.directory / SUMMARY):
                path.unlink(missing_ok=True)
            for file in self._files.values():
                file.temporary.rename(file.path)

    def _hash(self) -> str:
        total = hashlib.sha256()
        for name in TABLES:
            total.update(name.encode() + b"\0" + self._files[name].digest)
        return total.hexdigest()
