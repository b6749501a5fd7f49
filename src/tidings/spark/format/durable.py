"""The driver's and the workers' ways to a durable subscription: by number, through any broker of its network."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec
import pyarrow as pa
from msgspec import Raw
from pyspark.sql.datasource import InputPartition

from tidings.core.errors import (
    AddressError,
    BrokerAway,
    ConnectionFailed,
    PipelineError,
    SubscriptionRefused,
    TidingsError,
    WireError,
)
from tidings.core.events.run import Arrival, Stretch, decode_stretch
from tidings.core.overlay.guaranteed.share_messages import ShareRows
from tidings.drivers.sockets.share_client import ShareConnection
from tidings.spark.format.columns import READ_COLUMNS, spark_batch
from tidings.spark.format.offsets import ANSWER_SECONDS
from tidings.spark.format.options import Location, SourceOptions, broker_addresses
from tidings.spark.format.ranges import ROWS_WORTH_A_TASK
from tidings.spark.format.tracebacks import hide_traceback
from tidings.spark.format.waiting import RESUME_ADVICE, RetryBudget
from tidings.storage.archive.packing import TailRow, pack, unpack_events, unpack_row
from tidings.storage.archive.rows import Rows, batch_of, projected

Answer = TypeVar("Answer")


def connect(location: Location, client: str, timeout_s: float) -> ShareConnection:
    """Connect to the first broker of the URL that answers."""
    failed: BrokerAway | None = None
    for address, encrypted in broker_addresses(location.text):
        scheme = "tidings+tls" if encrypted else "tidings"
        try:
            return ShareConnection(
                f"{scheme}://{address}",
                address,
                client,
                encrypted=encrypted,
                token=location.token,
                tls_ca=location.tls_ca,
                timeout_s=min(timeout_s, ANSWER_SECONDS),
            )
        except BrokerAway as error:
            failed = error
        except AddressError as error:
            raise PipelineError(f"option url: {error}") from None
    assert failed is not None, "a URL has an address"
    raise failed


# --- The driver


class DurableReader:
    """Holds the durable subscription for the driver: attached when needed, and again after a connection is lost.

    It takes over from another query, which may be the one that died, but not from a program that is attached.
    """

    def __init__(self, options: SourceOptions) -> None:
        assert options.durable is not None
        self._options = options
        self._name = options.durable
        self._client = f"spark-{options.durable}-{secrets.token_hex(4)}"
        self._share: ShareConnection | None = None
        self._reached = self._attached_before = False

    def ask(
        self, reading: int, question: Callable[[ShareConnection], Answer], *, begins: bool = False
    ) -> Answer:
        """Ask the broker that keeps the subscription, as the reader with this id, which may only begin."""
        patience = RetryBudget(self._options.timeout_s, RESUME_ADVICE)
        while True:
            try:
                if self._share is None:
                    self._attach(reading, begins and not self._attached_before)
                assert self._share is not None
                return question(self._share)
            except SubscriptionRefused as error:
                self.close()
                raise PipelineError(refusal(self._name, str(error))) from None
            except ConnectionFailed as error:
                self.close()
                if begins and not self._reached:  # a wrong address is likelier than a restart
                    raise
                patience.wait(error)

    def _attach(self, reading: int, begins: bool) -> None:
        options = self._options
        share = connect(options.locations[0], self._client, options.timeout_s)
        self._reached = True
        try:
            topics = () if options.topics is None else tuple(topic.text for topic in options.topics)
            share.attach(self._name, topics, options.where, reading, resumes=not begins, takeover=True)
        except BaseException:
            share.close()
            raise
        self._share, self._attached_before = share, True

    def leave(self) -> None:
        """Detach, so that anybody may attach at once."""
        if self._share is not None:
            with suppress(TidingsError):
                self._share.leave()
        self.close()

    def close(self) -> None:
        if self._share is not None:
            self._share.close()
            self._share = None


def refusal(name: str, reason: str) -> str:
    """Add what to do to what a broker says."""
    if "took over" in reason or "belongs to another reader" in reason:
        return f"another query reads {name!r} now ({reason}): give each query a name of its own"
    if "read further" in reason or "too old" in reason or "is gone" in reason or "is ahead" in reason:
        return (
            f"this checkpoint cannot go on: {reason}; start the query with another checkpointLocation: "
            "it begins with what nobody has acknowledged"
        )
    return reason


# --- The workers


@dataclass(frozen=True)
class NumberRange(InputPartition):  # type: ignore[misc]
    """Events with numbers from `first` to `stop` (exclusive) of a reading; always the same rows."""

    reading: int
    first: int
    stop: int


def plan_numbers(reading: int, first: int, stop: int, options: SourceOptions) -> list[InputPartition]:
    """Split the numbers into tasks: in the same way on every machine, so that a sink publishes the same events."""
    count = stop - first
    tasks = min(options.min_partitions or -(-count // ROWS_WORTH_A_TASK), count)
    cuts = [first + count * index // tasks for index in range(tasks)] if tasks else []
    return [NumberRange(reading, low, high) for low, high in zip(cuts, [*cuts[1:], stop], strict=bool(cuts))]


def read_numbers(options: SourceOptions, wanted: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the events of one range, in a worker; go on after a lost connection."""
    if not isinstance(wanted, NumberRange):
        return  # Spark makes a partition of its own if the plan has no ranges
    patience = RetryBudget(options.timeout_s, RESUME_ADVICE)
    with hide_traceback():
        while wanted.first < wanted.stop:
            try:
                for rows in _parts(options, wanted):
                    if rows.events:
                        yield _batch(rows, headers=options.include_headers)
                    wanted = replace(wanted, first=rows.next)
                    patience.renew()
            except ConnectionFailed as error:
                patience.wait(error)


