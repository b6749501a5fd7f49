"""A client on real sockets: it drives the protocol's client, and reconnects until it is closed.

The broker's Welcome says which protocol to speak. With several addresses, it dials the next one in turn whenever it
loses its broker.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tidings.core.client.reliable_session import ReliableClient, ResumePoints
from tidings.core.client.session import BestEffortClient
from tidings.core.errors import ConnectionFailed, WireError
from tidings.core.events.event import Publication
from tidings.core.events.run import Run, Stretch
from tidings.core.kernel import TimerName
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, PublishFailed, Welcome
from tidings.core.overlay.modes import GUARANTEED
from tidings.drivers.address import Address, Transport, url
from tidings.drivers.port import AsyncPort
from tidings.drivers.sockets.dialling import CONNECT_SECONDS, explain, keep_open, open_stream
from tidings.drivers.sockets.handshake import BROKER, CLIENT
from tidings.drivers.sockets.outbox import DEFAULT_LIMIT_BYTES, Policy
from tidings.drivers.sockets.security import Tls, check_dialling, client_context
from tidings.drivers.sockets.session import Dial, End, SessionHost, SessionState, SocketSession
from tidings.drivers.sockets.udp import DatagramEndpoint, say_goodbye

if TYPE_CHECKING:
    from tidings.drivers.sockets.archive_client import RemoteArchive

AnyClient = BestEffortClient | ReliableClient
Opener = Callable[[SessionHost, Dial, Policy], Awaitable[SocketSession]]
"""Opens a settled session in another way than by dialling an address."""

ARCHIVE_SECONDS = 30.0
"""How long to wait at least for an answer of an archive, which may have to catch up first."""
CLOSE_SECONDS = 2.0
"""How long `close` waits until everything has been sent."""


class ClientConnection:
    """`await open()`, then use `client`. Facts go to `emit`, changes of the link to `on_connection(up, reason)`.

    The callbacks run on the event loop and must not block. If a broker refuses us (a wrong token, a name that another
    connection took), the connection ends: `on_connection(False, reason)`, and `closed` is True.

    A guaranteed broker gets an acknowledgement for every event that is delivered, unless `acknowledges` is False: then
    the application acknowledges (`Delivered.ticket`). With `resume_points`, events that this client got before it
    restarted are not delivered again.
    """

    def __init__(
        self,
        address: Address | Sequence[Address],
        name: str,
        *,
        emit: Callable[[object], None],
        on_connection: Callable[[bool, str], None] = lambda up, reason: None,
        transport: Transport = "tcp",
        tls: Tls | None = None,
        token: str = "",
        incarnation: int | None = None,
        connect_timeout_seconds: float = CONNECT_SECONDS,
        buffer_limit_bytes: int = DEFAULT_LIMIT_BYTES,
        acknowledges: bool = True,
        lasting: bool = True,
        resume_points: ResumePoints | None = None,
        opener: Opener | None = None,
        seed: int | None = None,
    ) -> None:
        self.name = name
        self.broker = ""
        """The broker's name as the protocol knows it. Best effort: always the one that answered first."""
        self.mode = ""
        """The mode of the broker that answered first; brokers of another mode are rejected."""
        self.sequencers: tuple[str, ...] = ()
        """The addresses of sequencers that the broker announces."""
        self.closed = False
        self._addresses = (address,) if isinstance(address, Address) else tuple(address)
        self._turn = 0
        """Which address to dial: its index, modulo their number."""
        self._acknowledges = acknowledges
        self._lasting = lasting
        self._resume_points = resume_points
        self._opener = opener
        self._on_connection = on_connection
        self._transport = transport
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._dial = Dial(Hello(PROTOCOL_VERSION, name, CLIENT, token=token))
        self._incarnation = time.time_ns() if incarnation is None else incarnation
        self._connect_timeout_seconds = connect_timeout_seconds
        self._buffer_limit_bytes = buffer_limit_bytes
        self._policy = Policy(buffer_limit_bytes, reports_drops=False, on_unsent=self._on_unsent_publication)
        self._port = AsyncPort(name, on_timer=self._on_timer, emit=emit, seed=seed, on_unsent=self._on_unsent)
        self._session: SocketSession | None = None
        self._endpoint: DatagramEndpoint | None = None
        self._client: AnyClient | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def _address(self) -> Address:
        return self._addresses[self._turn % len(self._addresses)]

    @property
    def url(self) -> str:
        """The URL of the broker that it is connected to, or dials."""
        return url(self._address, self._transport, tls=self._tls is not None)

    @property
    def client(self) -> AnyClient:
        if self._client is None:
            raise ConnectionFailed(f"not connected to {self.url}")
        return self._client

    @property
    def now(self) -> int:
        """The time in nanoseconds, as the protocol sees it."""
        return self._port.now

    def archive_opener(self, url: str | None = None) -> Callable[[], RemoteArchive]:
        """Return a function that connects to that archive, or that of the present broker, and blocks meanwhile."""
        from tidings.extras import need

        need("start=", "archive")
        from tidings.drivers.sockets.archive_client import RemoteArchive

        authority = None if self._tls is None else self._tls.authority
        timeout_s = max(self._connect_timeout_seconds, ARCHIVE_SECONDS)
        return partial(
            RemoteArchive,
            url or self.url,
            token=self._dial.hello.token,
            tls_ca=authority,
            timeout_s=timeout_s,
        )

    # --- Life

    async def open(self) -> None:
        """Connect to the first broker that accepts us; raises ConnectionFailed if none does in time."""
        for address in self._addresses:
            check_dialling(address, self._transport, self._tls)
        if self._tls is not None:
            self._context = client_context(self._tls)
        for left in reversed(range(len(self._addresses))):
            try:
                session = await self._open_first()
                break
            except ConnectionFailed:
                if not left:
                    raise
                self._turn += 1
        self._keeper = asyncio.create_task(self._keep(session))

    async def _open_first(self) -> SocketSession:
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                session = await self._open_session()
        except OSError as error:  # TimeoutError is one
            raise ConnectionFailed(f"cannot reach {self.url}: {explain(error)}") from None
        finally:
            if self._client is None:
                self._release_endpoint()
        if session.ended.done():
            end = session.ended.result()
            what = "refused the connection" if end.refused else "ended the session"
            reason = end.reason if end.reason == "connection refused" else f"it {what}: {end.reason}"
            raise ConnectionFailed(f"cannot reach {self.url}: {reason}")
        return session

    async def close(self) -> None:
        """Send what is left, end the session and stop reconnecting."""
        self.closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        session = self._session
        if session is not None and session.state is SessionState.UP:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await session.drained(below_bytes=0)
            if self._endpoint is not None:
                say_goodbye(session, "the client closed the session")
            session.end(End("closed", refused=False))
            await session.wait_closed()
        self._release_endpoint()
        self._port.close()

    async def drain(self) -> None:
        """Wait until most of what was published has been sent, or there is no connection."""
        if self._session is not None:
            await self._session.drained()

    async def _keep(self, first: SocketSession) -> None:
        sessions = [first]

        async def next_session() -> SocketSession:
            if sessions:
                return sessions.pop()
            if not isinstance(self._client, ReliableClient) or self._client.session.can_move:
                self._turn += 1
            return await self._open_session()

        end = await keep_open(next_session, self._port.random)
        self.closed = True
        self._on_connection(False, end.reason)

    async def _open_session(self) -> SocketSession:
        if self._opener is not None:
            return await self._opener(self, self._dial, self._policy)
        if self._transport == "tcp":
            return await open_stream(self, self._address, self._dial, self._policy, self._context)
        self._release_endpoint()
        loop = asyncio.get_running_loop()
        _, self._endpoint = await loop.create_datagram_endpoint(
            lambda: DatagramEndpoint(self, lambda hello: self._policy), remote_addr=self._address
        )
        return await self._endpoint.open(self._address, self._dial, self._policy)

    def _release_endpoint(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    # --- The session: what it asks of its host

    def on_hello(self, session: SocketSession, hello: Hello) -> None:
        session.refuse("a client does not accept connections")

    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None:
        if welcome.version != PROTOCOL_VERSION:
            session.refuse(
                f"the broker speaks protocol version {welcome.version}, we speak {PROTOCOL_VERSION}"
            )
            return
        first = self._client is None
        self.sequencers = welcome.sequencers
        if not first and welcome.mode != self.mode:
            session.refuse(f"{welcome.node} runs in mode {welcome.mode!r}, not {self.mode!r} as before")
            return
        client = self._client = self._take_broker(welcome)
        client.flush = self._flush
        if isinstance(client, ReliableClient):
            session.outbox.policy = Policy(
                self._buffer_limit_bytes, drops_publications=False, drops_notifications=False
            )
        session.set_up(self.broker, BROKER, {}, client.receiver(self.broker))
        self._session = self._port.sessions[self.broker] = session
        if first:
            client.start()
        client.link_up(self.broker)
        self._on_connection(True, "")

    def _take_broker(self, welcome: Welcome) -> AnyClient:
        """Return the protocol's client, made for that broker or moved to it."""
        client = self._client
        if client is None:
            self.broker, self.mode = welcome.node, welcome.mode
            return self._make_client()
        if welcome.node != self.broker and isinstance(client, ReliableClient):
            client.moved(welcome.node)
            self.broker = welcome.node
        return client

    def _make_client(self) -> AnyClient:
        if self.mode != GUARANTEED:
            return BestEffortClient(self._port, self.broker, incarnation=self._incarnation)
        return ReliableClient(
            self._port,
            self.broker,
            incarnation=self._incarnation,
            acknowledges=self._acknowledges,
            gathers=True,
            lasting=self._lasting,
            resume_points=self._resume_points,
        )

    def persist(self) -> bool:
        return True  # nothing to persist

    def on_bad_frame(self, session: SocketSession, error: WireError) -> None:
        """Do nothing: the session ends with that reason, and the application is told."""

    def on_ended(self, session: SocketSession, end: End) -> None:
        if session is not self._session:
            return
        self._session = None
        del self._port.sessions[self.broker]
        self.client.link_down(self.broker)
        if not end.refused:  # otherwise `_keep` ends, and reports it
            self._on_connection(False, end.reason)

    # --- The protocol

    def _on_timer(self, name: TimerName) -> None:
        self.client.timer(name)

    def _flush(self, *, full_only: bool = False) -> list[Stretch]:
        """Send what was gathered in this turn of the loop now, not in the next turn."""
        flush, session = self.client.session.flush, self._session
        if session is None:
            return flush(full_only=full_only)
        session.outbox.begin_turn()
        try:
            return flush(full_only=full_only)
        finally:
            session.flush()

    def _on_unsent(self, to: str, message: Message) -> None:
        if isinstance(message, Publication | Run):
            self._on_unsent_publication(message, f"there is no connection to {self.url}")

    def _on_unsent_publication(self, stretch: Stretch, reason: str) -> None:
        """Fail it as if the broker had rejected it, in the next turn, so that the protocol is not told inside
        `publish`."""
        loop = asyncio.get_running_loop()
        for sequence in range(stretch.first, stretch.last + 1):
            failed = PublishFailed(sequence, f"not sent: {reason}")
            loop.call_soon(self.client.receive, self.broker, failed)
