"""Reads an archive over the network, with plain blocking sockets: for Spark's workers and for scripts.

It has the methods of `ArchiveReader`. A broken connection is an error at once: the reader retries the range, which
always gives the same rows.
"""

from __future__ import annotations

import secrets
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from tidings.core.errors import AddressError, ArchiveError, BrokerAway, ConnectionFailed, WireError
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Refused, Welcome
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
    ArchiveRead,
    ArchiveRows,
)
from tidings.core.wire.codec import decode, encode
from tidings.core.wire.frames import FrameReader, frame
from tidings.drivers.address import Address, parse_address
from tidings.drivers.sockets.archive_read_service import FAILURES
from tidings.drivers.sockets.dialling import explain
from tidings.drivers.sockets.handshake import CLIENT
from tidings.drivers.sockets.security import Tls, check_dialling, client_context
from tidings.storage.archive import ArchiveReader, Bounds, Gap
from tidings.storage.archive.rows import projected

SCHEMES = {"tidings": False, "tidings+tls": True}
READ_BYTES = 1024 * 1024

Answer = TypeVar("Answer", bound=Message)


class RemoteArchive:
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
        self.url = url
        address, encrypted = _parse(url)
        tls = Tls(authority=tls_ca) if encrypted else None
        check_dialling(address, "tcp", tls)
        self._frames = FrameReader()
        self._waiting: deque[Message] = deque()
        self._requests = 0
        self._socket = self._dial(address, tls, timeout_s)
        try:
            self._send(Hello(PROTOCOL_VERSION, f"reader-{secrets.token_hex(6)}", CLIENT, token=token))
            welcome = self._next()
            if not isinstance(welcome, Welcome):
                raise ConnectionFailed(f"{url} answered {type(welcome).__name__}, not Welcome")
            self.id = self._info().archive
        except BaseException:
            self.close()
            raise

    def _dial(self, address: Address, tls: Tls | None, timeout_s: float) -> socket.socket:
        context = None if tls is None else client_context(tls)
        try:
            plain = socket.create_connection(address, timeout_s)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return plain if context is None else context.wrap_socket(plain, server_hostname=address.host)
            except BaseException:
                plain.close()
                raise
        except ssl.SSLCertVerificationError as error:
            raise ConnectionFailed(f"cannot reach {self.url}: {explain(error)}") from None
        except OSError as error:  # including other TLS errors
            raise BrokerAway(f"cannot reach {self.url}: {explain(error)}") from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def gaps(self) -> list[Gap]:
        """Return where events may be missing, and why."""
        told = self._ask(ArchiveGapsRequest(self._number()), ArchiveGaps)
        return [Gap(offset, noted_ns, reason, missing) for offset, noted_ns, missing, reason in told.gaps]

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

    def _send(self, message: Message) -> None:
        try:
            self._socket.sendall(frame(encode(message)))
        except OSError as error:
            raise BrokerAway(f"lost the connection to {self.url}: {explain(error)}") from None

    def _next(self) -> Message:
        while not self._waiting:
            try:
                data = self._socket.recv(READ_BYTES)
                bodies = self._frames.feed(data)
                for body in bodies:
                    self._waiting += decode(body)
            except OSError as error:
                raise BrokerAway(f"lost the connection to {self.url}: {explain(error)}") from None
            except WireError as error:
                raise self._broken(str(error)) from None
            if not data:
                raise BrokerAway(f"lost the connection to {self.url}: closed by the peer")
        message = self._waiting.popleft()
        if isinstance(message, Refused):
            raise ConnectionFailed(f"{self.url} refused the connection: {message.reason}")
        return message

    def _broken(self, what: str) -> ConnectionFailed:
        self.close()
        return ConnectionFailed(f"{self.url} sent an invalid answer: {what}")


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