def _parts(options: SourceOptions, wanted: NumberRange) -> Iterator[ShareRows]:
    assert options.durable is not None
    client = f"spark-{options.durable}-{secrets.token_hex(4)}"
    with connect(options.locations[0], client, options.timeout_s) as share:
        try:
            yield from share.read(options.durable, wanted.reading, wanted.first, wanted.stop)
        except SubscriptionRefused as error:
            raise PipelineError(refusal(options.durable, str(error))) from None


def _batch(rows: ShareRows, *, headers: bool) -> pa.RecordBatch:
    parts: list[TailRow] = []
    numbers: list[int] = []
    attempts: list[int] = []
    for first, attempt, encoding in rows.events:
        try:
            stretch = decode_stretch(Raw(encoding))
        except WireError as error:
            raise PipelineError(f"event {first} of {rows.name!r} does not decode: {error}") from None
        packed = [unpack_row(row.value) for row in pack([Arrival(stretch)], 0, leave_out=_leave_out)]
        found = _numbers(stretch, first, packed)
        parts += packed
        numbers += found
        attempts += [attempt] * len(found)
    batch = batch_of(0, Rows(parts, 0, len(numbers)), projected(READ_COLUMNS))
    at = batch.schema.get_field_index("offset")
    batch = batch.set_column(at, batch.schema.field(at), pa.array(numbers, pa.int64()))
    return spark_batch(batch, 0, headers=headers, attempts=pa.array(attempts, pa.int32()))


def _numbers(stretch: Stretch, first: int, packed: list[TailRow]) -> list[int]:
    """Return the numbers of the events that could be read; brokers accept no others."""
    if sum(part.count for part in packed) == stretch.count:
        return list(range(first, first + stretch.count))
    try:
        events, _ = unpack_events(packed)
    except msgspec.MsgspecError:
        return []
    return [first + event.sequence - stretch.first for event in events]


def _leave_out(error: WireError) -> None:
    """As a program that reads the subscription is not shown what it cannot decode."""
