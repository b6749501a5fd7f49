"""The session over one TCP or TLS connection, as an `asyncio.Protocol`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import cast

from tidings.core.errors import WireError
from tidings.core.wire.frames import MAX_FRAME_BYTES, FrameReader
from tidings.drivers.sockets.handshake import BROKER, SEQUENCER
from tidings.drivers.sockets.outbox import Chunk, Policy, StreamOutbox
from tidings.drivers.sockets.session import Dial, End, Handler, SessionHost, SessionState, SocketSession

LINGER_SECONDS = 1.0
MAX_FIRST_FRAME_BYTES = 32 * 1024
"""An unknown peer cannot make us buffer more than this."""
WRITE_BUFFER_HIGH_BYTES = 1024 * 1024


class StreamSession(SocketSession, asyncio.Protocol):
    """A session over a TCP or TLS connection. With `dial` it is the side that opened."""

    def __init__(self, host: SessionHost, policy: Policy, dial: Dial | None = None) -> None:
        super().__init__(host, StreamOutbox(policy), dial)
        self._reader = FrameReader(MAX_FIRST_FRAME_BYTES)
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def is_connected(self) -> bool:
        """Whether there was a connection, ever."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        peer = self._transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "inside"
        _watch_connection(self._transport.get_extra_info("socket"))
        if self.dial is not None:
            self.send(self.dial.hello)

    def set_up(self, peer: str, role: str, handlers: Mapping[type, Handler], other: Handler) -> None:
        self._reader.max_frame_bytes = MAX_FRAME_BYTES
        if role in (BROKER, SEQUENCER) and self._transport is not None:
            _expect_reading(self._transport.get_extra_info("socket"))
        super().set_up(peer, role, handlers, other)

    def data_received(self, data: bytes) -> None:
        if self.state is SessionState.ENDED:
            return
        self.received_bytes += len(data)
        self._took_events = False
        try:
            bodies = self._reader.feed(data)
        except WireError as error:
            self.fail(error)
            return
        for body in bodies:
            self.take_body(body)

    def eof_received(self) -> None:
        try:
            self._reader.eof()
        except WireError as error:
            self.fail(error)
        self.end(End("the peer closed the connection", refused=False))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        why = "" if exc is None else f": {(getattr(exc, 'strerror', None) or str(exc)).lower()}"
        self.end(End(f"the connection broke{why}", refused=False))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def write(self, chunks: list[Chunk]) -> None:
        if self._transport is None:
            return
        if len(chunks) == 1:
            self._transport.write(chunks[0])
        else:
            self._transport.writelines(chunks)

    def close_transport(self) -> None:
        """Half-close first: closing with unread input would reset the connection, and lose our last messages."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            if transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()
        except (
            OSError,
            RuntimeError,
        ):  # the peer's end and its reset arrived together; the loop has closed it
            transport.abort()
            return
        self._loop.call_later(LINGER_SECONDS, transport.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        if self._transport is not None:
            await asyncio.shield(self._lost)


def _watch_connection(sock: socket.socket | None) -> None:
    """Let the kernel detect within about fifteen seconds that an idle peer has vanished."""
    _set_options(sock, (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)))
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _expect_reading(sock: socket.socket | None) -> None:
    """Treat a server that reads nothing for so long as down. A client may be slow: only its events are dropped."""
    _set_options(sock, (("TCP_USER_TIMEOUT", 15_000),))


def _set_options(sock: socket.socket | None, options: tuple[tuple[str, int], ...]) -> None:
    if sock is None or sock.family == socket.AF_UNIX:  # a pair inside this process
        return
    for name, value in options:
        number = getattr(socket, name, None)  # Linux has them all, other systems some
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
