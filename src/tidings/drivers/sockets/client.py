"""A client on real sockets: it drives the protocol's client, and connects again until it is closed.

Which protocol it speaks the broker's Welcome says. Of several addresses it dials the next one in turn whenever it
loses its broker.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

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

AnyClient = BestEffortClient | ReliableClient
Opener = Callable[[SessionHost, Dial, Policy], Awaitable[SocketSession]]
"""Opens a session that has settled, in another way than by dialling an address."""

CLOSE_SECONDS = 2.0
"""How long `close` waits for the broker to take what is still to be sent."""


class ClientConnection:
    """`await open()`, then use `client`; facts go to `emit`, the link's fate to `on_connection(up, reason)`.

    The callbacks run inside the loop and must not block. A broker that refuses us (a wrong token, a name that
    another connection took) ends it: `on_connection(False, reason)`, and `closed` is true.

    A guaranteed broker is told that the application is done with what it was shown, unless `acknowledges` is False:
    then the application says so (`Delivered.ticket`). With `resume_points`, what an earlier run of this client was
    shown is not shown again.
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
        """The broker as the protocol knows it. Best effort: the one that answered first, for ever."""
        self.mode = ""
        """Of the broker that answered first; no other answers later."""
        self.sequencers: tuple[str, ...] = ()
        """Where the broker says that an order is to be had."""
        self.closed = False
        self._addresses = (address,) if isinstance(address, Address) else tuple(address)
        self._turn = 0
        """Which of the addresses is dialled."""
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
        """Where the broker is, or is looked for."""
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

    # --- Life

    async def open(self) -> None:
        """ConnectionFailed, soon, if there is no broker that takes us."""
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
        """End the session and stop trying; what was not sent yet is sent first."""
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
        """Wait until most of what was published has left, or there is no connection."""
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
        session.refuse("a client accepts no connections")

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
        session.set_up(self.broker, BROKER, {}, partial(client.receive, self.broker))
        self._session = self._port.sessions[self.broker] = session
        if first:
            client.start()
        client.link_up(self.broker)
        self._on_connection(True, "")

    def _take_broker(self, welcome: Welcome) -> AnyClient:
        """The protocol's client, made for that broker or moved to it."""
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
        return True  # nothing is kept here

    def on_bad_frame(self, session: SocketSession, error: WireError) -> None:
        """The session ends with that reason, and so the application hears of it."""

    def on_ended(self, session: SocketSession, end: End) -> None:
        if session is not self._session:
            return
        self._session = None
        del self._port.sessions[self.broker]
        self.client.link_down(self.broker)
        if not end.refused:  # else the keeper gives up, and says so
            self._on_connection(False, end.reason)

    # --- The protocol

    def _on_timer(self, name: TimerName) -> None:
        self.client.timer(name)

    def _flush(self, *, full_only: bool = False) -> list[Stretch]:
        """What was gathered in this turn of the loop leaves in it, not in the next."""
        published = self.client.session.flush(full_only=full_only)
        if published and self._session is not None:
            self._session.flush()
        return published

    def _on_unsent(self, to: str, message: Message) -> None:
        if isinstance(message, Publication | Run):
            self._on_unsent_publication(message, f"there is no connection to {self.url}")

    def _on_unsent_publication(self, stretch: Stretch, reason: str) -> None:
        """As if the broker had not taken it; the protocol hears so in the next turn, not inside `publish`."""
        loop = asyncio.get_running_loop()
        for sequence in range(stretch.first, stretch.last + 1):
            failed = PublishFailed(sequence, f"it was not sent: {reason}")
            loop.call_soon(self.client.receive, self.broker, failed)
