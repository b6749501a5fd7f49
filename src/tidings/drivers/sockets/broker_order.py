"""Connects a broker to the sequencers, for the ordered durable subscriptions that it keeps.

The broker is a client of theirs with a name of its own. It connects when the first such subscription wants it, and by
itself after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidings.core.errors import ConnectionFailed, TidingsError
from tidings.core.overlay.guaranteed.ordered_shares import OrderedShares
from tidings.drivers.address import Address
from tidings.drivers.sockets.node_host import NodeHost
from tidings.drivers.sockets.security import Tls
from tidings.drivers.sockets.sequencing import SequencersRefused, SequencingConnection


class BrokerOrder:
    """Finds the sequencers for `ordered`. `stop` ends the connection."""

    def __init__(
        self,
        host: NodeHost,
        ordered: OrderedShares,
        addresses: Sequence[Address],
        token: str,
        tls: Tls | None,
    ) -> None:
        self._host = host
        self._ordered = ordered
        self._addresses = tuple(addresses)
        self._token = token
        self._tls = tls
        self._connection: SequencingConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        ordered.find = self._find

    def _find(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._connect(self._connecting))

    async def _connect(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        await self._close()
        connection = self._connection = SequencingConnection(
            self._addresses,
            self._ordered.client,
            emit=lambda fact: self._on_fact(connection, fact),
            token=self._token,
            tls=self._tls,
        )
        try:
            await connection.open()
        except TidingsError as error:
            reason = str(error)
            self._in_turn(lambda: self._ordered.refuse(reason))
        else:
            self._in_turn(lambda: self._ordered.use(connection.module))

    def _on_fact(self, connection: SequencingConnection, fact: object) -> None:
        if connection is not self._connection:
            return
        if isinstance(fact, SequencersRefused):
            reason = fact.reason
            # Later: the module is in the middle of a handler.
            asyncio.get_running_loop().call_soon(self._in_turn, lambda: self._ordered.lost(reason))
        else:
            self._in_turn(lambda: self._ordered.on_order_fact(fact))

    def _in_turn(self, act: Callable[[], None]) -> None:
        """Let the broker handle it, as it handles a message: what it writes is on disk before anything leaves."""
        if not self._host.stopped:
            with self._host.log_store_errors():
                act()

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def stop(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        await self._close()

    def status(self) -> dict[str, bool]:
        """Return which nodes of the sequencers are connected; empty if they were not needed yet."""
        connection = self._connection
        try:
            return {} if connection is None else connection.nodes
        except ConnectionFailed:
            return {}
