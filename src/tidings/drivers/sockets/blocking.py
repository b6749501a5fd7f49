"""A client's connection with plain blocking sockets: for Spark's workers and for scripts.

A broken connection is an error at once; whoever uses it connects again.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tidings.core.errors import BrokerAway, ConnectionFailed, WireError
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Refused, Welcome
from tidings.core.wire.codec import decode, encode
from tidings.core.wire.frames import FrameReader, frame
from tidings.drivers.address import Address
from tidings.drivers.sockets.dialling import explain
from tidings.drivers.sockets.handshake import CLIENT
from tidings.drivers.sockets.security import Tls, check_dialling, client_context

READ_BYTES = 1024 * 1024


class NoAnswer(BrokerAway):
    """The broker is connected, but did not answer in time."""


class BlockingConnection:
    """A session with a broker or a recorder, as the client `name`. `timeout_s` limits each wait. Not thread-safe."""

    def __init__(
        self,
        url: str,
        address: Address,
        name: str,
        *,
        encrypted: bool,
        token: str,
        tls_ca: str | Path | None,
        timeout_s: float,
    ) -> None:
        self.url = url
        tls = Tls(authority=tls_ca) if encrypted else None
        check_dialling(address, "tcp", tls)
        self._frames = FrameReader()
        self._waiting: deque[Message] = deque()
        self._socket = self._dial(address, tls, timeout_s)
        try:
            self._send(Hello(PROTOCOL_VERSION, name, CLIENT, token=token))
            welcome = self._next()
            if not isinstance(welcome, Welcome):
                raise ConnectionFailed(f"{url} answered {type(welcome).__name__}, not Welcome")
            self.mode = welcome.mode
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

    def abort(self) -> None:
        """Break the connection, from any thread: whoever waits for an answer gets an error."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- Messages

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
            except TimeoutError as error:
                raise NoAnswer(f"lost the connection to {self.url}: {explain(error)}") from None
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
