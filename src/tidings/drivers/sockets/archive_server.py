"""Serves an archive for reading, and nothing else, for a recorder that is not part of a broker."""

from __future__ import annotations

import asyncio
import logging

from tidings.core.errors import ConnectionFailed, WireError
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Welcome
from tidings.drivers.address import Address
from tidings.drivers.sockets.archive_read_service import ArchiveReadService
from tidings.drivers.sockets.dialling import explain
from tidings.drivers.sockets.handshake import CLIENT, HandshakeRules, hello_refusal
from tidings.drivers.sockets.outbox import DEFAULT_LIMIT_BYTES, Policy
from tidings.drivers.sockets.security import Tls, check_listening, server_context
from tidings.drivers.sockets.session import End, SocketSession
from tidings.drivers.sockets.stream import StreamSession

MODE = "archive"
MAX_READERS = 256
"""At a time; further ones are refused."""
POLICY = Policy(DEFAULT_LIMIT_BYTES, drops_publications=False, drops_notifications=False)

log = logging.getLogger("tidings.net")


class ArchiveServer:
    """`await start()`, then it listens on `address`; `await stop()` ends it and closes the read service."""

    def __init__(
        self,
        name: str,
        listen: Address,
        read_service: ArchiveReadService,
        *,
        token: str = "",
        tls: Tls | None = None,
    ) -> None:
        self.name = name
        self.address = listen
        self._read_service = read_service
        self._tls = tls
        self._identity = HandshakeRules(name, MODE, (), token)
        self._sessions: dict[SocketSession, None] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        check_listening(self.address, "tcp", self._tls, self._identity.token)
        context = None if self._tls is None else server_context(self._tls)
        host, port = self.address
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._accepted, host, port, ssl=context
            )
        except OSError as error:
            raise ConnectionFailed(f"cannot listen on {self.address}: {explain(error)}") from None
        self.address = Address(host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        sessions = list(self._sessions)
        for session in sessions:
            session.end(End(f"{self.name} is stopping", refused=False))
            session.abort()
        await self._read_service.close()
        await asyncio.gather(*(session.wait_closed() for session in sessions))

    def _accepted(self) -> StreamSession:
        session = StreamSession(self, POLICY)
        self._sessions[session] = None
        return session

    def on_hello(self, session: SocketSession, hello: Hello) -> None:
        reason = hello_refusal(hello, self._identity)
        if reason is None and hello.role != CLIENT:
            reason = f"{self.name} serves an archive; it is not a broker"
        if reason is None and len(self._sessions) > MAX_READERS:
            reason = f"{self.name} already has {MAX_READERS} readers"
        if reason is not None:
            session.refuse(reason)
            return

        def refuse(message: Message) -> None:
            session.refuse(f"{self.name} serves an archive; it does not accept {type(message).__name__}")

        answer = Welcome(PROTOCOL_VERSION, self.name, MODE)
        session.welcome(hello.node, CLIENT, answer, self._read_service.handlers(session), refuse)

    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None:
        session.refuse("an archive server opens no connections")

    def persist(self) -> bool:
        return True  # nothing to persist

    def on_bad_frame(self, session: SocketSession, error: WireError) -> None:
        log.warning("%s closed %s: %s", self.name, session.address, error)

    def on_ended(self, session: SocketSession, end: End) -> None:
        self._sessions.pop(session, None)
        self._read_service.forget(session)
