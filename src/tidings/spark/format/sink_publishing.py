"""Publishes the rows of one partition: collects them, sends a few chunks at a time, and waits for all confirmations.

The rows are collected first, in memory and beyond that in a temporary file, for two reasons. A row that cannot be an
event is found before anything is published. And the digest of all rows becomes part of the source's name: a task that
runs again with the same rows in the same order repeats the same events, which brokers accept once; with other rows (a
shuffle may change their order) it publishes events of its own. Otherwise a new row would be taken for the old one of
the same number, and be lost.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

import msgspec

from tidings.bus import connect as opening
from tidings.bus.bus import Bus
from tidings.bus.overlay import SCHEMES
from tidings.bus.service import EventService
from tidings.core.errors import ConnectionFailed, NotConfirmed, PipelineError, TidingsError
from tidings.drivers.address import parse_address
from tidings.drivers.sockets.client import ClientConnection
from tidings.drivers.sockets.dialling import CONNECT_SECONDS, backoff_seconds
from tidings.drivers.sockets.loop import loop_factory
from tidings.drivers.sockets.security import Tls
from tidings.spark.format.sink_rows import Outgoing

MEMORY_BYTES = 16 * 1024 * 1024
"""Rows beyond this go to a temporary file."""
CHUNK_EVENTS = 1_024
CHUNK_BYTES = 1024 * 1024
CHUNKS_UNDER_WAY = 4
"""Together they stay below a client's send window and queue."""
DIGEST_DIGITS = 16
"""Of the digest in a source's name."""
LENGTH_BYTES = 4

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, dict[str, Any], bytes]).decode


@dataclass(frozen=True)
class SinkTarget:
    """The broker or service to publish to."""

    url: str
    token: str = field(default="", repr=False)
    tls_ca: str | None = None
    timeout_s: float = 30.0

    def check(self) -> None:
        """Raise PipelineError if the URL cannot be right; connects to nothing."""
        try:
            self._connect("check")
        except (TidingsError, ValueError, ImportError) as error:
            raise PipelineError(f"option url: {error}") from None

    def probe(self) -> None:
        """Raise PipelineError if the broker does not accept a connection now."""
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                runner.run(self._probe())
            except TidingsError as error:
                raise PipelineError(str(error)) from None

    async def _probe(self) -> None:
        async with self._connect(None):
            pass

    def _connect(self, name: str | None) -> EventService:
        return opening.connect(
            self.url,
            name=name,
            token=self.token,
            tls_ca=self.tls_ca,
            timeout_s=min(self.timeout_s, CONNECT_SECONDS),
        )

    async def open(self, source: str, incarnation: int) -> EventService:
        """Connect as this source and incarnation, or as a new incarnation where duplicates are not detected or do harm.

        Sequencers number every event that they are sent: a duplicate would get a second number that no event is
        delivered with, and ordered subscribers would wait for it.
        """
        scheme, _, addresses = self.url.partition("://")
        if scheme in SCHEMES:
            bus = self._bus(*SCHEMES[scheme], addresses.rstrip("/"), source, incarnation)
            await bus.open()
            if not bus.connection.sequencers:  # type: ignore[attr-defined]
                return bus
            await bus.close()
        service = self._connect(source)
        await service.open()
        return service

    def _bus(self, transport: Any, encrypted: bool, addresses: str, source: str, incarnation: int) -> Bus:
        bus = Bus()
        bus.connection = ClientConnection(
            [parse_address(text) for text in addresses.split(",")],
            source,
            emit=bus.on_fact,
            on_connection=bus.on_connection,
            transport=transport,
            tls=Tls(authority=self.tls_ca) if encrypted else None,
            token=self.token,
            incarnation=incarnation,
            lasting=False,
            connect_timeout_seconds=min(self.timeout_s, CONNECT_SECONDS),
        )
        return bus


class Spool(AbstractContextManager["Spool"]):
    """The events of a partition in order, and a digest of all of them."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self.count = 0
        self._file = tempfile.SpooledTemporaryFile(memory_bytes)  # noqa: SIM115 - closed with this
        self._digest = blake2b(digest_size=DIGEST_DIGITS // 2)

    def fill(self, events: Iterable[Outgoing]) -> None:
        for event in events:
            packed = _encode(event)
            self._write(len(packed).to_bytes(LENGTH_BYTES, "big") + packed)
            self.count += 1

    def _write(self, framed: bytes) -> None:
        self._digest.update(framed)
        try:
            self._file.write(framed)
        except OSError as error:
            where = tempfile.gettempdir()
            raise PipelineError(
                f"cannot store the rows of a partition in {where}: {error.strerror}"
            ) from None

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def chunks(self) -> Iterator[list[Outgoing]]:
        self._file.seek(0)
        chunk: list[Outgoing] = []
        size_bytes = 0
        while length := self._file.read(LENGTH_BYTES):
            packed = self._file.read(int.from_bytes(length, "big"))
            chunk.append(_decode(packed))
            size_bytes += len(packed)
            if len(chunk) == CHUNK_EVENTS or size_bytes >= CHUNK_BYTES:
                yield chunk
                chunk, size_bytes = [], 0
        if chunk:
            yield chunk

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self


def publish(target: SinkTarget, source: str, incarnation: int, spool: Spool, patience_s: float) -> None:
    """Return when all events are confirmed. Waits up to `patience_s` for a broker that is unreachable."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_publish(target, source, incarnation, spool, patience_s))


async def _publish(
    target: SinkTarget, source: str, incarnation: int, spool: Spool, patience_s: float
) -> None:
    service = await _open(target, source, incarnation, patience_s)
    sending = _Sending(target, service, spool.count)
    try:
        for chunk in spool.chunks():
            await sending.send(chunk)
        await sending.finish()
    finally:
        await sending.give_up()
        await service.close()


async def _open(target: SinkTarget, source: str, incarnation: int, patience_s: float) -> EventService:
    ends_at = time.monotonic() + patience_s
    attempt = 0
    while True:
        try:
            return await target.open(source, incarnation)
        except ConnectionFailed as error:
            if time.monotonic() >= ends_at:
                raise PipelineError(str(error)) from None
        await asyncio.sleep(backoff_seconds(attempt, random.random()))
        attempt += 1


class _Sending:
    """Sends a few chunks at a time; each starts in turn, so the events keep their order."""

    def __init__(self, target: SinkTarget, service: EventService, total: int) -> None:
        self._target = target
        self._service = service
        self._total = total
        self._confirmed = 0
        self._under_way: deque[asyncio.Task[int]] = deque()

    async def send(self, chunk: list[Outgoing]) -> None:
        if len(self._under_way) == CHUNKS_UNDER_WAY:
            await self._wait_for_first()
        self._under_way.append(asyncio.create_task(self._service.publish_many(chunk)))

    async def finish(self) -> None:
        while self._under_way:
            await self._wait_for_first()

    async def _wait_for_first(self) -> None:
        try:
            async with asyncio.timeout(self._target.timeout_s):
                self._confirmed += await self._under_way[0]
        except TimeoutError:
            reason = f"no confirmation within {self._target.timeout_s:g} s"
            raise self._failed(reason) from None
        except (NotConfirmed, ConnectionFailed) as error:
            raise self._failed(str(error)) from None
        except TidingsError as error:
            raise PipelineError(str(error)) from None
        self._under_way.popleft()

    def _failed(self, reason: str) -> PipelineError:
        how_far = f"{self._confirmed} of {self._total} rows of the partition are confirmed"
        return PipelineError(f"{self._target.url}: {reason} ({how_far})")

    async def give_up(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
