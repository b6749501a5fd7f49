"""What every node on real sockets has: where it listens, its sessions, the links it keeps, what it must persist before
it sends, and how it stops. Whom it welcomes and which protocol it drives its owner says.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from tidings.core.errors import ConnectionFailed, StoreError, WireError
from tidings.core.kernel import TimerName
from tidings.core.messages import Hello, Welcome
from tidings.drivers.address import Address
from tidings.drivers.port import AsyncPort
from tidings.drivers.sockets.black_holes import BlackHoles
from tidings.drivers.sockets.complaints import Complaints, LinkLog
from tidings.drivers.sockets.dialling import explain, open_stream
from tidings.drivers.sockets.handshake import CROSSING
from tidings.drivers.sockets.keeper import LinkKeeper
from tidings.drivers.sockets.listening import Listener
from tidings.drivers.sockets.outbox import Policy
from tidings.drivers.sockets.security import Tls, client_context, server_context
from tidings.drivers.sockets.session import Dial, End, SocketSession
from tidings.drivers.sockets.stream import StreamSession
from tidings.drivers.sockets.turns import Turns
from tidings.drivers.sockets.udp import DatagramEndpoint

EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - listened on only with TLS and a token
"""No addresses to dial."""

log = logging.getLogger("tidings.net")


class NodeOwner(Protocol):
    """As a host of sessions, but what is cut off is kept from it."""

    def on_hello(self, session: SocketSession, hello: Hello) -> None: ...
    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None: ...
    def on_ended(self, session: SocketSession, end: End) -> None: ...
    async def dial(self, peer: str, address: Address) -> SocketSession:
        """OSError, ConnectionFailed: there is no session."""

    def standing(self, peer: str) -> SocketSession | None:
        """The session with that peer that is up."""

    def on_timer(self, name: TimerName) -> None: ...
    def on_fact(self, fact: object) -> None: ...
    def policy_for(self, hello: Hello | None) -> Policy:
        """Of whoever said so, or who it is comes later."""

    async def stop(self) -> None: ...


class NodeHost:
    def __init__(
        self, owner: NodeOwner, name: str, listen: Address, *, tls: Tls | None, seed: int | None
    ) -> None:
        self.name = name
        self.address = listen
        self.tls = tls
        self.client_context: ssl.SSLContext | None = None
        self.port = AsyncPort(name, on_timer=self._on_timer, emit=owner.on_fact, seed=seed)
        self.keeper = LinkKeeper(owner.dial, owner.standing, self.port.random, self._on_link_failure)
        self.turns = Turns(self._on_failure)
        self.sessions: dict[SocketSession, None] = {}
        self.black_holes = BlackHoles()
        self.complain = Complaints(name)
        self.bad_frames = 0
        self.refusals = 0
        self.stopped = False
        self.listener = Listener(
            self.accept,
            lambda: DatagramEndpoint(self, owner.policy_for),
            lambda: None if tls is None else server_context(tls),
        )
        self._owner = owner
        self._link_logs: dict[str, LinkLog] = {}
        self._stopping: asyncio.Task[None] | None = None

    # --- Life

    async def listen(self, listen: Callable[[Address], Awaitable[Address]]) -> None:
        """In one of the listener's ways. ConnectionFailed: it cannot."""
        if self.tls is not None:
            self.client_context = client_context(self.tls)
        try:
            bound = await listen(self.address)
        except OSError as error:
            raise ConnectionFailed(f"cannot listen on {self.address}: {explain(error)}") from None
        self.address = Address(self.address.host, bound.port)

    def accept(self) -> StreamSession:
        session = StreamSession(self, self._owner.policy_for(None))
        self.sessions[session] = None
        return session

    async def open(self, address: Address, dial: Dial, policy: Policy) -> SocketSession:
        """A session with another node that has settled, by datagrams if it listens to any. OSError: there is none."""
        if dial.expected in self.black_holes.peers:
            raise TimeoutError
        endpoint = self.listener.endpoint
        if endpoint is not None:
            return await endpoint.open(address, dial, policy)
        return await open_stream(self, address, dial, policy, self.client_context)

    def _on_link_failure(self, peer: str, address: Address, reason: str) -> None:
        if reason != CROSSING:
            self._link_logs.setdefault(peer, LinkLog(self.name, peer, address))(reason)

    def release(self) -> None:
        """The protocol is not driven any more."""
        self.keeper.forget_all()
        self.port.close()
        if self.turns.store is not None:
            self.turns.store.close()
            self.turns.store = None

    async def stop(self, close: Callable[[], Awaitable[None]] | None = None) -> None:
        """As abruptly as a crash; `close` what else there is once the sessions have ended."""
        self.stopped = True
        await self.keeper.stop()
        self.listener.stop_serving()
        sessions = list(self.sessions | self.black_holes.sessions)
        for session in sessions:
            session.silent = False
            session.end(End(f"{self.name} stops", refused=False))
            session.abort()
        self.listener.close()
        if close is not None:
            await close()
        self.release()
        await asyncio.gather(*(session.wait_closed() for session in sessions))

    # --- Sessions: what they ask of their host

    def on_hello(self, session: SocketSession, hello: Hello) -> None:
        if not self.black_holes.swallows(session, hello.node):
            self._owner.on_hello(session, hello)

    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None:
        assert session.dial is not None
        if not self.black_holes.swallows(session, session.dial.expected):
            self._owner.on_welcome(session, welcome)

    def on_bad_frame(self, session: SocketSession, error: WireError) -> None:
        self.bad_frames += 1
        log.warning("%s closed %s %s: %s", self.name, session.peer, session.address, error)

    def on_ended(self, session: SocketSession, end: End) -> None:
        self.sessions.pop(session, None)
        self._owner.on_ended(session, end)

    def persist(self) -> bool:
        return self.turns.persist()

    # --- The protocol

    @contextmanager
    def store_errors_told(self) -> Iterator[None]:
        """What could not be written was not said either; it is asked for again."""
        try:
            yield
        except StoreError as error:
            self.complain("store", str(error))

    def _on_timer(self, name: TimerName) -> None:
        with self.store_errors_told():
            self._owner.on_timer(name)

    def _on_failure(self, error: StoreError) -> None:
        log.error("%s stops: %s", self.name, error)
        self._stopping = asyncio.get_running_loop().create_task(self._owner.stop())

    # --- Faults, for tests

    def cut(self, peers: Collection[str]) -> None:
        """From now on nothing passes to and from these peers, nodes or clients, and from and to no others.

        Connections with them become black holes: they stand as they did, and what is sent on either side is lost
        without a word. Connections that they open are not answered, dials to them fail. Those whom an earlier call
        named and this one does not are healed: what is left of their connections is aborted.
        """
        self.black_holes.cut(peers, self.sessions)

    def status(self) -> dict[str, object]:
        return {
            "address": str(self.address),
            "bad_frames": self.bad_frames,
            "refusals": self.refusals,
            "unsent": self.port.unsent,
        }
