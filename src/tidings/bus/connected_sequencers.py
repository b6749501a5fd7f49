"""Access to sequencers in other processes, over the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidings.core.ordering.layout import Layout
from tidings.core.ordering.module import OrderingModule
from tidings.drivers.address import Address
from tidings.drivers.sockets.security import Tls
from tidings.drivers.sockets.sequencing import SequencingConnection


class ConnectedSequencing:
    """Access through at least one sequencer at these addresses, which names the others."""

    wanted = True
    """A client cannot see whether others want an order, so every event gets a number."""

    def __init__(
        self, addresses: Sequence[Address], name: str, *, token: str, tls: Tls | None, timeout_s: float
    ) -> None:
        self._addresses = addresses
        self._name = name
        self._token = token
        self._tls = tls
        self._timeout_s = timeout_s
        self._connection: SequencingConnection | None = None
        self.module: OrderingModule
        self.layout: Layout

    async def open(self, emit: Callable[[object], None]) -> None:
        self._connection = SequencingConnection(
            self._addresses, self._name, emit=emit, layout=None, token=self._token, tls=self._tls
        )
        await self._connection.open(self._timeout_s)
        self.module = self._connection.module
        self.layout = self.module.layout

    def want(self) -> None:
        pass

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def status(self) -> dict[str, Any]:
        """Return which of the nodes are connected and, if they refused us, why."""
        if self._connection is None:
            return {}
        found: dict[str, Any] = {
            node: "connected" if connected else "away" for node, connected in self._connection.nodes.items()
        }
        if self._connection.refused:
            found["refused"] = self._connection.refused
        return found
