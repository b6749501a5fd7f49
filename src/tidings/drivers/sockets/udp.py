"""Sessions over datagrams on loopback: one body per datagram, best effort.

The side that opens repeats its Hello until it is answered, and then sends pings. A peer that is silent for some seconds
counts as down. The protocols themselves repeat what must arrive.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, cast

from tidings.core.errors import WireError
from tidings.core.messages import Hello, Message, Ping, Refused, Welcome
from tidings.core.wire.codec import decode, encode
from tidings.drivers.address import Address
from tidings.drivers.sockets.dialling import settled
from tidings.drivers.sockets.outbox import Chunk, DatagramOutbox, Policy
from tidings.drivers.sockets.session import Dial, End, Handler, SessionHost, SessionState, SocketSession

HELLO_SECONDS = 0.2
PING_SECONDS = 1.0
SILENT_SECONDS = 4.0
SOCKET_BUFFER_BYTES = 4 * 1024 * 1024

Peer = tuple[Any, ...]
"""A socket address."""


class DatagramSession(SocketSession):
    """A session with one peer of a DatagramEndpoint."""

    def __init__(
        self,
        host: SessionHost,
        endpoint: DatagramEndpoint,
        peer_address: Peer,
        policy: Policy,
        dial: Dial | None = None,
    ) -> None:
        super().__init__(host, DatagramOutbox(policy), dial)
        self.address = f"{peer_address[0]}:{peer_address[1]}"
        self._endpoint = endpoint
        self._peer_address = peer_address
        self._heard_at = self._loop.time()
        self._datagrams = 0
        self._repeated_hellos = 0
        self._answer: Welcome | None = None
        self._pings = 0
        self._say_hello()
        self._tick_soon()

    @property
    def paused(self) -> bool:
        return self._endpoint.paused

    def welcome(
        self, peer: str, role: str, answer: Welcome, handlers: Mapping[type, Handler], other: Handler
    ) -> None:
        self._answer = answer
        super().welcome(peer, role, answer, handlers, other)

    def datagram_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        self._took_events = False
        self._heard_at = self._loop.time()
        self._datagrams += 1
        self.take_body(data)

    def _take_first(self, message: Message) -> None:
        """Ignore what arrives before the Welcome: it overtook the Welcome, or that was lost and our Hello is
        repeated."""
        if self.dial is None or isinstance(message, Welcome | Refused):
            super()._take_first(message)

    def _on_hello_again(self, message: Hello) -> None:
        """Answer again if our Welcome was lost. If the peer has sent anything since its Hello, it has restarted."""
        self._repeated_hellos += 1
        if self._answer is not None and self._datagrams == self._repeated_hellos:
            self.send(self._answer)
        else:
            self.end(End("the peer restarted", refused=False))
            self._endpoint.accept(self._peer_address, message)

    def _say_hello(self) -> None:
        if self.state is SessionState.OPENING and self.dial is not None:
            self.send(self.dial.hello)
            self._loop.call_later(HELLO_SECONDS, self._say_hello)

    def _tick_soon(self) -> None:
        self._due = self._loop.time() + PING_SECONDS
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        if self.state is SessionState.ENDED:
            return
        now = self._loop.time()
        late_seconds = now - self._due
        if late_seconds > PING_SECONDS:  # we were suspended: what the peer sent meanwhile waits unread
            self._heard_at += late_seconds
        silent_seconds = now - self._heard_at
        if self.state is SessionState.UP and silent_seconds > SILENT_SECONDS:
            self.end(End(f"the peer has been silent for {silent_seconds:.0f} seconds", refused=False))
            return
        if self.state is SessionState.UP and self.dial is not None:
            self._pings += 1
            self.send(Ping(self._pings))
        self._tick_soon()

    def write(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self._endpoint.write(chunk, self._peer_address)

    def close_transport(self) -> None:
        self._timer.cancel()
        self._endpoint.forget(self._peer_address, self)

    def abort(self) -> None:
        """Do nothing: a datagram session has no connection to abort."""

    def status(self) -> dict[str, object]:
        return {**super().status(), "oversize": cast("DatagramOutbox", self.outbox).oversize}


class DatagramEndpoint(asyncio.DatagramProtocol):
    """One socket and the sessions over it, by the peer's address. A connected socket has one peer only."""

    def __init__(self, host: SessionHost, policy_for: Callable[[Hello], Policy]) -> None:
        self.paused = False
        self.strangers = 0
        """Datagrams from addresses without a session that were not a Hello and that nobody else took."""
        self.take_sessionless: Callable[[Peer, bytes], bool] = lambda peer, datagram: False
        """Called first with a datagram from an address without a session; returns True if it took it."""
        self.loses: Callable[[Peer], bool] | None = None
        """A fault, for tests: called for every outgoing datagram; returns True if it is lost."""
        self.transport: asyncio.DatagramTransport | None = None
        self._host = host
        self._policy_for = policy_for
        self._remote: Peer | None = None
        self._sessions: dict[Peer, DatagramSession] = {}

    async def open(self, address: Address, dial: Dial, policy: Policy) -> DatagramSession:
        """Open a session and return it once it is up or has ended."""
        peer = self._remote or await self._resolve(address)
        previous = self._sessions.get(peer)
        if previous is not None:
            previous.end(End("dialled again", refused=False))
        session = DatagramSession(self._host, self, peer, policy, dial)
        self._sessions[peer] = session
        return await settled(session)

    def accept(self, peer: Peer, hello: Hello) -> None:
        session = DatagramSession(self._host, self, peer, self._policy_for(hello))
        self._sessions[peer] = session
        self._host.on_hello(session, hello)

    async def begin_anew(self, address: Address) -> None:
        """Tell the peer at that address that we restarted, so that it dials again at once and not after a silence.

        This is not repeated: if it is lost, the peer notices the silence.
        """
        peer = await self._resolve(address)
        if peer not in self._sessions:
            self.write(encode(Refused("no such session")), peer)

    def forget(self, peer: Peer, session: DatagramSession) -> None:
        if self._sessions.get(peer) is session:
            del self._sessions[peer]

    def write(self, chunk: Chunk, peer: Peer) -> None:
        if self.loses is not None and self.loses(peer):
            return
        if self.transport is not None and not self.transport.is_closing():
            self.transport.sendto(chunk, None if self._remote else peer)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    @property
    def address(self) -> Address:
        """The IP address and port that it listens on."""
        assert self.transport is not None
        return Address(*self.transport.get_extra_info("sockname")[:2])

    @property
    def is_ipv6(self) -> bool:
        assert self.transport is not None
        return bool(self.transport.get_extra_info("socket").family == socket.AF_INET6)

    async def _resolve(self, address: Address) -> Peer:
        """Return the socket address as the kernel will report it for datagrams from there."""
        assert self.transport is not None
        family = self.transport.get_extra_info("socket").family
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.host, address.port, family=family, type=socket.SOCK_DGRAM)
        return found[0][4]

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)
        self._remote = transport.get_extra_info("peername")
        sock = transport.get_extra_info("socket")
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)

    def datagram_received(self, data: bytes, addr: Peer) -> None:
        session = self._sessions.get(addr)
        if session is not None:
            session.datagram_received(data)
            return
        if self.take_sessionless(addr, data):
            return
        try:
            first = decode(data)[0]
        except WireError:
            self.strangers += 1
            return
        if isinstance(first, Hello) and self._remote is None:
            self.accept(addr, first)
        else:
            self.strangers += 1

    def error_received(self, exc: Exception) -> None:
        """End the session if the peer's port is closed; only a connected socket knows which peer it was."""
        if self._remote is not None and isinstance(exc, ConnectionRefusedError):
            for session in list(self._sessions.values()):
                session.end(End("connection refused", refused=False))

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        for session in list(self._sessions.values()):
            session.flush()


def say_goodbye(session: SocketSession, reason: str) -> None:
    """Tell the peer that its opener closes a datagram session, so that it need not wait for the silence."""
    session.send(Refused(reason))
    session.flush()
