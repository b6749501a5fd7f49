"""A broker on real sockets: it listens, dials its neighbours, and drives the protocol's Broker.

Of two neighbours the one whose name sorts lower dials, so that a link has one connection. A client is whoever
says so in its Hello; a second connection with the same name takes the place of the first.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from tidings.model.errors import ConnectionFailed, WireError
from tidings.model.event import Publication, check_publication
from tidings.model.messages import (
    PROTOCOL_VERSION,
    Hello,
    Message,
    PublishFailed,
    Status,
    StatusRequest,
    Subscribe,
    Unsubscribe,
    Welcome,
)
from tidings.net.address import Address, Transport
from tidings.net.dialling import explain, keep_open, open_stream
from tidings.net.handshake import BROKER, CLIENT, Identity, hello_refusal, welcome_refusal
from tidings.net.outbox import DEFAULT_LIMIT_BYTES, Policy
from tidings.net.port import AsyncPort
from tidings.net.security import Tls, check_dialling, check_listening, client_context, server_context
from tidings.net.session import MAX_REASON_CHARACTERS, Dial, End, Handler, Session, State
from tidings.net.stream import StreamSession
from tidings.net.udp import DatagramEndpoint
from tidings.protocol.broker import Broker
from tidings.protocol.facts import Misbehaviour
from tidings.protocol.kernel import TimerName

BEST_EFFORT = "best-effort"
MAX_STATUS_CHARACTERS = 65_536

log = logging.getLogger("tidings.net")


class BrokerNode(Protocol):
    """What the driver needs of a protocol's broker."""

    def start(self) -> None: ...
    def receive(self, sender: str, message: Message) -> None: ...
    def timer(self, name: TimerName) -> None: ...
    def link_up(self, peer: str) -> None: ...
    def link_down(self, peer: str) -> None: ...
    def status(self) -> dict[str, object]: ...


