"""What every node on real sockets has: a listener, sessions, links that it keeps, persist before send, an orderly stop.

Its owner (a broker or a sequencer) decides whom to accept and which protocol to drive.
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
"""Addresses to listen on that nobody can dial."""

log = logging.getLogger("tidings.net")


class NodeOwner(Protocol):
    """What a NodeHost needs from its owner; sessions of peers that are cut off are kept from it."""

    def on_hello(self, session: SocketSession, hello: Hello) -> None: ...
    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None: ...
    def on_ended(self, session: SocketSession, end: End) -> None: ...
    async def dial(self, peer: str, address: Address) -> SocketSession:
        """Open a session; raises OSError or ConnectionFailed."""

    def standing(self, peer: str) -> SocketSession | None:
        """Return the session with that peer that is up, if there is one."""

    def on_timer(self, name: TimerName) -> None: ...
    def on_fact(self, fact: object) -> None: ...
    def policy_for(self, hello: Hello | None) -> Policy:
        """Return the policy for the peer that sent this Hello; None: it is not known yet."""

    async def stop(self) -> None: ...


class NodeHost:
    """The sockets of one node, and what goes with them."""

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
        """Listen with one of the listener's methods; raises ConnectionFailed if that fails."""
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
        """Open a settled session with another node, by datagrams if this node listens for them; raises OSError."""
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
        """Release links, timers and store; the protocol is not driven any more."""
        self.keeper.forget_all()
        self.port.close()
        if self.turns.store is not None:
            self.turns.store.close()
            self.turns.store = None

    async def stop(self, close: Callable[[], Awaitable[None]] | None = None) -> None:
        """Stop as abruptly as a crash; `close` is called once the sessions have ended."""
        self.stopped = True
        await self.keeper.stop()
        self.listener.stop_serving()
        sessions = list(self.sessions | self.black_holes.sessions)
        for session in sessions:
            session.silent = False
            session.end(End(f"{self.name} is stopping", refused=False))
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
        peer = session.peer or "an unknown peer"
        log.warning("%s closed the connection to %s at %s: %s", self.name, peer, session.address, error)

    def on_ended(self, session: SocketSession, end: End) -> None:
        self.sessions.pop(session, None)
        self._owner.on_ended(session, end)

    def persist(self) -> bool:
        return self.turns.persist()

    # --- The protocol

    @contextmanager
    def log_store_errors(self) -> Iterator[None]:
        """Log store errors. What could not be written was not sent either, and peers will retry."""
        try:
            yield
        except StoreError as error:
            self.complain("store", str(error))

    def _on_timer(self, name: TimerName) -> None:
        with self.log_store_errors():
            self._owner.on_timer(name)

    def _on_failure(self, error: StoreError) -> None:
        log.error("stopping %s: %s", self.name, error)
        self._stopping = asyncio.get_running_loop().create_task(self._owner.stop())

    # --- Faults, for tests

    def cut(self, peers: Collection[str]) -> None:
        """From now on, let nothing pass to and from these peers (nodes or clients), and only these.

        Connections with them become black holes: they stay open, and what either side sends is lost silently.
        Connections that they open are not answered; dials to them fail. Peers that an earlier call named and this one
        does not are healed: their old connections are aborted.
        """
        self.black_holes.cut(peers, self.sessions)

    def status(self) -> dict[str, object]:
        return {
            "address": str(self.address),
            "bad_frames": self.bad_frames,
            "refusals": self.refusals,
            "unsent": self.port.unsent,
        }
