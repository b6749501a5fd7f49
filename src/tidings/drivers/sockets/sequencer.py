"""A sequencer on real sockets: it listens, dials the other nodes of the layout, and drives the protocol's node.

Of two nodes, the one whose name sorts lower dials. Clients connect for their ordering module (role "ordered"), or only
to ask for the status (role "client"). A second connection with the same name and role replaces the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from tidings.core.errors import OrderError
from tidings.core.facts import Misbehaviour
from tidings.core.kernel import TimerName
from tidings.core.messages import PROTOCOL_VERSION, Hello, Message, Status, StatusRequest, Welcome
from tidings.core.ordering.layout import Layout
from tidings.core.ordering.messages import OrderLayout
from tidings.core.ordering.replication.node import SequencerNode
from tidings.core.ordering.replication.replica import ReplicaRole, RoleChanged, Times
from tidings.core.ordering.server.machine import PublishNoOps
from tidings.drivers.address import Address
from tidings.drivers.sockets.handshake import CLIENT, NAME_TAKEN, ORDERED, SEQUENCER, same_token
from tidings.drivers.sockets.node_host import EVERYWHERE, NodeHost
from tidings.drivers.sockets.ordering_links import (
    BETWEEN_SEQUENCERS,
    FROM_CLIENTS,
    POLICY,
    SEQUENCER_MODE,
    OrderingLink,
    accept_only,
    check_layout_size,
    expect_layout,
    format_addresses,
    layout_refusal,
    parse_addresses,
)
from tidings.drivers.sockets.outbox import Policy
from tidings.drivers.sockets.security import Tls, check_dialling, check_listening
from tidings.drivers.sockets.session import Dial, End, Handler, SessionState, SocketSession
from tidings.drivers.sockets.status_text import status_text
from tidings.storage.sequencer_store import open_sequencer_store

MAX_SUBSCRIPTIONS_TOLD = 1_000
"""How many subscriptions the status lists; its text is bounded as well."""
STATUS_CLIENT = "a client that asks for the status"


class SequencerHost:
    """`await start()`, then it listens on `address`; `await stop()` ends it, as abruptly as a crash.

    `addresses` must have every node of the layout whose name sorts higher, which this one dials; for the others and
    itself, it has what clients are told. Without `data` nothing outlives it: its servers begin anew, and clients are
    told so. If this is not the node's `first` start, a server with neither state nor standby is lost and does not
    begin anew.
    """

    def __init__(
        self,
        name: str,
        listen: Address,
        layout: Layout,
        addresses: Mapping[str, Address] | None = None,
        *,
        data: Path | None = None,
        token: str = "",
        tls: Tls | None = None,
        times: Times | None = None,
        on_no_ops: Callable[[PublishNoOps], None] = lambda fact: None,
        emit: Callable[[object], None] | None = None,
        seed: int | None = None,
        first: bool = True,
    ) -> None:
        self.name = name
        self.host = NodeHost(self, name, listen, tls=tls, seed=seed)
        self._port = self.host.port
        self.failed = self.host.turns.failed
        """Waits until the disk fails, which stops the node, and raises the reason."""
        self.layout = layout
        self.addresses = dict(addresses or {})
        self._configured = frozenset(self.addresses)
        self._data = data
        self._token = token
        self._times = times
        self._first = first
        self._on_no_ops = on_no_ops
        self._emit = emit
        self._node: SequencerNode | None = None
        self._links: dict[str, OrderingLink] = {}
        """Peer -> its session that is up."""
        self._lineages: dict[str, int] = {}
        """Server at another node -> its lineage."""

    # --- Life

    async def start(self) -> None:
        """Start; raises ConnectionFailed if it cannot listen, StoreError or OrderError if its state is unusable."""
        dialled = self._check()
        turns = self.host.turns
        await self._listen()
        try:
            store = turns.store = open_sequencer_store(self._data, self.name, turns.open)
            self._node = SequencerNode(self._port, self.layout, store, times=self._times, first=self._first)
            self._node.start()
            await self.host.listener.start_serving()
        except BaseException:
            await self.stop()
            raise
        for peer in dialled:
            self.host.keeper.want(peer, self.addresses[peer])

    @property
    def address(self) -> Address:
        return self.host.address

    def _check(self) -> list[str]:
        """Check the settings and return the nodes to dial."""
        nodes = self.layout.nodes
        if self.name not in nodes:
            raise OrderError(f"{self.name!r} is not a node of the layout; its nodes: {', '.join(nodes)}")
        check_layout_size(self.layout)
        check_listening(self.address, "tcp", self.host.tls, self._token)
        dialled = sorted(node for node in nodes if self.name < node)
        missing = [node for node in dialled if node not in self.addresses]
        if missing:
            raise OrderError(f"{self.name} has no address for {', '.join(missing)}")
        for peer in dialled:
            check_dialling(self.addresses[peer], "tcp", self.host.tls)
        return dialled

    async def _listen(self) -> None:
        await self.host.listen(self.host.listener.to_streams)
        own = self.addresses.get(self.name)
        if own is None or not own.port:
            self.addresses[self.name] = self.address
        if self.addresses[self.name].host in EVERYWHERE:
            del self.addresses[self.name]

    def policy_for(self, hello: Hello | None) -> Policy:
        return POLICY

    def standing(self, peer: str) -> SocketSession | None:
        link = self._links.get(peer)
        return None if link is None else link.session

    async def dial(self, peer: str, address: Address) -> SocketSession:
        hello = Hello(PROTOCOL_VERSION, self.name, SEQUENCER, SEQUENCER_MODE, self._token)
        return await self.host.open(address, Dial(hello, peer), POLICY)

    async def stop(self) -> None:
        await self.host.stop()

    # --- Sessions: what they ask of their host

    def on_hello(self, session: SocketSession, hello: Hello) -> None:
        reason = self._hello_refusal(hello)
        if reason is not None:
            self._refuse(session, hello.node, reason)
            return
        answer = Welcome(PROTOCOL_VERSION, self.name, SEQUENCER_MODE)
        if hello.role == CLIENT:
            status_only = accept_only(
                (StatusRequest,), partial(self._send_status, session), STATUS_CLIENT, session
            )
            session.welcome(hello.node, CLIENT, answer, *status_only)
        else:
            handlers = self._meeting_handlers(session, hello.node, hello.role)
            session.welcome(hello.node, hello.role, answer, *handlers)

    def _hello_refusal(self, hello: Hello) -> str | None:
        if hello.version != PROTOCOL_VERSION:
            return f"unsupported protocol version {hello.version}; {self.name} speaks {PROTOCOL_VERSION}"
        if not same_token(hello.token, self._token):
            return "wrong or missing token"
        if hello.role in (CLIENT, ORDERED):
            return (
                f"the name {hello.node!r} belongs to a sequencer" if hello.node in self.layout.nodes else None
            )
        if hello.role != SEQUENCER:
            return f"unknown role {hello.role!r}: {self.name} is a sequencer"
        if hello.node == self.name:
            return f"there are two sequencers named {self.name}"
        return None if hello.node in self.layout.nodes else f"{hello.node} is not a node of this layout"

    def on_welcome(self, session: SocketSession, welcome: Welcome) -> None:
        assert session.dial is not None
        expected = session.dial.expected
        if (welcome.version, welcome.node, welcome.mode) != (PROTOCOL_VERSION, expected, SEQUENCER_MODE):
            session.refuse(
                f"{welcome.node} ({welcome.mode}) answered where sequencer {expected} was expected"
            )
            return
        self.host.sessions[session] = None
        session.set_up(expected, SEQUENCER, *self._meeting_handlers(session, expected, SEQUENCER))
        session.send(self._own_layout())

    def _meeting_handlers(
        self, session: SocketSession, peer: str, role: str
    ) -> tuple[dict[type, Handler], Handler]:
        """Return handlers that accept nothing but a layout: the layouts are compared before anything else."""
        timer = expect_layout(session)
        session.ended.add_done_callback(lambda _: timer.cancel())

        def meet(message: OrderLayout) -> None:
            timer.cancel()
            self._compare_layouts(session, peer, role, message)

        return accept_only((OrderLayout,), meet, "a peer that has not sent its layout of topics", session)

    def _compare_layouts(self, session: SocketSession, peer: str, role: str, message: OrderLayout) -> None:
        takes_ours = role == ORDERED and not message.json
        reason = None if takes_ours else layout_refusal(self.layout, message.json, self.name)
        if reason is None and role == SEQUENCER:
            reason = self._lineage_refusal(message)
        if reason is not None:
            self._refuse(session, peer, reason)
            return
        before = self._links.get(peer)
        if before is not None:
            before.session.refuse(NAME_TAKEN)
        if session.dial is None:  # not earlier: the dialler accepts no large message until it is welcomed
            session.send(self._own_layout())
        take = partial(self._take, peer)
        if role == ORDERED:
            handlers, other = accept_only(FROM_CLIENTS, take, "a client of a sequencer", session)
        else:
            handlers, other = accept_only(BETWEEN_SEQUENCERS, take, "a sequencer", session)
            handlers[OrderLayout] = partial(self._on_announcement, peer, session)
        session.set_up(peer, role, handlers, other)
        self._links[peer] = self._port.sessions[peer] = OrderingLink(session)
        if role == SEQUENCER:
            self._learn(peer, message)

    def _on_announcement(self, peer: str, session: SocketSession, message: OrderLayout) -> None:
        """Handle a later announcement of a node."""
        reason = self._lineage_refusal(message)
        if reason is None:
            self._learn(peer, message)
        else:
            self._refuse(session, peer, reason)

    def _lineage_refusal(self, message: OrderLayout) -> str | None:
        """Return why the lineages are refused, or None. A server that lost its numbers must not meet nodes that know
        them."""
        known = {**self._lineages, **dict(self._own_lineages())}
        lost = [server for server, lineage in message.lineages if known.get(server, lineage) != lineage]
        if not lost:
            return None
        return f"sequencer server {lost[0]} lost its state; {self.name} knows numbers from before"

    def _learn(self, peer: str, message: OrderLayout) -> None:
        """Learn addresses. A node's own announcement counts most, then what was configured here."""
        self._lineages |= dict(message.lineages)
        nodes = self.layout.nodes
        news = {
            node: address
            for node, address in parse_addresses(message, nodes.__contains__).items()
            if node != self.name
            and self.addresses.get(node) != address
            and node not in self._configured
            and (node == peer or node not in self.addresses)
        }
        if news:
            self.addresses |= news
            self._announce()

    def _own_layout(self, *, again: bool = False) -> OrderLayout:
        text = "" if again else self.layout.text
        return OrderLayout(text, format_addresses(self.addresses), self._own_lineages())

    def _own_lineages(self) -> tuple[tuple[str, int], ...]:
        """Return the lineages of the servers whose state is here."""
        assert self._node is not None
        found = [(server, replica.machine) for server, replica in self._node.sequencer.replicas.items()]
        return tuple((server, machine.lineage) for server, machine in found if machine is not None)

    def _announce(self) -> None:
        """Announce a change to every peer, before anything that follows from it."""
        if self._node is not None:
            for link in list(self._links.values()):
                link.session.send(self._own_layout(again=True))

    def on_ended(self, session: SocketSession, end: End) -> None:
        link = self._links.get(session.peer)
        if link is not None and link.session is session:
            del self._links[session.peer]
            del self._port.sessions[session.peer]

    def _refuse(self, session: SocketSession, peer: str, reason: str) -> None:
        self.host.refusals += 1
        self.host.complain(f"refused {peer} from {session.address.rpartition(':')[0]}", reason)
        session.refuse(reason)

    # --- Faults, for tests

    def cut(self, peers: Collection[str]) -> None:
        """Cut off these peers; see `NodeHost.cut`."""
        self.host.cut(peers)

    # --- The protocol

    def _take(self, peer: str, message: Message) -> None:
        assert self._node is not None
        with self.host.log_store_errors():
            self._node.receive(peer, message)

    def on_timer(self, name: TimerName) -> None:
        assert self._node is not None
        self._node.timer(name)

    def no_ops_published(self, server: str, number: int) -> None:
        """Note that the event service has the no-ops that went to `on_no_ops`."""
        if self._node is not None and not self.host.stopped:
            with self.host.log_store_errors():
                self._node.sequencer.no_ops_published(server, number)

    def on_fact(self, fact: object) -> None:
        match fact:
            case PublishNoOps():
                self.host.turns.after(partial(self._on_no_ops, fact))
            case RoleChanged():
                self._announce()
            case Misbehaviour(peer=peer, what=what):
                self.host.complain(peer, what)
        if self._emit is not None:
            self._emit(fact)

    # --- Status

    def _send_status(self, session: SocketSession, message: StatusRequest) -> None:
        session.send(Status(status_text(self.status())))

    def status(self) -> dict[str, object]:
        assert self._node is not None
        return {
            "sequencer": self.name,
            "mode": SEQUENCER_MODE,
            "order": "causal" if self.layout.causal else "total",
            **self.host.status(),
            "transport": "tcp" if self.host.tls is None else "tls",
            "data": None if self._data is None else str(self._data),
            "left_out": sum(link.left_out for link in self._links.values()),
            "clients": sum(link.session.role == ORDERED for link in self._links.values()),
            "servers": self._node.sequencer.status(),
            "subscriptions": self._subscriptions_status(),
            "witness_of": [place.name for place in self.layout.servers if place.witness == self.name],
            "nodes": {node: self._node_status(node) for node in self.layout.nodes},
            "sessions": [
                session.status() for session in self.host.sessions if session.state is SessionState.UP
            ],
        }

    def _subscriptions_status(self) -> list[dict[str, object]] | int:
        """Return the subscribers and their topics, each from the server where its changes begin; if there are too
        many, only their number."""
        assert self._node is not None
        found = [
            (identity, replica.machine.server.topics_of(identity))
            for replica in self._node.sequencer.replicas.values()
            if replica.role is ReplicaRole.ACTIVE and replica.machine is not None
            for identity in replica.machine.server.subscribers
        ]
        if len(found) > MAX_SUBSCRIPTIONS_TOLD:
            return len(found)
        return [
            {
                "subscriber": name,
                "incarnation": incarnation,
                "topics": [self.layout.entry(rank) for rank in sorted(ranks)],
            }
            for (name, incarnation), ranks in found
        ]

    def _node_status(self, node: str) -> dict[str, object]:
        address = self.addresses.get(node)
        up = node == self.name or node in self._links
        return {"address": None if address is None else str(address), "up": up}
