"""Connects a client of a live scenario to its broker and, with an order, to the sequencers.

A publisher and a subscriber of one name are two roles of one link.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from tidings.core.client.application import Application
from tidings.core.client.session import ClientSession
from tidings.core.errors import ConnectionFailed
from tidings.core.events.subscription import Subscription
from tidings.core.ordering.layout import Layout, parse_layout
from tidings.core.ordering.module import OrderingModule
from tidings.drivers.address import Address
from tidings.drivers.sockets.client import ClientConnection
from tidings.drivers.sockets.sequencing import SequencersRefused, SequencingConnection
from tidings.scenarios.file.times import NS_PER_S
from tidings.scenarios.live import facts as words
from tidings.scenarios.live.facts import Go, OrderingWork

RETRY_S = 0.2
"""Between attempts to connect, for a client that starts while its broker or all sequencers are down."""

LOOK_S = 0.02
ROUNDING_S = 0.002
"""Event loops count milliseconds and may wake up one too early."""


def report(fact: words.Report) -> None:
    """Send a report to the conductor at once: a buffered line would be lost with the process."""
    sys.stdout.buffer.write(words.line_of(fact))
    sys.stdout.buffer.flush()


class ClientRole:
    """A part that a client plays in the scenario. `go` is the common clock, set once the run starts."""

    go: Go

    def __init__(self, name: str, link: LiveLink) -> None:
        self.name = name
        self.link = link
        link.roles.append(self)

    async def run(self) -> None:
        raise NotImplementedError

    async def until(self, at_ns: int) -> None:
        """Sleep until that time; yield to the event loop even if it has passed."""
        await asyncio.sleep(max(0, at_ns - self.go.now) / NS_PER_S)
        if self.go.now < at_ns:
            await asyncio.sleep(ROUNDING_S)

    def on_fact(self, fact: object) -> None:
        """Handle a fact; each role gets all facts of the client."""
        raise NotImplementedError

    def on_open(self) -> None:
        """The client is open."""

    def on_connection_lost(self) -> None:
        """The connection to the broker is lost."""

    def on_subscribing(self, name: str) -> None:
        """The application is about to send the network a subscription of that name."""


class SequencerLink:
    """Connects to the sequencers. `patience` limits how long the client waits for a numbered event."""

    def __init__(self, work: OrderingWork, *, all_are_there: bool) -> None:
        self.layout: Layout = parse_layout(work.layout)
        self.patience = work.patience
        self._addresses = tuple(work.nodes.values())
        self._all = all_are_there
        self._connection: SequencingConnection | None = None

    @property
    def module(self) -> OrderingModule:
        assert self._connection is not None, "open() must come first"
        return self._connection.module

    async def open(self, name: str, emit: Callable[[object], None]) -> None:
        """Wait until one sequencer accepts the connection; at the start of the scenario, when all run, until all do."""
        connection = self._connection = await self._open_one(name, emit)
        enough = not self._all
        while not enough:
            await asyncio.sleep(LOOK_S)
            enough = all(connection.nodes.values())

    async def _open_one(self, name: str, emit: Callable[[object], None]) -> SequencingConnection:
        while True:
            connection = SequencingConnection(self._addresses, name, emit=emit, layout=self.layout)
            try:
                await connection.open()
            except ConnectionFailed:
                await asyncio.sleep(RETRY_S)
            else:
                return connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class _AnnouncingSession:
    """Wraps the session with the broker; calls the roles before the network learns of a subscription."""

    def __init__(self, link: LiveLink) -> None:
        self._link = link
        session = self._session = link.session
        self.bookmarks = session.bookmarks
        self.identity = session.identity
        self.reserve = session.reserve
        self.publish_as = session.publish_as
        self.publish_stretch = session.publish_stretch
        self.unsubscribe = session.unsubscribe
        self.shown = session.shown

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    @property
    def next_sequence(self) -> int:
        return self._session.next_sequence

    def subscribe(self, *subscriptions: Subscription) -> None:
        for role in self._link.roles:
            for subscription in subscriptions:
                role.on_subscribing(subscription.id)
        self._link.session.subscribe(*subscriptions)


class LiveLink:
    def __init__(
        self, name: str, address: Address, incarnation: int, sequencers: SequencerLink | None = None
    ) -> None:
        self.name = name
        self.roles: list[ClientRole] = []
        self.sequencers = sequencers
        self.connections = 0
        """How many connections to its broker it has had."""
        self._was_connected = False
        self._closing = False
        self.application: Application
        """The client between the roles and the network."""
        self.connection = ClientConnection(
            address,
            name,
            emit=self._on_session_fact,
            on_connection=self._on_connection,
            incarnation=incarnation,
            acknowledges=False,
        )

    @property
    def session(self) -> ClientSession:
        return self.connection.client.session

    def numbers(self, topic: str) -> bool:
        """Return whether events of the topic get a number first."""
        return self.sequencers is not None and self.sequencers.layout.rank_of(topic) is not None

    async def open(self) -> None:
        """Wait until the broker (which may be down or cut off) and, with an order, a sequencer accept the client."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._open_connection())
            if self.sequencers is not None:
                tasks.create_task(self.sequencers.open(self.name, self._on_session_fact))
        if self.sequencers is not None:
            self.application.add_order(self.sequencers.module, patience=self.sequencers.patience)
        for role in self.roles:
            role.on_open()

    async def _open_connection(self) -> None:
        while True:
            try:
                return await self.connection.open()
            except ConnectionFailed:
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        self._closing = True
        await self.connection.close()
        if self.sequencers is not None:
            await self.sequencers.close()

    def _on_session_fact(self, fact: object) -> None:
        """Handle a fact of the broker's session or of the sequencers'."""
        self.application.on_fact(fact)

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, SequencersRefused) and not self._closing:
            report(words.FailedReport(f"client {self.name!r}: {fact.reason}"))
        for role in self.roles:
            role.on_fact(fact)

    def _on_connection(self, up: bool, reason: str) -> None:
        self.connections += up
        if up and not self._was_connected:
            self._was_connected = True
            self.session.takes_runs = self.sequencers is not None
            self.application = Application(_AnnouncingSession(self), self.on_fact, lingers=True)
        elif not up and self.connection.closed and not self._closing:
            report(words.FailedReport(f"client {self.name!r}: {reason}"))
        elif not up:
            for role in self.roles:
                role.on_connection_lost()
