"""A broker on real sockets: it listens, dials its neighbours, and drives the protocol's broker.

Best effort: of two neighbours, the one whose name sorts lower dials, so that a link has one connection.
Guaranteed: the protocol says whom to dial, and either side may (guaranteed.py). Epidemic: as best effort, but brokers
use datagrams, also with brokers that are not neighbours, and clients use streams, on the same port number
(epidemic.py). A peer is a client if its Hello says so; a second connection with the same name replaces the first.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidings.core.errors import ConnectionFailed, StoreCorrupt, StoreError
from tidings.core.facts import (
    BrokerKnown,
    LeftNetwork,
    Misbehaviour,
    SessionUnwanted,
    SessionWanted,
    ShareFailed,
    SpillFailed,
)
from tidings.core.kernel import TimerName
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Welcome
from tidings.core.overlay.brokers import AnyBroker, BrokerSpec, make_broker
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker
from tidings.core.overlay.guaranteed.held_share import SHARE_CLIENT
from tidings.core.overlay.modes import BEST_EFFORT, EPIDEMIC, GUARANTEED
from tidings.drivers.address import Address, Transport, parse_address
from tidings.drivers.lossy import LossyLinks
from tidings.drivers.sockets.archive_settling import ArchiveSettling
from tidings.drivers.sockets.broker_order import BrokerOrder
from tidings.drivers.sockets.client_handlers import (
    Handlers,
    client_handlers,
    refuse_other,
    stamped_handlers,
    unkept_handlers,
)
from tidings.drivers.sockets.dialling import settled
from tidings.drivers.sockets.epidemic import DatagramRouter, EpidemicSettings, unpinned, within_datagrams
from tidings.drivers.sockets.guaranteed import (
    GuaranteedSettings,
    check_settings,
    make_stored_broker,
    settled_settings,
)
from tidings.drivers.sockets.handshake import (
    BROKER,
    CLIENT,
    CROSSING,
    NAME_TAKEN,
    HandshakeRules,
    hello_refusal,
    welcome_refusal,
)
from tidings.drivers.sockets.keeper import crosses
from tidings.drivers.sockets.node_host import EVERYWHERE, NodeHost
from tidings.drivers.sockets.outbox import DEFAULT_LIMIT_BYTES, Policy
from tidings.drivers.sockets.security import Tls, check_dialling, check_listening
from tidings.drivers.sockets.session import Dial, End, Handler, SessionHost, SessionState, SocketSession
from tidings.drivers.sockets.stream import StreamSession
from tidings.drivers.sockets.udp import DatagramEndpoint, DatagramSession, Peer
from tidings.extras import SLOW_MATCHING, is_installed

if TYPE_CHECKING:
    from tidings.drivers.sockets.archive_read_service import (
        ArchiveReadService,  # it needs pyarrow, which most brokers do not
    )
    from tidings.drivers.sockets.broker_history import BrokerHistory

log = logging.getLogger("tidings.net")


class BrokerServer:
    """`await start()`, then it listens on `address`; `await stop()` ends it for good."""

    def __init__(
        self,
        name: str,
        listen: Address = Address(port=0),  # noqa: B008 - immutable
        neighbours: Mapping[str, Address] | None = None,
        *,
        mode: str = BEST_EFFORT,
        guaranteed: GuaranteedSettings | None = None,
        epidemic: EpidemicSettings | None = None,
        transport: Transport = "tcp",
        tls: Tls | None = None,
        token: str = "",
        incarnation: int | None = None,
        sequencers: Sequence[Address] = (),
        archive: ArchiveReadService | None = None,
        buffer_limit_bytes: int = DEFAULT_LIMIT_BYTES,
        emit: Callable[[object], None] | None = None,
        seed: int | None = None,
    ) -> None:
        for its_mode, settings in ((GUARANTEED, guaranteed), (EPIDEMIC, epidemic)):
            if (mode == its_mode) != (settings is not None):
                raise ValueError(f"mode {its_mode!r} requires its settings, and other modes do not take them")
        self.name = name
        self.host = NodeHost(self, name, listen, tls=tls, seed=seed)
        self._port = self.host.port
        self._sessions = self.host.sessions
        self.failed = self.host.turns.failed
        """Waits until the disk fails, which stops the broker, and raises the reason."""
        self.neighbours = dict(neighbours or {})
        self.transport = transport
        self.sequencers = tuple(map(str, sequencers))
        """The sequencers' addresses, announced to clients."""
        self._sequencers = tuple(sequencers)
        self._order: BrokerOrder | None = None
        self._history: BrokerHistory | None = None
        self._archive = archive
        self.describe_archive: Callable[[], dict[str, object]] | None = None
        """Set by a recorder in this process: what it returns is added to the status."""
        self.identity = HandshakeRules(name, mode, self.neighbours.keys(), token, open=guaranteed is not None)
        self._emit = emit
        self._incarnation = time.time_ns() if incarnation is None else incarnation
        self._guaranteed = guaranteed
        self._epidemic = epidemic
        self._router: DatagramRouter | None = None
        self._lossy: LossyLinks | None = None
        self._node: AnyBroker
        lossy = guaranteed is None
        if guaranteed is not None:
            check_settings(name, guaranteed, self.neighbours)
        elif epidemic is None:  # an epidemic broker announces its address, so it is made after listening
            self._node = make_broker(
                BrokerSpec(BEST_EFFORT, self._around), self._port, incarnation=self._incarnation
            )
        self._client_policy = Policy(
            buffer_limit_bytes, drops_publications=lossy, drops_notifications=lossy, reports_drops=lossy
        )
        self._broker_policy = Policy(
            buffer_limit_bytes, drops_publications=lossy, drops_notifications=lossy, reports_drops=False
        )
        self._left: asyncio.Future[None] | None = None

    # --- Life

    async def start(self) -> None:
        """Start; raises ConnectionFailed if it cannot listen or join, StoreError if its store is unusable."""
        self._check()
        await self._listen()
        try:
            if self._guaranteed is not None:
                self._guaranteed, self.neighbours = await settled_settings(
                    self.identity, self._guaranteed, self.neighbours, self.address, self.host.client_context
                )
            self._start_node()
            await self.host.listener.start_serving()
        except BaseException:
            await self.stop()
            raise
        if self._guaranteed is None:
            for peer, address in self._dialled().items():
                self.host.keeper.want(peer, address)
            await self._begin_anew()

    async def _begin_anew(self) -> None:
        """With datagrams, tell the neighbours that dial us that we restarted: they cannot see it otherwise."""
        for peer, address in sorted(self.neighbours.items()):
            if self._endpoint is not None and peer < self.name:
                with suppress(OSError):
                    await self._endpoint.begin_anew(address)

    @property
    def address(self) -> Address:
        return self.host.address

    @property
    def _around(self) -> dict[str, str]:
        return {peer: str(address) for peer, address in sorted(self.neighbours.items())}

    def _check(self) -> None:
        mode = self.identity.mode
        if mode != BEST_EFFORT and self.transport != "tcp":
            raise ConnectionFailed(f"mode {mode!r} requires TCP, not {self.transport}")
        check_listening(self.address, self.transport, self.host.tls, self.identity.token)
        if self._epidemic is not None:
            check_listening(self.address, "udp", None, self.identity.token)
        dialled = self._dialled() if self._guaranteed is None else self.neighbours
        for address in dialled.values():
            self._check_dialling(address)

    def _check_dialling(self, address: Address) -> None:
        if self._epidemic is None:
            check_dialling(address, self.transport, self.host.tls)
        else:
            check_dialling(address, "udp", None)

    def _start_node(self) -> None:
        if self._epidemic is not None:
            self._start_epidemic(self._epidemic)
            return
        settings = self._guaranteed
        if settings is None:
            self._node.start()
            return
        make = partial(
            make_stored_broker,
            self._port,
            settings,
            self.neighbours,
            self.host.turns.open,
            incarnation=self._incarnation,
            address="" if self.address.host in EVERYWHERE else str(self.address),
        )
        self._node, self.host.turns.store = make()
        self._find_others()
        try:
            self._node.start()
        except StoreCorrupt as error:
            self.host.release()
            if not settings.recover:
                raise
            self._node, self.host.turns.store = make(damage=error)
            self._find_others()
            self._node.start()

    def _find_others(self) -> None:
        """Give the protocol its way to the sequencers, and to its archive, if there are any."""
        if self._archive is not None and isinstance(self._node, GuaranteedBroker):
            from tidings.drivers.sockets.broker_history import BrokerHistory

            self._node.share_histories.archive = self._history = BrokerHistory(self._archive)
        if self._sequencers and isinstance(self._node, GuaranteedBroker):
            ordered, token = self._node.ordered_shares, self.identity.token
            self._order = BrokerOrder(self.host, ordered, self._sequencers, token, self.host.tls)

    def _start_epidemic(self, settings: EpidemicSettings) -> None:
        assert self._endpoint is not None
        recovery = within_datagrams(settings.recovery)
        node = self._node = make_broker(
            BrokerSpec(EPIDEMIC, self._around, settings.label, recovery=recovery),
            self._port,
            incarnation=self._incarnation,
            address=str(self._endpoint.address),
        )
        self._router = DatagramRouter(self._endpoint, self.neighbours.keys(), node.receive)
        self._port.others = self._router.sinks
        node.start()

    async def stop(self) -> None:
        self.host.stopped = True
        if self._order is not None:
            await self._order.stop()
        if self._history is not None:
            await self._history.stop()
        await self.host.stop(None if self._archive is None else self._archive.close)

    def record_archive(self, client: str, subscription: str) -> None:
        """Record the archive by this client's subscription. On a guaranteed network, subscriptions can then start with
        it."""
        if self._archive is not None and isinstance(self._node, GuaranteedBroker):
            self._node.attachments.archive = (client, subscription)
            self._archive.settle = ArchiveSettling(self._node)

    async def leave(self) -> None:
        """Leave the network for good, and return once nothing waits for this broker any more. Then `stop` it.

        Raises ConnectionFailed if it cannot leave. Its store is useless afterwards.
        """
        if not isinstance(self._node, GuaranteedBroker):
            raise ConnectionFailed(f"{self.name} runs in mode {self.identity.mode!r}: just stop it")
        self._left = asyncio.get_running_loop().create_future()
        try:
            self._node.leave()
        except ValueError as error:
            raise ConnectionFailed(str(error)) from None
        await self._left
        await asyncio.gather(*(session.drained(below_bytes=0) for session in self._sessions))

    def _dialled(self) -> dict[str, Address]:
        """Return the neighbours that we dial; the others dial us."""
        return {peer: address for peer, address in sorted(self.neighbours.items()) if self.name < peer}

    async def _listen(self) -> None:
        listener = self.host.listener
        listen = listener.to_streams
        if self._epidemic is not None:
            listen = listener.to_both
        elif self.transport == "udp":
            listen = listener.to_datagrams
        await self.host.listen(listen)
        if self._epidemic is not None and self._epidemic.loss is not None:
            assert self._endpoint is not None
            self._lossy = LossyLinks(self._epidemic.loss, self._epidemic.seed)
            self._endpoint.loses = partial(self._loses, self._lossy)

    def _loses(self, links: LossyLinks, peer: Peer) -> bool:
        return links.loses(f"{self.name}>{peer[0]}:{peer[1]}")

    @property
    def _endpoint(self) -> DatagramEndpoint | None:
        return self.host.listener.endpoint

    async def open_inside(self, host: SessionHost, dial: Dial, policy: Policy) -> SocketSession:
        """Open a session for a client in this process, past TLS and token: the `opener` of a `ClientConnection`."""
        if self.host.stopped:
            raise ConnectionRefusedError
        hello = msgspec.structs.replace(dial.hello, token=self.identity.token)
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self.host.accept, ours)
        _, session = await loop.create_connection(
            lambda: StreamSession(host, policy, dial._replace(hello=hello)), sock=theirs
        )
        return await settled(session)

    def policy_for(self, hello: Hello | None) -> Policy:
        """Return the policy for a peer; until its Hello arrives, it counts as a client."""
        return self._broker_policy if hello is not None and hello.role == BROKER else self._client_policy

    async def dial(self, peer: str, address: Address) -> SocketSession:
        self._check_dialling(address)
        hello = Hello(PROTOCOL_VERSION, self.name, BROKER, self.identity.mode, self.identity.token)
        return await self.host.open(address, Dial(hello, peer), self._broker_policy)

    def standing(self, peer: str) -> SocketSession | None:
        session = self._port.sessions.get(peer)
        assert session is None or isinstance(session, SocketSession)
        return session

    # --- Sessions: what they ask of their host

    def on_hello(self, session: SocketSession, hello: Hello) -> None:
        if self._epidemic is not None and self._router is None:
            return  # too early; a Hello by datagram will be repeated
        reason = hello_refusal(hello, self.identity)
        if reason is None and self._router is not None:
            reason = self._router.refusal(hello, by_datagram=isinstance(session, DatagramSession))
        if reason is not None:
            self.host.refusals += 1
            log.warning("%s refused %s from %s: %s", self.name, hello.node, session.address, reason)
            session.refuse(reason)
            return
        if hello.role != BROKER and hello.node.startswith(SHARE_CLIENT):
            session.refuse(f"client names may not start with {SHARE_CLIENT!r}")
            return
        if hello.role == BROKER and self._guaranteed is not None and not self._gives_way(hello.node):
            session.refuse(CROSSING)
            return
        session.outbox.policy = self.policy_for(hello)
        self._replace(hello.node, NAME_TAKEN)
        answer = Welcome(PROTOCOL_VERSION, self.name, self.identity.mode, self.sequencers)
        receive = self._receiver(session, hello.node)
        if hello.role == BROKER:
            session.welcome(hello.node, BROKER, answer, {}, receive)
        else:
            session.welcome(hello.node, CLIENT, answer, *self._client_handlers(session, receive))
        self._stand(session)

    def _gives_way(self, peer: str) -> bool:
        """Return True if the peer's connection is used, where both may dial; a dial of our own then ends."""
        now = asyncio.get_running_loop().time()
        if self.host.keeper.dials(peer) and self.name < peer:
            return False
        if crosses(self.name, peer, self.standing(peer), now):
            return False
        self.host.keeper.give_way(peer)
        return True

    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None:
        assert session.dial is not None
        expected = session.dial.expected
        reason = welcome_refusal(welcome, self.identity, expected)
        if reason is None and self._guaranteed is not None and self.standing(expected) is not None:
            reason = CROSSING
        if reason is not None:
            session.refuse(reason)
            return
        self._replace(expected, NAME_TAKEN)
        session.set_up(expected, BROKER, {}, self._receiver(session, expected))
        self._stand(session)

    def _receiver(self, session: SocketSession, peer: str) -> Handler:
        """Return the protocol's handler for that peer's messages."""
        receive = self._node.receiver(peer)
        if self._guaranteed is None:
            return receive

        def take(message: Message) -> None:
            try:
                receive(message)
            except StoreError as error:
                self.host.complain("store", str(error))
                session.end(End(f"{self.name} cannot write to its disk", refused=False))

        return take

    def on_ended(self, session: SocketSession, end: End) -> None:
        if self._archive is not None:
            self._archive.forget(session)
        if session.peer and self._port.sessions.get(session.peer) is session:
            del self._port.sessions[session.peer]
            self._tell_node(self._node.link_down, session.peer)

    def _stand(self, session: SocketSession) -> None:
        self._sessions[session] = None
        self._port.sessions[session.peer] = session
        self._tell_node(self._node.link_up, session.peer)

    def _tell_node(self, tell: Callable[[str], None], peer: str) -> None:
        if not self.host.stopped:
            with self.host.log_store_errors():
                tell(peer)

    def _replace(self, peer: str, reason: str) -> None:
        for session in list(self._sessions):
            if session.peer == peer and session.state is SessionState.UP:
                session.refuse(reason)

    # --- Faults, for tests

    def cut(self, peers: Collection[str]) -> None:
        """Cut off these peers; see `NodeHost.cut`."""
        self.host.cut(peers)
        if self._router is not None:
            self._router.cut = self.host.black_holes.peers

    # --- Messages from clients

    def _client_handlers(self, session: SocketSession, receive: Handler) -> tuple[Handlers, Handler]:
        """Return the handlers for what a client may send, and one that refuses everything else."""
        handlers = client_handlers(session, receive, self.status)
        if self._archive is not None:
            handlers |= self._archive.handlers(session)
        if self._guaranteed is not None:
            handlers |= stamped_handlers(session, receive)
        else:
            handlers |= unkept_handlers(session, receive, None if self._epidemic is None else unpinned)
        return handlers, refuse_other(session)

    # --- Facts and timers of the protocol

    def on_timer(self, name: TimerName) -> None:
        self._node.timer(name)

    def on_fact(self, fact: object) -> None:
        match fact:
            case SessionWanted(peer=peer, address=address):
                self.host.keeper.want(peer, self._dialling_address(peer, address))
            case SessionUnwanted(peer=peer):
                self.host.keeper.unwant(peer)
                session = self.standing(peer)
                if session is not None:  # later: the protocol is in the middle of a handler
                    asyncio.get_running_loop().call_soon(self._close_unwanted, session)
            case BrokerKnown(broker=broker, address=address) if self._router is not None:
                self._router.learn(broker, address)
            case LeftNetwork() if self._left is not None and not self._left.done():
                self._left.set_result(None)
            case Misbehaviour(peer=peer, what=what):
                self.host.complain(peer, what)
            case SpillFailed(reason=reason):
                self.host.complain("store", reason)
            case ShareFailed(name=name, reason=reason):
                self.host.complain(f"durable subscription {name}", reason)
        if self._emit is not None:
            self._emit(fact)

    def _dialling_address(self, peer: str, text: str) -> Address:
        """Return the address that the protocol has for the peer or, if it is invalid, the configured one."""
        try:
            return parse_address(text)
        except ConnectionFailed:
            return self.neighbours.get(peer, Address(port=0))

    def _close_unwanted(self, session: SocketSession) -> None:
        session.flush()
        session.end(End("no longer needed", refused=False))

    # --- Status

    def status(self) -> dict[str, object]:
        """Return the status of the protocol and of the sockets."""
        status = {
            **self._node.status(),
            **self.host.status(),
            "transport": self.transport if self.host.tls is None else "tls",
            "sessions": [session.status() for session in self._sessions],
        }
        if not is_installed("numpy"):
            status["matching"] = SLOW_MATCHING
        if self.sequencers:
            status["sequencers"] = list(self.sequencers)
        if self._order is not None and (connected := self._order.status()):
            status["sequencers_connected"] = connected
        if self.describe_archive is not None:
            status |= self.describe_archive()
        if self._router is not None:
            status["datagrams"] = self._router.status()
        if self._lossy is not None:
            status["lost_on_purpose"] = self._lossy.lost
        return status
