"""Reads an archive over the network, with plain blocking sockets: for Spark's workers and for scripts.

It has the methods of `ArchiveReader`. A broken connection is an error at once: the reader retries the range, which
always gives the same rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from tidings.core.errors import AddressError, ArchiveError
from tidings.core.events.subscription import Interest, Order
from tidings.core.messages import Message
from tidings.core.wire.archive_messages import (
    ArchiveCommit,
    ArchiveCommitted,
    ArchiveFailed,
    ArchiveFind,
    ArchiveFound,
    ArchiveGaps,
    ArchiveGapsRequest,
    ArchiveInfo,
    ArchiveInfoRequest,
    ArchiveLast,
    ArchiveReach,
    ArchiveRead,
    ArchiveRows,
    ArchiveSettle,
    ArchiveSettled,
)
from tidings.drivers.address import Address, parse_address
from tidings.drivers.sockets.archive_read_service import FAILURES
from tidings.drivers.sockets.blocking import BlockingConnection
from tidings.storage.archive import ArchiveGap, ArchiveReader, Bounds
from tidings.storage.archive.rows import SCHEMA, projected, published_at

SCHEMES = {"tidings": False, "tidings+tls": True}

Answer = TypeVar("Answer", bound=Message)


class RemoteArchive(BlockingConnection):
    """Reads the archive of a broker or a recorder over the network, with blocking calls. Not thread-safe.

    Args:
        url: `tidings://host:port` or `tidings+tls://host:port`.
        token: The secret that the broker or recorder requires, if it does.
        tls_ca: PEM file of the certificates to trust; None trusts the system's.
        timeout_s: How long to wait for the connection, and for each answer, in seconds.

    Raises:
        ConnectionFailed: The URL is not valid, nobody answers there, or the connection is refused.
        ArchiveError: Nobody keeps an archive there.
    """

    def __init__(
        self, url: str, *, token: str = "", tls_ca: str | Path | None = None, timeout_s: float = 10.0
    ) -> None:
        address, encrypted = _parse(url)
        name = f"reader-{secrets.token_hex(6)}"
        super().__init__(
            url, address, name, encrypted=encrypted, token=token, tls_ca=tls_ca, timeout_s=timeout_s
        )
        self._requests = 0
        try:
            self.id = self._info().archive
        except BaseException:
            self.close()
            raise

    # --- Requests

    def bounds(self) -> Bounds:
        """Return the first offset that is kept, and the one after the last."""
        info = self._info()
        return Bounds(info.first, info.end)

    def _info(self) -> ArchiveInfo:
        return self._ask(ArchiveInfoRequest(self._number()), ArchiveInfo)

    def offset_at(self, published_ns: int) -> int:
        """Return the first offset whose event was published then or later; the end if there is none."""
        return self._ask(ArchiveFind(self._number(), max(published_ns, 0)), ArchiveFound).offset

    def commit(self, consumer: str, offset: int) -> None:
        """Record that this consumer needs nothing before `offset`; retention keeps the rest for it."""
        self._ask(ArchiveCommit(self._number(), consumer, offset), ArchiveCommitted)

    def gaps(self) -> list[ArchiveGap]:
        """Return where events may be missing, and why."""
        told = self._ask(ArchiveGapsRequest(self._number()), ArchiveGaps)
        return [
            ArchiveGap(offset, noted_ns, reason, missing) for offset, noted_ns, missing, reason in told.gaps
        ]

    def read(
        self, start: int, stop: int, batch_rows: int = 16_384, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        """Yield rows as Arrow record batches. Read the iterator to its end, or close it.

        Args:
            start: The first offset.
            stop: The offset after the last.
            batch_rows: The most rows in a batch; the server may make smaller ones.
            columns: The columns to read; None reads all.
        """
        request = self._number()
        schema = projected(columns)
        self._send(ArchiveRead(request, start, stop, tuple(columns or ())))
        offset = start
        while offset < stop:
            rows = self._answer(request, ArchiveRows)
            if rows.start != offset or not rows.rows or offset + rows.rows > stop:
                raise self._broken(f"rows from {rows.start}, expected {offset}")
            batch = self._decoded(rows, schema)
            offset += rows.rows
            for first in range(0, batch.num_rows, batch_rows):
                yield batch.slice(first, batch_rows)

    def published_ns(self, offset: int) -> int:
        """Return when the event at this offset was published."""
        return published_at(self.read(offset, offset + 1, columns=["published_ns"]))

    def settle(self, client: str, subscription: str) -> int:
        """Return the archive's end, once it has everything that the client's subscription does not get live.

        Raises:
            SubscriptionRefused: The archive does not have what the subscription selects.
        """
        return self._ask(ArchiveSettle(self._number(), client, subscription), ArchiveSettled).end

    def reach(self, interest: Interest, order: Order, numbers: Mapping[int, int]) -> int:
        """Return the end of an ordered archive, once it has everything up to these numbers.

        Args:
            interest: What the archive must have.
            order: The order that it must have.
            numbers: For each entry of the layout, by its rank, the number.

        Raises:
            SubscriptionRefused: The archive has less, or another order.
        """
        topics = tuple(topic.text for topic in interest.topics)
        wanted = tuple(sorted(numbers.items()))
        asked = ArchiveReach(self._number(), topics, interest.sql, order.value, wanted)
        return self._ask(asked, ArchiveSettled).end

    def newest(self, interest: Interest, stop: int, batch_rows: int = 16_384) -> Iterator[Any]:
        """Yield the newest row before `stop` of each topic, of those selected, with ascending offsets.

        Args:
            interest: Selects the events.
            stop: The offset after the last that counts.
            batch_rows: The most rows in a batch.
        """
        request = self._number()
        topics = tuple(topic.text for topic in interest.topics)
        self._send(ArchiveLast(request, topics, interest.sql, stop))
        while (rows := self._answer(request, ArchiveRows)).rows:
            batch = self._decoded(rows, SCHEMA)
            for first in range(0, batch.num_rows, batch_rows):
                yield batch.slice(first, batch_rows)

    def _decoded(self, rows: ArchiveRows, schema: pa.Schema) -> Any:
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(rows.body), schema)
            batch.validate()
        except pa.ArrowException as error:
            raise self._broken(f"cannot decode the rows from {rows.start}: {error}") from None
        if batch.num_rows != rows.rows:
            raise self._broken(f"{batch.num_rows} rows, expected {rows.rows}")
        return batch

    # --- Messages

    def _number(self) -> int:
        self._requests += 1
        return self._requests

    def _ask(self, message: Any, kind: type[Answer]) -> Answer:
        self._send(message)
        return self._answer(message.request, kind)

    def _answer(self, request: int, kind: type[Answer]) -> Answer:
        while True:
            message: Any = self._next()
            answered = getattr(message, "request", None)
            if answered is not None and answered < request:
                continue  # for a range that was not read to its end
            if isinstance(message, ArchiveFailed):
                raise FAILURES.get(message.kind, ArchiveError)(message.reason)
            if not isinstance(message, kind) or answered != request:
                raise self._broken(f"{type(message).__name__}, expected {kind.__name__}")
            return message


def _parse(url: str) -> tuple[Address, bool]:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise AddressError(f"{url!r} is not an archive's URL: it must start with one of {known}")
    return parse_address(rest.rstrip("/")), SCHEMES[scheme]


def open_reader(
    archive: str | Path | None = None,
    url: str | None = None,
    *,
    token: str = "",
    tls_ca: str | Path | None = None,
    timeout_s: float = 10.0,
) -> ArchiveReader | RemoteArchive:
    """Open an archive by its directory, or by the URL of the broker or recorder that keeps it."""
    if (archive is None) == (url is None):
        raise ArchiveError("give either the directory of an archive or a URL, not both")
    if url is not None:
        return RemoteArchive(url, token=token, tls_ca=tls_ca, timeout_s=timeout_s)
    assert archive is not None
    return ArchiveReader(Path(archive))
