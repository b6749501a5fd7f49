"""Connects a client to the sequencers on real sockets: it drives the ordering module, with a session to each node.

One reachable address is enough: the node that answers sends the layout of topics and the addresses of the other nodes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from tidings.core.errors import ConnectionFailed, OrderError, WireError
from tidings.core.facts import Fact
from tidings.core.kernel import TimerName
from tidings.core.messages import PROTOCOL_VERSION, Hello, Welcome
from tidings.core.ordering.layout import Layout, parse_layout
from tidings.core.ordering.messages import OrderLayout
from tidings.core.ordering.module import OrderingClient, OrderingModule
from tidings.drivers.address import Address, url
from tidings.drivers.port import AsyncPort
from tidings.drivers.sockets.dialling import (
    CONNECT_SECONDS,
    LAST_DELAY_SECONDS,
    explain,
    keep_open,
    open_stream,
)
from tidings.drivers.sockets.handshake import ORDERED, SEQUENCER
from tidings.drivers.sockets.ordering_links import (
    POLICY,
    SEQUENCER_MODE,
    TO_CLIENTS,
    OrderingLink,
    accept_only,
    check_layout_size,
    expect_layout,
    layout_refusal,
    parse_addresses,
)
from tidings.drivers.sockets.security import Tls, check_dialling, client_context
from tidings.drivers.sockets.session import Dial, End, SessionState, SocketSession

CLOSE_SECONDS = 2.0
"""How long `close` waits until everything has been sent."""


class SequencersRefused(Fact, frozen=True, gc=False):
    """A sequencer refused us for a reason that a retry will not change: no event gets a number any more.

    All ordered subscriptions were told before (`OrderBroken`); publications that wait for a number cannot leave.
    """

    reason: str


class SequencingConnection:
    """`await open()`, then use `module`. Its facts go to `emit`, which runs on the event loop and must not block."""

    def __init__(
        self,
        addresses: Address | Sequence[Address],
        name: str,
        *,
        emit: Callable[[object], None],
        layout: Layout | None = None,
        token: str = "",
        tls: Tls | None = None,
        incarnation: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.name = name
        self.refused = ""
        """Why the sequencers refused us for good; empty while they have not."""
        self._entries = (addresses,) if isinstance(addresses, Address) else tuple(addresses)
        self._layout = layout
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._hello = Hello(PROTOCOL_VERSION, name, ORDERED, token=token)
        self._incarnation = time.time_ns() if incarnation is None else incarnation
        self._port = AsyncPort(name, on_timer=self._on_timer, emit=emit, seed=seed)
        self._client: OrderingClient | None = None
        self._addresses: dict[str, Address] = {}
        """Node -> its address, as far as we were told."""
        self._answered: dict[str, Address] = {}
        """Node -> the address at which it answered when we did not know its name yet."""
        self._dials = 0
        self._refusals: dict[str, str] = {}
        """Nodes that refused us the last time -> why."""
        self._comparing: dict[SocketSession, asyncio.Future[None]] = {}
        """Sessions whose layout is not known yet -> a future that is done once it is."""
        self._links: dict[str, OrderingLink] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            raise ConnectionFailed("not connected to any sequencer")
        return self._layout

    @property
    def module(self) -> OrderingModule:
        if self._client is None:
            raise ConnectionFailed("not connected to any sequencer")
        return self._client.module

    @property
    def nodes(self) -> dict[str, bool]:
        """Node of the layout -> whether there is a session with it."""
        return {node: node in self._links for node in self.layout.nodes}

    @property
    def unsent(self) -> int:
        return self._port.unsent

    # --- Life

    async def open(self, timeout_seconds: float = CONNECT_SECONDS) -> None:
        """Connect; raises ConnectionFailed if no sequencer accepts us in time."""
        if not self._entries:
            raise ConnectionFailed("no address of a sequencer is given")
        if self._layout is not None:
            check_layout_size(self._layout)
        if self._tls is not None:
            self._context = client_context(self._tls)
        try:
            session = await self._open_any(timeout_seconds / len(self._entries))
        except BaseException:
            await self.close()
            raise
        self._keep(session.peer, session)
        self._keep_all()

    async def _open_any(self, each_seconds: float) -> SocketSession:
        failures = []
        for address in self._entries:
            check_dialling(address, "tcp", self._tls)
            try:
                async with asyncio.timeout(each_seconds):
                    session, failure = await self._try(address)
            except TimeoutError:
                session, failure = None, f"no answer within {each_seconds:g} seconds"
            if session is not None:
                self._answered[session.peer] = address
                return session
            where = url(address, tls=self._tls is not None)
            failures.append(f"cannot reach the sequencer at {where}: {failure}")
        raise ConnectionFailed("; ".join(failures))

    async def _try(self, address: Address) -> tuple[SocketSession | None, str]:
        """Return a session that is up, or why there is none."""
        check_dialling(address, "tcp", self._tls)
        try:
            session = await self._dial(address, "")
        except OSError as error:
            return None, explain(error)
        if session.state is SessionState.UP:
            return session, ""
        end = session.ended.result()
        return None, f"it refused the connection: {end.reason}" if end.refused else end.reason

    async def _dial(self, address: Address, expected: str) -> SocketSession:
        """Return a session that has our layout, or has ended."""
        session = await open_stream(self, address, Dial(self._hello, expected), POLICY, self._context)
        compared = self._comparing.get(session)
        if compared is not None:
            try:
                await asyncio.shield(compared)
            except asyncio.CancelledError:
                session.end(End("given up", refused=False))
                raise
        return session

    def _keep_all(self) -> None:
        for node in self.layout.nodes:
            if node in self._addresses and node not in self._keepers:
                self._keep(node, None)

    def _keep(self, node: str, first: SocketSession | None) -> None:
        self._keepers[node] = asyncio.create_task(self._keep_link(node, first))

    async def _keep_link(self, node: str, first: SocketSession | None) -> None:
        """Keep a session with a node. One that refuses us may be corrected, so we retry, but not often."""
        sessions = [] if first is None else [first]

        async def next_session() -> SocketSession:
            return sessions.pop() if sessions else await self._dial(self._next_address(node), node)

        while True:
            end = await keep_open(next_session, self._port.random)
            self._on_refusal(node, end.reason)
            await asyncio.sleep(LAST_DELAY_SECONDS)

    def _next_address(self, node: str) -> Address:
        """Return, in turn, the address that the node announces and the one at which it answered. OSError if we may not
        dial it."""
        known = (self._addresses.get(node), self._answered.get(node))
        choice = list(dict.fromkeys(address for address in known if address is not None))
        self._dials += 1
        address = choice[self._dials % len(choice)]
        try:
            check_dialling(address, "tcp", self._tls)
        except ConnectionFailed as error:
            raise OSError(str(error)) from None
        return address

    def _on_refusal(self, node: str, reason: str) -> None:
        """Give up once all replicas of a server have refused us: its topics get no numbers any more."""
        self._refusals[node] = reason
        for place in self.layout.servers:
            if self._refusals.keys() >= {*self.layout.replicas(place.name)}:
                self._give_up(f"sequencer {node} refused the connection: {reason}")

    def _give_up(self, reason: str) -> None:
        if not self.refused and not self._closed:
            self.refused = reason
            for keeper in self._keepers.values():
                keeper.cancel()
            self.module.give_up(reason)
            self._port.emit(SequencersRefused(reason))

    async def close(self) -> None:
        """Send what is left, for a limited time (such as the message that the client leaves), and end the sessions."""
        self._closed = True
        for keeper in self._keepers.values():
            keeper.cancel()
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)
        sessions = [link.session for link in self._links.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(session.drained(below_bytes=0) for session in sessions))
        self._port.close()
        for session in sessions:
            session.end(End("closed", refused=False))
        await asyncio.gather(*(session.wait_closed() for session in sessions))

    # --- Sessions: what they ask of their host

    def on_hello(self, session: SocketSession, hello: Hello) -> None:
        session.refuse("a client does not accept connections")

    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None:
        assert session.dial is not None
        expected = session.dial.expected or welcome.node
        if welcome.version != PROTOCOL_VERSION:
            session.refuse(f"it speaks protocol version {welcome.version}, we speak {PROTOCOL_VERSION}")
        elif welcome.mode != SEQUENCER_MODE:
            session.refuse(f"{welcome.node} is not a sequencer but a broker in mode {welcome.mode!r}")
        elif welcome.node != expected:
            session.refuse(f"{welcome.node} answered where {expected} was expected")
        else:
            self._comparing[session] = asyncio.get_running_loop().create_future()
            timer = expect_layout(session)
            session.ended.add_done_callback(lambda _: timer.cancel())

            def meet(message: OrderLayout) -> None:
                timer.cancel()
                self._compare_layouts(session, expected, message)

            session.set_up(
                expected, SEQUENCER, *accept_only((OrderLayout,), meet, "a sequencer at first", session)
            )
            session.send(OrderLayout("" if self._layout is None else self._layout.text))

    def _compare_layouts(self, session: SocketSession, node: str, message: OrderLayout) -> None:
        reason = self._layout_refusal(node, message)
        if reason is not None:
            session.refuse(reason)
            return
        if self._client is None:
            self._client = OrderingClient(self._port, self.layout, incarnation=self._incarnation)
            self._client.start()
        handlers, other = accept_only(TO_CLIENTS, partial(self._client.receive, node), "a sequencer", session)
        handlers[OrderLayout] = self._on_announcement
        session.set_up(node, SEQUENCER, handlers, other)
        self._links[node] = self._port.sessions[node] = OrderingLink(session)
        self._refusals.pop(node, None)
        self._on_announcement(message)
        self._settle(session)

    def _layout_refusal(self, node: str, message: OrderLayout) -> str | None:
        """Return why the layout is refused, or None. If we have none, the first one we are told becomes ours."""
        if self._layout is None:
            try:
                layout = parse_layout(message.json)
            except OrderError as error:
                return str(error)
            if node not in layout.nodes:
                return f"{node} is not a node of its own layout"
            self._layout = layout
        return layout_refusal(self._layout, message.json, self.name)

    def _on_announcement(self, message: OrderLayout) -> None:
        """Learn the nodes' addresses and their servers' lineages."""
        self._addresses |= parse_addresses(message, self.layout.nodes.__contains__)
        for server, lineage in message.lineages:
            self.module.meet(server, lineage)
        if self._keepers and not self._closed:
            self._keep_all()

    def _settle(self, session: SocketSession) -> None:
        compared = self._comparing.pop(session, None)
        if compared is not None and not compared.done():
            compared.set_result(None)

    def persist(self) -> bool:
        return True  # nothing to persist

    def on_bad_frame(self, session: SocketSession, error: WireError) -> None:
        """Do nothing: the session ends with that reason, and another one is opened."""

    def on_ended(self, session: SocketSession, end: End) -> None:
        self._settle(session)
        link = self._links.get(session.peer)
        if link is not None and link.session is session:
            del self._links[session.peer]
            del self._port.sessions[session.peer]
            if end.refused:  # it had accepted us: the cause is ours, such as a name that another took
                self._give_up(f"sequencer {session.peer} refused the connection: {end.reason}")

    # --- The protocol

    def _on_timer(self, name: TimerName) -> None:
        assert self._client is not None
        self._client.timer(name)