class BrokerServer:
    """`await start()`, then `address` is where it listens; `await stop()` ends it for good."""

    def __init__(
        self,
        name: str,
        listen: Address = Address(port=0),  # noqa: B008 - immutable
        neighbours: Mapping[str, Address] | None = None,
        *,
        mode: str = BEST_EFFORT,
        transport: Transport = "tcp",
        tls: Tls | None = None,
        token: str = "",
        incarnation: int | None = None,
        buffer_limit_bytes: int = DEFAULT_LIMIT_BYTES,
        emit: Callable[[object], None] | None = None,
        seed: int | None = None,
    ) -> None:
        self.name = name
        self.address = listen
        self.neighbours = dict(neighbours or {})
        self.transport = transport
        self.identity = Identity(name, mode, self.neighbours.keys(), token)
        self.bad_frames = 0
        self.refusals = 0
        self._tls = tls
        self._emit = emit
        self._port = AsyncPort(name, on_timer=self._on_timer, emit=self._on_fact, seed=seed)
        self._node: BrokerNode = Broker(
            self._port,
            tuple(sorted(self.neighbours)),
            incarnation=time.time_ns() if incarnation is None else incarnation,
        )
        self._client_policy = Policy(buffer_limit_bytes, drops_publications=True, reports_drops=True)
        self._broker_policy = Policy(
            buffer_limit_bytes, drops_publications=mode == BEST_EFFORT, reports_drops=False
        )
        self._sessions: dict[Session, None] = {}
        self._diallers: list[asyncio.Task[End]] = []
        self._server: asyncio.Server | None = None
        self._endpoint: DatagramEndpoint | None = None
        self._client_context: ssl.SSLContext | None = None

    # --- Life

    async def start(self) -> None:
        check_listening(self.address, self.transport, self._tls, self.identity.token)
        for address in self._dialled().values():
            check_dialling(address, self.transport, self._tls)
        if self._tls is not None:
            self._client_context = client_context(self._tls)
        try:
            await self._listen()
        except OSError as error:
            raise ConnectionFailed(f"cannot listen on {self.address}: {explain(error)}") from None
        self._node.start()
        for peer, address in self._dialled().items():
            self._diallers.append(asyncio.create_task(self._keep_link(peer, address)))

    async def stop(self) -> None:
        for task in self._diallers:
            task.cancel()
        await asyncio.gather(*self._diallers, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        sessions = list(self._sessions)
        for session in sessions:
            session.end(End(f"{self.name} stops", refused=False))
            session.abort()
        if self._endpoint is not None:
            self._endpoint.close()
        self._port.close()
        await asyncio.gather(*(session.wait_closed() for session in sessions))

    def _dialled(self) -> dict[str, Address]:
        """The neighbours that we dial; the others dial us."""
        return {peer: address for peer, address in sorted(self.neighbours.items()) if self.name < peer}

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self.address
        if self.transport == "udp":
            transport, self._endpoint = await loop.create_datagram_endpoint(
                lambda: DatagramEndpoint(self, self._policy_for), local_addr=(host, port)
            )
            self.address = Address(host, transport.get_extra_info("sockname")[1])
            return
        context = None if self._tls is None else server_context(self._tls)
        self._server = await loop.create_server(self._accepted, host, port, ssl=context)
        self.address = Address(host, self._server.sockets[0].getsockname()[1])

    def _accepted(self) -> StreamSession:
        """Who it is comes with the Hello; until then it is a client as far as limits go."""
        session = StreamSession(self, self._client_policy)
        self._sessions[session] = None
        return session

    def _policy_for(self, hello: Hello) -> Policy:
        return self._broker_policy if hello.role == BROKER else self._client_policy

    async def _keep_link(self, peer: str, address: Address) -> End:
        hello = Hello(PROTOCOL_VERSION, self.name, BROKER, self.identity.mode, self.identity.token)
        dial = Dial(hello, peer)

        async def open_session() -> Session:
            if self._endpoint is not None:
                session: Session = await self._endpoint.open(address, dial, self._broker_policy)
            else:
                session = await open_stream(self, address, dial, self._broker_policy, self._client_context)
            return session

        return await keep_open(open_session, self._port.random, _LinkLog(self.name, peer, address))

    # --- Sessions: what they ask of their host

    def on_hello(self, session: Session, hello: Hello) -> None:
        reason = hello_refusal(hello, self.identity)
        if reason is not None:
            self.refusals += 1
            log.warning("%s refused %s from %s: %s", self.name, hello.node, session.address, reason)
            session.refuse(reason)
            return
        session.outbox.policy = self._policy_for(hello)
        self._replace(hello.node, "another connection took the name")
        answer = Welcome(PROTOCOL_VERSION, self.name, self.identity.mode)
        receive = partial(self._node.receive, hello.node)
        if hello.role == BROKER:
            session.welcome(hello.node, BROKER, answer, {}, receive)
        else:
            session.welcome(hello.node, CLIENT, answer, *self._client_handlers(session, receive))
        self._stand(session)

    def on_welcome(self, session: Session, welcome: Welcome) -> None:
        assert session.dial is not None
        expected = session.dial.expected
        reason = welcome_refusal(welcome, self.identity, expected)
        if reason is not None:
            session.refuse(reason)
            return
        self._replace(expected, "another connection took the name")
        session.set_up(expected, BROKER, {}, partial(self._node.receive, expected))
        self._stand(session)

    def on_bad_frame(self, session: Session, error: WireError) -> None:
        self.bad_frames += 1
        log.warning("%s closed %s %s: %s", self.name, session.peer, session.address, error)

    def on_ended(self, session: Session, end: End) -> None:
        self._sessions.pop(session, None)
        if session.peer and self._port.sessions.get(session.peer) is session:
            del self._port.sessions[session.peer]
            self._node.link_down(session.peer)

    def _stand(self, session: Session) -> None:
        self._sessions[session] = None
        self._port.sessions[session.peer] = session
        self._node.link_up(session.peer)

    def _replace(self, peer: str, reason: str) -> None:
        for session in list(self._sessions):
            if session.peer == peer and session.state is State.UP:
                session.refuse(reason)

    # --- What clients send

    def _client_handlers(self, session: Session, receive: Handler) -> tuple[dict[type, Handler], Handler]:
        """What a client may send and who takes it; it may send nothing else."""

        def take_publication(publication: Publication) -> None:
            try:
                check_publication(publication)
            except WireError as error:
                session.send(PublishFailed(publication.sequence, str(error)[:MAX_REASON_CHARACTERS]))
            else:
                receive(publication)

        def take_status_request(message: StatusRequest) -> None:
            session.send(Status(self._status_text()))

        def refuse(message: Message) -> None:
            session.refuse(f"a client does not send {type(message).__name__}")

        handlers: dict[type, Handler] = {
            Publication: take_publication,
            Subscribe: receive,
            Unsubscribe: receive,
            StatusRequest: take_status_request,
        }
        return handlers, refuse

    # --- What the protocol says

    def _on_timer(self, name: TimerName) -> None:
        self._node.timer(name)

    def _on_fact(self, fact: object) -> None:
        if isinstance(fact, Misbehaviour):
            log.warning("%s: %s: %s", self.name, fact.peer, fact.what)
        if self._emit is not None:
            self._emit(fact)

    # --- Status

    def status(self) -> dict[str, object]:
        """The protocol's status and the sockets'."""
        return {
            **self._node.status(),
            "address": str(self.address),
            "transport": self.transport if self._tls is None else "tls",
            "bad_frames": self.bad_frames,
            "refusals": self.refusals,
            "unsent": self._port.unsent,
            "sessions": [session.status() for session in self._sessions],
        }

    def _status_text(self) -> str:
        status = self.status()
        text = msgspec.json.encode(status).decode()
        if len(text) > MAX_STATUS_CHARACTERS:
            status["sessions"] = len(self._sessions)
            text = msgspec.json.encode(status).decode()
        return text


class _LinkLog:
    """Logs why a link is down, once per reason and outage."""

    def __init__(self, name: str, peer: str, address: Address) -> None:
        self._what = f"{name}: link to {peer} at {address}"
        self._last = ""

    def __call__(self, reason: str) -> None:
        if reason != self._last:
            self._last = reason
            log.warning("%s: %s", self._what, reason)
